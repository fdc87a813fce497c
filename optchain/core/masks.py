"""Masks over pytrees: which leaves a transform sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from optchain.core import errors

MaskTree = Any | Callable[[Any], Any]


class MaskedNode(NamedTuple):
    """Stands where a mask is false. It has no leaves, so transforms do not see it."""


class ParamsPlaceholder(NamedTuple):
    """Stands for all parameters, to see where an ``init`` puts them (`optchain.tree.map_params`). It has no leaves."""


def is_mask_function(mask: MaskTree) -> bool:
    """Whether a mask is a function of the tree. A model that is itself callable is a tree, and is never called."""
    return callable(mask) and jax.tree_util.treedef_is_leaf(jax.tree.structure(mask))


def resolve(mask: MaskTree, tree: Any, name: str) -> Any:
    """The bools of a mask for one tree: a tree of bools, with the structure of `tree` or of a prefix of it.

    Args:
      mask: Such a tree, or a function from `tree` to one.
      tree: The tree to mask.
      name: The transform's name, for messages.

    Raises:
      ValueError: if the mask does not fit the tree.
      TypeError: if a leaf of the mask is not a bool.
    """
    if isinstance(tree, ParamsPlaceholder):
        return True
    if is_mask_function(mask):
        mask = mask(tree)
    for path, flag in jax.tree_util.tree_leaves_with_path(mask):
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(
                f"{name}: the mask {errors.at(path)} is {flag!r}, not a bool. "
                "A mask holds True where the transform applies and False elsewhere."
            )
    try:
        jax.tree.broadcast(mask, tree)
    except ValueError:
        raise errors.mask_mismatch(name, mask, tree) from None
    return mask


def flags(mask: Any, tree: Any) -> list[bool]:
    """One flag for each leaf of `tree`, from a resolved mask."""
    return jax.tree.leaves(jax.tree.broadcast(mask, tree))


def visible(masks: tuple[MaskTree, ...], name: str, tree: Any, *others: Any) -> tuple[Any, ...]:
    """What is left behind masks, the outermost first.

    Args:
      masks: The masks.
      name: The transform's name, for messages.
      tree: The tree that they are resolved for.
      *others: Trees of the same structure, or None.

    Returns:
      One flag for each leaf of `tree` (None without masks), then the trees with `MaskedNode` where a mask is false.
    """
    seen = None
    trees = (tree, *others)
    for mask in masks:
        where = resolve(mask, trees[0], name)
        inner = iter(flags(where, trees[0]))
        seen = list(inner) if seen is None else [flag and next(inner) for flag in seen]
        trees = tuple(None if tree is None else select(where, tree) for tree in trees)
    return seen, *trees


def select(mask: Any, tree: Any) -> Any:
    """`tree` with a `MaskedNode` in place of each part where the resolved mask is false."""
    return jax.tree.map(lambda flag, part: part if flag else MaskedNode(), mask, tree)


def merge(mask: Any, selected: Any, tree: Any) -> Any:
    """`tree` with the parts where the resolved mask is true taken from `selected`."""
    return jax.tree.map(lambda flag, new, old: new if flag else old, mask, selected, tree)
