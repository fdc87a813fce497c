"""What the tests of promises share: trees of every dtype, runs of some steps, and comparisons."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc
from tests.registry import ENTRIES

STEPS = 3
SHAPES = {"layer": {"w": (4, 3)}, "s": ()}
HALF = ("bfloat16", "float16")
each = pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)


def where(condition):
    chosen = [e for e in ENTRIES if condition(e)]
    return pytest.mark.parametrize("entry", chosen, ids=lambda e: e.name)


def normal(seed, dtype="float32"):
    """A tree of normal numbers; the same numbers, rounded, for every dtype."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda shape: jnp.asarray(rng.normal(size=shape), dtype), SHAPES, is_leaf=is_shape)


def is_shape(x):
    return isinstance(x, tuple)


def zeros(dtype="float32"):
    return jax.tree.map(lambda shape: jnp.zeros(shape, dtype), SHAPES, is_leaf=is_shape)


def gradients(dtype="float32"):
    return [normal(10 + step, dtype) for step in range(STEPS)]


def stack(trees):
    return jax.tree.map(lambda *xs: jnp.stack(xs), *trees)


@functools.cache
def pair(entry):
    return entry.make()


@functools.cache
def compiled(entry):
    return jax.jit(pair(entry).update)


def run(update, state, grads, params):
    """The updates of each step, and the last state. The parameters stay, which keeps runs comparable."""
    made = []
    for g in grads:
        u, state = update(g, state, params)
        made.append(u)
    return made, state


def run_compiled(entry, grads, params):
    return run(compiled(entry), pair(entry).init(params), grads, params)


def assert_equal(actual, expected):
    """Bit for bit, with structure and dtypes."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert jnp.result_type(a) == jnp.result_type(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def wide(tree):
    """Leaves in NumPy's double precision, whatever the mode of JAX."""
    return [np.asarray(x).astype(np.complex128 if jnp.iscomplexobj(x) else np.float64) for x in jax.tree.leaves(tree)]


def assert_close(actual, expected, ulps=8):
    """To a few units in the last place of the largest entry of the expected tree."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    scale = max((np.max(np.abs(b), initial=0) for b in wide(expected)), default=0)
    for (path, leaf), a, b in zip(jax.tree.leaves_with_path(actual), wide(actual), wide(expected), strict=True):
        assert a.shape == b.shape
        eps = float(jnp.finfo(leaf.dtype).eps) if jnp.issubdtype(leaf.dtype, jnp.inexact) else 0
        np.testing.assert_allclose(a, b, rtol=0, atol=ulps * eps * scale, err_msg=jax.tree_util.keystr(path))


def described(tree):
    """Structure, and shape, dtype and weak type of each leaf."""
    abstract = jax.eval_shape(lambda x: x, tree)
    leaves = [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(abstract)]
    return jax.tree.structure(tree), leaves


def links_of(tx):
    """The pair, its links and theirs."""
    return [tx, *(inner for link in getattr(tx, "links", ()) for inner in links_of(link))]


def assert_names(error, tx, *parts):
    """The message begins with the name of the transform or of one of its links and contains the other parts."""
    message = str(error.value)
    names = [t.name for t in links_of(tx) if isinstance(t, oc.GradientTransformation)]
    assert message.startswith(tuple(f"{name}{after}" for name in names for after in (":", " "))), message
    for part in parts:
        assert part in message, message


def keeps_arrays(entry):
    return any(x.ndim for x in jax.tree.leaves(jax.eval_shape(pair(entry).init, normal(0))))
