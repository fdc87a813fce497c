"""Schedules made of other schedules, one after the other: joins, warm-ups and warm restarts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from optchain.core.pair import Numeric, Schedule
from optchain.core.value import schedule
from optchain.schedules.shapes import (
    as_count,
    cosine_decay_schedule,
    exponential_decay,
    linear_schedule,
    real_dtype,
    require,
    require_not_negative,
)


@schedule
def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Follows one schedule after the other, each from its own step 0.

    Args:
      schedules: Functions of the step count, the first for the steps before ``boundaries[0]``, the next for those from
        ``boundaries[0]`` on, and so on. Each is given the number of steps since its own boundary, never a negative one.
      boundaries: The steps at which the next schedule takes over, in ascending order, one fewer than `schedules`.

    Returns:
      A schedule.

    Raises:
      ValueError: If there are no schedules, if the boundaries are not one fewer, or if they are out of order.
      TypeError: If one of the schedules is not callable.

    Example:
      >>> import optchain
      >>> warmup = optchain.linear_schedule(0.0, 1.0, 10)
      >>> decay = optchain.exponential_decay(1.0, transition_steps=5, decay_rate=0.5)
      >>> rate = optchain.join_schedules([warmup, decay], boundaries=[10])
      >>> [round(float(rate(count)), 4) for count in (5, 10, 15, 20)]
      [0.5, 1.0, 0.5, 0.25]
    """
    name = "join_schedules"
    require(
        len(schedules) == len(boundaries) + 1,
        name,
        f"the boundaries must be one fewer than the schedules, got {len(boundaries)} for {len(schedules)} schedules.",
    )
    for position, member in enumerate(schedules):
        if not callable(member):
            raise TypeError(
                f"{name}: schedules[{position}] is not a schedule but {member!r}; for a number use constant_schedule."
            )
    for earlier, later in itertools.pairwise(boundaries):
        require(earlier <= later, name, f"the boundaries must ascend, got {later} after {earlier}.")
    bounds = [as_count(boundary) for boundary in boundaries]

    def joined(count):
        count = as_count(count)
        later = [member(jnp.maximum(count - b, 0)) for member, b in zip(schedules[1:], bounds, strict=True)]
        values = [schedules[0](count), *later]
        dtype = real_dtype(*values)
        out = jnp.asarray(values[0], dtype)
        for value, bound in zip(later, bounds, strict=True):
            out = jnp.where(count < bound, out, jnp.asarray(value, dtype))
        return out

    return joined


@schedule
def warmup_constant_schedule(init_value: Numeric, peak_value: Numeric, warmup_steps: int) -> Schedule:
    """Rises along a straight line and stays at the peak.

    ``init_value + (peak_value - init_value) * min(count / warmup_steps, 1)``

    Args:
      init_value: The value at step 0.
      peak_value: The value from step `warmup_steps` on.
      warmup_steps: Length of the rise in steps. With 0 or less the value stays at `init_value`, as that of
        `linear_schedule` does.

    Returns:
      A schedule.

    Example:
      >>> import optchain
      >>> rate = optchain.warmup_constant_schedule(init_value=0.0, peak_value=1.0, warmup_steps=4)
      >>> [round(float(rate(count)), 4) for count in (0, 1, 4, 5)]
      [0.0, 0.25, 1.0, 1.0]
    """
    return linear_schedule(init_value, peak_value, warmup_steps)


