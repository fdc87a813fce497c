"""PyTorch's fused optimizers on the same arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

# Rule -> the optimizer's name in torch.optim, and its arguments where they equal those of the rule.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", dict(lr=0.1)),
    "momentum": ("SGD", dict(lr=0.1, momentum=0.9)),
    "nesterov": ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True)),
    "adam": ("Adam", dict(lr=1e-3)),
    "adamw": ("AdamW", dict(lr=1e-3, weight_decay=1e-4)),
}


class Stepper(NamedTuple):
    """A contender that JAX does not compile.

    Attributes:
      start: ``start(params, grads) -> (call, carry)``, from NumPy arrays; ``call(*carry) -> carry`` is one step, and
        the parameters are the first of the carry.
    """

    start: Callable[[Any, Any], tuple[Callable, tuple]]


def cores() -> int:
    """The cores that this process may use, as JAX does."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stepper(name: str) -> Stepper | None:
    """The fused optimizer of a rule, or None for one that PyTorch has no fused form of."""
    kind, arguments = OPTIMIZERS.get(name.removeprefix("clip+"), (None, {}))
    if kind is None:
        return None
    import torch

    torch.set_num_threads(cores())

    def start(params, grads):
        params = jax.tree.map(lambda x: torch.nn.Parameter(torch.tensor(x)), params)
        leaves = jax.tree.leaves(params)
        for leaf, g in zip(leaves, jax.tree.leaves(grads), strict=True):
            leaf.grad = torch.tensor(g)
        optimizer = getattr(torch.optim, kind)(leaves, fused=True, **arguments)

        def call(params, state):
            # The clip works in place: from the second step on the norm is 1, at the same cost.
            if name.startswith("clip+"):
                torch.nn.utils.clip_grad_norm_(leaves, 1.0)
            optimizer.step()
            return params, state

        return call, (params, None)

    return Stepper(start)
