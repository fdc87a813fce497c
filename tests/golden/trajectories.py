"""Reads the recorded trajectories beside this file."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

LEAVES = ("w", "b", "s")
STEPS = 12


@functools.cache
def load(file):
    with np.load(pathlib.Path(__file__).with_name(f"{file}.npz")) as arrays:
        return dict(arrays)


def tree(file, name):
    """The arrays ``name/w``, ``name/b`` and ``name/s``."""
    return {leaf: load(file)[f"{name}/{leaf}"] for leaf in LEAVES}


def replay(tx, file="torch_optim", sign=1):
    """The parameters after each step of `tx` from the shared start with the shared gradients, steps on axis 0."""
    params = jax.tree.map(jnp.asarray, tree(file, "shared/p0"))
    gradients = tree(file, "shared/g")
    state, seen, update = tx.init(params), [], jax.jit(tx.update)
    for step in range(STEPS):
        updates, state = update({k: sign * jnp.asarray(g[step]) for k, g in gradients.items()}, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        seen.append(params)
    return {k: np.stack([p[k] for p in seen]) for k in LEAVES}


def assert_recorded(actual, file, name, rtol=1e-12):
    """Relative to the larger of 1 and the number."""
    for leaf, expected in tree(file, name).items():
        np.testing.assert_allclose(actual[leaf], expected, rtol=rtol, atol=rtol, err_msg=f"{name}/{leaf}")
