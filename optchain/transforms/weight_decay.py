"""Weight decay: `add_decayed_weights`."""

from __future__ import annotations

from typing import NamedTuple

import jax

from optchain.core.leaves import leafwise
from optchain.core.masks import MaskTree
from optchain.core.pair import EmptyState, GradientTransformationExtraArgs, ScalarOrSchedule
from optchain.core.value import transform
from optchain.transforms.masking import masked

AddDecayedWeightsState = EmptyState


class WeightDecaySchedule(NamedTuple):
    """How many updates were made.

    Attributes:
      count: int32 scalar.
    """

    count: jax.Array


def add_decayed_weights_rule(u, p, *, weight_decay):
    """``u + weight_decay * p``."""
    return u + weight_decay * p


@transform
def add_decayed_weights(
    weight_decay: ScalarOrSchedule = 0.0, mask: MaskTree | None = None
) -> GradientTransformationExtraArgs:
    """Adds a multiple of the parameters to the updates.

    ``u <- u + weight_decay * p``. Ahead of an adaptive rule this is an L2 penalty; behind it and ahead of the learning
    rate it is decoupled weight decay.

    Args:
      weight_decay: A scalar, or a schedule from the number of updates made before to a scalar.
      mask: Which leaves decay: a tree of bools with the structure of the parameters or of a prefix of it, or a function
        from the parameters to such a tree. None means all.

    Returns:
      A pair with an `EmptyState`, or a `WeightDecaySchedule` for a schedule, inside a `MaskedState` if there is a mask.
      Its update needs the parameters.

    Raises:
      ValueError: while tracing, if `params` are missing.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx, params = optchain.add_decayed_weights(0.5), jnp.array([2.0])
      >>> tx.update(jnp.array([1.0]), tx.init(params), params)[0].tolist()
      [2.0]

    References:
      Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101.
    """
    if mask is not None:
        return masked(add_decayed_weights(weight_decay), mask)
    if callable(weight_decay):
        schedule = weight_decay
        return leafwise(
            add_decayed_weights_rule,
            WeightDecaySchedule,
            scalars=lambda state: dict(weight_decay=schedule(state.count)),
            needs_params=True,
            elementwise=True,
            sign=+1,
        )
    return leafwise(
        add_decayed_weights_rule,
        scalars=lambda state: dict(weight_decay=weight_decay),
        needs_params=True,
        elementwise=True,
        sign=+1,
    )
