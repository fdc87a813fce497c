"""The dtypes of a pytree: reading them and changing them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optchain.core import errors


def cast(tree: Any, dtype: jax.typing.DTypeLike | None) -> Any:
    """Casts every leaf to one dtype.

    Args:
      tree: A pytree of arrays or numbers.
      dtype: The dtype; None returns the tree as it is.

    Returns:
      A tree of the same structure and shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.cast({"a": jnp.ones(2)}, jnp.bfloat16)
      {'a': Array([1, 1], dtype=bfloat16)}
    """
    return tree if dtype is None else jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), tree)


def cast_like(tree: Any, other_tree: Any) -> Any:
    """Casts every leaf to the dtype of the leaf in the same place of another tree.

    Args:
      tree: A pytree of arrays or numbers.
      other_tree: A pytree of the same structure; the shapes may differ. A leaf without a dtype, such as a Python
        number, leaves its partner as it is.

    Returns:
      A tree with the structure and the shapes of `tree`.

    Raises:
      ValueError: if the structures differ.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.cast_like({"a": jnp.ones(2)}, {"a": jnp.zeros(3, jnp.int32)})
      {'a': Array([1, 1], dtype=int32)}
    """
    if jax.tree.structure(tree) != jax.tree.structure(other_tree):
        raise errors.structure_mismatch("tree.cast_like", "other_tree", other_tree, "tree", tree)
    return jax.tree.map(lambda x, like: cast(x, getattr(like, "dtype", None)), tree, other_tree)


def dtype(tree: Any, mixed_dtype_handler: str | None = None) -> np.dtype:
    """Finds the dtype of a tree.

    Args:
      tree: A pytree of arrays or numbers.
      mixed_dtype_handler: What to do with leaves of several dtypes: None refuses them; ``'promote'`` takes the dtype
        that they promote to; ``'highest'`` and ``'lowest'`` take the one among them that all others promote to, or
        that promotes to all others.

    Returns:
      The dtype; the default floating dtype for a tree without leaves.

    Raises:
      ValueError: if the leaves have several dtypes and `mixed_dtype_handler` is None, or if there is no highest or no
        lowest one; if `mixed_dtype_handler` is something else.

    Example:
      >>> import jax.numpy as jnp
      >>> from optchain import tree
      >>> tree.dtype({"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2)}, "lowest")
      dtype(bfloat16)
    """
    if mixed_dtype_handler not in (None, "promote", "highest", "lowest"):
        raise ValueError(
            f"tree.dtype: mixed_dtype_handler is {mixed_dtype_handler!r}; it must be None, 'promote', 'highest' or "
            "'lowest'."
        )
    found: dict[np.dtype, tuple] = {}  # each dtype with the path of the first leaf that has it
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        found.setdefault(jnp.result_type(x), path)
    if not found:
        return jnp.result_type(float)
    top = functools.reduce(jnp.promote_types, found)
    if mixed_dtype_handler == "promote" or len(found) == 1:
        return top
    if mixed_dtype_handler == "highest" and top in found:
        return top
    for one in found:
        if mixed_dtype_handler == "lowest" and all(jnp.promote_types(one, other) == other for other in found):
            return one
    leaves = ", ".join(f"{dtype} {errors.at(path)}" for dtype, path in found.items())
    problem = f"have no {mixed_dtype_handler} dtype" if mixed_dtype_handler else "have different dtypes"
    raise ValueError(
        f"tree.dtype: the leaves {problem}: {leaves}. "
        "Pass mixed_dtype_handler='promote' for a dtype that holds all of them."
    )
