"""The values expected are NumPy's in float64, for norms with the entries divided by the largest first."""

import math

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import optchain
from optchain import tree
from optchain.tree.norms import scaled_norm, wide_groups
from optchain.tree.reductions import SMALL

EMPTY = [{}, (), [], None, {"a": [None, [None]]}]


def entries(x):
    return np.concatenate([np.ravel(np.asarray(leaf)).astype(np.complex128) for leaf in jax.tree.leaves(x)])


def reference_norm(x):
    flat = entries(x)
    largest = np.max(np.abs(flat))
    return largest * np.sqrt(np.sum(np.abs(flat / largest) ** 2)) if largest else 0.0


def quotient(x):
    root, inverse = scaled_norm(x)
    return root / inverse


SCALES = [1e-35, 1e-25, 1e-20, 1e-19, 1e-13, 1e-12, 1e-6, 1.0, 1e6, 1e18, 2e19, 1e20, 1e30, 1e35]


def normal(seed, shape, scale=1.0, dtype=np.float32):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("function", [tree.norm, optchain.global_norm, quotient, jax.jit(tree.norm)])
@pytest.mark.parametrize("scale", SCALES)
def test_norm_at_any_scale(function, scale):
    x = {"a": normal(0, (20, 3), scale), "b": (normal(1, SMALL, scale), None), "c": normal(2, (), scale)}
    np.testing.assert_allclose(function(x), reference_norm(x), rtol=3e-7)


def test_norm_near_the_ends_of_the_range():
    for value in (1.2e-38, -3e-38, 3.4e38):
        np.testing.assert_allclose(tree.norm(jnp.float32(value)), abs(value), rtol=2e-7)
    np.testing.assert_allclose(tree.norm([jnp.array([3e30]), jnp.array([4e30])]), 5e30, rtol=1e-7)
    np.testing.assert_allclose(tree.norm(jnp.full(2, 2.3e38)), math.sqrt(2) * 2.3e38, rtol=1e-7)
    assert tree.norm(jnp.full(2, 3e38)) == math.inf  # this norm is none of the float32 numbers
    root, inverse = scaled_norm(jnp.full(2, 3e38))
    assert math.isfinite(root)
    np.testing.assert_allclose(float(root) / float(inverse), math.sqrt(2) * 3e38, rtol=1e-7)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-140, 1.0, 1e140, 1e154, 1e160, 1e300])
def test_norm_in_double_precision(x64, scale):
    x = [normal(0, 1000, scale, np.float64), normal(1, (3, 3), scale, np.float64)]
    assert tree.norm(x).dtype == jnp.float64
    np.testing.assert_allclose(tree.norm(x), reference_norm(x), rtol=5e-15)
    np.testing.assert_allclose(quotient(x), reference_norm(x), rtol=5e-15)


def test_float32_stays_float32_under_x64(x64):
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.complex64):
        x = {"a": jnp.ones(4, dtype)}
        for order in (None, 1, math.inf):
            assert tree.norm(x, order).dtype == tree.norm(x, order, squared=True).dtype == jnp.float32
        assert {part.dtype for part in scaled_norm(x)} == {jnp.dtype(jnp.float32)}
    assert tree.norm(jnp.ones(2, jnp.complex128)).dtype == jnp.float64


def test_float32_and_float64_together(x64):
    for a, b in ((3e30, 4e30), (3e-30, 4e-30), (3e37, 4e200), (3e-37, 4e-200)):
        x = [jnp.full(1, a, jnp.float32), jnp.full(1, b, jnp.float64)]
        np.testing.assert_allclose(tree.norm(x), reference_norm(x), rtol=1e-14)


def test_many_half_precision_leaves():
    x = {f"k{i}": jnp.ones(100, jnp.bfloat16) for i in range(300)}
    np.testing.assert_allclose(tree.norm(x), math.sqrt(30000), rtol=1e-6)
    np.testing.assert_allclose(optchain.global_norm(x), math.sqrt(30000), rtol=1e-6)
    x = {f"k{i}": jnp.ones(1000, jnp.bfloat16) for i in range(5)}
    assert tree.norm(x, squared=True) == tree.norm(x, 1) == tree.sum(x) == tree.vdot(x, x) == 5000


