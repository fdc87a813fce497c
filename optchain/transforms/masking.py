"""Transforms on a part of the tree: `masked` and `partition`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import jax

from optchain.core import errors
from optchain.core.masks import MaskedNode, MaskTree, is_mask_function
from optchain.core.pair import GradientTransformation, GradientTransformationExtraArgs, Info
from optchain.core.plan import Masked, MaskedState, Sequence, node_of, pair_of
from optchain.core.value import transform

__all__ = ["MaskedNode", "MaskedState", "PartitionState", "masked", "partition"]


class PartitionState(NamedTuple):
    """The states of the transforms of `partition`.

    Attributes:
      inner_states: From each label to the `MaskedState` of its transform.
    """

    inner_states: Mapping[Hashable, Any]


@transform
def masked(
    inner: GradientTransformation, mask: MaskTree, *, mask_compatible_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Applies a transform where a mask is true; the other updates pass unchanged, as raw as they came.

    To keep the other parameters fixed, follow with a transform that sets their updates to zero, or use `partition` with
    `set_to_zero`. The inner transform holds no state for the others.

    Args:
      inner: The transform.
      mask: A tree of bools with the structure of the parameters or of a prefix of it, or a function from the parameters
        (in ``init``) and the updates (in ``update``) to such a tree.
      mask_compatible_extra_args: Whether extra arguments with the structure of the updates are masked too.

    Returns:
      A pair with a `MaskedState`.

    Raises:
      ValueError: from ``init`` and ``update``, if the mask does not fit the tree.
      TypeError: from ``init`` and ``update``, if a leaf of the mask is not a bool.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.masked(optchain.scale(-1.0), {"a": True, "b": False})
      >>> params = {"a": jnp.ones(1), "b": jnp.ones(1)}
      >>> updates, _ = tx.update(params, tx.init(params))
      >>> updates["a"].item(), updates["b"].item()
      (-1.0, 1.0)
    """
    errors.check_pair("masked", "inner", inner)
    sign = +1 if getattr(inner, "sign", None) == +1 else None  # the rest keeps its direction
    node = Masked(node_of(inner).masked(mask, mask_compatible_extra_args), mask)
    return pair_of(node, Info(links=(inner,), sign=sign))


@transform
def partition(
    transforms: Mapping[Hashable, GradientTransformation],
    param_labels: Any | Callable[[Any], Any],
    *,
    mask_compatible_extra_args: bool = False,
) -> GradientTransformationExtraArgs:
    """Applies to each leaf the transform of its label.

    A transform that reduces over the tree, such as a clip of the global norm, sees the leaves of its own label only.

    Args:
      transforms: From labels to transforms.
      param_labels: A tree of labels with the structure of the parameters or of a prefix of it, or a function from the
        parameters (in ``init``) and the updates (in ``update``) to such a tree.
      mask_compatible_extra_args: Whether extra arguments with the structure of the updates are masked too.

    Returns:
      A pair with a `PartitionState`.

    Raises:
      ValueError: from ``init`` and ``update``, if there is no transform for a label.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> transforms = {"train": optchain.sgd(0.5), "fix": optchain.set_to_zero()}
      >>> tx = optchain.partition(transforms, {"w": "train", "b": "fix"})
      >>> params = {"w": jnp.ones(1), "b": jnp.ones(1)}
      >>> updates, _ = tx.update(params, tx.init(params))
      >>> updates["w"].item(), updates["b"].item()
      (-0.5, 0.0)
    """
    if not isinstance(transforms, Mapping):
        raise TypeError(f"partition: transforms is {transforms!r}; pass a mapping from labels to transforms.")
    labels = list(transforms)
    for label, tx in transforms.items():
        errors.check_pair("partition", repr(label), tx)

    def mask_of(label: Hashable) -> Callable[[Any], Any]:
        def mask(tree: Any) -> Any:
            found = param_labels(tree) if is_mask_function(param_labels) else param_labels
            for path, value in jax.tree_util.tree_leaves_with_path(found):
                if not isinstance(value, Hashable) or value not in transforms:
                    raise ValueError(
                        f"partition: the label {errors.at(path)} is {value!r}, and there is no transform for it; "
                        f"the labels with one are {labels}."
                    )
            return jax.tree.map(lambda value: value == label, found)

        return mask

    masks = [mask_of(label) for label in labels]
    nodes = tuple(
        Masked(node_of(tx).masked(mask, mask_compatible_extra_args), mask)
        for tx, mask in zip(transforms.values(), masks, strict=True)
    )

    def spread(state: Any, name: str) -> list:
        errors.check_state(name, ("inner_states",), state)
        if set(state.inner_states) != set(labels):
            raise errors.wrong_chain_state(name, tuple(map(str, labels)), state.inner_states)
        return [state.inner_states[label] for label in labels]

    def gather(states: list) -> PartitionState:
        return PartitionState(dict(zip(labels, states, strict=True)))

    signs = {getattr(tx, "sign", None) for tx in transforms.values()} - {0}
    sign = signs.pop() if len(signs) == 1 else (0 if not signs else None)
    return pair_of(Sequence(nodes, gather, spread), Info(links=tuple(transforms.values()), sign=sign))
