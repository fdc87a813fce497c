"""A leaf rule with everything that `leafwise` offers, and the same in NumPy."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optchain import leafwise, transform

PARAMS = {"w": jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "b": (jnp.array([-1.0, 0.5]), None, jnp.float32(2.0))}
GRADS = jax.tree.map(lambda p: 0.5 * p - 1.0, PARAMS)


class AverageState(NamedTuple):
    step: jax.Array
    slow: object
    square: object


class SlotOnly(NamedTuple):
    m: object


class CountOnly(NamedTuple):
    t: jax.Array


def average_rule(u, p, slow, square, *, rate, time, pull, power=2):
    slow = slow + rate[0] * (u - slow)
    square = square + rate[1] * (abs(u) ** power - square)
    return (slow + time * pull * p) / (1 + square), slow, square


@transform
def average(fast=0.5, slow=0.25, pull=0.1, power=2):
    return leafwise(
        average_rule,
        AverageState,
        slots=("slow", "square"),
        scalars=lambda state: dict(rate=(fast, slow), time=state.step + 1.0, pull=pull),
        static=dict(power=power),
        needs_params=True,
    )


def average_reference(gradients, p, fast=0.5, slow=0.25, pull=0.1, power=2):
    """The same in NumPy float64: the updates of one leaf for gradients given one after the other."""
    m, s, out, p = 0.0, 0.0, [], np.asarray(p, np.float64)
    for t, g in enumerate(gradients, start=1):
        g = np.asarray(g, np.float64)
        m = m + fast * (g - m)
        s = s + slow * (abs(g) ** power - s)
        out.append((m + t * pull * p) / (1 + s))
    return out


def share_rule(u, p, *, total):
    return u / total


def share_of_total():
    """Divides by the sum over the whole tree."""
    return leafwise(
        share_rule,
        tree_scalars=lambda updates, state, params: dict(total=sum(jnp.sum(u) for u in jax.tree.leaves(updates))),
    )
