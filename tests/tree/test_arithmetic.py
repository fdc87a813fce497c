import operator

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optchain import tree

X = {"w": np.array([[1.0, -2.0], [3.0, 0.5]], np.float32), "b": (np.array([4.0], np.float32), None)}
Y = {"w": np.array([[0.5, 4.0], [-1.0, 2.0]], np.float32), "b": (np.array([8.0], np.float32), None)}

TWO_TREES = {tree.add: operator.add, tree.sub: operator.sub, tree.mul: operator.mul, tree.div: operator.truediv}


def assert_same(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert a.dtype == b.dtype


@pytest.mark.parametrize("function", TWO_TREES)
def test_two_trees_entry_by_entry(function):
    w, b = TWO_TREES[function](X["w"], Y["w"]), TWO_TREES[function](X["b"][0], Y["b"][0])
    expected = {"w": w, "b": (b, None)}
    assert_same(function(X, Y), expected)
    assert_same(function(jax.tree.map(jnp.asarray, X), jax.tree.map(jnp.asarray, Y)), expected)
    assert_same(jax.jit(function)(X, Y), expected)


@pytest.mark.parametrize("function", TWO_TREES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.complex64])
def test_two_trees_keep_their_dtype(function, dtype):
    x, y = {"a": jnp.full(3, 6, dtype)}, {"a": jnp.full(3, 2, dtype)}
    got = function(x, y)["a"]
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got, np.complex64), TWO_TREES[function](6, 2))


def test_different_dtypes_promote_as_arrays_do():
    assert tree.add(jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float32)).dtype == jnp.float32
    assert tree.mul(jnp.ones(2, jnp.float32), jnp.ones(2, jnp.complex64)).dtype == jnp.complex64


def test_python_numbers_stay_python_numbers():
    assert tree.add({"a": 1.0}, {"a": 2}, {"a": 3}) == {"a": 6.0}
    assert tree.add_scale(3, 0.5, 2) == 4.0
    assert tree.scale(2, [1, 2.5]) == [2, 5.0]


def test_add_takes_any_number_of_trees():
    assert_same(tree.add(X, Y, X, Y), {"w": 2 * (X["w"] + Y["w"]), "b": (np.array([24.0], np.float32), None)})


def test_empty_trees_pass():
    for empty in ({}, (), None, {"a": [None]}):
        for function in TWO_TREES:
            assert function(empty, empty) == empty
        assert tree.scale(2.0, empty) == tree.add_scale(empty, 2.0, empty) == tree.where(True, empty, empty) == empty
        assert tree.zeros_like(empty) == tree.clip(empty, 0, 1) == tree.conj(empty) == tree.real(empty) == empty


@pytest.mark.parametrize("function", [*TWO_TREES, lambda x, y: tree.add_scale(x, 2.0, y), tree.vdot, tree.allclose])
@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ({"w": jnp.ones(3)}, {"w": jnp.ones((2, 3))}, [r"\['w'\]", r"float32\[3\]", r"float32\[2,3\]"]),
        ({"w": jnp.ones(3)}, {"w": 1.0}, [r"\['w'\]", r"float32\[3\]"]),
        ({"w": [jnp.ones(3)]}, {"w": [jnp.ones(3), jnp.ones(1)]}, [r"\['w'\]\[1\]"]),
        ({"w": jnp.ones(3)}, {"v": jnp.ones(3)}, [r"\['w'\]", r"\['v'\]"]),
        ({"w": jnp.ones(3)}, {"w": None}, [r"\['w'\]", "None"]),
        ((jnp.ones(3),), [jnp.ones(3)], ["containers"]),
    ],
)
def test_mismatched_trees_are_refused_by_path(function, x, y, words):
    for word in words:
        with pytest.raises(ValueError, match=word):
            function(x, y)


def test_add_names_the_tree_that_differs():
    message = r"tree\.add: tree 3 .*\['a'\] is float32\[2\] but tree_x there is float32\[1\]"
    with pytest.raises(ValueError, match=message):
        tree.add({"a": jnp.ones(1)}, {"a": jnp.ones(1)}, {"a": jnp.ones(2)})