@pytest.mark.parametrize(("dtype", "value"), [(jnp.float16, 6e4), (jnp.float16, 1e-7), (jnp.bfloat16, 1e38)])
def test_half_precision_is_widened(dtype, value):
    x = jnp.full(SMALL, value, dtype)[: 10 if value == 1e38 else SMALL]
    expected = reference_norm(x)
    for function in (tree.norm, quotient):
        assert function(x).dtype == jnp.float32
        np.testing.assert_allclose(function(x), expected, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_norm_of_complex_numbers_is_real(scale):
    x = {"z": (normal(0, 50, scale) + 1j * normal(1, 50, scale)).astype(np.complex64), "x": normal(2, 5, scale)}
    sizes = np.abs(entries(x))
    for order, expected in ((None, reference_norm(x)), (1, sizes.sum()), ("inf", sizes.max())):
        got = tree.norm(x, order)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_mixed_kinds():
    x = [jnp.float32(3), jnp.bfloat16(4), 12, True, np.array(84, np.int8), jnp.complex64(5j), np.array(-128, np.int8)]
    squares = np.array([9, 16, 144, 1, 84**2, 25, 128**2])
    np.testing.assert_allclose(tree.norm(x), np.sqrt(squares.sum()), rtol=1e-7)
    assert tree.norm(x, squared=True) == squares.sum()
    assert tree.norm(jnp.arange(3), squared=True).dtype == jnp.float32
    assert tree.norm(x, 1) == 3 + 4 + 12 + 1 + 84 + 5 + 128
    assert tree.norm(x, jnp.inf) == 128


@pytest.mark.parametrize("order", [None, 2, 1, math.inf, jnp.inf, "inf", "infinity"])
def test_orders(order):
    x = {"a": normal(0, (4, 5)), "b": normal(1, 7)}
    expected = np.linalg.norm(entries(x), {"inf": np.inf, "infinity": np.inf}.get(order, order))
    np.testing.assert_allclose(tree.norm(x, order), expected, rtol=1e-6)
    np.testing.assert_allclose(tree.norm(x, order, squared=True), expected**2, rtol=1e-6)
    for empty in [*EMPTY, jnp.zeros((0, 3))]:
        assert tree.norm(empty, order) == tree.norm(empty, order, squared=True) == 0
        assert tree.norm(empty, order).dtype == jnp.float32


@pytest.mark.parametrize("order", [0, 3, -math.inf, "fro"])
def test_other_orders_are_refused(order):
    with pytest.raises(ValueError, match=r"tree\.norm: the order is"):
        tree.norm({"a": jnp.ones(2)}, order)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.complex64])
@pytest.mark.parametrize("other", [0.0, 1.0, 3e4])
def test_non_finite_entries_show(dtype, other):
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        x = [jnp.array([bad, other], dtype), jnp.ones(2)]
        for function in (tree.norm, quotient, lambda x: tree.norm(x, 1), lambda x: tree.norm(x, "inf")):
            np.testing.assert_array_equal(function(x), abs(bad))
        root, inverse = scaled_norm(x)
        assert not np.isfinite(root)
        assert np.isfinite(inverse)
    assert np.isnan(tree.norm(jnp.array([jnp.nan, jnp.inf])))
    assert np.all(np.isnan(jax.grad(tree.norm)(jnp.array([jnp.nan, 1.0]))))


@pytest.mark.parametrize("function", [tree.norm, quotient])
@pytest.mark.parametrize("scale", [1e-30, 1e-13, 1.0, 1e30])
def test_gradient_of_the_norm_is_the_direction(function, scale):
    x = np.array([3 * scale, -4 * scale], np.float32)
    for derive in (jax.grad, jax.jacfwd, jax.jacrev, lambda f: jax.jit(jax.grad(f))):
        np.testing.assert_allclose(derive(function)(x), [0.6, -0.8], rtol=3e-7)
    value, along = jax.jvp(function, (x,), (jnp.array([1.0, 1.0]),))
    np.testing.assert_allclose(value, 5 * scale, rtol=3e-7)
    np.testing.assert_allclose(along, -0.2, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-13, 1.0, 1e30])
