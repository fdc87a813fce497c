"""The update rules that are measured.

A rule is written once for every library that has the field's names. Every optimizer that optchain publishes and Optax
has under the same name is one, with its default arguments; `SETTINGS` says what differs from that. Each is measured as
it is and behind a clip.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any, NamedTuple

LEARNING_RATE = 1e-3

# Rule -> the optimizer's name, and arguments besides the default learning rate.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", dict(learning_rate=0.1)),
    "momentum": ("sgd", dict(learning_rate=0.1, momentum=0.9)),
    "nesterov": ("sgd", dict(learning_rate=0.1, momentum=0.9, nesterov=True)),
}
CLIPPED = "clip+"


def behind_clips(names: list[str]) -> list[str]:
    return [*names, *(CLIPPED + name for name in names)]


CORE = behind_clips(["sgd", "momentum", "nesterov", "adam", "adamw"])


class Rule(NamedTuple):
    """An optimizer by its public name, with its arguments, behind ``clip_by_global_norm(1.0)`` or not."""

    optimizer: str
    arguments: dict[str, Any]
    clipped: bool

    @property
    def learning_rate(self) -> float:
        return self.arguments["learning_rate"]

    def optimizer_of(self, m: Any) -> Any:
        """The optimizer alone, made from the module `m`."""
        return getattr(m, self.optimizer)(**self.arguments)

    def behind_its_clip(self, m: Any, optimizer: Any) -> Any:
        return m.chain(m.clip_by_global_norm(1.0), optimizer) if self.clipped else optimizer


class MissingContender(Exception):
    """A library that the comparison needs is not installed."""


def library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingContender(
            f"benchmarks: {module} cannot be imported ({error}). Install what is measured with: "
            "python -m pip install '.[bench]'"
        ) from error


@functools.cache
def rules() -> dict[str, Rule]:
    """Every rule by name, those of `CORE` first."""
    ours, optax = library("optchain.optimizers"), library("optax")
    shared = [name for name in dir(ours) if is_optimizer(name, getattr(ours, name)) and hasattr(optax, name)]
    plain = {name: SETTINGS.get(name, (name, {})) for name in [*SETTINGS, *shared]}
    made = {name: (optimizer, {"learning_rate": LEARNING_RATE, **own}) for name, (optimizer, own) in plain.items()}
    names = [*CORE, *(name for name in behind_clips(list(made)) if name not in CORE)]
    return {name: Rule(*made[name.removeprefix(CLIPPED)], name.startswith(CLIPPED)) for name in names}


def is_optimizer(name: str, value: Any) -> bool:
    """Whether this is a public function from a learning rate to a pair."""
    if name.startswith(("_", "scale_by_")) or not inspect.isroutine(value):
        return False
    return next(iter(inspect.signature(value).parameters), None) == "learning_rate"