def test_scale_and_add_scale():
    assert_same(tree.scale(0.5, X), {"w": 0.5 * X["w"], "b": (np.array([2.0], np.float32), None)})
    assert_same(tree.add_scale(X, -2.0, Y), {"w": X["w"] - 2 * Y["w"], "b": (np.array([-12.0], np.float32), None)})
    half = jnp.ones(2, jnp.bfloat16)
    assert tree.scale(0.5, half).dtype == tree.add_scale(half, 0.5, half).dtype == jnp.bfloat16
    assert tree.scale(jnp.float32(0.5), half).dtype == jnp.float32


def test_add_scale_leaves_none_where_the_first_tree_has_none():
    assert tree.add_scale(None, 1.0, jnp.ones(3)) is None
    got = tree.add_scale({"a": None, "b": 1.0}, 2.0, {"a": [jnp.ones(3)], "b": 3.0})
    assert got == {"a": None, "b": 7.0}


def test_a_factor_that_is_no_scalar_is_refused():
    with pytest.raises(ValueError, match=r"tree\.scale: the factor is float32\[2\]"):
        tree.scale(jnp.ones(2), {"a": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"tree\.add_scale: the factor is float32\[2\]"):
        tree.add_scale({"a": jnp.ones(2)}, jnp.ones(2), {"a": jnp.ones(2)})


def test_where():
    assert_same(tree.where(True, X, Y), X)
    assert_same(tree.where(jnp.asarray(False), X, Y), Y)
    got = tree.where(jnp.array([True, False]), {"a": jnp.zeros((3, 2))}, {"a": jnp.ones((3, 2))})
    assert got["a"].tolist() == [[0.0, 1.0]] * 3
    traced = jax.jit(tree.where)(jnp.asarray(True), X, Y)
    assert_same(traced, X)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 2)])
def test_where_refuses_a_condition_that_would_change_a_shape(shape):
    with pytest.raises(ValueError, match=r"tree\.where: the condition .* leaf at \['a'\], float32\[2\]"):
        tree.where(jnp.ones(shape, bool), {"a": jnp.ones(2)}, {"a": jnp.ones(2)})


def test_clip():
    x = {"a": jnp.array([-3.0, 0.25, jnp.nan, jnp.inf]), "b": jnp.array([2.0], jnp.bfloat16)}
    np.testing.assert_array_equal(tree.clip(x, -1.0, 1.0)["a"], [-1.0, 0.25, np.nan, 1.0])
    np.testing.assert_array_equal(tree.clip(x, min_value=0.5)["a"], [0.5, 0.5, np.nan, np.inf])
    np.testing.assert_array_equal(tree.clip(x, max_value=0.0)["a"], [-3.0, 0.0, np.nan, 0.0])
    assert tree.clip(x, -1.0, 1.0)["b"].dtype == jnp.bfloat16


def test_conj_and_real():
    z = {"z": jnp.array([1 + 2j, -3j]), "x": jnp.array([5.0])}
    assert tree.conj(z)["z"].tolist() == [1 - 2j, 3j]
    assert tree.real(z)["z"].tolist() == [1.0, 0.0]
    assert tree.conj(z)["x"].tolist() == tree.real(z)["x"].tolist() == [5.0]


def test_likes():
    x = {"a": jnp.full((2, 3), 7, jnp.bfloat16), "b": jnp.zeros(0, jnp.int32), "c": 1.0}
    for made, value in ((tree.zeros_like(x), 0), (tree.ones_like(x), 1), (tree.full_like(x, 2.0), 2)):
        assert made["a"].dtype == jnp.bfloat16
        assert made["b"].dtype == jnp.int32
        assert made["b"].shape == (0,)
        np.testing.assert_array_equal(np.asarray(made["a"], np.float32), np.full((2, 3), value))
        assert float(made["c"]) == value
    assert tree.zeros_like(x, dtype=jnp.float32)["a"].dtype == jnp.float32
    assert tree.ones_like(x, jnp.int8)["b"].dtype == jnp.int8
    assert tree.full_like(jax.ShapeDtypeStruct((2,), jnp.float16), 3).tolist() == [3.0, 3.0]


arrays = hypothesis.extra.numpy.arrays(
    np.float32,
    hypothesis.extra.numpy.array_shapes(min_dims=0, min_side=0),
    elements=st.floats(-100, 100, width=32),
)
trees = st.recursive(arrays, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=2), t, max_size=3))


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(trees)
def test_any_tree_minus_itself_is_zero(x):
    got = tree.sub(x, x)
    assert jax.tree.structure(got) == jax.tree.structure(x)
    assert all(not np.any(a) for a in jax.tree.leaves(got))
    assert_same(tree.add(got, x), x)
