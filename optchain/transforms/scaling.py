"""Multiplying the updates by a number: `scale`, `scale_by_learning_rate`, `scale_by_schedule`."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax

from optchain.core.basic import identity
from optchain.core.errors import known
from optchain.core.leaves import leafwise
from optchain.core.pair import EmptyState, GradientTransformationExtraArgs, Numeric, ScalarOrSchedule, Schedule
from optchain.core.value import transform

ScaleState = EmptyState


class ScaleByScheduleState(NamedTuple):
    """How many updates were made.

    Attributes:
      count: int32 scalar.
    """

    count: jax.Array


def scale_rule(u, p, *, step_size):
    """``step_size * u``."""
    return step_size * u


@transform
def scale(step_size: Numeric) -> GradientTransformationExtraArgs:
    """Multiplies the updates by a number.

    ``u <- step_size * u``

    Args:
      step_size: A scalar, Python's or an array. A negative one turns a gradient into a descent step.

    Returns:
      A pair with an `EmptyState`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.scale(-0.5)
      >>> tx.update(jnp.array([2.0, 4.0]), tx.init(jnp.zeros(2)))[0].tolist()
      [-1.0, -2.0]
    """
    return leafwise(
        scale_rule, scalars=lambda state: dict(step_size=step_size), elementwise=True, sign=sign_of(step_size)
    )


@transform
def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformationExtraArgs:
    """Multiplies the updates by the value of a schedule.

    ``u <- step_size_fn(t) * u``, where the first update sees ``t = 0``. The sign of the schedule's values is kept: a
    schedule of learning rates needs `scale_by_learning_rate` instead, or a ``scale(-1.0)`` after it.

    Args:
      step_size_fn: From an int32 scalar, the number of updates made before, to a scalar.

    Returns:
      A pair with a `ScaleByScheduleState`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.scale_by_schedule(optchain.linear_schedule(1.0, 0.0, 4))
      >>> state = tx.init(jnp.zeros(1))
      >>> for _ in range(2):
      ...     updates, state = tx.update(jnp.ones(1), state)
      >>> updates.tolist(), int(state.count)
      ([0.75], 2)
    """
    return leafwise(
        scale_rule,
        ScaleByScheduleState,
        scalars=lambda state: dict(step_size=step_size_fn(state.count)),
        elementwise=True,
        sign=None,
    )


@transform
def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> GradientTransformationExtraArgs:
    """Multiplies the updates by minus the learning rate.

    ``u <- -learning_rate * u``, or ``-learning_rate(t) * u`` where the first update sees ``t = 0``.

    Args:
      learning_rate: A scalar, or a schedule from the number of updates made before to a scalar. None leaves the updates
        as they are.
      flip_sign: False multiplies by plus the learning rate.

    Returns:
      A pair with an `EmptyState`, or a `ScaleByScheduleState` for a schedule.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.scale_by_learning_rate(0.1)
      >>> tx.update(jnp.array([2.0]), tx.init(jnp.zeros(1)))[0].tolist()
      [-0.2]
    """
    if learning_rate is None:
        return identity()
    flip = -1 if flip_sign else +1
    if callable(learning_rate):
        rate = learning_rate  # a name of its own, since the type of an argument is not narrowed in a closure
        return leafwise(
            scale_rule,
            ScaleByScheduleState,
            scalars=lambda state: dict(step_size=flip * rate(state.count)),
            elementwise=True,
            sign=flip,
        )
    sign = sign_of(learning_rate)
    return leafwise(
        scale_rule,
        scalars=lambda state: dict(step_size=flip * learning_rate),
        elementwise=True,
        sign=flip if sign is None else flip * sign,  # what is not known yet is taken to be positive, as a schedule is
    )


def sign_of(number: Numeric) -> int | None:
    """The sign of a real number, or None if it is not known yet."""
    value = known(number)
    return None if value is None or math.isnan(value) else int(value > 0) - int(value < 0)
