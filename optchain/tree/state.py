"""Optimizer states as trees: which parts of a state mirror the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from optchain.core.masks import ParamsPlaceholder


def map_params(
    initable: Any,
    f: Callable[..., Any],
    state: Any,
    /,
    *rest: Any,
    transform_non_params: Callable[[Any], Any] | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Maps a function over the parts of an optimizer state that mirror the parameters.

    Such parts are found by calling ``init`` with a placeholder in place of the parameters: wherever the placeholder
    comes out, the state holds a tree like the parameters. Moments are such parts; counts and other scalars are not.

    Args:
      initable: A transform, or the function ``init`` of one.
      f: ``f(value, *others)`` for the leaves of each such part, with the leaves of `rest` in the same place.
      state: A state made by this transform.
      *rest: Trees with the structure of the parameters, such as partition specs.
      transform_non_params: A function for all other leaves of the state; None leaves them as they are.
      is_leaf: Says where to stop in the parts that mirror the parameters, as in `jax.tree.map`. With `rest` and a
        masked transform, pass ``lambda x: isinstance(x, MaskedNode)``.

    Returns:
      A state of the same structure with the results of `f` in place of the leaves.

    Raises:
      ValueError: if `state` was not made by this transform, or a tree of `rest` does not fit the parameters.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.trace(0.9)
      >>> state = tx.init({"w": jnp.zeros(2)})
      >>> optchain.tree.map_params(tx, lambda value, spec: spec, state, {"w": "split"})
      TraceState(trace={'w': 'split'})
    """
    mirrors, structure = jax.tree.flatten(
        getattr(initable, "init", initable)(ParamsPlaceholder()), is_leaf=lambda x: isinstance(x, ParamsPlaceholder)
    )
    try:
        parts = structure.flatten_up_to(state)
    except ValueError as error:
        raise ValueError(
            f"map_params: the state does not have the structure that init gives it: {error}. "
            "Pass the transform that made the state."
        ) from None

    def mapped(part: Any) -> Any:
        leaves, treedef = jax.tree.flatten(part, is_leaf=is_leaf)
        try:
            columns = [treedef.flatten_up_to(tree) for tree in rest]
        except ValueError as error:
            raise ValueError(
                f"map_params: a tree of `rest` does not have the structure of the parameters: {error}. Where the "
                "transform is masked, pass is_leaf=lambda x: isinstance(x, MaskedNode)."
            ) from None
        return treedef.unflatten([f(*row) for row in zip(leaves, *columns, strict=True)])

    other = transform_non_params or (lambda value: value)
    return structure.unflatten(
        [
            mapped(part) if isinstance(mirror, ParamsPlaceholder) else other(part)
            for mirror, part in zip(mirrors, parts, strict=True)
        ]
    )
