"""Who is measured: optchain first, then the peers that it is compared with.

An entry of `CONTENDERS` makes a `Program` from the name of a rule, or returns None if it does not have that rule.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.rules import RULES


class Program(NamedTuple):
    """One optimizer as one contender writes it.

    Attributes:
      init: ``init(params) -> state``.
      step: ``step(params, state, grads) -> (params, state)``; it is compiled whole, with params and state donated.
      update: ``update(grads, state, params) -> (updates, state)``, called eagerly; None for a contender without one.
    """

    init: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], tuple[Any, Any]]
    update: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None


class MissingContender(Exception):
    """A library that the comparison needs is not installed."""


def library(module: str, rule: str) -> Program:
    """The program of a library with the field's names."""
    try:
        m = importlib.import_module(module)
    except ImportError as error:
        raise MissingContender(
            f"benchmarks: {module} cannot be imported ({error}). Install what is measured with: "
            "python -m pip install '.[bench]'"
        ) from error
    tx = RULES[rule].build(m, RULES[rule].learning_rate)

    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return m.apply_updates(params, updates), state

    return Program(tx.init, step, tx.update)


CONTENDERS: dict[str, Callable[[str], Program | None]] = {
    "optchain": lambda rule: library("optchain", rule),
    "optax": lambda rule: library("optax", rule),
}