def test_second_derivative_of_the_norm(scale):
    x = np.array([3 * scale, 4 * scale], np.float32)
    expected = np.array([[0.64, -0.48], [-0.48, 0.36]]) / 5  # (1 - d d^T) / norm
    for twice in (jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jacfwd(f))):
        np.testing.assert_allclose(np.asarray(twice(tree.norm)(x), np.float64) * scale, expected, rtol=2e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_derivatives_at_zero_are_zero(dtype):
    x = {"a": jnp.zeros(3, dtype), "b": jnp.zeros(SMALL, dtype)}
    ones = jax.tree.map(jnp.ones_like, x)
    for function in (tree.norm, quotient):
        assert function(x) == function({}) == 0
        gradient, second = jax.jvp(jax.grad(function), (x,), (ones,))
        assert gradient["a"].dtype == dtype
        assert all(np.all(g == 0) for g in jax.tree.leaves((gradient, second)))
    for order in (1, "inf"):
        gradient = jax.grad(lambda x, order=order: tree.norm(x, order))(x)
        assert all(np.all(g == 0) for g in jax.tree.leaves(gradient))


def test_gradients_of_the_other_orders():
    x = {"a": jnp.array([1.0, -2.0, 0.0])}
    assert jax.grad(lambda x: tree.norm(x, 1))(x)["a"].tolist() == [1, -1, 0]
    assert jax.grad(lambda x: tree.norm(x, "inf"))(x)["a"].tolist() == [0, -1, 0]
    assert jax.grad(lambda x: tree.norm(x, squared=True))(x)["a"].tolist() == [2, -4, 0]


def test_gradient_over_a_tree():
    half = jnp.asarray(normal(2, 3), jnp.bfloat16)
    x = {"a": normal(0, (5, 2)), "b": (normal(1, SMALL), None), "c": half, "d": jnp.zeros(0)}
    gradient = jax.grad(tree.norm)(x)
    norm = reference_norm(x)
    for g, value in zip(jax.tree.leaves(gradient), jax.tree.leaves(x), strict=True):
        assert g.dtype == value.dtype
        tolerance = 4e-3 if g.dtype == jnp.bfloat16 else 1e-6
        np.testing.assert_allclose(np.asarray(g, np.float64), np.asarray(value, np.float64) / norm, rtol=tolerance)
    z = np.array([3 + 4j, -12j], np.complex64)
    np.testing.assert_allclose(jax.grad(tree.norm)(z), np.conj(z) / 13, rtol=1e-6)


def test_derivatives_in_double_precision(x64):
    for scale in (1e-200, 1.0, 1e200):
        x = jnp.array([3 * scale, 4 * scale])
        np.testing.assert_allclose(jax.grad(tree.norm)(x), [0.6, 0.8], rtol=1e-15)
        np.testing.assert_allclose(jax.hessian(tree.norm)(x)[0, 1] * scale, -0.48 / 5, rtol=1e-14)
    assert jax.grad(tree.norm)(jnp.ones(2, jnp.float32)).dtype == jnp.float32
    x = [jnp.full(1, 3e30, jnp.float32), jnp.full(1, 4e-30, jnp.float64)]
    np.testing.assert_allclose(jax.grad(tree.norm)(x)[1], [4e-60 / 3], rtol=1e-6)


ROWS = np.array([[3.0, 4.0], [3e30, 4e30], [3e-30, 4e-30], [0.0, 0.0]], np.float32)
DIRECTIONS = [[0.6, 0.8], [0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]


@pytest.mark.parametrize("function", [tree.norm, quotient])
def test_vmap_treats_each_example_by_itself(function):
    expected = [5.0, 5e30, 5e-30, 0.0]
    np.testing.assert_allclose(jax.vmap(function)(ROWS), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(function))(ROWS), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(function))(ROWS), DIRECTIONS, rtol=1e-6)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sharded_arrays(kind):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,))
    rows, columns = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec(None, "d"))
    x = {"a": normal(0, (4, 6)), "b": normal(1, (4, 6)), "c": normal(2, (256, 128))}
    placed = jax.device_put(x, {"a": rows, "b": columns, "c": rows})
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(tree.norm(placed), reference_norm(x), rtol=1e-6)
        np.testing.assert_allclose(jax.jit(quotient)(placed), reference_norm(x), rtol=1e-6)
        np.testing.assert_allclose(tree.norm(placed, 1), np.sum(np.abs(entries(x))), rtol=1e-6)
        np.testing.assert_allclose(tree.max(placed), np.max(entries(x).real))
        np.testing.assert_allclose(tree.vdot(placed, placed), reference_norm(x) ** 2, rtol=1e-6)


