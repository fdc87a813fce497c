"""What every public transform promises, for each entry of the registry: JAX's transformations, and its state.

What the updates should be is told by the tests of the rules; here a transform is compared with itself under another
transformation or layout, or with a finite difference.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests import registry
from tests.promises import (
    HALF,
    assert_close,
    assert_equal,
    compiled,
    described,
    each,
    gradients,
    normal,
    pair,
    run,
    run_compiled,
    stack,
    where,
)
from tests.registry import ENTRIES

# the registry


def test_every_public_transform_is_in_the_registry():
    covered = {entry.builder for entry in ENTRIES}
    missing = [name for name, builder in registry.public_builders().items() if builder not in covered]
    assert not missing, f"add an entry to tests/registry.py for each of {missing}"


def test_names_of_entries_differ():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)


def test_the_search_for_builders_finds_them():
    found = registry.public_builders()
    assert {"optchain.adamw", "optchain.transforms.masked", "optchain.optimizers.sgd", "optchain.chain"} <= set(found)


# transformations of JAX


@each
def test_donated_steps_compile_once_and_equal_eager_ones(entry):
    tx, traces = pair(entry), []

    def step(params, state, grads):
        traces.append(None)
        updates, state = tx.update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state, updates

    jitted = jax.jit(step, donate_argnums=(0, 1))
    params, eager_params = normal(0), normal(0)
    state, eager_state = jax.jit(tx.init)(params), tx.init(eager_params)
    assert_equal(state, eager_state)
    state = tx.init(params)
    for grads in gradients():
        params, state, updates = jitted(params, state, grads)
        eager, eager_state = tx.update(grads, eager_state, eager_params)
        eager_params = jax.tree.map(jnp.add, eager_params, eager)
        assert_close(updates, eager, ulps=16)
    assert_close(state, eager_state, ulps=16)
    assert len(traces) == 1


@each
def test_eager_steps_compile_nothing_after_the_first(entry, compilations):
    tx, params, grads = pair(entry), normal(0), gradients()
    state = tx.init(params)
    _, state = tx.update(grads[0], state, params)
    jax.block_until_ready(tx.update(grads[0], state, params))  # counts are fresh arrays now, as in every later step
    compilations.clear()
    for g in grads:
        _, state = tx.update(g, state, params)
    assert not compilations


@where(lambda e: e.numbers)
def test_a_new_number_compiles_nothing(entry, compilations):
    params, grads = normal(0), normal(1)
    for factor in (1.0, 0.9, 0.8):
        tx = entry.make(**{name: factor * value for name, value in entry.numbers.items()})
        state = tx.init(params)
        for _ in range(2):
            _, state = tx.update(grads, state, params)
        if factor == 1.0:
            compilations.clear()
    assert not compilations


@each
def test_scan_under_vmap(entry):
    tx = pair(entry)

    def train(params, grads):
        def body(state, g):
            updates, state = tx.update(g, state, params)
            return state, updates

        return jax.lax.scan(body, tx.init(params), grads)

    batch = [(normal(20), gradients()), (normal(30), gradients()[::-1])]
    states, updates = jax.vmap(train)(stack([p for p, _ in batch]), stack([stack(g) for _, g in batch]))
    expected = [run_compiled(entry, grads, params) for params, grads in batch]
    assert_close(updates, stack([stack(u) for u, _ in expected]), ulps=16)
    assert_close(states, stack([state for _, state in expected]), ulps=16)


@each
def test_derivatives(entry, x64):
    """By the gradients and by every number, against finite differences; finite too where all gradients are zero.

    Everything is computed for many values at once, so that the numbers are batched tracers.
    """
    params, weights, direction, *grads = ({"w": normal(seed, "float64")["layer"]["w"]} for seed in range(5))

    def objective(numbers, grads):
        t, numbers = numbers["t"], {k: v for k, v in numbers.items() if k != "t"}
        tx = entry.make(**numbers)
        moved = [jax.tree.map(lambda g, d: g + t * d, g, direction) for g in grads]
        updates, _ = run(tx.update, tx.init(params), moved, params)
        return sum(jnp.vdot(weights["w"], u["w"]) for u in updates)

    numbers = {"t": 0.0, **entry.numbers}
    steps = {name: 1e-6 * max(abs(value), 1e-3) for name, value in numbers.items()}
    rows = [numbers] + [{**numbers, name: numbers[name] + s} for name, h in steps.items() for s in (h, -h)]
    rows = {name: jnp.array([row[name] for row in rows]) for name in numbers}
    both = jax.jit(jax.vmap(jax.value_and_grad(objective), in_axes=(0, None)))
    values, slopes = both(rows, grads)
    assert all(np.isfinite(slope).all() for slope in slopes.values())
    stored = {x.dtype for x in jax.tree.leaves(jax.eval_shape(entry.make().init, params))}
    if stored <= {jnp.dtype("float64"), jnp.dtype("int32")}:  # rounding of what is stored would drown the differences
        for i, (name, h) in enumerate(steps.items()):
            difference = (values[2 * i + 1] - values[2 * i + 2]) / (2 * h)
            np.testing.assert_allclose(slopes[name][0], difference, rtol=1e-5, atol=1e-5, err_msg=name)
    values, slopes = both(rows, jax.tree.map(jnp.zeros_like, grads))
    assert np.isfinite(values).all()
    assert all(np.isfinite(slope).all() for slope in slopes.values()), slopes


# state


@each
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_state_keeps_its_form(entry, dtype):
    tx, params = pair(entry), normal(0, dtype)
    state = tx.init(params)
    assert not any(weak for *_, weak in described(state)[1])
    for grads_dtype in {dtype, "float32"}:
        _, new = jax.eval_shape(tx.update, normal(1, grads_dtype), state, params)
        assert described(new) == described(state)
    assert described(jax.eval_shape(tx.init, params)) == described(state)


@each
def test_counts_are_int32_scalars(entry):
    for leaf in jax.tree.leaves(pair(entry).init(normal(0))):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            assert (leaf.shape, leaf.dtype) == ((), jnp.int32)


@each
def test_every_buffer_is_fresh(entry):
    params = normal(0)
    state = pair(entry).init(params)
    leaves = [x for x in jax.tree.leaves((params, state)) if x.size]
    assert all(isinstance(x, jax.Array) for x in leaves)
    assert len({x.unsafe_buffer_pointer() for x in leaves}) == len(leaves)


@each
def test_a_saved_state_continues_bit_for_bit(entry):
    params, grads = normal(0), gradients()
    expected, expected_state = run_compiled(entry, grads, params)
    _, state = run_compiled(entry, grads[:1], params)
    leaves, treedef = jax.tree.flatten(state)
    saved = [np.array(x) for x in leaves]
    restored = treedef.unflatten([jnp.asarray(x) for x in saved])
    updates, last = run(compiled(entry), restored, grads[1:], params)
    assert_equal((updates, last), (expected[1:], expected_state))
    updates, last = run(compiled(entry), treedef.unflatten(saved), grads[1:], params)  # NumPy's arrays themselves
    assert_equal((updates, last), (expected[1:], expected_state))


@where(lambda e: not e.joins)
def test_sharding_is_kept(entry):
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    rows, all_ = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["x"], []))
    shardings = {"layer": {"w": rows}, "s": all_}
    params, grads = jax.device_put(normal(0), shardings), jax.device_put(normal(1), shardings)
    tx = pair(entry)
    state = tx.init(params)
    updates, new = compiled(entry)(grads, state, params)
    for tree in (state, new, *([updates] if entry.nonfinite != "erased" else [])):  # zeros depend on nothing
        for path, leaf in jax.tree.leaves_with_path(tree):
            if jax.tree_util.keystr(path).endswith("['layer']['w']"):
                assert leaf.sharding.is_equivalent_to(rows, 2), (path, leaf.sharding)
    assert_close(updates, run_compiled(entry, [normal(1)], normal(0))[0][0], ulps=16)
