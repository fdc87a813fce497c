"""Schedules made of pieces between given steps: piecewise constant, piecewise interpolated, one-cycle."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from optchain.core.pair import Numeric, Schedule
from optchain.core.value import schedule
from optchain.schedules.shapes import (
    as_count,
    blend,
    final_value,
    half_cosine,
    real_dtype,
    require,
    require_positive,
    shares,
)


@schedule
def piecewise_constant_schedule(
    init_value: Numeric, boundaries_and_scales: Mapping[int, Numeric] | None = None
) -> Schedule:
    """Multiplies the value by a factor at each of the given steps.

    The value is `init_value` times the product of the factors at all boundaries up to the count, that step included.

    Args:
      init_value: The value before the first boundary.
      boundaries_and_scales: Maps steps to factors, which must not be negative. Each factor multiplies what the earlier
        ones have made, so two factors of 0.1 end at 0.01 of `init_value`.

    Returns:
      A schedule.

    Raises:
      ValueError: If a factor is negative.

    Example:
      >>> import optchain
      >>> rate = optchain.piecewise_constant_schedule(1.0, {100: 0.5, 200: 0.1})
      >>> [round(float(rate(count)), 4) for count in (99, 100, 200)]
      [1.0, 0.5, 0.05]
    """
    bounds, values = accumulated("piecewise_constant_schedule", init_value, boundaries_and_scales)
    return lambda count: stepwise(as_count(count), bounds, values)


@schedule
def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: Numeric, boundaries_and_scales: Mapping[int, Numeric] | None = None
) -> Schedule:
    """Goes through a value at each of the given steps, along straight lines or half cosines in between.

    Args:
      interpolate_type: ``'linear'`` or ``'cosine'``.
      init_value: The value at step 0.
      boundaries_and_scales: Maps steps to factors, which must not be negative. At each boundary the value is the one at
        the boundary before it times the factor, so the factors accumulate. A boundary at 0 or below takes effect at
        step 0, in place of `init_value`. After the last boundary the value stands still.

    Returns:
      A schedule.

    Raises:
      ValueError: If `interpolate_type` is another one, or a factor is negative.

    Example:
      >>> import optchain
      >>> rate = optchain.piecewise_interpolate_schedule('linear', 1.0, {10: 0.5, 20: 0.5})
      >>> [round(float(rate(count)), 4) for count in (0, 10, 15, 20)]
      [1.0, 0.5, 0.375, 0.25]
    """
    name = "piecewise_interpolate_schedule"
    require(
        interpolate_type in ("linear", "cosine"),
        name,
        f"interpolate_type must be 'linear' or 'cosine', got {interpolate_type!r}.",
    )
    bounds, values = accumulated(name, init_value, boundaries_and_scales)
    knots = as_count((0, *(max(bound, 0) for bound in bounds.tolist())))
    return lambda count: interpolated(as_count(count), knots, values, cosine=interpolate_type == "cosine")


@schedule
def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: Numeric,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: Numeric = 25.0,
    final_div_factor: Numeric = 1e4,
    *,
    end_value: Numeric | None = None,
) -> Schedule:
    """Rises to a peak, comes back to where it began and falls on, along three straight lines.

    The value is ``peak_value / div_factor`` at step 0, `peak_value` at ``int(pct_start * transition_steps)``,
    ``peak_value / div_factor`` again at ``int(pct_final * transition_steps)`` and
    ``peak_value / (div_factor * final_div_factor)`` from `transition_steps` on. A line of no steps is a jump.

    Args:
      transition_steps: Length of the cycle in steps, positive.
      peak_value: The largest value.
      pct_start: Share of the cycle in which the value rises, a fraction between 0 and `pct_final`.
      pct_final: Share of the cycle after which the value is back where it began, a fraction up to 1.
      div_factor: `peak_value` over the initial value, positive.
      final_div_factor: The initial value over the final value, positive.
      end_value: The final value itself, in place of `final_div_factor`.

    Returns:
      A schedule.

    Raises:
      ValueError: If an argument is out of its range, or if both `final_div_factor` and `end_value` are set.

    Example:
      >>> import optchain
      >>> rate = optchain.linear_onecycle_schedule(10, 1.0, pct_start=0.3, pct_final=0.7, div_factor=10.0)
      >>> [round(float(rate(count)), 4) for count in (0, 3, 5, 7, 10)]
      [0.1, 1.0, 0.55, 0.1, 0.0]

    References:
      Smith and Topin, Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates,
      arXiv:1708.07120.

    Notes:
      PyTorch's OneCycleLR puts the peak at step ``pct_start * total_steps - 1`` and the end at ``total_steps - 1``, and
      by default falls from the peak to the end along one line.
    """
    name = "linear_onecycle_schedule"
    require_positive(name, transition_steps=transition_steps)
    require(
        0 <= pct_start <= pct_final <= 1,
        name,
        f"pct_start and pct_final must be fractions with pct_start <= pct_final, got {pct_start} and {pct_final}.",
    )
    start, end = cycle_ends(name, peak_value, div_factor, final_div_factor, end_value)
    knots = as_count((0, int(pct_start * transition_steps), int(pct_final * transition_steps), transition_steps))
    return lambda count: interpolated(as_count(count), knots, (start, peak_value, start, end), cosine=False)


@schedule
def cosine_onecycle_schedule(
    transition_steps: int,
    peak_value: Numeric,
    pct_start: float = 0.3,
    div_factor: Numeric = 25.0,
    final_div_factor: Numeric = 1e4,
    *,
    end_value: Numeric | None = None,
) -> Schedule:
    """Rises to a peak and falls below where it began, along two half cosines.

    The value is ``peak_value / div_factor`` at step 0, `peak_value` at ``int(pct_start * transition_steps)`` and
    ``peak_value / (div_factor * final_div_factor)`` from `transition_steps` on. A half cosine of no steps is a jump.

    Args:
      transition_steps: Length of the cycle in steps, positive.
      peak_value: The largest value.
      pct_start: Share of the cycle in which the value rises, a fraction up to 1.
      div_factor: `peak_value` over the initial value, positive.
      final_div_factor: The initial value over the final value, positive.
      end_value: The final value itself, in place of `final_div_factor`.

    Returns:
      A schedule.

    Raises:
      ValueError: If an argument is out of its range, or if both `final_div_factor` and `end_value` are set.

    Example:
      >>> import optchain
      >>> rate = optchain.cosine_onecycle_schedule(10, 1.0, pct_start=0.4, div_factor=10.0)
      >>> [round(float(rate(count)), 4) for count in (0, 2, 4, 7, 10)]
      [0.1, 0.55, 1.0, 0.5, 0.0]

    References:
      Smith and Topin, Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates,
      arXiv:1708.07120.

    Notes:
      PyTorch's OneCycleLR puts the peak at step ``pct_start * total_steps - 1`` and the end at ``total_steps - 1``.
    """
    name = "cosine_onecycle_schedule"
    require_positive(name, transition_steps=transition_steps)
    require(0 <= pct_start <= 1, name, f"pct_start must be a fraction between 0 and 1, got {pct_start}.")
    start, end = cycle_ends(name, peak_value, div_factor, final_div_factor, end_value)
    knots = as_count((0, int(pct_start * transition_steps), transition_steps))
    return lambda count: interpolated(as_count(count), knots, (start, peak_value, end), cosine=True)


def cycle_ends(name, peak_value, div_factor, final_div_factor, end_value):
    """The initial and the final value of a one-cycle schedule."""
    require_positive(name, div_factor=div_factor, final_div_factor=final_div_factor)
    start = peak_value / div_factor
    end = final_value(name, end_value, start / final_div_factor, "final_div_factor", final_div_factor, 1e4)
    return start, end


def accumulated(name, init_value, boundaries_and_scales):
    """The boundaries in order, and the values before the first and from each on."""
    if not isinstance(boundaries_and_scales, Mapping | None):
        raise TypeError(f"{name}: boundaries_and_scales must map steps to factors, got {boundaries_and_scales!r}.")
    pairs = sorted((boundaries_and_scales or {}).items())
    for bound, scale in pairs:
        require(scale >= 0, name, f"the factors must not be negative, got {scale} at boundary {bound}.")
    values = itertools.accumulate((scale for _, scale in pairs), operator.mul, initial=init_value)
    return as_count([bound for bound, _ in pairs]), tuple(values)


def stacked(values):
    """The values as one array."""
    dtype = real_dtype(*values)
    return jnp.stack([jnp.asarray(value, dtype) for value in values])


def passed(count, bounds):
    """How many of the boundaries the count has reached."""
    return jnp.sum(jnp.asarray(count)[..., None] >= bounds, axis=-1)


@jax.jit
def stepwise(count, bounds, values):
    """The value that stands since the last of the boundaries that the count has reached."""
    return stacked(values)[passed(count, bounds)]


@functools.partial(jax.jit, static_argnames="cosine")
def interpolated(count, knots, values, *, cosine):
    """The value between the two knots around the count."""
    values = stacked(values)
    # The piece that holds the count, and the next knot; after the last knot it is a piece of no steps.
    here = passed(count, knots[1:])
    there = jnp.minimum(here + 1, knots.size - 1)
    left, done = shares(count, knots[there] - knots[here], knots[here], values.dtype)
    if cosine:
        left, done = half_cosine(left), half_cosine(done)
    return blend(values[here], values[there], left, done)
