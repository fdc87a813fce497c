"""The step that somebody would write by hand who wants speed and nothing else.

One function over the leaves for each of the ten core rules, with numbers in place of arguments: no checks, no options,
no state but the moments and a count. What a library costs beyond this is the price of being a library.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

SMALL = 65_536
LEARNING_RATE, MOMENTUM = 0.1, 0.9
ADAM_RATE, B1, B2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-4


def sgd(g, p, debias):
    return (p - LEARNING_RATE * g,)


def momentum(g, p, debias, m):
    m = MOMENTUM * m + g
    return p - LEARNING_RATE * m, m


def nesterov(g, p, debias, m):
    m = MOMENTUM * m + g
    return p - LEARNING_RATE * (MOMENTUM * m + g), m


def adam(g, p, debias, m, v):
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g * g
    return p - ADAM_RATE * (debias[0] * m / (jnp.sqrt(debias[1] * v) + EPS)), m, v


def adamw(g, p, debias, m, v):
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g * g
    return p - ADAM_RATE * (debias[0] * m / (jnp.sqrt(debias[1] * v) + EPS) + DECAY * p), m, v


SLOTS: dict[Callable, int] = {sgd: 0, momentum: 1, nesterov: 1, adam: 2, adamw: 2}


def program(name: str) -> tuple[Callable, Callable] | None:
    """``init(params)`` and ``step(params, state, grads)`` of a rule, or None for one that nobody wrote."""
    leaf = {rule.__name__: rule for rule in SLOTS}.get(name.removeprefix("clip+"))
    if leaf is None:
        return None
    clipped = name.startswith("clip+")

    def init(params):
        slots = [[jnp.zeros_like(p) for p in jax.tree.leaves(params)] for _ in range(SLOTS[leaf])]
        return jnp.zeros((), jnp.float32), slots

    def step(params, state, grads):
        count, slots = state
        count = count + 1
        leaves, treedef = jax.tree.flatten(params)
        gradients = jax.tree.leaves(grads)
        factor = clip_factor(gradients) if clipped else None
        debias = 1 / (1 - B1**count), 1 / (1 - B2**count)
        factor, debias = jax.lax.optimization_barrier((factor, debias))  # made once, not a piece of every kernel
        made = []
        for g, p, *old in zip(gradients, leaves, *slots, strict=True):
            made.append(leaf(factor * g if clipped else g, p, debias, *old))
        leaves, *slots = map(list, zip(*made, strict=True))
        return treedef.unflatten(leaves), (count, slots)

    return init, step


def clip_factor(gradients: list[jax.Array]) -> jax.Array:
    """``min(1, 1 / norm)``, with one reduction for all small leaves."""
    small = [g.ravel() for g in gradients if g.size <= SMALL]
    parts = [g for g in gradients if g.size > SMALL] + ([jnp.concatenate(small)] if small else [])
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in parts))
    return jnp.minimum(1.0, 1.0 / norm)
