"""What every public transform promises of its numbers and of the trees it passes, for each entry of the registry."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc
from tests.promises import (
    HALF,
    assert_close,
    assert_equal,
    assert_names,
    described,
    each,
    gradients,
    normal,
    pair,
    run_compiled,
    where,
    zeros,
)

# numbers


@where(lambda e: e.zero)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_zero_gradients_give_zero_updates(entry, dtype):
    for params in (zeros(dtype), normal(0, dtype)):
        updates, state = run_compiled(entry, [zeros(dtype)] * 2, params)
        for leaf in jax.tree.leaves(updates):
            assert leaf.dtype == dtype
            np.testing.assert_array_equal(np.asarray(leaf), 0)
        assert all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in jax.tree.leaves(state))


@where(lambda e: not e.zero)
@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_zero_gradients_of_zero_parameters_give_zero_updates(entry, dtype):
    updates, _ = run_compiled(entry, [zeros(dtype)] * 2, zeros(dtype))
    assert all(not np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(updates))
    updates, _ = run_compiled(entry, [zeros(dtype)] * 2, normal(0, dtype))
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree.leaves(updates))


@each
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_follows_float32(entry, dtype):
    """Half precision is rounding of what is stored: the state's averages once a step, and the update."""
    rounded = jax.tree.map(lambda x: x.astype(jnp.float32), [normal(0, dtype), *gradients(dtype)])
    expected, _ = run_compiled(entry, rounded[1:], rounded[0])
    actual, _ = run_compiled(entry, gradients(dtype), normal(0, dtype))
    for a, b in zip(actual, expected, strict=True):
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(a))
        assert_close(a, b, ulps=3)


@each
def test_updates_have_the_dtype_of_the_gradient(entry):
    for params_dtype, grads_dtype in [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16")]:
        tx, params, grads = pair(entry), normal(0, params_dtype), normal(1, grads_dtype)
        updates, _ = jax.eval_shape(tx.update, grads, tx.init(params), params)
        assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype(grads_dtype)}


@each
def test_each_width_stays_under_x64(entry, x64):
    tx = pair(entry)
    cast = {"layer": {"w": "float64"}, "s": "float32"}
    params, grads = (jax.tree.map(lambda x, d: x.astype(d), normal(seed, "float64"), cast) for seed in (0, 1))
    state = tx.init(params)
    narrow = {leaf.dtype for leaf in jax.tree.leaves(tx.init(normal(0)))}
    assert jnp.dtype("float64") not in narrow
    updates, new = jax.eval_shape(tx.update, grads, state, params)
    assert jax.tree.map(lambda x: x.dtype.name, updates) == cast
    assert described(new) == described(state)


@where(lambda e: e.complex)
def test_complex_leaves_work(entry):
    """A real gradient written as complex gives the real updates; so does an imaginary one, times i."""
    params, grads = normal(0), gradients()
    expected, _ = run_compiled(entry, grads, params)
    ulps = 2.0**18 if "bfloat16" in entry.name else 16  # averages of complex updates are stored as complex64 at least

    def times(unit, tree):
        return jax.tree.map(lambda x: jnp.asarray(unit * x, jnp.complex64), tree)

    for unit in (1, 1j):
        updates, _ = run_compiled(entry, [times(unit, g) for g in grads], times(unit, params))
        for a, b in zip(updates, expected, strict=True):
            assert all(leaf.dtype == jnp.complex64 for leaf in jax.tree.leaves(a))
            assert_close(a, times(unit, b), ulps=ulps)


@where(lambda e: not e.complex)
def test_complex_leaves_are_refused_by_name(entry):
    tx, params = pair(entry), normal(0, "complex64")
    with pytest.raises(TypeError, match="complex") as error:
        jax.eval_shape(lambda: tx.update(params, tx.init(params), params))
    assert_names(error, tx)


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_turns_a_bad_gradient_into_a_number(entry, bad):
    params, grads = normal(0), gradients()
    good, _ = run_compiled(entry, grads[:1], params)
    grads[0]["layer"]["w"] = grads[0]["layer"]["w"].at[1, 2].set(bad)
    updates, _ = run_compiled(entry, grads[:1], params)
    nan = jax.tree.map(np.isnan, updates[0])
    w, rest = nan["layer"]["w"], nan["s"]
    if entry.nonfinite == "erased":
        assert not w.any()
    elif entry.nonfinite == "tree":
        assert w.all()
        assert rest
    elif entry.nonfinite == "leaf":
        assert w.all()
    elif entry.nonfinite == "unit":
        np.testing.assert_array_equal(w, np.arange(3) == np.array([[2]] * 4))
    elif np.isnan(bad):
        assert w[1, 2]
        assert w.sum() == 1
    else:  # an infinite entry may keep its size, be bounded by clip, or become NaN
        assert entry.builder in (oc.clip, oc.named_chain) or not np.isfinite(updates[0]["layer"]["w"][1, 2])
    if entry.nonfinite != "tree":
        assert_equal(updates[0]["s"], good[0]["s"])


# trees


@each
def test_none_and_empty_leaves_pass(entry):
    extra = {"none": None, "empty": jnp.zeros(0), "rows": jnp.zeros((0, 3)), "deep": {"none": None, "nothing": ()}}
    params, grads = normal(0), gradients()[:2]
    expected, _ = run_compiled(entry, grads, params)
    updates, state = run_compiled(entry, [{**g, **extra} for g in grads], {**params, **extra})
    for a, b in zip(updates, expected, strict=True):
        assert a["none"] is None
        assert a["deep"] == {"none": None, "nothing": ()}
        assert (a["empty"].shape, a["rows"].shape) == ((0,), (0, 3))
        assert_close({k: a[k] for k in b}, b)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state))


@each
@pytest.mark.parametrize("tree", [{}, (), [], None, {"a": None, "b": ()}], ids=repr)
def test_empty_trees_pass(entry, tree):
    if tree is None and entry.params:
        return  # None says that there are no parameters
    tx = pair(entry)
    updates, state = tx.update(tree, tx.init(tree), tree)
    assert updates == tree
    assert described(state) == described(tx.init(tree))


@where(lambda e: e.checks)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_of_numpy_pass(entry, dtype):
    """Of double precision too, which JAX takes for single precision unless told otherwise."""
    tx, params, grads = pair(entry), normal(0), normal(1)
    expected = tx.update(grads, tx.init(params), params)
    params, grads = (jax.tree.map(lambda x: np.asarray(x, dtype), tree) for tree in (params, grads))
    assert_equal(tx.update(grads, tx.init(params), params), expected)


@where(lambda e: e.local)
def test_leaves_do_not_touch_each_other(entry):
    params, grads = normal(0), gradients()[:2]
    expected, _ = run_compiled(entry, grads, params)
    for g in grads:
        g["s"] = 100 * g["s"]
    updates, _ = run_compiled(entry, grads, params)
    assert_equal([u["layer"]["w"] for u in updates], [u["layer"]["w"] for u in expected])


@where(lambda e: not e.params)
def test_parameters_may_be_left_out(entry):
    tx, params, grads = pair(entry), normal(0), normal(1)
    state = tx.init(params)
    assert_equal(tx.update(grads, state), tx.update(grads, state, params))


@each
def test_extra_arguments_are_tolerated(entry):
    tx, params, grads = pair(entry), normal(0), normal(1)
    state = tx.init(params)
    plain = tx.update(grads, state, params)
    extra = tx.update(grads, state, params, value=jnp.float32(3.0), grad=grads, value_fn=len, unheard_of=object())
    assert_equal(extra, plain)
