"""New tensors from old ones: adding updates to parameters, and slow copies of parameters."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optchain.core import errors
from optchain.core.kernels import array_of, dtype_of, kernel, run_each


def apply_updates(params: Any, updates: Any) -> Any:
    """Adds updates to parameters.

    ``p + u`` for each leaf, formed in float32 or wider and rounded once to the dtype of the parameter.

    Args:
      params: A pytree of arrays or numbers. None stays None.
      updates: A pytree of the same structure and shapes. None, and the float0 gradient of an integer parameter, leave
        the parameter as it is.

    Returns:
      The new parameters, with the structure, shapes and dtypes of `params`.

    Raises:
      ValueError: if the structures or shapes differ.
      TypeError: if a leaf is no array, or an update does not fit the parameter: a floating one on an integer, a complex
        one on a real.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> optchain.apply_updates({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([-0.5, 0.5])})
      {'w': Array([0.5, 2.5], dtype=float32)}

    Notes:
      Optax broadcasts an update of another shape, truncates the sum with an integer parameter, and does not take None
      as an update.
    """
    names = ("apply_updates", "updates", "params")
    leaves, steps, treedef = _pairs(names, updates, params)
    moved = {}
    for i, (p, u) in enumerate(zip(leaves, steps, strict=True)):
        if p is None or u is None or getattr(u, "dtype", None) == jax.dtypes.float0:
            continue
        _check(names, updates, params, u, p, INTEGER)
        moved[i] = (array_of(p), u, ((),))
    for i, (new, _) in zip(moved, run_each(_add, list(moved.values()), ({},)), strict=True):
        leaves[i] = new
    return treedef.unflatten(leaves)


def incremental_update(new_tensors: Any, old_tensors: Any, step_size: jax.typing.ArrayLike) -> Any:
    """Moves a slow copy of some tensors a fraction of the way towards their new values.

    ``step_size * new + (1 - step_size) * old``, an exponential moving average over calls (Polyak averaging), formed in
    float32 or wider and rounded once.

    Args:
      new_tensors: A pytree of floating or complex arrays, the latest values. None stays None.
      old_tensors: The average so far, a pytree of the same structure and shapes.
      step_size: The weight of the new values, a scalar between 0 and 1.

    Returns:
      The new average, with the structure, shapes and dtypes of `old_tensors`.

    Raises:
      ValueError: if the structures or shapes differ, or `step_size` is not a scalar.
      TypeError: if a leaf is not a floating-point array, or is complex where the average is real.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> optchain.incremental_update(jnp.array([1.0, 3.0]), jnp.array([0.0, 1.0]), step_size=0.5)
      Array([0.5, 2. ], dtype=float32)

    References:
      Polyak and Juditsky, Acceleration of stochastic approximation by averaging, 1992, https://doi.org/10.1137/0330046

    Notes:
      The average keeps its dtype. Optax returns the widest of the dtypes of both trees and of `step_size`.
    """
    names = ("incremental_update", "new_tensors", "old_tensors")
    if np.shape(step_size):
        raise ValueError(f"incremental_update: step_size is {errors.describe(step_size)}; pass one scalar for all.")
    if not errors.is_number(step_size):
        step_size = jnp.asarray(step_size, jnp.promote_types(jnp.result_type(step_size), jnp.float32))
    leaves, new, treedef = _pairs(names, new_tensors, old_tensors)
    # A Python number is subtracted in double precision: in float32 the relative error of 1 - 0.999 is 1.3e-5.
    numbers = ({"fresh": jnp.asarray(step_size), "stale": jnp.asarray(1.0 - step_size)},)
    mixed = {}
    for i, (old, x) in enumerate(zip(leaves, new, strict=True)):
        if x is not None:
            _check(names, new_tensors, old_tensors, x, old, FLOATING)
            mixed[i] = (array_of(old), x, ((),))
    moved = dict(zip(mixed, run_each(_mix, list(mixed.values()), numbers), strict=True))
    return treedef.unflatten([moved[i][0] if i in moved else None for i in range(len(leaves))])


def periodic_update(
    new_tensors: Any, old_tensors: Any, steps: jax.typing.ArrayLike, update_period: jax.typing.ArrayLike
) -> Any:
    """Replaces a slow copy of some tensors by their new values once every so many steps.

    ``new if steps % update_period == 0 else old``.

    Args:
      new_tensors: A pytree of arrays of any dtype, the latest values. None stays None.
      old_tensors: The slow copy, a pytree of the same structure and shapes.
      steps: How many steps the new tensors have made, an integer scalar.
      update_period: How many steps apart the copies are, an integer scalar of 1 or more.

    Returns:
      The new slow copy, with the structure, shapes and dtypes of `old_tensors`.

    Raises:
      ValueError: if the structures or shapes differ, or `update_period` is a Python integer below 1.
      TypeError: if a leaf is no array, or new values do not fit the copy, as complex ones do not fit a real array.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> new, old = jnp.array([1.0]), jnp.array([0.0])
      >>> [optchain.periodic_update(new, old, steps, update_period=3).item() for steps in range(1, 7)]
      [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]

    References:
      Mnih et al., Human-level control through deep reinforcement learning, 2015, https://doi.org/10.1038/nature14236
      Grill et al., Bootstrap your own latent, 2020, arXiv:2006.07733
    """
    names = ("periodic_update", "new_tensors", "old_tensors")
    if isinstance(update_period, int) and update_period < 1:
        raise ValueError(f"periodic_update: update_period is {update_period!r}; it must be 1 or more.")
    leaves, new, treedef = _pairs(names, new_tensors, old_tensors)
    for old, x in zip(leaves, new, strict=True):
        _check(names, new_tensors, old_tensors, x, old, ANY)
    return treedef.unflatten(_choose(steps, update_period, new, list(map(array_of, leaves))))


def add_rule(p: jax.Array, u: jax.Array) -> jax.Array:
    """The parameter after its update."""
    return p + u


def mix_rule(old: jax.Array, new: jax.Array, *, fresh: jax.Array, stale: jax.Array) -> jax.Array:
    """The weighted mean of an average and a new value."""
    return fresh * new + stale * old


_add = kernel(((add_rule, (), "apply_updates"),))
_mix = kernel(((mix_rule, (), "incremental_update"),))


@jax.jit
def _choose(steps: Any, period: Any, new: list, old: list) -> list:
    def replaced(new, old):
        return [x if x.dtype == y.dtype else x.astype(y.dtype) for x, y in zip(map(jnp.asarray, new), old, strict=True)]

    return jax.lax.cond(jnp.mod(steps, period) == 0, replaced, lambda new, old: old, new, old)


def _pairs(names: tuple[str, str, str], tree: Any, reference: Any) -> tuple[list, list, Any]:
    """The leaves of `reference` and of `tree`, which must have one structure, and that structure.

    None may face an array: then both lists hold the None leaves too.
    Here and below, `names` are those of the function and of its arguments `tree` and `reference`, for messages.
    """
    old, treedef = jax.tree.flatten(reference)
    new, structure = jax.tree.flatten(tree)
    if structure == treedef:
        return old, new, treedef
    name, what, against = names
    old, treedef = jax.tree.flatten(reference, is_leaf=_is_none)
    new, structure = jax.tree.flatten(tree, is_leaf=_is_none)
    if structure != treedef:
        # Filled, because a None that faces an array is not where the trees part.
        raise errors.structure_mismatch(name, what, _filled(tree), against, _filled(reference))
    return old, new, treedef


def _is_none(x: Any) -> bool:
    return x is None


def _filled(tree: Any) -> Any:
    return jax.tree.map(lambda x: 0.0 if x is None else x, tree, is_leaf=_is_none)


# Kinds of numbers, each of which holds those before it.
ANY, INTEGER, FLOATING = range(3)
_NAMES = ("one dtype or of numbers", "integers or floating-point numbers", "floating-point numbers")
_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


@functools.lru_cache(maxsize=1024)
def _fits(new: Any, old: Any, lowest: int) -> bool:
    """Whether `old` can hold the numbers of the dtype `new`, both of the kind `lowest` or higher."""
    ranks = [next((i for i, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), -1) for dtype in (new, old)]
    return lowest <= ranks[0] <= ranks[1] or (lowest == ANY and new == old)


def _is_array(x: Any) -> bool:
    return hasattr(x, "dtype") or errors.is_number(x)


def _check(names: tuple[str, str, str], tree: Any, reference: Any, new: Any, old: Any, lowest: int) -> None:
    """Refuses `new`, a leaf of `tree`, if it cannot take the place of the leaf `old` of `reference`."""
    kind = ValueError
    if new is None or old is None:
        if new is old:
            return
        fix = "Both trees must have None in the same places."
    elif not (_is_array(new) and _is_array(old) and _fits(dtype_of(new), dtype_of(old), lowest)):
        kind = TypeError
        fix = (
            f"Both must be arrays of {_NAMES[lowest]}; an integer array cannot hold floating-point numbers, "
            "nor a real one complex numbers. Cast one of them, or leave the leaf out of both trees (None)."
        )
    elif np.shape(new) != np.shape(old):
        fix = "Shapes must be equal; nothing is broadcast."
    else:
        return
    name, what, against = names
    pairs = zip(errors.paths(tree), errors.paths(reference), strict=True)
    path = next(p for (p, x), (_, y) in pairs if x is new and y is old)
    found, there = errors.describe(new), errors.describe(old)
    raise kind(f"{name}: {what} {errors.at(path)} is {found} but {against} there is {there}. {fix}")