def test_inside_shard_map():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    split, whole = PartitionSpec("d"), PartitionSpec()
    local = jax.shard_map(lambda x, y: tree.norm([x, y])[None], mesh=mesh, in_specs=(split, whole), out_specs=split)
    np.testing.assert_allclose(local(jnp.array([3.0, 3e30]), jnp.array([4.0, 0.0])), [5.0, 3e30], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "function", [scaled_norm, tree.norm, tree.sum, tree.max, lambda x: tree.norm(x, 1), lambda x: tree.vdot(x, x)]
)
def test_no_copy_of_a_leaf_is_made(function, dtype):
    x = [jax.ShapeDtypeStruct((512, 512), dtype)] * 8
    assert jax.jit(function).lower(x).compile().memory_analysis().temp_size_in_bytes < 1024


def test_eager_reductions_compile_once(compilations):
    functions = (tree.norm, scaled_norm, tree.sum, tree.max, lambda x: tree.vdot(x, x), lambda x: tree.allclose(x, x))
    for value in (1.0, 2.0, 3e30):
        x = {f"k{i}": jnp.full(5, value) for i in range(20)}
        if value == 2.0:
            compilations.clear()
        for function in functions:
            function(x)
    assert not compilations


def test_inverse_is_a_constant_power_of_two():
    for scale, expected in ((1.0, 0), (1e30, -100), (1e-30, 100)):
        _, inverse = scaled_norm({"a": jnp.full(3, scale)})
        assert math.log2(inverse) == expected
        gradient = jax.grad(lambda x: scaled_norm(x)[1])(jnp.full(3, scale))
        assert gradient.tolist() == [0, 0, 0]


def test_groups_hold_every_entry_in_a_wide_real_dtype():
    empty = (jnp.zeros((0, 2)), None)
    x = [jnp.arange(3.0), jnp.ones(SMALL), jnp.full(2, 3, jnp.bfloat16), jnp.array([4 + 5j]), 7, empty]
    groups = wide_groups(x)
    assert len(groups) == 2
    assert all(g.dtype == jnp.float32 for g in groups)
    assert sorted(np.concatenate(groups).tolist()) == sorted([0, 1, 2, *[1] * SMALL, 3, 3, 4, 5, 7])
    assert wide_groups({}) == []


# the other reductions


def test_size():
    x = {"a": jnp.zeros((2, 3)), "b": (1.0, None), "c": np.zeros((0, 4)), "d": jax.ShapeDtypeStruct((5,), jnp.int8)}
    assert tree.size(x) == 2 * 3 + 1 + 0 + 5
    assert all(tree.size(empty) == 0 for empty in EMPTY)


def test_sum():
    x = {"a": normal(0, (4, 5)), "b": (normal(1, SMALL), None), "c": 2.0}
    np.testing.assert_allclose(tree.sum(x), entries(x).real.sum(), rtol=1e-5)
    assert tree.sum(x, associative_reduction=True) == tree.sum(x)
    assert tree.sum([jnp.array([1, 2]), jnp.array([3], jnp.int8), True]) == 7
    assert jnp.issubdtype(tree.sum([jnp.array([1, 2])]).dtype, jnp.integer)
    assert tree.sum([jnp.array([1 + 2j]), 1.0]) == 2 + 2j


def test_sums_of_half_precision_are_float32():
    x = [jnp.full(1000, 100, jnp.float16), jnp.full(SMALL, 1, jnp.bfloat16)]
    assert tree.sum(x) == 100_000 + SMALL
    assert tree.vdot(x[0], x[0]) == 10_000_000
    assert tree.sum(x).dtype == tree.vdot(x, x).dtype == tree.norm(x, 1).dtype == jnp.float32
    assert tree.norm(x, 1) == 100_000 + SMALL
    assert tree.norm(x[0], squared=True) == 10_000_000


@pytest.mark.parametrize("kind", [np.float32, np.complex64])
def test_largest_and_smallest(kind):
    values = normal(0, (4, 5)) if kind is np.float32 else (normal(0, 9) + 1j * normal(1, 9)).astype(kind)
    x = {"a": values, "b": (normal(2, 7), None), "c": np.zeros((0, 3), np.float32)}
    assert tree.max(x) == np.max(entries(x))  # NumPy, too, orders complex numbers by real part first
    assert tree.min(x) == np.min(entries(x))


