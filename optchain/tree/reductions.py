"""Numbers that summarize a pytree: sums, products and norms that are right at any scale."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from optchain.tree.arithmetic import check_alike

# Leaves below this size are joined before they are reduced: each reduction is a kernel, and a thousand small ones cost
# more time to compile and to start than to run.
SMALL = 2**14


def size(tree: Any) -> int:
    """Counts the entries of a tree.

    Args:
      tree: A pytree of arrays, numbers or `jax.ShapeDtypeStruct`.

    Returns:
      The number of entries, a Python int.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.size({"a": jnp.zeros((2, 3)), "b": 1.0, "c": None})
      7
    """
    return builtins.sum(math.prod(np.shape(x)) for x in jax.tree.leaves(tree))


def sum(tree: Any, associative_reduction: bool = False) -> jax.Array:
    """Sums all entries of a tree.

    Args:
      tree: A pytree of arrays or numbers.
      associative_reduction: Accepted for compatibility. Small leaves are summed together in either case.

    Returns:
      A scalar, 0 for a tree without entries. Half precision is summed, and returned, in float32.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.sum({"a": jnp.array([1.0, 2.0]), "b": 4.0}).item()
      7.0
    """
    del associative_reduction
    return _sum(jax.tree.leaves(tree))


def max(tree: Any) -> jax.Array:
    """Finds the largest entry of a tree.

    Args:
      tree: A pytree of arrays or numbers. Complex ones are ordered by real part, then imaginary part.

    Returns:
      A scalar; minus infinity for a tree without entries, NaN if an entry is.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.max({"a": jnp.array([1.0, -2.0]), "b": jnp.zeros(0)}).item()
      1.0
    """
    return _extreme(jax.tree.leaves(tree), largest=True)


def min(tree: Any) -> jax.Array:
    """Finds the smallest entry of a tree.

    Args:
      tree: A pytree of arrays or numbers. Complex ones are ordered by real part, then imaginary part.

    Returns:
      A scalar; infinity for a tree without entries, NaN if an entry is.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.min({"a": jnp.array([1.0, -2.0]), "b": jnp.zeros(0)}).item()
      -2.0
    """
    return _extreme(jax.tree.leaves(tree), largest=False)


def vdot(tree_x: Any, tree_y: Any) -> jax.Array:
    """Takes the inner product of two trees.

    ``sum(conj(x) * y)`` over all entries.

    Args:
      tree_x: A pytree of arrays or numbers. If complex it is conjugated.
      tree_y: A pytree of the same structure and shapes.

    Returns:
      A scalar, 0 for a tree without entries. Half precision is multiplied, summed and returned in float32.

    Raises:
      ValueError: if structures or shapes differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.vdot({"a": jnp.array([1.0, 2.0])}, {"a": jnp.array([3.0, 4.0])}).item()
      11.0
    """
    check_alike("tree.vdot", tree_x=tree_x, tree_y=tree_y)
    return _vdot(jax.tree.leaves(tree_x), jax.tree.leaves(tree_y))


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


def allclose(
    a: Any,
    b: Any,
    rtol: jax.typing.ArrayLike = 1e-05,
    atol: jax.typing.ArrayLike = 1e-08,
    equal_nan: bool = False,
) -> jax.Array:
    """Checks whether all entries of two trees are equal within a tolerance.

    ``|a - b| <= atol + rtol * |b|``.

    Args:
      a: A pytree of arrays or numbers.
      b: A pytree of the same structure and shapes.
      rtol: The relative tolerance.
      atol: The absolute tolerance.
      equal_nan: Whether NaN is equal to NaN.

    Returns:
      A boolean scalar, true for trees without entries.

    Raises:
      ValueError: if structures or shapes differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> bool(tree.allclose({"a": jnp.array([1.0])}, {"a": jnp.array([1.0 + 1e-7])}))
      True
    """
    check_alike("tree.allclose", a=a, b=b)
    return _allclose(jax.tree.leaves(a), jax.tree.leaves(b), rtol, atol, equal_nan)


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
    return _join(parts)


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


def _join(arrays: Iterable[jax.Array]) -> list[jax.Array]:
    """The small arrays of each dtype joined to one vector; large ones, and explicitly sharded ones, as they are."""
    small: dict[Any, list[jax.Array]] = {}
    groups = []
    for x in arrays:
        if x.size >= SMALL or any(jax.typeof(x).sharding.spec):
            groups.append(x)
        elif x.size:
            small.setdefault(x.dtype, []).append(lax.reshape(x, (x.size,)))
    return [lax.concatenate(xs, 0) for xs in small.values()] + groups


def _wide(*arrays: jax.typing.ArrayLike) -> list[jax.Array]:
    """The arrays in their common dtype, float32 or wider unless they are integers."""
    common = jnp.result_type(*arrays)
    if jnp.issubdtype(common, np.inexact):
        common = jnp.promote_types(common, jnp.float32)
    return [jnp.asarray(x).astype(common) for x in arrays]


def _inexact(x: jax.typing.ArrayLike) -> jax.Array:
    """The array as it is, or in float32 if it holds integers."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, np.inexact) else x.astype(jnp.float32)


