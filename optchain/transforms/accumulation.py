"""Sums and averages of the updates over time: `trace` and `ema`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from optchain.core.leaves import Slot, leafwise, safe_increment
from optchain.core.pair import GradientTransformationExtraArgs, Numeric
from optchain.core.value import transform
from optchain.transforms import moments


class TraceState(NamedTuple):
    """The running sum of the updates.

    Attributes:
      trace: A tree like the parameters.
    """

    trace: Any


class EmaState(NamedTuple):
    """The moving average of the updates.

    Attributes:
      count: int32 scalar, how many updates were made.
      ema: A tree like the parameters; without bias correction.
    """

    count: jax.Array
    ema: Any


def trace_rule(u, p, trace, *, decay, nesterov):
    """``m <- u + decay * m``, the new update ``m`` or ``u + decay * m``."""
    trace = u + decay * trace
    return u + decay * trace if nesterov else trace, trace


@transform
def trace(decay: Numeric, nesterov: bool = False, accumulator_dtype: Any = None) -> GradientTransformationExtraArgs:
    """Replaces the updates by their running sum: momentum in heavy-ball form.

    ``m <- u + decay * m``, then ``u <- m``, or ``u <- u + decay * m`` with Nesterov's look-ahead.

    Args:
      decay: The momentum, a scalar usually in [0, 1).
      nesterov: Whether to use Nesterov's form.
      accumulator_dtype: What `m` is stored in; None for the dtype of the parameters. The arithmetic is float32 or
        wider.

    Returns:
      A pair with a `TraceState`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.trace(0.5)
      >>> state = tx.init(jnp.zeros(1))
      >>> for _ in range(3):
      ...     updates, state = tx.update(jnp.ones(1), state)
      >>> updates.tolist()
      [1.75]

    References:
      Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013.

    Notes:
      The sum is not an average: at a constant gradient it grows to ``1 / (1 - decay)`` times the gradient. For the
      average use `ema`.
    """
    return leafwise(
        trace_rule,
        TraceState,
        slots=dict(trace=Slot(accumulator_dtype)),
        scalars=lambda state: dict(decay=decay),
        static=dict(nesterov=nesterov),
        elementwise=True,
        sign=+1,
    )


def ema_rule(u, p, ema, *, rate, correction):
    """``m <- rate * m + (1 - rate) * u``, the new update ``correction * m``."""
    ema = moments.moving(ema, u, rate)
    return correction * ema, ema


@transform
def ema(decay: Numeric, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformationExtraArgs:
    """Replaces the updates by their exponential moving average.

    ``m <- decay * m + (1 - decay) * u``, then ``u <- m / (1 - decay**t)``, or ``u <- m`` without bias correction, where
    ``t = 1`` at the first update.

    Args:
      decay: The decay rate, a scalar in [0, 1).
      debias: Whether to correct the bias towards zero of the first steps.
      accumulator_dtype: What `m` is stored in; None for the dtype of the parameters. The arithmetic is float32 or
        wider.

    Returns:
      A pair with an `EmaState`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.ema(0.9)
      >>> updates, state = tx.update(jnp.array([2.0]), tx.init(jnp.zeros(1)))
      >>> round(float(updates[0]), 5), round(float(state.ema[0]), 5)
      (2.0, 0.2)
    """
    if debias:
        moments.check_rate("ema", "decay", decay)

    def scalars(state):
        return dict(
            rate=moments.decay(decay), correction=moments.debias(decay, safe_increment(state.count)) if debias else 1.0
        )

    return leafwise(
        ema_rule, EmaState, slots=dict(ema=Slot(accumulator_dtype)), scalars=scalars, elementwise=True, sign=+1
    )
