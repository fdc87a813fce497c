"""Schedules of one shape: constant, linear, polynomial, cosine, exponential.

A schedule is called with a step count, an integer or an array of integers, and works on each entry. Its value is
float32, or float64 under x64 unless the settings are float32 arrays. Before a transition begins, and after it has
ended, the value stands still. Counts, and settings that are numbers of steps, may be larger than int32 holds. Values,
factors and exponents may be arrays, also traced ones, and a schedule can be differentiated with respect to them.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from optchain.core.pair import Numeric, Schedule
from optchain.core.value import schedule


@schedule
def constant_schedule(value: Numeric) -> Schedule:
    """Keeps one value.

    Args:
      value: What the schedule returns, as it is.

    Returns:
      A schedule.

    Example:
      >>> import optchain
      >>> optchain.constant_schedule(0.1)(1000)
      0.1
    """
    return lambda count: value


@schedule
def linear_schedule(
    init_value: Numeric, end_value: Numeric, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """Goes from one value to another along a straight line.

    ``init_value + (end_value - init_value) * s`` with ``s = clip((count - transition_begin) / transition_steps, 0, 1)``

    Args:
      init_value: The value up to step `transition_begin`.
      end_value: The value from step ``transition_begin + transition_steps`` on.
      transition_steps: Length of the transition in steps. With 0 or less the value stays at `init_value`.
      transition_begin: Step at which the transition begins. A negative one counts as 0.

    Returns:
      A schedule.

    Example:
      >>> import optchain
      >>> rate = optchain.linear_schedule(init_value=1.0, end_value=0.0, transition_steps=10)
      >>> [round(float(rate(count)), 4) for count in (0, 3, 10, 11)]
      [1.0, 0.7, 0.0, 0.0]
    """
    steps, begin = as_count(transition_steps), as_count(transition_begin)
    return lambda count: linear(as_count(count), init_value, end_value, steps, begin)


@schedule
def polynomial_schedule(
    init_value: Numeric, end_value: Numeric, power: Numeric, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """Goes from one value to another along a power of the share of the transition that is still to come.

    ``end_value + (init_value - end_value) * (1 - s) ** power`` with
    ``s = clip((count - transition_begin) / transition_steps, 0, 1)``

    Args:
      init_value: The value up to step `transition_begin`.
      end_value: The value from step ``transition_begin + transition_steps`` on.
      power: Exponent, 0 or more. 1 is `linear_schedule`, and 0 keeps `init_value`.
      transition_steps: Length of the transition in steps. With 0 or less the value stays at `init_value`.
      transition_begin: Step at which the transition begins. A negative one counts as 0.

    Returns:
      A schedule.

    Raises:
      ValueError: If `power` is negative: the value would be infinite at the end.

    Example:
      >>> import optchain
      >>> rate = optchain.polynomial_schedule(init_value=1.0, end_value=0.0, power=2, transition_steps=10)
      >>> [round(float(rate(count)), 4) for count in (0, 5, 10)]
      [1.0, 0.25, 0.0]
    """
    require_not_negative("polynomial_schedule", power=power)
    steps, begin = as_count(transition_steps), as_count(transition_begin)
    return lambda count: polynomial(as_count(count), init_value, end_value, power, steps, begin)


@schedule
def cosine_decay_schedule(
    init_value: Numeric,
    decay_steps: int,
    alpha: Numeric = 0.0,
    exponent: Numeric = 1.0,
    *,
    end_value: Numeric | None = None,
) -> Schedule:
    """Goes from one value to another along half a cosine.

    ``end + (init_value - end) * ((1 + cos(pi * s)) / 2) ** exponent`` with ``s = clip(count / decay_steps, 0, 1)`` and
    ``end = alpha * init_value``, or `end_value`

    Args:
      init_value: The value at step 0.
      decay_steps: Length of the decay in steps, positive. From this step on the final value stands.
      alpha: The final value as a multiple of `init_value`.
      exponent: Exponent of the cosine, 0 or more. 0 keeps `init_value`.
      end_value: The final value itself, in place of `alpha`.

    Returns:
      A schedule.

    Raises:
      ValueError: If `decay_steps` is not positive, if `exponent` is negative, or if both `alpha` and `end_value` are
        set.

    Example:
      >>> import optchain
      >>> rate = optchain.cosine_decay_schedule(init_value=1.0, decay_steps=10, end_value=0.1)
      >>> [round(float(rate(count)), 4) for count in (0, 5, 10)]
      [1.0, 0.55, 0.1]

    References:
      Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, arXiv:1608.03983.

    Notes:
      PyTorch's CosineAnnealingLR is the same up to `decay_steps` and rises again after it.
    """
    name = "cosine_decay_schedule"
    require_positive(name, decay_steps=decay_steps)
    require_not_negative(name, exponent=exponent)
    end = final_value(name, end_value, alpha * init_value, "alpha", alpha, 0.0)
    steps = as_count(decay_steps)
    return lambda count: cosine(as_count(count), init_value, end, exponent, steps)


@schedule
def exponential_decay(
    init_value: Numeric,
    transition_steps: int,
    decay_rate: Numeric,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Numeric | None = None,
) -> Schedule:
    """Multiplies by a constant factor every so many steps, smoothly or at once.

    ``init_value * decay_rate ** (max(count - transition_begin, 0) / transition_steps)``, not beyond `end_value`

    Args:
      init_value: The value up to step `transition_begin`.
      transition_steps: Number of steps in which the value changes by `decay_rate`. With 0 or less it stays at
        `init_value`, and `end_value` has no effect.
      decay_rate: Factor, not negative. 0 keeps `init_value`, and `end_value` has no effect.
      transition_begin: Step at which the decay begins. A negative one counts as 0.
      staircase: True rounds the exponent down to an integer, so that the value changes every `transition_steps` steps.
      end_value: Bound of the value at every step: from below if `decay_rate` is less than 1, else from above.

    Returns:
      A schedule.

    Raises:
      ValueError: If `decay_rate` is negative.

    Example:
      >>> import optchain
      >>> rate = optchain.exponential_decay(1.0, transition_steps=10, decay_rate=0.5, end_value=0.3)
      >>> [round(float(rate(count)), 4) for count in (0, 10, 100)]
      [1.0, 0.5, 0.3]
    """
    require_not_negative("exponential_decay", decay_rate=decay_rate)
    steps, begin = as_count(transition_steps), as_count(transition_begin)
    return lambda count: exponential(
        as_count(count), init_value, end_value, decay_rate, steps, begin, staircase=bool(staircase)
    )


def require(condition: Any, name: str, message: str) -> None:
    """Raises a ValueError in the name of a schedule unless the condition holds; a traced one cannot be checked."""
    if not isinstance(condition, Tracer) and not np.all(condition):
        raise ValueError(f"{name}: {message}")


def require_positive(name: str, **settings: Any) -> None:
    """Refuses settings of 0 or less."""
    for setting, value in settings.items():
        require(value > 0, name, f"{setting} must be positive, got {value}.")


def require_not_negative(name: str, **settings: Any) -> None:
    """Refuses settings below 0."""
    for setting, value in settings.items():
        require(value >= 0, name, f"{setting} must not be negative, got {value}.")


def final_value(
    name: str, end_value: Numeric | None, derived: Numeric, other: str, given: Numeric, default: float
) -> Numeric:
    """The final value of a schedule: `end_value`, or else the one derived from the other argument that can set it."""
    if end_value is None:
        return derived
    if not isinstance(given, (int, float)) or given != default:
        raise ValueError(f"{name}: {other} and end_value both set the final value; pass one of them.")
    return end_value


def as_count(count: Any) -> Any:
    """A number of steps, or an array of them, as int32, or as floats if that cannot hold it."""
    if isinstance(count, jax.Array):
        return count
    count = np.asarray(count)
    if count.dtype.kind in "biuO":
        return count.astype(float if np.any(np.abs(count) > np.iinfo(np.int32).max) else np.int32)
    return count


def real_dtype(*values: Any) -> Any:
    """float32, or float64 under x64 if one of the values is a float64 array or all are Python numbers."""
    return jnp.promote_types(jnp.float32, jnp.result_type(float, *values))


def shares(count: Any, steps: Any, begin: Any, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """The shares of a transition that are still to come and that are done.

    They are 1 and 0 up to `begin`, and 0 and 1 from ``begin + steps`` on: exactly, though XLA divides by a constant
    through its reciprocal. The steps are counted in integers and the smaller share is not 1 minus the larger one, so
    that near both ends of a long transition it keeps its relative precision.
    """
    done = jnp.clip(count - jnp.maximum(begin, 0), 0, jnp.maximum(steps, 0))
    length = jnp.where(steps > 0, steps, 1).astype(dtype)
    left = jnp.where(done > 0, jnp.minimum((steps - done).astype(dtype) / length, 1), 1)
    return left, jnp.where(left < 0.5, 1 - left, done.astype(dtype) / length)


def half_cosine(share: jax.Array) -> jax.Array:
    """(1 - cos(pi * share)) / 2, without the cancellation."""
    return jnp.square(jnp.sin(np.pi / 2 * share))


def blend(start: Any, end: Any, left: jax.Array, done: jax.Array) -> jax.Array:
    """What lies between `start` and `end` by their weights, which sum to 1."""
    return jnp.asarray(start, left.dtype) * left + jnp.asarray(end, left.dtype) * done


@jax.jit
def linear(count, start, end, steps, begin):
    """The value of `linear_schedule`: a blend by the shares."""
    return blend(start, end, *shares(count, steps, begin, real_dtype(start, end)))


@jax.jit
def polynomial(count, start, end, power, steps, begin):
    """The value of `polynomial_schedule`: a blend by a power of the share that is left."""
    left, _ = shares(count, steps, begin, real_dtype(start, end, power))
    weight = left ** jnp.asarray(power, left.dtype)
    return blend(start, end, weight, 1 - weight)


@jax.jit
def cosine(count, start, end, exponent, steps):
    """The value of `cosine_decay_schedule`: a blend by a power of half a cosine of the share that is left."""
    left, _ = shares(count, steps, 0, real_dtype(start, end, exponent))
    weight = half_cosine(left) ** jnp.asarray(exponent, left.dtype)
    return blend(start, end, weight, 1 - weight)


@functools.partial(jax.jit, static_argnames="staircase")
def exponential(count, start, end, rate, steps, begin, *, staircase):
    """The value of `exponential_decay`, of which `end` may be None."""
    dtype = real_dtype(start, rate, *([] if end is None else [end]))
    decays = (steps > 0) & (rate != 0)
    steps, rate = jnp.where(steps > 0, steps, 1), jnp.where(decays, jnp.asarray(rate, dtype), 1)
    elapsed = jnp.maximum(count - jnp.maximum(begin, 0), 0)
    periods = (elapsed // steps).astype(dtype) if staircase else elapsed.astype(dtype) / steps.astype(dtype)
    # A growth without end stops at the largest number: infinity times an initial value of zero would be NaN.
    value = jnp.asarray(start, dtype) * jnp.minimum(rate**periods, jnp.finfo(dtype).max)
    if end is None:
        return value
    end = jnp.asarray(end, dtype)
    return jnp.where(decays, jnp.where(rate < 1, jnp.maximum(value, end), jnp.minimum(value, end)), value)
