"""Who is measured: optchain first, then the peers that it is compared with.

An entry of `CONTENDERS` makes a program from a rule's name and the shapes of the parameters, or returns None if it does
not take part there.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import handwritten, pytorch
from benchmarks.rules import Rule, library, rules
from benchmarks.trees import shapes_of

SMALL = 1024


class Program(NamedTuple):
    """One optimizer as one contender writes it for JAX.

    Attributes:
      init: ``init(params) -> state``.
      step: ``step(params, state, grads) -> (params, state)``; it is compiled whole, with params and state donated.
      update: ``update(grads, state, params) -> (updates, state)``, called eagerly; None for a contender without one.
    """

    init: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], tuple[Any, Any]]
    update: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None


def program(m: Any, tx: Any) -> Program:
    """The program of a pair of the library `m`."""

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return m.apply_updates(params, updates), state

    return Program(tx.init, step, tx.update)


def plain(m: Any, rule: Rule) -> Program:
    return program(m, rule.behind_its_clip(m, rule.optimizer_of(m)))


def packed(m: Any, rule: Rule, tree: Any) -> Program | None:
    """optchain with the optimizer inside `packed`, where most leaves are small; None for a rule that it refuses."""
    sizes = [math.prod(shape) for shape in shapes_of(tree)]
    if 2 * sum(size <= SMALL for size in sizes) <= len(sizes):
        return None
    optimizer = rule.optimizer_of(m)
    try:
        optimizer = m.packed(optimizer)
    except (TypeError, ValueError):
        return None
    return program(m, rule.behind_its_clip(m, optimizer))


def by_hand(name: str) -> Program | None:
    made = handwritten.program(name)
    return made and Program(*made)


CONTENDERS: dict[str, Callable[[str, Any], Program | pytorch.Stepper | None]] = {
    "optchain": lambda name, tree: plain(library("optchain"), rules()[name]),
    "packed": lambda name, tree: packed(library("optchain"), rules()[name], tree),
    "optax": lambda name, tree: plain(library("optax"), rules()[name]),
    "handwritten": lambda name, tree: by_hand(name),
    "torch": lambda name, tree: pytorch.stepper(name),
}

# Which ratios are reported: the first one's cost over that of the second.
PAIRS = (("optchain", "optax"), ("packed", "optax"), ("optchain", "handwritten"), ("optchain", "torch"))


def absent(backend: str) -> dict[str, str]:
    """The contenders that cannot take part on this machine, with the reason."""
    if importlib.util.find_spec("torch") is None:
        return {"torch": "not installed; python -m pip install '.[bench-torch]'"}
    return {} if backend == "cpu" else {"torch": "measured on CPU only"}
