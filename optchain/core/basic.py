"""The simplest transforms: the identity, zero, and functions of updates and parameters without a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from optchain.core.leaves import check_params
from optchain.core.pair import EmptyState, GradientTransformationExtraArgs, Info, init_empty_state
from optchain.core.plan import Node, pair_of
from optchain.core.value import transform


class Nothing(Node):
    """A node that does nothing: no atoms, no work."""

    @property
    def atoms(self):
        return ()

    def init(self, params):
        return init_empty_state(params)

    def unpack(self, state):
        return []

    def pack(self, states):
        return EmptyState()

    def masked(self, mask, mask_extra_args=False):
        return self


@transform
def identity() -> GradientTransformationExtraArgs:
    """Returns the updates as they came.

    Returns:
      A pair with an `EmptyState`.

    Example:
      >>> import optchain
      >>> tx = optchain.identity()
      >>> tx.update(2.0, tx.init(1.0))
      (2.0, EmptyState())
    """
    return pair_of(Nothing(), Info(sign=+1))


@transform
def set_to_zero() -> GradientTransformationExtraArgs:
    """Replaces every update by zero, so that the parameters stay as they are.

    Leaves of any dtype pass, also integer ones and those whose gradient is NaN. Where gradient and update are in one
    compiled function, the gradients of these leaves are not computed.

    Returns:
      A pair with an `EmptyState`.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.set_to_zero()
      >>> tx.update(jnp.array([jnp.nan, 1.0]), tx.init(jnp.ones(2)))[0].tolist()
      [0.0, 0.0]
    """

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        return jax.tree.map(jnp.zeros_like, updates), state

    return GradientTransformationExtraArgs.build(init_empty_state, update, Info(sign=0))


@transform
def stateless(f: Callable[[Any, Any], Any]) -> GradientTransformationExtraArgs:
    """Makes a transform without a state from a function of the whole trees.

    Args:
      f: ``f(updates, params) -> updates``, where `params` is None if none were given.

    Returns:
      A pair with an `EmptyState`. Can be used as a decorator.

    Example:
      >>> import optchain
      >>> tx = optchain.stateless(lambda updates, params: updates + 0.1 * params)
      >>> tx.update(1.0, tx.init(2.0), 2.0)[0]
      1.2
    """

    def update(updates, state, params=None, **extra_args):
        del state, extra_args
        return f(updates, params), EmptyState()

    return GradientTransformationExtraArgs.build(init_empty_state, update, Info())


@transform
def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformationExtraArgs:
    """Makes a transform without a state from a function of one leaf.

    Unlike the rule of `leafwise` the function sees the arrays as they are, in their own dtype.

    Args:
      f: ``f(update, param) -> update`` for the arrays of one leaf, where `param` is None if no parameters were given.

    Returns:
      A pair with an `EmptyState`. Can be used as a decorator.

    Example:
      >>> import optchain
      >>> tx = optchain.stateless_with_tree_map(lambda u, p: 2 * u)
      >>> tx.update({"a": 1.0, "b": 3.0}, tx.init({"a": 0.0, "b": 0.0}))[0]
      {'a': 2.0, 'b': 6.0}
    """

    def update(updates, state, params=None, **extra_args):
        del state, extra_args
        if params is None:
            return jax.tree.map(lambda u: f(u, None), updates), EmptyState()
        check_params("stateless_with_tree_map", updates, params)
        return jax.tree.map(f, updates, params), EmptyState()

    return GradientTransformationExtraArgs.build(init_empty_state, update, Info())
