"""Numbers that summarize a pytree: sums, products, extremes and comparisons. Norms have a file of their own."""

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


def join(arrays: Iterable[jax.Array]) -> list[jax.Array]:
    """The small arrays of each dtype joined to one vector; large ones, and explicitly sharded ones, as they are."""
    small: dict[Any, list[jax.Array]] = {}
    groups = []
    for x in arrays:
        if x.size >= SMALL or any(jax.typeof(x).sharding.spec):
            groups.append(x)
        elif x.size:
            small.setdefault(x.dtype, []).append(lax.reshape(x, (x.size,)))
    return [lax.concatenate(xs, 0) for xs in small.values()] + groups


def widened(*arrays: jax.typing.ArrayLike) -> list[jax.Array]:
    """The arrays in their common dtype, float32 or wider unless they are integers."""
    common = jnp.result_type(*arrays)
    if jnp.issubdtype(common, np.inexact):
        common = jnp.promote_types(common, jnp.float32)
    return [jnp.asarray(x).astype(common) for x in arrays]


def inexact(x: jax.typing.ArrayLike) -> jax.Array:
    """The array as it is, or in float32 if it holds integers."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, np.inexact) else x.astype(jnp.float32)


# Each of the functions below is one compiled function, so that a reduction in eager code is one call.


@jax.jit
def _sum(leaves: list) -> jax.Array:
    return jnp.asarray(builtins.sum(jnp.sum(x) for x in join(widened(x)[0] for x in leaves)))


@functools.partial(jax.jit, static_argnames="largest")
def _extreme(leaves: list, largest: bool) -> jax.Array:
    of_many, of_two, of_none = (jnp.max, jnp.maximum, -math.inf) if largest else (jnp.min, jnp.minimum, math.inf)
    found = [of_many(x) for x in join(map(jnp.asarray, leaves))]
    return functools.reduce(of_two, found) if found else jnp.asarray(of_none)


@jax.jit
def _vdot(xs: list, ys: list) -> jax.Array:
    pairs = [widened(x, y) for x, y in zip(xs, ys, strict=True)]
    # The two of a pair have one dtype and one size, so that both lists are joined in the same way.
    groups = zip(join(x for x, _ in pairs), join(y for _, y in pairs), strict=True)
    return jnp.asarray(builtins.sum(jnp.sum(jnp.conj(x) * y) for x, y in groups))


@functools.partial(jax.jit, static_argnames="equal_nan")
def _allclose(xs: list, ys: list, rtol, atol, equal_nan) -> jax.Array:
    close = [jnp.allclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan) for x, y in zip(xs, ys, strict=True)]
    return functools.reduce(jnp.logical_and, close, jnp.asarray(True))
