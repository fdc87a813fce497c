"""Arithmetic on pytrees, leaf by leaf, with the dtypes that the same operation on arrays has."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optchain.core import errors


def check_alike(function: str, **trees: Any) -> None:
    """Refuses trees whose structures or shapes differ from those of the first one."""
    (first, tree), *others = trees.items()
    leaves, structure = jax.tree.flatten(tree)
    for name, other in others:
        column, other_structure = jax.tree.flatten(other)
        if other_structure != structure:
            raise errors.structure_mismatch(function, name, other, first, tree)
        if any(np.shape(a) != np.shape(b) for a, b in zip(leaves, column, strict=True)):
            raise errors.shape_mismatch(function, name, other, first, tree)


def add(tree_x: Any, tree_y: Any, *other_trees: Any) -> Any:
    """Adds two or more trees.

    Args:
      tree_x: A pytree of arrays or numbers.
      tree_y: A pytree of the same structure and shapes.
      *other_trees: More of them.

    Returns:
      A tree of the same structure and shapes.

    Raises:
      ValueError: if structures or shapes differ; nothing is broadcast.

    Example:
      >>> from optchain import tree
      >>> tree.add({"a": 1.0, "b": None}, {"a": 2.0, "b": None}, {"a": 3.0, "b": None})
      {'a': 6.0, 'b': None}
    """
    others = {f"tree {position}": other for position, other in enumerate(other_trees, start=3)}
    check_alike("tree.add", tree_x=tree_x, tree_y=tree_y, **others)
    return jax.tree.map(lambda x, *rest: sum(rest, start=x), tree_x, tree_y, *other_trees)


def sub(tree_x: Any, tree_y: Any) -> Any:
    """Subtracts one tree from another.

    Args:
      tree_x: A pytree of arrays or numbers.
      tree_y: A pytree of the same structure and shapes.

    Returns:
      ``tree_x - tree_y``, a tree of the same structure and shapes.

    Raises:
      ValueError: if structures or shapes differ; nothing is broadcast.

    Example:
      >>> from optchain import tree
      >>> tree.sub({"a": 3.0}, {"a": 2.0})
      {'a': 1.0}
    """
    check_alike("tree.sub", tree_x=tree_x, tree_y=tree_y)
    return jax.tree.map(operator.sub, tree_x, tree_y)


def mul(tree_x: Any, tree_y: Any) -> Any:
    """Multiplies two trees entry by entry.

    Args:
      tree_x: A pytree of arrays or numbers.
      tree_y: A pytree of the same structure and shapes.

    Returns:
      ``tree_x * tree_y``, a tree of the same structure and shapes.

    Raises:
      ValueError: if structures or shapes differ; nothing is broadcast.

    Example:
      >>> from optchain import tree
      >>> tree.mul({"a": 3.0}, {"a": 2.0})
      {'a': 6.0}
    """
    check_alike("tree.mul", tree_x=tree_x, tree_y=tree_y)
    return jax.tree.map(operator.mul, tree_x, tree_y)


def div(tree_x: Any, tree_y: Any) -> Any:
    """Divides one tree by another entry by entry.

    Args:
      tree_x: A pytree of arrays or numbers.
      tree_y: A pytree of the same structure and shapes.

    Returns:
      ``tree_x / tree_y``, a tree of the same structure and shapes.

    Raises:
      ValueError: if structures or shapes differ; nothing is broadcast.

    Example:
      >>> from optchain import tree
      >>> tree.div({"a": 3.0}, {"a": 2.0})
      {'a': 1.5}
    """
    check_alike("tree.div", tree_x=tree_x, tree_y=tree_y)
    return jax.tree.map(operator.truediv, tree_x, tree_y)


def scale(scalar: jax.typing.ArrayLike, tree: Any) -> Any:
    """Multiplies a tree by a number.

    Args:
      scalar: The factor. A Python number keeps the dtype of each leaf, an array promotes as arrays do.
      tree: A pytree of arrays or numbers.

    Returns:
      ``scalar * tree``, a tree of the same structure and shapes.

    Raises:
      ValueError: if `scalar` is no scalar.

    Example:
      >>> from optchain import tree
      >>> tree.scale(0.5, {"a": 3.0, "b": 2.0})
      {'a': 1.5, 'b': 1.0}
    """
    _check_scalar("tree.scale", scalar)
    return jax.tree.map(lambda x: scalar * x, tree)


def add_scale(tree_x: Any, scalar: jax.typing.ArrayLike, tree_y: Any) -> Any:
    """Adds a multiple of one tree to another.

    Args:
      tree_x: A pytree of arrays or numbers. Where it holds None, so does the result, whatever `tree_y` has there.
      scalar: The factor. A Python number keeps the dtype of each leaf, an array promotes as arrays do.
      tree_y: A pytree of the same structure and shapes.

    Returns:
      ``tree_x + scalar * tree_y``, a tree of the same structure and shapes.

    Raises:
      ValueError: if structures or shapes differ, or if `scalar` is no scalar; nothing is broadcast.

    Example:
      >>> from optchain import tree
      >>> tree.add_scale({"a": 3.0}, 0.5, {"a": 2.0})
      {'a': 4.0}
    """
    _check_scalar("tree.add_scale", scalar)
    leaves, treedef = jax.tree.flatten(tree_x, is_leaf=lambda x: x is None)
    try:
        others = treedef.flatten_up_to(tree_y)
    except ValueError:
        raise errors.structure_mismatch("tree.add_scale", "tree_y", tree_y, "tree_x", tree_x) from None
    tree_y = treedef.unflatten([None if x is None else y for x, y in zip(leaves, others, strict=True)])
    check_alike("tree.add_scale", tree_x=tree_x, tree_y=tree_y)
    return jax.tree.map(lambda x, y: x + scalar * y, tree_x, tree_y)


def where(condition: jax.typing.ArrayLike, tree_x: Any, tree_y: Any) -> Any:
    """Takes the entries of one tree where a condition holds and those of another elsewhere.

    Args:
      condition: A bool, or a boolean array that broadcasts to the shape of every leaf.
      tree_x: A pytree of arrays or numbers, taken where `condition` is true.
      tree_y: A pytree of the same structure and shapes, taken elsewhere.

    Returns:
      A tree of the same structure and shapes.

    Raises:
      ValueError: if structures or shapes differ, or if `condition` does not broadcast to a leaf.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.where(True, {"a": jnp.array([1.0])}, {"a": jnp.array([2.0])})
      {'a': Array([1.], dtype=float32)}
    """
    check_alike("tree.where", tree_x=tree_x, tree_y=tree_y)
    given = np.shape(condition)
    for path, x in jax.tree_util.tree_leaves_with_path(tree_x):
        # Compared from the last axis on, as broadcasting does.
        fits = len(given) <= np.ndim(x) and all(
            c in (1, n) for c, n in zip(reversed(given), reversed(np.shape(x)), strict=False)
        )
        if not fits:
            raise ValueError(
                f"tree.where: the condition is {errors.describe(condition)}, which does not broadcast to the leaf "
                f"{errors.at(path)}, {errors.describe(x)}. Pass a scalar, or a condition for trees of one shape."
            )
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), tree_x, tree_y)


def clip(
    tree: Any, min_value: jax.typing.ArrayLike | None = None, max_value: jax.typing.ArrayLike | None = None
) -> Any:
    """Clips each entry to an interval.

    Args:
      tree: A pytree of real arrays or numbers.
      min_value: The smallest value, or None for no bound below.
      max_value: The largest value, or None for no bound above.

    Returns:
      A tree of the same structure and shapes. NaN stays NaN.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.clip({"a": jnp.array([-2.0, 0.5, 2.0])}, -1.0, 1.0)["a"].tolist()
      [-1.0, 0.5, 1.0]
    """
    return jax.tree.map(lambda x: jnp.clip(x, min_value, max_value), tree)


def conj(tree: Any) -> Any:
    """Takes the complex conjugate of each entry.

    Args:
      tree: A pytree of arrays or numbers; real ones stay as they are.

    Returns:
      A tree of the same structure and shapes.

    Example:
      >>> from optchain import tree
      >>> tree.conj({"a": 1.0 + 2.0j})["a"].item()
      (1-2j)
    """
    return jax.tree.map(jnp.conj, tree)


def real(tree: Any) -> Any:
    """Takes the real part of each entry.

    Args:
      tree: A pytree of arrays or numbers.

    Returns:
      A tree of the same structure and shapes.

    Example:
      >>> from optchain import tree
      >>> tree.real({"a": 1.0 + 2.0j})["a"].item()
      1.0
    """
    return jax.tree.map(jnp.real, tree)


def zeros_like(tree: Any, dtype: jax.typing.DTypeLike | None = None) -> Any:
    """Makes a tree of zeros.

    Args:
      tree: A pytree of arrays, numbers or `jax.ShapeDtypeStruct`.
      dtype: The dtype of the zeros; None for that of each leaf.

    Returns:
      A tree of the same structure and shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.zeros_like({"a": jnp.ones(2)})
      {'a': Array([0., 0.], dtype=float32)}
    """
    return full_like(tree, 0, dtype)


def ones_like(tree: Any, dtype: jax.typing.DTypeLike | None = None) -> Any:
    """Makes a tree of ones.

    Args:
      tree: A pytree of arrays, numbers or `jax.ShapeDtypeStruct`.
      dtype: The dtype of the ones; None for that of each leaf.

    Returns:
      A tree of the same structure and shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.ones_like({"a": jnp.zeros(2)})
      {'a': Array([1., 1.], dtype=float32)}
    """
    return full_like(tree, 1, dtype)


def full_like(tree: Any, fill_value: jax.typing.ArrayLike, dtype: jax.typing.DTypeLike | None = None) -> Any:
    """Makes a tree filled with one value.

    Args:
      tree: A pytree of arrays, numbers or `jax.ShapeDtypeStruct`.
      fill_value: The value of every entry.
      dtype: The dtype of the entries; None for that of each leaf.

    Returns:
      A tree of the same structure and shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.full_like({"a": jnp.zeros(2)}, 0.5)
      {'a': Array([0.5, 0.5], dtype=float32)}
    """
    return jax.tree.map(lambda x: jnp.full_like(x, fill_value, dtype=dtype), tree)


def _check_scalar(function: str, scalar: jax.typing.ArrayLike) -> None:
    if np.ndim(scalar):
        raise ValueError(f"{function}: the factor is {errors.describe(scalar)}, not a scalar; for trees use tree.mul.")
