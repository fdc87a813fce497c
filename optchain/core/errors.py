"""The errors of the library, one style: which transform, which leaf, what was found, what to do."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def describe(value: Any) -> str:
    """A short name for what was found: ``float32[3,4]`` for an array, else its type."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = "float0" if value.dtype == jax.dtypes.float0 else value.dtype
        return f"{dtype}[{','.join(map(str, value.shape))}]"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def at(path: tuple) -> str:
    """How a leaf is called in messages: ``at ['layer']['w']``, or ``at the root`` for a tree that is one leaf."""
    return f"at {jax.tree_util.keystr(path)}" if path else "at the root"


def paths(tree: Any) -> list[tuple[tuple, Any]]:
    """Leaves with their key paths, None counting as a leaf."""
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)[0]


def missing_params(name: str) -> ValueError:
    return ValueError(f"{name} needs the parameters: call update(grads, state, params).")


def not_a_leaf(name: str, what: str, tree: Any) -> TypeError:
    """For a tree with a leaf that cannot be optimized: not an array, or not of a floating or complex dtype."""
    path, value = next((p, x) for p, x in paths(tree) if x is not None and not is_inexact(x))
    if hasattr(value, "dtype"):
        fix = "Cast it to a floating dtype, or leave it out of the tree (None) or of the transform (masked, partition)."
    else:
        fix = (
            "Keep only the arrays, for example equinox.filter(model, equinox.is_inexact_array), and put None elsewhere."
        )
    return TypeError(f"{name}: the {what} leaf {at(path)} is {describe(value)}, not a floating-point array. {fix}")


def check_leaves(name: str, what: str, leaves: list, tree: Any) -> None:
    """Refuses `tree` if one of its leaves cannot be optimized."""
    if not all(map(is_inexact, leaves)):
        raise not_a_leaf(name, what, tree)


def structure_mismatch(name: str, what: str, tree: Any, against: str, reference: Any) -> ValueError:
    """For two trees that must have one structure; names the first path where they part."""
    left, right = paths(tree), paths(reference)
    for (p, a), (q, b) in zip(left, right, strict=False):
        if p != q:
            found = f"{against} has a leaf {at(q)} where {what} has one {at(p)}"
            break
        if (a is None) != (b is None):
            found = f"{at(p)} {against} holds {describe(b)} and {what} holds {describe(a)}"
            break
    else:
        if len(left) != len(right):
            longer, extra = (what, left) if len(left) > len(right) else (against, right)
            found = f"only {longer} has a leaf {at(extra[min(len(left), len(right))][0])}"
        else:
            found = (
                f"the containers differ: {jax.tree_util.tree_structure(tree)} "
                f"against {jax.tree_util.tree_structure(reference)}"
            )
    return ValueError(
        f"{name}: {what} and {against} have different tree structures: {found}. "
        "Pass gradients, state and parameters of one and the same tree."
    )


def mask_mismatch(name: str, mask: Any, tree: Any) -> ValueError:
    """For a mask that is no prefix of a tree; names the first leaf of either that the other lacks."""
    ours, theirs = [path for path, _ in paths(mask)], [path for path, _ in paths(tree)]
    extra = [p for p in ours if not any(q[: len(p)] == p for q in theirs)]
    bare = [q for q in theirs if not any(q[: len(p)] == p for p in ours)]
    if extra:
        found = f"the mask has a leaf {at(extra[0])}, where the tree has nothing"
    elif bare:
        found = f"the tree has a leaf {at(bare[0])}, for which the mask says nothing"
    else:
        found = (
            f"the containers differ: {jax.tree_util.tree_structure(mask)} against {jax.tree_util.tree_structure(tree)}"
        )
    return ValueError(
        f"{name}: the mask does not fit the tree: {found}. It needs the structure of the tree or of a prefix of it."
    )


def shape_mismatch(name: str, what: str, tree: Any, against: str, reference: Any) -> ValueError:
    """For two trees of one structure whose leaves must have the same shapes; names the first that differs."""
    pairs = zip(paths(tree), paths(reference), strict=True)
    path, a, b = next((p, a, b) for (p, a), (_, b) in pairs if np.shape(a) != np.shape(b))
    return ValueError(
        f"{name}: {what} {at(path)} is {describe(a)} but {against} there is {describe(b)}. "
        "Shapes must be equal; nothing is broadcast."
    )


def kind_mismatch(name: str, what: str, tree: Any, against: str, reference: Any, squared: bool) -> TypeError:
    """For leaves of which one is real and the other complex, or for squared magnitudes that are not real."""
    pairs = zip(paths(tree), paths(reference), strict=True)
    path, a, b = next(
        (p, a, b) for (p, a), (_, b) in pairs if np.iscomplexobj(b) != (np.iscomplexobj(a) and not squared)
    )
    wanted = "it must be real" if squared else "both must be real, or both complex"
    return TypeError(f"{name}: {what} {at(path)} is {describe(a)} and {against} there is {describe(b)}; {wanted}.")


def check_state(name: str, fields: tuple[str, ...], state: Any) -> None:
    """Refuses a state that lacks one of the fields, or that holds something where there are none."""
    remedy = "Pass the state that init or the last update of this very transform returned."
    for field in fields:
        # By the class: every tuple has the methods count and index.
        if field not in getattr(type(state), "_fields", ()):
            raise ValueError(f"{name}: the state has no field {field!r}; found {_kind(state)}. {remedy}")
    if not fields and jax.tree_util.tree_leaves(state):
        raise ValueError(f"{name}: the state must be empty; found {_kind(state)}. {remedy}")


def _kind(state: Any) -> str:
    if isinstance(state, tuple) and not hasattr(state, "_fields"):
        return f"a tuple of {len(state)}"
    return f"a value of type {type(state).__name__}"


def wrong_chain_state(name: str, links: tuple[str, ...], state: Any) -> ValueError:
    """For a chain whose state has not one entry for each of the links, given by name."""
    expected = ", ".join(links)
    return ValueError(
        f"{name}: the state must have one entry for each of the {len(links)} links ({expected}); "
        f"found {_kind(state)}. Make it with init(params) of this very chain."
    )


def check_pair(name: str, argument: Any, value: Any) -> None:
    """Refuses what is no pair of ``init`` and ``update``."""
    if callable(getattr(value, "init", None)) and callable(getattr(value, "update", None)):
        return
    hint = f"call it: {value.__name__}(...)." if hasattr(value, "__name__") else "pass a transform such as scale(0.1)."
    raise TypeError(f"{name}: argument {argument} is {value!r}, not a pair of init and update; {hint}")


def is_number(value: Any) -> bool:
    """Python numbers count as float leaves; bools do not."""
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def known(value: Any) -> float | None:
    """A real number, or a concrete array of one, as a float; None for what is only known when the program runs."""
    if isinstance(value, (Tracer, complex)) or np.shape(value) or value is None:
        return None
    return None if np.iscomplexobj(value) else float(value)


def is_inexact(value: Any) -> bool:
    """Whether a leaf can be optimized: a floating or complex array, or a Python number."""
    dtype = getattr(value, "dtype", None)
    return is_number(value) if dtype is None else _is_inexact_dtype(dtype)


@functools.cache
def _is_inexact_dtype(dtype: Any) -> bool:
    return dtype != jax.dtypes.float0 and jax.numpy.issubdtype(dtype, np.inexact)
