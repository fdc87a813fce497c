"""How links run: a plan is a tree of nodes that flattens to atoms, and consecutive leaf rules run in one kernel a leaf.

A node makes a state (`init`), lists its `atoms` in the order in which they run, and converts between its state and one
state an atom (`unpack`, `pack`). There are five: a leaf rule (`optchain.core.leaves.LeafLink`), a foreign pair
(`Opaque`), a sequence (`Sequence`), a part of the tree (`Masked`) and nothing (`optchain.core.basic.Nothing`). Fusion
changes nothing but time: running the atoms one by one gives the same numbers, up to the rounding of half-precision
updates between links.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from optchain.core import errors
from optchain.core.masks import MaskTree, merge, resolve, select
from optchain.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Info,
    takes_extra_args,
    with_extra_args_support,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One piece of a plan.

    Attributes:
      name: The transform's name in messages; None until the call that built it is recorded.
    """

    name: str | None = dataclasses.field(default=None, kw_only=True)

    def named(self, name: str) -> Node:
        """The node with its name, and those below that have none yet, set to `name`."""
        return self if self.name else dataclasses.replace(self, name=name)

    @property
    def atoms(self) -> tuple[Node, ...]:
        return (self,)

    def init(self, params: Any) -> Any:
        raise NotImplementedError

    def unpack(self, state: Any) -> list:
        return [state]

    def pack(self, states: list) -> Any:
        return states[0]

    def masked(self, mask: MaskTree, mask_extra_args: bool = False) -> Node:
        """The node on the part of the tree where `mask` is true; its state is unchanged."""
        raise NotImplementedError

    def map_masks(self, f: Callable[[MaskTree], MaskTree]) -> Node:
        """The node with `f` of each mask in its place."""
        del f
        return self

    def joins(self, first: Node) -> bool:
        """Whether the atom can run together with those from `first` on that stand before it."""
        del first
        return False

    def run(
        self, atoms: tuple[Any, ...], states: list, updates: Any, params: Any, extra_args: dict
    ) -> tuple[Any, list]:
        """Runs consecutive atoms, of which this is the first: the new updates, and the new state of each."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class Opaque(Node):
    """A pair that is run by its own ``update``."""

    pair: GradientTransformation

    def init(self, params):
        return self.pair.init(params)

    def run(self, atoms, states, updates, params, extra_args):
        updates, state = self.pair.update(updates, states[0], params, **(extra_args if self.takes_extra_args else {}))
        return updates, [state]

    @functools.cached_property
    def takes_extra_args(self) -> bool:
        return takes_extra_args(self.pair)

    def masked(self, mask, mask_extra_args=False):
        def update(updates, state, params=None, **extra_args):
            name = self.name or "masked"
            where = resolve(mask, updates, name)
            structure = jax.tree.structure(updates)
            if params is not None:
                if jax.tree.structure(params) != structure:
                    raise errors.structure_mismatch(name, "updates", updates, "params", params)
                params = select(where, params)
            if mask_extra_args:
                extra_args = {
                    k: select(where, v) if jax.tree.structure(v) == structure else v for k, v in extra_args.items()
                }
            inner, states = self.run((self,), [state], select(where, updates), params, extra_args)
            return merge(where, inner, updates), states[0]

        return dataclasses.replace(self, pair=GradientTransformationExtraArgs(self.pair.init, update))


@dataclasses.dataclass(frozen=True, eq=False)
class Sequence(Node):
    """Nodes one after the other.

    Attributes:
      nodes: What runs, in order.
      gather: Makes the state from the list of the nodes' states.
      spread: The list of the nodes' states in a state; raises ValueError for a state of another shape.
    """

    nodes: tuple[Node, ...]
    gather: Callable[[list], Any]
    spread: Callable[[Any, str], list]

    def named(self, name):
        node = super().named(name)
        return dataclasses.replace(node, nodes=tuple(n.named(name) for n in self.nodes))

    @property
    def atoms(self):
        return tuple(atom for node in self.nodes for atom in node.atoms)

    def init(self, params):
        return self.gather([node.init(params) for node in self.nodes])

    def unpack(self, state):
        states = self.spread(state, self.name or "chain")
        return [s for node, part in zip(self.nodes, states, strict=True) for s in node.unpack(part)]

    def pack(self, states):
        states = iter(states)
        return self.gather([node.pack([next(states) for _ in node.atoms]) for node in self.nodes])

    def masked(self, mask, mask_extra_args=False):
        return dataclasses.replace(self, nodes=tuple(node.masked(mask, mask_extra_args) for node in self.nodes))

    def map_masks(self, f):
        return dataclasses.replace(self, nodes=tuple(node.map_masks(f) for node in self.nodes))


class MaskedState(NamedTuple):
    """The state of `masked`: that of the inner transform, with a `MaskedNode` where the mask is false."""

    inner_state: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Masked(Node):
    """A node on the part of the tree where a mask is true; the rest passes unchanged."""

    node: Node  # already restricted to the mask
    mask: MaskTree

    def named(self, name):
        node = super().named(name)
        return dataclasses.replace(node, node=self.node.named(name))

    @property
    def atoms(self):
        return self.node.atoms

    def init(self, params):
        return MaskedState(self.node.init(select(resolve(self.mask, params, self.name or "masked"), params)))

    def unpack(self, state):
        errors.check_state(self.name or "masked", ("inner_state",), state)
        return self.node.unpack(state.inner_state)

    def pack(self, states):
        return MaskedState(self.node.pack(states))

    def masked(self, mask, mask_extra_args=False):
        return dataclasses.replace(self, node=self.node.masked(mask, mask_extra_args))

    def map_masks(self, f):
        return dataclasses.replace(self, node=self.node.map_masks(f), mask=f(self.mask))


def node_of(tx: GradientTransformation) -> Node:
    """The plan of a pair, or an opaque node for a pair that has none."""
    plan = getattr(tx, "info", Info()).plan
    return plan if plan is not None else Opaque(tx, name=getattr(tx, "name", None))


def pair_of(node: Node, info: Info) -> GradientTransformationExtraArgs:
    """The pair that runs `node`."""

    def update(updates, state, params=None, **extra_args):
        return execute(node, updates, state, params, extra_args)

    return GradientTransformationExtraArgs.build(node.init, update, dataclasses.replace(info, plan=node))


def named(pair: GradientTransformationExtraArgs, name: str) -> GradientTransformationExtraArgs:
    """The same pair with `name` in its messages, and nothing recorded."""
    errors.check_pair(name, "of the builder, what it returned,", pair)
    if not isinstance(pair, GradientTransformationExtraArgs):
        pair = with_extra_args_support(pair)
    info = dataclasses.replace(pair.info, call=None)
    if info.plan is None:
        return GradientTransformationExtraArgs.build(pair.init, pair.update, info)
    node = info.plan.named(name)
    if isinstance(node, (Sequence, Masked)):  # what is made of others takes the name of the outermost call
        node = dataclasses.replace(node, name=name)
    return pair_of(node, info)


def execute(node: Node, updates: Any, state: Any, params: Any, extra_args: dict[str, Any]) -> tuple[Any, Any]:
    """Runs the atoms of `node` in order, those that join a run together."""
    atoms, states, done = node.atoms, node.unpack(state), []
    while len(done) < len(atoms):
        start, stop = len(done), len(done) + 1
        while stop < len(atoms) and atoms[stop].joins(atoms[start]):
            stop += 1
        updates, new = atoms[start].run(atoms[start:stop], states[start:stop], updates, params, extra_args)
        done += new
    return updates, node.pack(done)
