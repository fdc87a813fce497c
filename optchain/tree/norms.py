"""Norms of pytrees that are right at any scale."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from optchain.core.kernels import compute_dtype
from optchain.tree.reductions import inexact, join, widened


def norm(tree: Any, ord: int | str | float | None = None, squared: bool = False) -> jax.Array:
    """Takes the norm of all entries of a tree, as of one vector.

    ``sqrt(sum(|x|**2))``, or ``sum(|x|)`` for order 1 and ``max(|x|)`` for order infinity. Neither overflows nor
    underflows where the result does not. The derivative at zero is zero.

    Args:
      tree: A pytree of arrays or numbers.
      ord: 1, 2 or infinity (also as ``'inf'`` or ``'infinity'``); None means 2.
      squared: Whether to return the square of the norm.

    Returns:
      A real scalar, float32 or wider; 0 for a tree without entries.

    Raises:
      ValueError: for another order.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.norm({"a": jnp.array([3e30]), "b": jnp.array([4e30])}).item() / 1e30
      5.0

    Notes:
      Optax returns minus infinity for order infinity and no entries, and an integer for integers. Entries below the
      smallest normal number count as zero where XLA flushes them, as it does on CPU.
    """
    leaves = jax.tree.leaves(tree)
    if ord is None or ord == 2:
        return _sum_of_all_squares(leaves) if squared else _norm(leaves)
    if ord == 1:
        value = _sum_of_magnitudes(leaves)
    elif ord in (math.inf, "inf", "infinity"):
        value = _largest_magnitude(leaves)
    else:
        raise ValueError(f"tree.norm: the order is {ord!r}; it must be None, 1, 2, or infinity.")
    return value**2 if squared else value


def global_norm(updates: Any) -> jax.Array:
    """Takes the L2 norm of all entries of a tree: `optchain.tree.norm` with its defaults.

    Args:
      updates: A pytree of arrays or numbers.

    Returns:
      A real scalar, float32 or wider; 0 for a tree without entries.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> optchain.global_norm({"a": jnp.array([3.0]), "b": jnp.array([4.0])}).item()
      5.0
    """
    return norm(updates)


def scaled_norm(tree: Any) -> tuple[jax.Array, jax.Array]:
    """The global norm as ``root / inverse``, which neither overflows nor underflows where the norm itself would.

    The squares are summed once as they are. Only if that sum left the safe range are they summed again with the entries
    scaled by a power of two.

    Args:
      tree: A pytree of arrays or numbers.

    Returns:
      ``(root, inverse)``: two scalars, float32 or wider. `inverse` is a power of two, 1 for norms of ordinary size, and
      a constant to differentiation. Both are finite if all entries are; `root` is NaN or infinite if one is not.
    """
    return _scaled_norm(jax.tree.leaves(tree))


def wide_groups(tree: Any) -> list[jax.Array]:
    """The entries of a tree as a few real arrays in float32 or wider: large leaves as they are, small ones joined."""
    parts = []
    for x in map(jnp.asarray, jax.tree.leaves(tree)):
        for part in (x.real, x.imag) if jnp.iscomplexobj(x) else (x,):
            parts.append(part if part.dtype in (jnp.float32, jnp.float64) else part.astype(jnp.float32))
    return join(parts)


def scaled_unit_norm(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The norms over `axes`, kept with size 1, as ``root / inverse``; their derivative at zero is zero."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    info = jnp.finfo(wide)
    top = jnp.max(lax.stop_gradient(jnp.abs(x)).astype(info.dtype), axis=axes, keepdims=True, initial=0)
    _, exponent = jnp.frexp(jnp.where(jnp.isfinite(top) & (top > 0), top, 1))
    inverse = jnp.ldexp(jnp.ones([], info.dtype), jnp.clip(-exponent, info.minexp + 1, info.maxexp - 1))
    scaled = x.astype(wide) * inverse
    squares = jnp.square(scaled.real) + jnp.square(scaled.imag) if jnp.iscomplexobj(x) else jnp.square(scaled)
    total = jnp.sum(squares, axis=axes, keepdims=True)
    zero = total == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, total))), inverse


# Each of the functions below is one compiled function, so that a reduction in eager code is one call.


@jax.jit
def _sum_of_magnitudes(leaves: list) -> jax.Array:
    return jnp.asarray(sum((jnp.sum(x) for x in _magnitudes(leaves)), start=0.0))


@jax.jit
def _largest_magnitude(leaves: list) -> jax.Array:
    return jnp.asarray(functools.reduce(jnp.maximum, map(jnp.max, _magnitudes(leaves)), 0.0))


def _magnitudes(leaves: list) -> list[jax.Array]:
    # For real numbers not jnp.abs, whose derivative at zero is 1.
    wide = (widened(inexact(x))[0] for x in leaves)
    return join(jnp.abs(x) if jnp.iscomplexobj(x) else x * lax.sign(x) for x in wide)


@jax.jit
def _sum_of_all_squares(leaves: list) -> jax.Array:
    return _sum_squares(join(map(inexact, leaves)))


@jax.jit
def _scaled_norm(leaves: list) -> tuple[jax.Array, jax.Array]:
    root, inverse = _root(join(map(inexact, leaves)))
    return root, lax.stop_gradient(inverse)


@jax.jit
def _norm(leaves: list) -> jax.Array:
    return _quotient(join(map(inexact, leaves)))


@jax.custom_jvp
def _root(groups: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The root and the inverse scale. Half precision is widened where it is read, so that no wide copy is kept."""
    plain = _sum_squares(groups)
    info = jnp.finfo(plain.dtype)
    safe = (plain > info.tiny / info.eps**2) & (plain < info.max)
    # Squares of entries scaled by this stay in range for every finite entry that would overflow, or underflow, without.
    up = 2.0 ** (info.maxexp * 25 // 32)
    one, up, down = (jnp.asarray(x, plain.dtype) for x in (1, up, 1 / up))
    inverse = lax.select(safe, one, lax.select(plain < 1, up, down))
    return lax.sqrt(lax.cond(safe, lambda: plain, lambda: _sum_squares(groups, inverse))), inverse


@_root.defjvp
def _root_jvp(primals, tangents):
    root, inverse, along = _derivative(*primals, *tangents)
    return (root, inverse), (along * inverse, jnp.zeros_like(inverse))


@jax.custom_jvp
def _quotient(groups: list[jax.Array]) -> jax.Array:
    root, inverse = _root(groups)
    return root / inverse


@_quotient.defjvp
def _quotient_jvp(primals, tangents):
    # Not derived from that of the root, which is out of range where the norm is small.
    root, inverse, along = _derivative(*primals, *tangents)
    return root / inverse, along


def _derivative(groups: list[jax.Array], dots: list[jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The root, its inverse scale, and the tangent of their quotient, the norm.

    The gradient of a norm is the direction; at zero, where there is none, it is zero.
    """
    root, inverse = _root(groups)
    inverse = lax.stop_gradient(inverse)
    per_root = jnp.where(root == 0, 0, 1 / jnp.where(root == 0, 1, root))
    along = jnp.zeros([], root.dtype)
    for x, dx in zip(wide_groups(groups), wide_groups(dots), strict=True):
        direction = x.astype(root.dtype) * inverse * per_root
        along += jnp.sum(direction * dx.astype(root.dtype))
    return root, inverse, along


def _sum_squares(groups: list[jax.Array], factor: jax.Array | None = None) -> jax.Array:
    """The sum of the squares of all entries times `factor`, in the widest dtype of the groups, float32 or wider."""
    dtype = compute_dtype(*(x.dtype for x in groups))
    sums = []
    for x in groups:
        for part in (x.real, x.imag) if jnp.iscomplexobj(x) else (x,):
            sums.append(_sum_of_squares(part, dtype) if factor is None else _sum_of_scaled_squares(part, factor, dtype))
    return functools.reduce(lax.add, sums) if sums else jnp.zeros([], jnp.float32)


def _sum_of_squares(x: jax.Array, dtype: Any) -> jax.Array:
    return lax.reduce_sum(lax.square(lax.convert_element_type(x, dtype)), tuple(range(x.ndim)))


@functools.partial(jax.jit, static_argnums=2)
def _sum_of_scaled_squares(x: jax.Array, factor: jax.Array, dtype: Any) -> jax.Array:
    # The barrier keeps XLA from sharing one broadcast of the factor among the groups, which would take memory.
    return _sum_of_squares(lax.convert_element_type(x, dtype) * lax.optimization_barrier((factor, x))[0], dtype)
