"""What equal transforms share: one compilation, and how long they and what they hold are kept."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np

import optchain
from optchain.core.kernels import kernel
from tests.compiles import counting_compiles

# Compilation


def test_a_static_argument_traces_once_for_equal_transforms():
    traced = []

    def step(tx, params, gradient):
        traced.append(tx)
        return tx.update(gradient, tx.init(params), params)[0]

    step = jax.jit(step, static_argnums=0)
    params = jnp.array([1.0, 2.0])
    for _ in range(3):
        for decay in (0.0, 0.5):
            tx = optchain.chain(optchain.clip_by_global_norm(1.0), optchain.adamw(0.1, weight_decay=decay))
            step(tx, params, params)
    assert len(traced) == 2


def test_update_rebuilt_and_dropped_in_a_loop_compiles_once():
    params = {"w": jnp.ones((3, 7)), "b": jnp.ones(7)}

    def step():
        tx = optchain.chain(optchain.clip_by_global_norm(1.0), optchain.adamw(0.011, mask={"w": True, "b": False}))
        state = jax.jit(tx.init)(params)
        return jax.block_until_ready(jax.jit(tx.update)(params, state, params))

    step()
    gc.collect()
    with counting_compiles() as compiled:
        for _ in range(5):
            step()
            gc.collect()
    assert compiled == []


def test_new_numbers_in_an_eager_loop_compile_nothing():
    params = {"w": jnp.ones((3, 5)), "b": jnp.ones(5)}

    def steps(i):
        for tx in (
            optchain.scale(0.1 + i),
            optchain.sgd(0.2 + i),
            optchain.sgd(0.2 + i, momentum=0.5 / (1 + i)),
            optchain.chain(optchain.clip_by_global_norm(1.0 + i), optchain.adamw(0.1 / (1 + i), 0.8 + 0.01 * i)),
            optchain.chain(optchain.clip(0.3 + i), optchain.ema(0.9 - i / 100), optchain.scale(np.float32(i))),
            optchain.scale(jnp.float32(i)),
        ):
            tx.update(params, tx.init(params), params)

    steps(0)
    before = kernel.cache_info().currsize
    with counting_compiles() as compiled:
        for i in range(1, 8):
            steps(i)
    assert compiled == []
    assert kernel.cache_info().currsize == before


def test_thousands_of_values_are_not_kept():
    # A pair is a tuple, which cannot be referred to weakly; its update function lives as long as it does.
    updates = [weakref.ref(optchain.sgd(1000.0 + i).update) for i in range(2000)]
    for _ in range(4):  # a transform holds its links, and each level takes a collection
        gc.collect()
    assert sum(update() is not None for update in updates) <= 300


def test_an_equal_transform_in_use_is_found_after_thousands_of_others():
    tx = optchain.sgd(0.1234)
    for i in range(1000):
        optchain.scale(3000.0 + i)
    gc.collect()
    assert optchain.sgd(0.1234) == tx
    assert hash(optchain.sgd(0.1234)) == hash(tx)
    nested = optchain.chain(optchain.chain(tx, optchain.clip(1.0)), optchain.scale(2.0))
    for i in range(1000):
        optchain.scale(5000.0 + i)
    gc.collect()
    assert optchain.chain(optchain.chain(tx, optchain.clip(1.0)), optchain.scale(2.0)) == nested


# Memory


def test_tracers_do_not_outlive_their_trace():
    @jax.jit
    def step(rate, gradient):
        tx = optchain.chain(optchain.clip(10.0), optchain.adam(rate))
        return tx.update(gradient, tx.init(gradient))[0]

    with jax.checking_leaks():
        np.testing.assert_allclose(step(0.5, jnp.array([2.0])), [-0.5], rtol=1e-6)


def test_a_schedule_that_holds_a_tracer_does_not_outlive_its_trace():
    @jax.jit
    def step(rate, gradient):
        tx = optchain.sgd(lambda count: rate)
        return tx.update(gradient, tx.init(gradient))[0]

    with jax.checking_leaks():
        np.testing.assert_allclose(step(0.5, jnp.array([2.0])), [-1.0])


def test_what_a_function_argument_holds_is_freed_with_the_transform():
    class Model:
        """Stands for the large arrays that a closure may hold."""

        def mask(self, tree):
            return jax.tree.map(lambda x: True, tree)

    model = Model()
    alive = weakref.ref(model)
    tx = optchain.masked(optchain.scale(2.0), model.mask)
    assert tx.update(jnp.ones(1), tx.init(jnp.ones(1)))[0] == 2.0
    del tx, model
    gc.collect()
    assert alive() is None