@schedule
def warmup_cosine_decay_schedule(
    init_value: Numeric,
    peak_value: Numeric,
    warmup_steps: int,
    decay_steps: int,
    end_value: Numeric = 0.0,
    exponent: Numeric = 1.0,
) -> Schedule:
    """Rises to a peak along a straight line, then falls along half a cosine.

    Before `warmup_steps` it is `linear_schedule` from `init_value` to `peak_value`, then `cosine_decay_schedule` from
    `peak_value` to `end_value` in ``decay_steps - warmup_steps`` steps.

    Args:
      init_value: The value at step 0.
      peak_value: The value at step `warmup_steps`. If it is 0 the value is 0 from there on, whatever `end_value` is.
      warmup_steps: Length of the rise in steps. With 0 the value begins at the peak.
      decay_steps: Length of rise and fall together in steps, more than `warmup_steps`.
      end_value: The value from step `decay_steps` on.
      exponent: Exponent of the cosine, 0 or more.

    Returns:
      A schedule.

    Raises:
      ValueError: If `decay_steps` is not more than `warmup_steps`, or `exponent` is negative.

    Example:
      >>> import optchain
      >>> rate = optchain.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=5, decay_steps=15, end_value=0.1)
      >>> [round(float(rate(count)), 4) for count in (0, 1, 5, 10, 15)]
      [0.0, 0.2, 1.0, 0.55, 0.1]
    """
    name = "warmup_cosine_decay_schedule"
    require(
        decay_steps > warmup_steps,
        name,
        f"decay_steps counts the warm-up in and must be more than warmup_steps, got {decay_steps} and {warmup_steps}.",
    )
    require_not_negative(name, exponent=exponent)
    warmup = linear_schedule(init_value, peak_value, warmup_steps)
    end_value = end_value * (peak_value != 0)  # the final value is a share of the peak, and 0 has none but 0
    decay = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, exponent=exponent, end_value=end_value)
    return join_schedules([warmup, decay], [warmup_steps])


@schedule
def warmup_exponential_decay_schedule(
    init_value: Numeric,
    peak_value: Numeric,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: Numeric,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Numeric | None = None,
) -> Schedule:
    """Rises to a peak along a straight line, then decays exponentially.

    Before `warmup_steps` it is `linear_schedule` from `init_value` to `peak_value`, then `exponential_decay` from
    `peak_value` on.

    Args:
      init_value: The value at step 0.
      peak_value: The value at step `warmup_steps`.
      warmup_steps: Length of the rise in steps. With 0 the value begins at the peak.
      transition_steps: Number of steps in which the value changes by `decay_rate`. With 0 or less it stays at the peak.
      decay_rate: Factor, not negative. 0 keeps the peak.
      transition_begin: Number of steps between the peak and the decay. A negative one counts as 0.
      staircase: True lets the value change every `transition_steps` steps only.
      end_value: Bound of the value from the peak on: from below if `decay_rate` is less than 1, else from above.

    Returns:
      A schedule.

    Raises:
      ValueError: If `decay_rate` is negative.

    Example:
      >>> import optchain
      >>> rate = optchain.warmup_exponential_decay_schedule(0.0, 1.0, 5, transition_steps=10, decay_rate=0.5)
      >>> [round(float(rate(count)), 4) for count in (0, 1, 5, 15, 25)]
      [0.0, 0.2, 1.0, 0.5, 0.25]
    """
    require_not_negative("warmup_exponential_decay_schedule", decay_rate=decay_rate)
    warmup = linear_schedule(init_value, peak_value, warmup_steps)
    decay = exponential_decay(peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value)
    return join_schedules([warmup, decay], [warmup_steps])


@schedule
def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> Schedule:
    """Rises and falls again and again, one `warmup_cosine_decay_schedule` after the other.

    Args:
      cosine_kwargs: The arguments of `warmup_cosine_decay_schedule` for each cycle, of which ``decay_steps`` is the
        length of the cycle in steps.

    Returns:
      A schedule.

    Raises:
      ValueError: If there is no cycle, or an argument of one is out of its range.
      TypeError: If an argument of a cycle is missing or unknown.

    Example:
      >>> import optchain
      >>> cycle = dict(init_value=0.0, peak_value=1.0, warmup_steps=2, decay_steps=10)
      >>> rate = optchain.sgdr_schedule([cycle, {**cycle, "peak_value": 0.5}])
      >>> [round(float(rate(count)), 4) for count in (2, 6, 10, 12)]
      [1.0, 0.5, 0.0, 0.5]

    References:
      Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, arXiv:1608.03983.

    Notes:
      PyTorch's CosineAnnealingWarmRestarts is the same with ``warmup_steps`` 0 in every cycle.
    """
    if not isinstance(cosine_kwargs, list):
        return sgdr_schedule(list(cosine_kwargs))  # the recorded call must not hold a spent iterator
    name, cycles, ends = "sgdr_schedule", [], []
    for position, settings in enumerate(cosine_kwargs):
        try:
            cycles.append(warmup_cosine_decay_schedule(**settings))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: cosine_kwargs[{position}]: {error}") from None
        ends.append(settings["decay_steps"])
    require(bool(cycles), name, "cosine_kwargs must hold the arguments of at least one cycle, got none.")
    return join_schedules(cycles, list(itertools.accumulate(ends))[:-1])
