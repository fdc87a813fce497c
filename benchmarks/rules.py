"""The update rules that are measured.

A rule is written once for every library that has the field's names: `build(m, learning_rate)` makes it from the module
`m`. A rule added to `RULES` is measured as it is and behind a clip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Rule(NamedTuple):
    learning_rate: float
    build: Callable[[Any, float], Any]


def clipped(rule: Rule) -> Rule:
    return Rule(rule.learning_rate, lambda m, lr: m.chain(m.clip_by_global_norm(1.0), rule.build(m, lr)))


RULES = {
    "sgd": Rule(0.1, lambda m, lr: m.sgd(lr)),
    "momentum": Rule(0.1, lambda m, lr: m.sgd(lr, momentum=0.9)),
    "nesterov": Rule(0.1, lambda m, lr: m.sgd(lr, momentum=0.9, nesterov=True)),
    "adam": Rule(1e-3, lambda m, lr: m.adam(lr)),
    "adamw": Rule(1e-3, lambda m, lr: m.adamw(lr)),
}
RULES |= {f"clip+{name}": clipped(rule) for name, rule in RULES.items()}
