"""`leafwise` under the transformations of JAX, what it compiles, and random trees."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st

import optchain
from optchain import chain, leafwise, scale
from optchain.core.kernels import kernel
from tests.compiles import counting_compiles
from tests.core.averages import (
    PARAMS,
    SlotOnly,
    average,
    average_reference,
)

# Compilation


def test_equal_leaves_and_new_numbers_share_one_compilation():
    def fresh_rule(u, p, m, *, a, b):
        return a * u + b, m + u

    params = {f"w{i}": jnp.ones((3, 11)) for i in range(20)} | {f"b{i}": jnp.ones(11) for i in range(20)}

    def step(a, b):
        tx = leafwise(fresh_rule, SlotOnly, slots=("m",), scalars=lambda state: dict(a=a, b=b))
        return tx.update(params, tx.init(params))

    step(0.5, jnp.float32(2.0))  # also compiles what init needs
    before = kernel.cache_info().currsize
    with counting_compiles() as compiled:
        for i in range(5):
            step(0.25 + i, jnp.float32(i))
    assert compiled == []
    assert kernel.cache_info().currsize == before


def test_two_shapes_compile_two_kernels():
    def shape_rule(u, p, *, a):
        return a * u - 1.0

    tx = leafwise(shape_rule, scalars=lambda state: dict(a=0.5))
    grads = {f"w{i}": jnp.ones((3, 13)) for i in range(9)} | {f"b{i}": jnp.ones(13) for i in range(9)}
    with counting_compiles() as compiled:
        tx.update(grads, tx.init(grads))
    assert len(compiled) == 2


def test_the_second_step_compiles_nothing():
    tx = chain(optchain.clip_by_global_norm(1.0), optchain.adamw(0.1, mu_dtype="bfloat16"))
    step = jax.jit(tx.update)
    params = {"a": jnp.ones((3, 17)), "b": 1.0}
    params = jax.tree.map(jnp.asarray, params)
    _, state = step(params, tx.init(params), params)
    with counting_compiles() as compiled:
        for _ in range(3):
            _, state = step(params, state, params)
    assert compiled == []


# Transformations of JAX


def test_vmap_over_independent_problems():
    tx = chain(optchain.clip_by_global_norm(1.0), average(), scale(-0.1))
    params = jax.random.normal(jax.random.key(0), (5, 2, 3))
    gradients = 3 * jax.random.normal(jax.random.key(1), (4, 5, 2, 3))

    def run(params, gradients):
        state = tx.init(params)
        out = []
        for gradient in gradients:
            updates, state = tx.update(gradient, state, params)
            out.append(updates)
        return jnp.stack(out)

    together, alone = jax.jit(jax.vmap(run, in_axes=(0, 1), out_axes=1))(params, gradients), jax.jit(run)
    for i in range(5):
        np.testing.assert_allclose(together[:, i], alone(params[i], gradients[:, i]), rtol=1e-5, atol=1e-7)


def test_scan_over_steps():
    tx = chain(average(), optchain.adam(0.1))
    params = jnp.array([1.0, -2.0])
    gradients = jax.random.normal(jax.random.key(0), (6, 2))

    def step(carry, gradient):
        params, state = carry
        updates, state = tx.update(gradient, state, params)
        return (optchain.apply_updates(params, updates), state), updates

    (end, state), _ = jax.lax.scan(step, (params, tx.init(params)), gradients)
    carry = params, tx.init(params)
    for gradient in gradients:
        carry, _ = step(carry, gradient)
    np.testing.assert_allclose(end, carry[0], rtol=1e-6)
    assert int(state[0].step) == 6


def test_derivatives_through_the_update():
    # The update of one step of `average` is (fast g + pull p) / (1 + slow g^2).
    def loss(fast, g, p):
        tx = average(fast, 0.25, pull=0.1)
        return tx.update(g, tx.init(p), p)[0]

    fast, g, p = 0.5, 1.5, 2.0
    derivative = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(fast, g, p)
    below = 1 + 0.25 * g**2
    expected = g / below, fast / below - (fast * g + 0.1 * p) * 0.5 * g / below**2, 0.1 / below
    np.testing.assert_allclose(derivative, expected, rtol=1e-5)


def test_derivative_through_several_steps_by_differences():
    tx = chain(optchain.trace(0.9), optchain.add_decayed_weights(0.1), scale(-0.05))

    def end(p):
        state = tx.init(p)
        for _ in range(3):
            updates, state = tx.update(jax.grad(lambda x: jnp.sum(x**4))(p), state, p)
            p = optchain.apply_updates(p, updates)
        return jnp.sum(p)

    with jax.enable_x64(True):
        p = jnp.array([0.7, -0.4], jnp.float64)
        slope = jax.grad(end)(p)
        for i in range(2):
            h = jnp.zeros(2).at[i].set(1e-6)
            np.testing.assert_allclose(slope[i], (end(p + h) - end(p - h)) / 2e-6, rtol=1e-7)


def test_shapes_alone_are_enough_for_tracing():
    tx = chain(optchain.clip_by_global_norm(1.0), optchain.adamw(0.1))
    shapes = jax.eval_shape(tx.init, PARAMS)
    out = jax.eval_shape(tx.update, PARAMS, shapes, PARAMS)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), out) == jax.tree.map(
        lambda x: (x.shape, x.dtype), (PARAMS, tx.init(PARAMS))
    )


# Random trees


class Point(NamedTuple):
    x: object
    y: object


SHAPES = [(), (1,), (4,), (2, 3), (0, 2), (2, 1, 2)]
trees = st.recursive(
    st.one_of(st.none(), st.sampled_from(SHAPES).map(np.zeros)),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Point, inner, inner),
    ),
    max_leaves=7,
).map(lambda tree: {"root": tree})  # None instead of parameters means that there are none


@settings(deadline=None, max_examples=25)
@given(tree=trees, seed=st.integers(0, 2**16), fast=st.floats(0, 1), pull=st.floats(-2, 2))
def test_random_trees_against_numpy(tree, seed, fast, pull):
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda x: np.asarray(rng.normal(size=x.shape), np.float32), tree)
    gradients = [jax.tree.map(lambda x: np.asarray(rng.normal(size=x.shape), np.float32), tree) for _ in range(3)]
    tx = average(fast, 0.25, pull)
    state, updates = tx.init(params), []
    for gradient in gradients:
        new, state = tx.update(gradient, state, params)
        assert jax.tree.structure(new) == jax.tree.structure(tree)
        updates.append(jax.tree.leaves(new))
    for i, p in enumerate(jax.tree.leaves(params)):
        column = [jax.tree.leaves(g)[i] for g in gradients]
        for new, wanted in zip(updates, average_reference(column, p, fast, 0.25, pull), strict=True):
            assert (new[i].shape, new[i].dtype) == (p.shape, p.dtype)
            np.testing.assert_allclose(new[i], wanted, rtol=1e-5, atol=2e-6)
