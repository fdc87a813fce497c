"""Weight decay: exact sums, masks of every form, and a schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc

PARAMS = {"layer": {"w": jnp.array([[2.0, 4.0]]), "b": jnp.array([6.0])}, "s": jnp.float32(8.0)}
GRADS = {"layer": {"w": jnp.array([[1.0, 1.0]]), "b": jnp.array([1.0])}, "s": jnp.float32(1.0)}


def decayed(tx, grads=GRADS, params=PARAMS):
    return tx.update(grads, tx.init(params), params)[0]


def assert_decays(updates, w, b, s):
    """Half of the parameters was added where the flag says so."""
    np.testing.assert_array_equal(updates["layer"]["w"], [[2.0, 3.0]] if w else [[1.0, 1.0]])
    np.testing.assert_array_equal(updates["layer"]["b"], [4.0] if b else [1.0])
    np.testing.assert_array_equal(updates["s"], 5.0 if s else 1.0)


def matrices(params):
    return jax.tree.map(lambda x: jnp.ndim(x) > 1, params)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, (True, True, True)),
        (True, (True, True, True)),
        (False, (False, False, False)),
        ({"layer": {"w": True, "b": False}, "s": False}, (True, False, False)),
        ({"layer": True, "s": False}, (True, True, False)),
        ({"layer": np.bool_(False), "s": np.bool_(True)}, (False, False, True)),
        (matrices, (True, False, False)),
        (lambda params: {"layer": False, "s": True}, (False, False, True)),
    ],
    ids=["none", "true", "false", "tree", "prefix", "numpy", "function", "function to a prefix"],
)
def test_masks(mask, expected):
    assert_decays(decayed(oc.add_decayed_weights(0.5, mask)), *expected)


def test_formula(x64):
    rng = np.random.default_rng(0)
    g, p = rng.normal(size=(2, 3, 4))
    np.testing.assert_allclose(decayed(oc.add_decayed_weights(0.1), g, p), g + 0.1 * p, rtol=1e-15)
    single = decayed(oc.add_decayed_weights(0.1), jnp.asarray(g, jnp.float32), jnp.asarray(p, jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, g + 0.1 * p, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mask", [None, matrices])
def test_schedule(mask):
    tx = oc.add_decayed_weights(oc.linear_schedule(0.5, 0.0, 2), mask)
    state, seen = tx.init(PARAMS), []
    for _ in range(3):
        updates, state = tx.update(GRADS, state, PARAMS)
        seen.append(float(updates["layer"]["w"][0, 0]))
    assert seen == [2.0, 1.5, 1.0]
    inner = state if mask is None else state.inner_state
    assert type(inner) is oc.WeightDecaySchedule
    assert int(inner.count) == 3


def test_states():
    assert oc.add_decayed_weights(0.5).init(PARAMS) == oc.EmptyState()
    assert oc.add_decayed_weights(0.5, True).init(PARAMS) == oc.MaskedState(oc.EmptyState())
    assert oc.adamw(0.1, mask=True).init(PARAMS)[1] == oc.MaskedState(oc.EmptyState())


def test_the_default_decays_nothing():
    assert_decays(decayed(oc.add_decayed_weights()), False, False, False)


@pytest.mark.parametrize("mask", [None, True, matrices])
def test_missing_parameters_are_refused_by_name(mask):
    tx = oc.add_decayed_weights(0.5, mask)
    with pytest.raises(ValueError, match=r"add_decayed_weights .*update\(grads, state, params\)"):
        tx.update(GRADS, tx.init(PARAMS))


@pytest.mark.parametrize("mask", [None, True])
def test_parameters_of_another_shape_are_refused_by_name(mask):
    tx, wrong = oc.add_decayed_weights(0.5, mask), {**PARAMS, "s": jnp.ones(1)}
    with pytest.raises(ValueError, match=r"add_decayed_weights: .*\['s'\].*float32\[\].*float32\[1\]"):
        tx.update(GRADS, tx.init(PARAMS), wrong)


def test_a_mask_that_is_no_bool_is_refused_by_name():
    with pytest.raises(TypeError, match=r"add_decayed_weights: the mask at \['layer'\] is 1.0, not a bool"):
        oc.add_decayed_weights(0.5, {"layer": 1.0, "s": False}).init(PARAMS)


def test_smallest_inputs():
    for shape in [(), (1,), (1, 1), (2, 3)]:
        for dtype in ("float32", "float16", "bfloat16"):
            g, p = jnp.full(shape, 1.0, dtype), jnp.full(shape, 2.0, dtype)
            np.testing.assert_array_equal(decayed(oc.add_decayed_weights(0.25), g, p), np.full(shape, 1.5))
            np.testing.assert_array_equal(decayed(oc.add_decayed_weights(0.25), 0 * g, 0 * p), np.zeros(shape))


def test_half_precision_is_rounded_once():
    # 0.1 * 3 is added in float32: bfloat16 has 8 bits, so 0.1 rounded first would give 0.30078125 + 1.
    g, p = jnp.ones(1, jnp.bfloat16), jnp.full(1, 300.0, jnp.bfloat16)
    assert float(decayed(oc.add_decayed_weights(0.1), g, p)[0]) == float(jnp.bfloat16(1 + 0.1 * 300))