# Each of the functions below is one compiled function, so that a reduction in eager code is one call.


@jax.jit
def _sum(leaves: list) -> jax.Array:
    return jnp.asarray(builtins.sum(jnp.sum(x) for x in _join(_wide(x)[0] for x in leaves)))


@functools.partial(jax.jit, static_argnames="largest")
def _extreme(leaves: list, largest: bool) -> jax.Array:
    of_many, of_two, of_none = (jnp.max, jnp.maximum, -math.inf) if largest else (jnp.min, jnp.minimum, math.inf)
    found = [of_many(x) for x in _join(map(jnp.asarray, leaves))]
    return functools.reduce(of_two, found) if found else jnp.asarray(of_none)


@jax.jit
def _vdot(xs: list, ys: list) -> jax.Array:
    pairs = [_wide(x, y) for x, y in zip(xs, ys, strict=True)]
    # The two of a pair have one dtype and one size, so that both lists are joined in the same way.
    groups = zip(_join(x for x, _ in pairs), _join(y for _, y in pairs), strict=True)
    return jnp.asarray(builtins.sum(jnp.sum(jnp.conj(x) * y) for x, y in groups))


@functools.partial(jax.jit, static_argnames="equal_nan")
def _allclose(xs: list, ys: list, rtol, atol, equal_nan) -> jax.Array:
    close = [jnp.allclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan) for x, y in zip(xs, ys, strict=True)]
    return functools.reduce(jnp.logical_and, close, jnp.asarray(True))


@jax.jit
def _sum_of_magnitudes(leaves: list) -> jax.Array:
    return jnp.asarray(builtins.sum((jnp.sum(x) for x in _magnitudes(leaves)), start=0.0))


@jax.jit
def _largest_magnitude(leaves: list) -> jax.Array:
    return jnp.asarray(functools.reduce(jnp.maximum, map(jnp.max, _magnitudes(leaves)), 0.0))


def _magnitudes(leaves: list) -> list[jax.Array]:
    # For real numbers not jnp.abs, whose derivative at zero is 1.
    wide = (_wide(_inexact(x))[0] for x in leaves)
    return _join(jnp.abs(x) if jnp.iscomplexobj(x) else x * lax.sign(x) for x in wide)


@jax.jit
def _sum_of_all_squares(leaves: list) -> jax.Array:
    return _sum_squares(_join(map(_inexact, leaves)))


@jax.jit
def _scaled_norm(leaves: list) -> tuple[jax.Array, jax.Array]:
    root, inverse = _root(_join(map(_inexact, leaves)))
    return root, lax.stop_gradient(inverse)


@jax.jit
def _norm(leaves: list) -> jax.Array:
    return _quotient(_join(map(_inexact, leaves)))


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
    wide = any(jnp.finfo(x.dtype).bits == 64 for x in groups)
    sums = (_sum_of_squares(x, factor, jnp.float64 if wide else jnp.float32) for x in groups)
    return functools.reduce(lax.add, sums) if groups else jnp.zeros([], jnp.float32)


@functools.partial(jax.jit, static_argnums=2)
def _sum_of_squares(x: jax.Array, factor: jax.Array | None, dtype: Any) -> jax.Array:
    sums = []
    for part in (x.real, x.imag) if jnp.iscomplexobj(x) else (x,):
        part = part.astype(dtype)
        if factor is not None:
            # The barrier keeps XLA from sharing one broadcast of the factor among the groups, which would take memory.
            part = part * lax.optimization_barrier((factor, x))[0]
        sums.append(jnp.sum(lax.square(part)))
    return functools.reduce(lax.add, sums)
