"""Values are NumPy's, in float64 or exact; half precision is compared with the float32 sum rounded once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from optchain.tree.updates import apply_updates, incremental_update, periodic_update
from tests.compiles import counting_compiles

HALF = (jnp.bfloat16, jnp.float16)


def tree(**leaves):
    return {"layer": {k: jnp.asarray(v) for k, v in leaves.items()}}


# apply_updates


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_updates_are_added(wrap):
    params = ({"a": jnp.full((3, 2), 1.5)}, jnp.ones(1), jnp.float32(2.0), jnp.ones((0, 3)))
    updates = ({"a": jnp.full((3, 2), -2.0)}, jnp.full(1, 0.25), jnp.float32(3.0), jnp.ones((0, 3)))
    new = wrap(apply_updates)(params, updates)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    np.testing.assert_array_equal(new[0]["a"], np.full((3, 2), -0.5))
    np.testing.assert_array_equal(new[1], [1.25])
    assert new[2] == 5.0
    assert new[3].shape == (0, 3)


def test_empty_trees_pass():
    assert apply_updates({}, {}) == {}
    assert apply_updates((), ()) == ()
    assert apply_updates(None, None) is None
    assert incremental_update({}, {}, 0.5) == {}
    assert periodic_update({}, {}, 1, 2) == {}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("update_dtype", [jnp.float32, *HALF])
def test_half_precision_is_rounded_once(dtype, update_dtype):
    rng = np.random.default_rng(0)
    params = jnp.asarray(rng.normal(size=500), dtype)
    updates = jnp.asarray(rng.normal(size=500) * 1e-2, update_dtype)
    new = apply_updates(params, updates)
    assert new.dtype == dtype
    np.testing.assert_array_equal(new, (np.asarray(params, np.float32) + np.asarray(updates, np.float32)).astype(dtype))


def test_a_float32_update_decides_a_tie_of_bfloat16():
    # Half a unit in the last place of 1 is 2^-8. Rounded to bfloat16 first, the update would be the tie and go to even.
    assert apply_updates(jnp.bfloat16(1.0), jnp.float32(2.0**-8 + 2.0**-20)) == 1 + 2.0**-7


def test_dtypes_of_the_parameters_stay_under_x64():
    with jax.enable_x64(True):
        double, single = apply_updates(
            (jnp.float64(1.0), jnp.float32(1.0)), (jnp.float64(1e-12), jnp.float64(2.0**-24 + 2.0**-40))
        )
        assert (double.dtype, single.dtype) == (np.float64, np.float32)
        assert double == 1 + 1e-12
        assert single == 1 + 2.0**-23  # the sum is formed in float64: in float32 the update would be a tie, and lost


def test_complex_parameters():
    new = apply_updates(jnp.array([1 + 2j, 3.0]), jnp.array([1j, -1.0]))
    assert new.dtype == jnp.complex64
    np.testing.assert_array_equal(new, [1 + 3j, 2])
    np.testing.assert_array_equal(apply_updates(jnp.array([1 + 2j]), jnp.array([1.0])), [2 + 2j])


def test_none_update_leaves_the_parameter_and_none_parameter_stays_none():
    params = {"a": jnp.array([1.0, 2.0]), "b": None, "c": jnp.array(3.0), "d": None}
    updates = {"a": None, "b": jnp.array(1.0), "c": jnp.array(0.5), "d": None}
    new = apply_updates(params, updates)
    np.testing.assert_array_equal(new["a"], [1.0, 2.0])
    assert new["b"] is None
    assert new["d"] is None
    assert new["c"] == 3.5
    assert apply_updates(None, jnp.ones(3)) is None


def test_python_numbers_are_floats():
    for new in (apply_updates(1, 0.5), apply_updates(1.0, jnp.float32(0.5)), apply_updates(jnp.float32(1.0), 0.5)):
        assert new.dtype == jnp.float32
        assert new == 1.5
    assert apply_updates(1.0 + 1j, 1.0) == 2 + 1j


def test_numpy_arrays_are_arrays():
    new = apply_updates(np.ones(2, np.float32), np.ones(2, np.float32))
    assert isinstance(new, jax.Array)
    np.testing.assert_array_equal(new, [2, 2])


def test_integer_parameters_take_integers_none_and_float0():
    params = {"n": jnp.array([1, 2]), "w": jnp.array([1.0])}
    for update, expected in ((None, [1, 2]), (np.zeros(2, jax.dtypes.float0), [1, 2]), (jnp.array([3, -1]), [4, 1])):
        new = apply_updates(params, {"n": update, "w": jnp.array([1.0])})
        assert new["n"].dtype == jnp.int32
        np.testing.assert_array_equal(new["n"], expected)
        np.testing.assert_array_equal(new["w"], [2.0])


@pytest.mark.parametrize(
    ("param", "update", "found"),
    [
        (np.ones(2, np.int32), np.ones(2, np.float32), r"\['w'\] is float32\[2\] but params there is int32\[2\]"),
        (np.ones(2, np.float32), np.ones(2, np.complex64), r"\['w'\] is complex64\[2\] but .* float32\[2\]"),
        (np.ones(2, bool), np.ones(2, bool), r"\['w'\] is bool\[2\]"),
        (np.ones(2, np.float32), "text", r"\['w'\] is a value of type str"),
        ("text", np.ones(2, np.float32), "params there is a value of type str"),
        (True, 1.0, "params there is a value of type bool"),
    ],
)
def test_kinds_that_do_not_fit_are_refused_by_path(param, update, found):
    with pytest.raises(TypeError, match=rf"apply_updates: updates at \['layer'\].*{found}"):
        apply_updates({"layer": {"a": 1.0, "w": param}}, {"layer": {"a": 1.0, "w": update}})


@pytest.mark.parametrize("shape", [(2, 3), (1,), (), (3, 1)])
def test_nothing_is_broadcast(shape):
    with pytest.raises(ValueError, match=r"updates at \['layer'\]\['w'\] is .* but params there is float32\[3\]"):
        apply_updates(tree(a=1.0, w=jnp.ones(3)), tree(a=1.0, w=jnp.ones(shape)))


def test_shapes_are_named_beside_none():
    # The None update ahead must not be taken for the leaf at fault.
    with pytest.raises(ValueError, match=r"at \['w'\] is float32\[2\] but params there is float32\[3\]"):
        apply_updates({"a": jnp.ones(3), "w": jnp.ones(3)}, {"a": None, "w": jnp.ones(2)})


@pytest.mark.parametrize(
    "updates",
    [{"a": None, "v": 1.0}, {"a": None}, {"a": None, "w": {"x": 1.0}}, [1.0, 1.0], {"a": None, "w": 1.0, "x": 1.0}],
)
def test_other_trees_are_refused(updates):
    with pytest.raises(ValueError, match="apply_updates: updates and params have different tree structures") as caught:
        apply_updates({"a": jnp.ones(3), "w": 1.0}, updates)
    if "v" in updates:
        assert "['v']" in str(caught.value)


def test_kernels_are_shared_by_shape():
    leaves = [jnp.ones((3, 59))] * 7 + [jnp.ones(61)] * 4
    with counting_compiles() as compiles:
        apply_updates(leaves, leaves)
        apply_updates(leaves, leaves)
    assert len(compiles) == 2


def test_gradients_go_through():
    grad = jax.grad(lambda p, u: jnp.sum(apply_updates(p, u) ** 2), argnums=(0, 1))(
        jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    )
    np.testing.assert_array_equal(grad, [[3.0, 6.0], [3.0, 6.0]])


@settings(max_examples=30, deadline=None)
@given(
    st.recursive(
        st.floats(-100, 100, width=32, allow_subnormal=False) | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_tree_of_numbers(params):
    new = apply_updates(params, params)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    np.testing.assert_array_equal(
        np.array(jax.tree.leaves(new), np.float32), 2 * np.array(jax.tree.leaves(params), np.float32)
    )


# incremental_update


@pytest.mark.parametrize("step_size", [0.0, 0.001, 0.25, 1, np.float32(0.001), jnp.bfloat16(0.25)])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_incremental_update_is_the_weighted_mean(wrap, step_size):
    rng = np.random.default_rng(1)
    new, old = rng.normal(size=(2, 4, 3)).astype(np.float32)
    out = wrap(incremental_update)({"w": jnp.asarray(new)}, {"w": jnp.asarray(old)}, step_size)["w"]
    weight = float(step_size)
    np.testing.assert_allclose(
        out, weight * new.astype(np.float64) + (1 - weight) * old.astype(np.float64), rtol=3e-7, atol=1e-7
    )


def test_both_weights_are_rounded_from_double_precision():
    # 1 - float32(0.999) is 0.00099998712, which is 1.3e-5 off.
    assert incremental_update(jnp.float32(0.0), jnp.float32(1.0), 0.999) == np.float32(0.001)
    average = jnp.float32(1.0)
    for _ in range(100):
        average = incremental_update(jnp.float32(0.0), average, 0.1)
    np.testing.assert_allclose(average, 0.9**100, rtol=100 * 2.0**-24)


def test_the_average_keeps_its_dtype():
    out = incremental_update(jnp.ones(2, jnp.bfloat16), jnp.zeros(2, jnp.float32), 0.001)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, 0.001, rtol=1e-6)
    assert incremental_update(jnp.ones(2), jnp.zeros(2, jnp.float16), 0.5).dtype == jnp.float16
    np.testing.assert_array_equal(incremental_update(jnp.array([2j]), jnp.array([0j]), 0.5), [1j])
    with jax.enable_x64(True):
        out = incremental_update(jnp.float64(0.0), jnp.float64(1.0), 0.001)
        assert out.dtype == np.float64
        assert out == 0.999
        assert incremental_update(jnp.float32(0.0), jnp.float32(1.0), 0.001).dtype == np.float32


def test_incremental_none():
    out = incremental_update(
        {"a": None, "b": jnp.ones(1), "c": None}, {"a": jnp.ones(1), "b": jnp.zeros(1), "c": None}, 0.5
    )
    assert out["a"] is None
    assert out["c"] is None
    np.testing.assert_array_equal(out["b"], [0.5])
    assert incremental_update(None, jnp.ones(3), 1) is None
    with pytest.raises(ValueError, match=r"new_tensors at \['b'\] is float32\[1\] but old_tensors there is None"):
        incremental_update({"a": None, "b": jnp.ones(1)}, {"a": jnp.ones(1), "b": None}, 0.5)


def test_incremental_refusals():
    with pytest.raises(ValueError, match=r"step_size is float32\[2\]"):
        incremental_update(jnp.ones(2), jnp.ones(2), jnp.ones(2))
    with pytest.raises(ValueError, match=r"at \['w'\] is float32\[1\] but old_tensors there is float32\[2\]"):
        incremental_update({"w": jnp.ones(1)}, {"w": jnp.ones(2)}, 0.5)
    with pytest.raises(TypeError, match=r"at \['n'\] is int32\[2\]"):
        incremental_update({"n": jnp.array([1, 2])}, {"n": jnp.array([1, 2])}, 0.5)
    with pytest.raises(TypeError, match=r"at \['w'\] is complex64\[1\] but old_tensors there is float32\[1\]"):
        incremental_update({"w": jnp.array([1j])}, {"w": jnp.array([1.0])}, 0.5)
    with pytest.raises(ValueError, match="different tree structures"):
        incremental_update({"w": jnp.ones(1)}, {"v": jnp.ones(1)}, 0.5)


# periodic_update


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_periodic_update_copies_once_a_period(wrap):
    new, old = tree(w=[1.0, 2.0]), tree(w=[-1.0, -2.0])
    for steps in range(11):
        out = wrap(periodic_update)(new, old, steps, 5)
        np.testing.assert_array_equal(out["layer"]["w"], [1.0, 2.0] if steps in (0, 5, 10) else [-1.0, -2.0])


def test_periodic_update_takes_any_dtype_and_keeps_that_of_the_copy():
    keys = jax.random.key(1), jax.random.key(2)
    new = {
        "key": keys[0],
        "n": jnp.array(3),
        "flag": jnp.array(True),
        "w": jnp.array(0.5, jnp.float32),
        "x": None,
        "y": 1,
    }
    old = {
        "key": keys[1],
        "n": jnp.array(4),
        "flag": jnp.array(False),
        "w": jnp.array(2.0, jnp.bfloat16),
        "x": None,
        "y": 2.0,
    }
    for steps, expected in ((2, new), (3, old)):
        out = periodic_update(new, old, steps, 2)
        assert out["n"] == expected["n"]
        assert out["flag"] == expected["flag"]
        assert out["w"] == expected["w"]
        assert out["w"].dtype == jnp.bfloat16
        assert out["x"] is None
        assert out["y"] == expected["y"]
        np.testing.assert_array_equal(jax.random.key_data(out["key"]), jax.random.key_data(expected["key"]))


def test_periodic_update_has_buffers_of_its_own():
    new, old = jnp.ones(3), jnp.zeros(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(periodic_update(new, old, 1, 2))
    assert not new.is_deleted()
    assert not old.is_deleted()


def test_periodic_refusals():
    with pytest.raises(ValueError, match="update_period is 0"):
        periodic_update(1.0, 2.0, 1, 0)
    with pytest.raises(ValueError, match=r"new_tensors at \['b'\] is None but old_tensors there is float32\[1\]"):
        periodic_update({"a": None, "b": None}, {"a": None, "b": jnp.ones(1)}, 1, 2)
    with pytest.raises(TypeError, match=r"at the root is float32\[2\] but old_tensors there is int32\[2\]"):
        periodic_update(jnp.ones(2), jnp.array([1, 2]), 1, 2)
    with pytest.raises(ValueError, match="nothing is broadcast"):
        periodic_update(jnp.ones(2), jnp.ones(3), 1, 2)
