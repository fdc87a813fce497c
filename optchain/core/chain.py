"""Transforms in sequence: `chain` and `named_chain`."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from optchain.core import errors
from optchain.core.pair import GradientTransformation, GradientTransformationExtraArgs, Info
from optchain.core.plan import Sequence, node_of, pair_of
from optchain.core.value import transform


@transform
def chain(*transforms: GradientTransformation) -> GradientTransformationExtraArgs:
    """Applies transforms one after the other, left to right.

    The state is the tuple of the links' states. A chain in a chain contributes its links, so that
    ``chain(chain(a, b), c)`` has the links and the state ``(a, b, c)``; a finished optimizer such as `sgd` is one link.
    Order is part of the contract: a clip ahead of a rule bounds the gradient, behind it the step.

    Args:
      *transforms: Pairs, of this library, of another one, or written by hand. None at all makes the identity.

    Returns:
      A pair. Keyword arguments of its ``update`` reach every link that takes arbitrary keywords.

    Raises:
      TypeError: if an argument is no pair.
      ValueError: from ``update``, if the state is not a tuple with one entry a link.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.chain(optchain.clip_by_global_norm(1.0), optchain.sgd(0.1))
      >>> params, gradient = jnp.array([1.0, 1.0]), jnp.array([3.0, 4.0])
      >>> updates, state = tx.update(gradient, tx.init(params), params)
      >>> [round(float(u), 6) for u in updates]
      [-0.06, -0.08]
      >>> tx
      chain(clip_by_global_norm(max_norm=1.0), sgd(learning_rate=0.1))
    """
    links: list[GradientTransformation] = []
    for position, tx in enumerate(transforms):
        errors.check_pair("chain", position, tx)
        is_chain = isinstance(tx, GradientTransformation) and tx.info.call and tx.info.call.builder is chain
        links += tx.links if is_chain else (tx,)
    if len(links) != len(transforms) or any(a is not b for a, b in zip(links, transforms, strict=True)):
        return chain(*links)

    def spread(state: Any, name: str) -> list:
        if not isinstance(state, (tuple, list)) or hasattr(state, "_fields") or len(state) != len(links):
            raise errors.wrong_chain_state(name, tuple(map(_name, links)), state)
        return list(state)

    return _sequence(tuple(links), tuple, spread)


@transform
def named_chain(*transforms: tuple[str, GradientTransformation]) -> GradientTransformationExtraArgs:
    """Applies transforms one after the other, left to right, with a state that is an ordered mapping by name.

    Args:
      *transforms: Pairs of a name and a transform.

    Returns:
      A pair whose state is an `OrderedDict` from each name to the state of its transform.

    Raises:
      ValueError: if a name occurs twice.
      TypeError: if an argument is not a name with a pair.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.named_chain(("clip", optchain.clip(1.0)), ("rule", optchain.sgd(0.1)))
      >>> list(tx.init(jnp.zeros(2)))
      ['clip', 'rule']
    """
    for position, item in enumerate(transforms):
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)):
            raise TypeError(f"named_chain: argument {position} is {item!r}; pass a pair ('name', transform).")
        errors.check_pair("named_chain", repr(item[0]), item[1])
    names = [name for name, _ in transforms]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"named_chain: the name {name!r} occurs twice; names must differ.")

    def spread(state: Any, label: str) -> list:
        if not isinstance(state, Mapping) or set(state) != set(names):
            raise errors.wrong_chain_state(label, tuple(names), state)
        return [state[name] for name in names]

    def gather(states: list) -> OrderedDict:
        return OrderedDict(zip(names, states, strict=True))

    return _sequence(tuple(tx for _, tx in transforms), gather, spread)


def _sequence(links: tuple, gather, spread) -> GradientTransformationExtraArgs:
    signs = [tx.sign if isinstance(tx, GradientTransformation) else None for tx in links]
    sign = None if None in signs else math.prod(s for s in signs if s is not None)
    node = Sequence(tuple(node_of(tx) for tx in links), gather, spread)
    return pair_of(node, Info(links=links, sign=sign))


def _name(tx: Any) -> str:
    return tx.name if isinstance(tx, GradientTransformation) else "custom"
