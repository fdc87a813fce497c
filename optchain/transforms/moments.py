"""The pieces that rules with running averages are made of: functions of arrays and numbers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from optchain.core.pair import Numeric


def decay(rate: Numeric) -> tuple[Numeric, Numeric]:
    """``(rate, 1 - rate)`` for `moving`; the difference of a Python number is taken in double precision."""
    return rate, 1 - rate


def moving(average: jax.Array, new: jax.Array, rate: tuple[Any, Any]) -> jax.Array:
    """The exponential moving average ``rate * average + (1 - rate) * new``, for ``rate = decay(...)``."""
    return rate[0] * average + rate[1] * new


def debias(rate: Numeric, count: Numeric) -> jax.Array:
    """What undoes the bias of a moving average that started at zero: ``1 / (1 - rate**count)``.

    Computed by expm1 of ``count * log(rate)``, so that it is accurate for rates very near 1.

    Args:
      rate: The decay rate, in [0, 1). The logarithm of a Python number is taken in double precision.
      count: How many values went into the average; 1 after the first.

    Raises:
      ValueError: if a Python `rate` is not in [0, 1).
    """
    check_rate("debias", "rate", rate)
    if isinstance(rate, (int, float)):
        return _debias(math.log(rate) if rate else -math.inf, count)
    return _debias_array(rate, count)


def check_rate(name: str, argument: str, rate: Numeric) -> None:
    """Refuses a decay rate whose bias cannot be corrected; the value of an array is not looked at."""
    if isinstance(rate, (int, float)) and not 0 <= rate < 1:
        raise ValueError(f"{name}: {argument} is {rate!r}; the decay rate of an average is in [0, 1).")


@jax.jit
def _debias(log_rate, count):
    return -1 / jnp.expm1(count * log_rate)


@jax.jit
def _debias_array(rate, count):
    # Accurate for rates near 1 in the one form, differentiable at 0 in the other.
    small = rate < 0.5
    return jnp.where(small, 1 / (1 - rate**count), -1 / jnp.expm1(count * jnp.log(jnp.where(small, 0.5, rate))))


def abs_sq(x: jax.Array) -> jax.Array:
    """The squared magnitude, which is real for complex values."""
    return lax.square(x.real) + lax.square(x.imag) if jnp.iscomplexobj(x) else lax.square(x)


@jax.custom_jvp
def safe_sqrt(x: jax.Array) -> jax.Array:
    """The square root with derivative 0, not infinity, at 0, so that zero gradients can be differentiated through."""
    return lax.sqrt(x)


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    root = safe_sqrt(x)
    zero = root == 0
    return root, jnp.where(zero, 0, dx / (2 * jnp.where(zero, 1, root)))