@pytest.mark.parametrize("function", [tree.max, tree.min])
@pytest.mark.parametrize("value", [0, 10000, -10000, math.inf, -math.inf, 2**24 + 1])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "float32"])
def test_empty_leaves_do_not_count(function, value, dtype):
    assert function([value, jnp.zeros(0, dtype)]) == value


def test_extremes_of_nothing_and_of_nan():
    for empty in [*EMPTY, jnp.zeros((3, 0))]:
        assert tree.max(empty) == -math.inf
        assert tree.min(empty) == math.inf
        assert tree.sum(empty) == tree.vdot(empty, empty) == 0
        assert tree.allclose(empty, empty)
    x = [jnp.ones(2), jnp.array([jnp.nan, 0.0])]
    assert np.isnan(tree.max(x))
    assert np.isnan(tree.min(x))


def test_vdot():
    x = {"a": normal(0, (4, 5)), "b": (normal(1, SMALL), None)}
    y = {"a": normal(2, (4, 5)), "b": (normal(3, SMALL), None)}
    np.testing.assert_allclose(tree.vdot(x, y), np.vdot(entries(x), entries(y)).real, rtol=1e-4)
    assert tree.vdot([1.0, (2.0, 3.0)], [2.0, (3.0, 4.0)]) == 20
    ints = tree.vdot([jnp.array([1, 2]), jnp.array([3])], [jnp.array([-1, -1]), jnp.array([5])])
    assert ints == 12
    assert ints.dtype == jnp.int32


def test_vdot_conjugates_the_first():
    x, y = [jnp.array([1 + 2j, 3j]), jnp.array([1.0])], [jnp.array([2 - 1j, 1 + 1j]), jnp.array([4j])]
    expected = (1 - 2j) * (2 - 1j) + (-3j) * (1 + 1j) + 4j
    assert tree.vdot(x, y) == expected
    assert tree.vdot(y, x) == np.conj(expected)


def test_vdot_of_different_dtypes_pairs_the_right_entries():
    x = [jnp.array([1.0, 2.0], jnp.bfloat16), jnp.array([3.0]), jnp.array([4.0], jnp.float16), jnp.array([5])]
    y = [jnp.array([10.0, 100.0]), jnp.array([1000.0], jnp.bfloat16), jnp.array([1j]), jnp.array([2])]
    assert tree.vdot(x, y) == 10 + 200 + 3000 + 4j + 10


def test_reductions_in_double_precision(x64):
    x = [normal(0, 5, dtype=np.float64), normal(1, SMALL, dtype=np.float64)]
    for got, expected in (
        (tree.sum(x), entries(x).real.sum()),
        (tree.vdot(x, x), np.sum(entries(x).real ** 2)),
        (tree.norm(x, 1), np.sum(np.abs(entries(x)))),
        (tree.norm(x, squared=True), np.sum(entries(x).real ** 2)),
        (tree.max(x), np.max(entries(x).real)),
    ):
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, expected, rtol=1e-11)
    assert tree.sum(jnp.ones(2, jnp.bfloat16)).dtype == jnp.float32


def test_allclose():
    x = {"a": jnp.array([1.0, 2.0]), "b": 3}
    assert tree.allclose(x, {"a": jnp.array([1.0, 2.0 + 1e-6]), "b": 3})
    assert not tree.allclose(x, {"a": jnp.array([1.0, 2.001]), "b": 3})
    assert tree.allclose(x, {"a": jnp.array([1.0, 2.001]), "b": 3}, rtol=1e-2)
    assert not tree.allclose(x, {"a": jnp.array([1.0, 2.0]), "b": 4}, atol=0.5)
    nan = {"a": jnp.array([jnp.nan])}
    assert not tree.allclose(nan, nan)
    assert tree.allclose(nan, nan, equal_nan=True)
    assert jax.jit(tree.allclose)(x, x)


numbers = st.floats(-(2.0**120), 2.0**120, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-120)
arrays = hypothesis.extra.numpy.arrays(
    np.float32, hypothesis.extra.numpy.array_shapes(min_dims=0, min_side=0, max_side=3), elements=numbers
)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(st.lists(arrays, min_size=1, max_size=3))
def test_norm_of_any_tree(x):
    np.testing.assert_allclose(tree.norm(x), reference_norm([*x, 0.0]), rtol=1e-6)
