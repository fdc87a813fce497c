"""Clips against NumPy's double precision, closed forms, PyTorch's clips, and at the ends of each dtype's range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc
from optchain.transforms import unitwise_clip, unitwise_norm
from tests.golden import trajectories

NORM_CLIPS = [oc.clip_by_global_norm, oc.clip_by_block_rms, oc.adaptive_grad_clip]


def clipped(tx, grads, params=None):
    return tx.update(grads, tx.init(params if params is not None else grads), params)[0]


def some(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


# clip


def test_clip_bounds_entries():
    g = jnp.array([[-3.0, -0.7, 0.0], [0.69, 0.7, 1e30]])
    np.testing.assert_array_equal(clipped(oc.clip(0.7), g), np.float32([[-0.7, -0.7, 0.0], [0.69, 0.7, 0.7]]))


def test_clip_of_what_is_not_finite():
    np.testing.assert_array_equal(
        clipped(oc.clip(2.0), jnp.array([np.nan, np.inf, -np.inf, 1.0])), np.float32([np.nan, 2.0, -2.0, 1.0])
    )
    np.testing.assert_array_equal(clipped(oc.clip(np.inf), jnp.array([np.inf, -1e38])), np.float32([np.inf, -1e38]))


@pytest.mark.parametrize("trace", ["clip_value_0.5", "clip_value_5"])
def test_clip_of_pytorch(x64, trace):
    g = trajectories.tree("torch_clip", "shared/g")
    actual = clipped(oc.clip(float(trace.rpartition("_")[2])), g)
    trajectories.assert_recorded(actual, "torch_clip", f"{trace}/clipped", rtol=0)


def test_clip_of_half_precision_is_exact_inside():
    for dtype in (jnp.float16, jnp.bfloat16):
        g = jnp.asarray(some(1000)[0], dtype)
        out = clipped(oc.clip(1.0), g)
        inside = np.abs(g.astype(jnp.float32)) <= 1
        np.testing.assert_array_equal(out[inside], g[inside])
        np.testing.assert_array_equal(out[~inside], np.sign(g[~inside].astype(jnp.float32)))


def test_clip_refuses_complex_entries():
    with pytest.raises(TypeError, match=r"clip: complex .* clip_by_global_norm"):
        clipped(oc.clip(1.0), jnp.ones(2, jnp.complex64))


@pytest.mark.parametrize("build", [oc.clip, *NORM_CLIPS])
@pytest.mark.parametrize("bad", [-1.0, -1, float("nan"), np.float32(-1), jnp.float32(-1), 1j, jnp.ones(2)])
def test_bounds_are_numbers_of_at_least_zero(build, bad):
    with pytest.raises(ValueError, match=f"{build.__name__}: .* at least 0"):
        build(bad)


# clip_by_global_norm


def test_global_norm_formula(x64):
    grads = dict(zip("abc", some((3, 4), (5,), ()), strict=True))
    norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
    for limit in (0.5, 1.0, norm * 0.999, norm * 1.001, 1e6):
        for dtype, rtol in [(jnp.float64, 1e-14), (jnp.float32, 5e-7)]:
            out = clipped(oc.clip_by_global_norm(limit), {k: jnp.asarray(g, dtype) for k, g in grads.items()})
            for k, g in grads.items():
                assert out[k].dtype == dtype
                np.testing.assert_allclose(out[k], g * min(1, limit / norm), rtol=rtol)


@pytest.mark.parametrize("trace", ["clip_norm_0.5", "clip_norm_5"])
def test_global_norm_of_pytorch(x64, trace):
    """PyTorch divides by the norm plus 1e-6; here the clipped gradient has the very norm that was asked for."""
    limit = float(trace.rpartition("_")[2])
    g, norms = trajectories.tree("torch_clip", "shared/g"), trajectories.load("torch_clip")[f"{trace}/norm"]
    theirs = trajectories.tree("torch_clip", f"{trace}/clipped")
    for step, norm in enumerate(norms):
        out = clipped(oc.clip_by_global_norm(limit), {k: jnp.asarray(x[step]) for k, x in g.items()})
        scaled = limit < norm + 1e-6
        assert scaled == (limit < norm)  # none of the recorded norms lies between
        for k in g:
            expected = theirs[k][step] * ((norm + 1e-6) / norm if scaled else 1.0)
            np.testing.assert_allclose(out[k], expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e19, 1e30, 6e37])
def test_global_norm_at_any_scale_of_float32(scale):
    g = jnp.array([3 * scale, 4 * scale])
    out = np.asarray(clipped(oc.clip_by_global_norm(scale), g), np.float64)
    np.testing.assert_allclose(out / scale, [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(clipped(oc.clip_by_global_norm(5.5 * scale), g), g)  # bit for bit


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-30, 1e160, 4e307])
def test_global_norm_at_any_scale_of_float64(x64, scale):
    g = jnp.array([3 * scale, 4 * scale])
    out = np.asarray(clipped(oc.clip_by_global_norm(scale), g))
    np.testing.assert_allclose(out / scale, [0.6, 0.8], rtol=1e-14)


def test_global_norm_larger_than_every_number():
    top = np.finfo(np.float32).max
    g = jnp.array([top, -top])
    np.testing.assert_allclose(clipped(oc.clip_by_global_norm(1.0), g), np.sqrt([0.5, 0.5]) * [1, -1], rtol=1e-6)
    np.testing.assert_allclose(
        clipped(oc.clip_by_global_norm(3e38), g), 3e38 * np.sqrt([0.5, 0.5]) * [1, -1], rtol=1e-6
    )
    many = jnp.full(10_000, top)
    np.testing.assert_allclose(clipped(oc.clip_by_global_norm(5.0), many), np.full(10_000, 0.05), rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float16", 65504.0),
        ("float16", 300.0),
        ("float16", 2.0**-14),
        ("float16", 2.0**-24),
        ("bfloat16", 3.3e38),
        ("bfloat16", 1e-37),
    ],
)
def test_global_norm_at_the_ends_of_half_precision(dtype, value):
    g = jnp.full(4, value, dtype)  # of the norm 2 * value
    eps = float(jnp.finfo(dtype).eps)
    limit = 1.0 if value > 1 else float(g[0])
    expected = np.full(4, 0.5 * limit)
    out = np.asarray(clipped(oc.clip_by_global_norm(limit), g), np.float64)
    np.testing.assert_allclose(out, expected, rtol=eps, atol=float(jnp.finfo(dtype).smallest_subnormal))


def test_global_norm_of_many_half_precision_leaves():
    g = {f"k{n}": jnp.ones(100, jnp.bfloat16) for n in range(300)}
    out = clipped(oc.clip_by_global_norm(1.0), g)
    np.testing.assert_array_equal(
        np.stack([np.asarray(x, np.float32) for x in out.values()]), np.float32(jnp.bfloat16(30000**-0.5))
    )


def test_global_norm_of_large_and_small_leaves_of_mixed_dtypes():
    big, small, half = some((150, 200), (7,), (5, 3))
    g = [jnp.asarray(big, jnp.float32), jnp.asarray(small, jnp.float32), jnp.asarray(half, jnp.bfloat16)]
    norm = np.sqrt(sum(np.sum(np.asarray(x, np.float64) ** 2) for x in g))
    for x, y in zip(g, clipped(oc.clip_by_global_norm(2.0), g), strict=True):
        assert x.dtype == y.dtype
        expected = np.asarray(x, np.float64) * 2.0 / norm
        np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=4 * float(jnp.finfo(x.dtype).eps))


def test_a_limit_of_zero():
    tx = oc.clip_by_global_norm(0.0)
    np.testing.assert_array_equal(clipped(tx, {"k": jnp.zeros(3)})["k"], 0)
    np.testing.assert_array_equal(clipped(tx, {"k": jnp.array([1.0, -2.0])})["k"], 0)
    np.testing.assert_array_equal(clipped(tx, jnp.array([3e38, -3e38])), 0)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("sides", [(3, 4, 5), (5, 12, 13), (8, 15, 17)])
@pytest.mark.parametrize("exponent", [-100, -20, 0, 20, 100])
def test_a_norm_at_the_limit_is_kept_bit_for_bit(wrap, sides, exponent):
    a, b, c = (side * 2.0**exponent for side in sides)
    tx, g = oc.clip_by_global_norm(c), jnp.array([a, -b])
    np.testing.assert_array_equal(wrap(tx.update)(g, tx.init(g))[0], g)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_norm_within_the_limit_is_kept_bit_for_bit(dtype):
    g = [jnp.asarray(x, dtype) for x in some((50,), (3, 3))]
    for a, b in zip(clipped(oc.clip_by_global_norm(100.0), g), g, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("limit", [0.0, 1.0, 1e30])
def test_one_entry_that_is_not_finite_makes_all_nan(bad, dtype, limit):
    g = {"a": jnp.array([1.0, bad, 0.0], dtype), "b": jnp.zeros((2, 2), dtype)}
    for tx in (oc.clip_by_global_norm(limit), oc.chain(oc.clip_by_global_norm(limit), oc.sgd(0.1, 0.9))):
        assert all(np.isnan(np.asarray(x, np.float32)).all() for x in clipped(tx, g).values())


def test_derivative_of_the_clipped_gradient():
    """For a norm over the limit it is ``limit / n * (I - g g^T / n^2)``, below it the identity."""
    g = np.array([1.0, -2.0, 2.0])
    tx = oc.clip_by_global_norm(1.5)
    jacobian = jax.jacrev(lambda x: clipped(tx, x))(jnp.asarray(g, jnp.float32))
    np.testing.assert_allclose(jacobian, 0.5 * (np.eye(3) - np.outer(g, g) / 9), atol=1e-6)
    np.testing.assert_array_equal(
        jax.jacrev(lambda x: clipped(oc.clip_by_global_norm(4.0), x))(jnp.asarray(g)), np.eye(3)
    )
    assert np.isfinite(jax.jacrev(lambda x: clipped(tx, x))(jnp.zeros(3))).all()


# clip_by_block_rms


def test_block_rms_formula(x64):
    grads = some((3, 4), (5,), ())
    for threshold in (0.1, 0.7, 5.0):
        for dtype, rtol in [(jnp.float64, 1e-14), (jnp.float32, 5e-7)]:
            out = clipped(oc.clip_by_block_rms(threshold), [jnp.asarray(g, dtype) for g in grads])
            for g, u in zip(grads, out, strict=True):
                np.testing.assert_allclose(u, g / max(1, np.sqrt(np.mean(g**2)) / threshold), rtol=rtol)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 3e38])
def test_block_rms_at_any_scale(scale):
    g = jnp.full((2, 3), scale)
    out = np.asarray(clipped(oc.clip_by_block_rms(scale / 4), g), np.float64)
    np.testing.assert_allclose(out / scale, np.full((2, 3), 0.25), rtol=1e-6)
    np.testing.assert_array_equal(clipped(oc.clip_by_block_rms(scale), g), g)


def test_block_rms_is_by_tensor():
    out = clipped(oc.clip_by_block_rms(1.0), {"a": jnp.array([np.inf, 1.0]), "b": jnp.array([2.0, -2.0])})
    assert np.isnan(out["a"]).all()
    np.testing.assert_array_equal(out["b"], [1, -1])
    np.testing.assert_array_equal(clipped(oc.clip_by_block_rms(0.0), jnp.zeros(3)), 0)


# adaptive_grad_clip


def agc_in_numpy(g, p, clipping, eps, axes):
    norm = lambda x: np.sqrt(np.sum(x**2, axis=axes, keepdims=True))  # noqa: E731
    limit = clipping * np.maximum(norm(p), eps)
    return g * np.minimum(1, limit / norm(g))


UNITS = [
    ((), ()),
    ((5,), (0,)),
    ((1, 5), (0, 1)),
    ((4, 3), (0,)),
    ((4, 2, 3), (0,)),
    ((2, 3, 4, 5), (0, 1, 2)),
    ((2, 2, 3, 4, 5), (0, 1, 2, 3)),
]


@pytest.mark.parametrize(("shape", "axes"), UNITS)
def test_adaptive_formula(x64, shape, axes):
    g, p = some(shape, shape)
    for clipping in (0.01, 0.8, 10.0):
        for dtype, rtol in [(jnp.float64, 1e-13), (jnp.float32, 1e-6)]:
            tx = oc.adaptive_grad_clip(clipping, eps=0.3)
            out = clipped(tx, jnp.asarray(g, dtype), jnp.asarray(p, dtype))
            assert out.dtype == dtype
            np.testing.assert_allclose(out, agc_in_numpy(g, p, clipping, 0.3, axes), rtol=rtol)


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), [1, 2]])
def test_adaptive_with_axes_of_choice(axis):
    g, p = some((3, 4, 2), (3, 4, 2))
    axes = axis if isinstance(axis, int) else tuple(axis)
    out = clipped(oc.adaptive_grad_clip(0.3, axis=axis), jnp.asarray(g, jnp.float32), jnp.asarray(p, jnp.float32))
    np.testing.assert_allclose(out, agc_in_numpy(g, p, 0.3, 1e-3, axes), rtol=1e-6)


@pytest.mark.parametrize(("trace", "clipping", "eps"), [("agc_default", 0.01, 1e-3), ("agc_set", 0.5, 0.1)])
def test_adaptive_as_recorded(x64, trace, clipping, eps):
    """Their matrices have a row an output, so that w goes in transposed."""
    p, g = (trajectories.tree("pytorch_optimizer", f"shared/{what}") for what in ("p0", "g"))
    tx = oc.adaptive_grad_clip(clipping, eps)
    made = []
    for step in range(trajectories.STEPS):
        step_g, step_p = (
            {k: jnp.asarray(x).T for k, x in tree.items()} for tree in ({k: x[step] for k, x in g.items()}, p)
        )
        made.append(clipped(tx, step_g, step_p))
    actual = {k: np.stack([np.asarray(u[k]).T for u in made]) for k in p}
    trajectories.assert_recorded(actual, "pytorch_optimizer", f"{trace}/clipped", rtol=1e-10)


def test_adaptive_lets_zero_weights_move():
    out = clipped(oc.adaptive_grad_clip(0.5, eps=0.1), jnp.array([3.0, 4.0]), jnp.zeros(2))
    np.testing.assert_allclose(out, [0.03, 0.04], rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_adaptive_at_any_scale(scale):
    g, p = jnp.array([[3 * scale], [4 * scale]]), jnp.array([[0.6 * scale], [0.8 * scale]])
    np.testing.assert_allclose(clipped(oc.adaptive_grad_clip(1.0, eps=0.0), g, p), p, rtol=1e-6)


def test_adaptive_is_by_unit():
    g, p = jnp.array([[np.nan, 30.0], [1.0, 40.0]]), jnp.ones((2, 2))
    out = np.asarray(clipped(oc.adaptive_grad_clip(1.0), g, p))
    assert np.isnan(out[:, 0]).all()
    np.testing.assert_allclose(out[:, 1], np.sqrt(2) * np.array([0.6, 0.8]), rtol=1e-6)


def test_adaptive_refuses_many_axes_and_missing_parameters():
    tx, g = oc.adaptive_grad_clip(1.0), jnp.ones((2,) * 6)
    with pytest.raises(ValueError, match=r"axis=\(\.\.\.\)"):
        clipped(tx, g, g)
    assert clipped(oc.adaptive_grad_clip(1.0, axis=0), g, g).shape == g.shape
    with pytest.raises(ValueError, match="adaptive_grad_clip needs the parameters"):
        tx.update(g, tx.init(g))


@pytest.mark.parametrize(("shape", "axes"), UNITS)
def test_unitwise_norm(shape, axes):
    (x,) = some(shape)
    expected = np.broadcast_to(np.sqrt(np.sum(x**2, axis=axes, keepdims=True)), shape)
    np.testing.assert_allclose(unitwise_norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-6)


def test_unitwise_norm_widens_half_precision():
    out = unitwise_norm(jnp.full((4, 1), 300.0, jnp.float16))
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, 600)
    np.testing.assert_array_equal(unitwise_norm(3.0), 3)
    with pytest.raises(ValueError, match="unitwise_norm"):
        unitwise_norm(jnp.ones((2,) * 6))


def test_unitwise_clip():
    norm, limit, g = jnp.array([5.0, 5.0, 0.5, 1.0, 0.0]), jnp.ones(5), jnp.array([3.0, 4.0, 0.5, 1.0, 0.0])
    np.testing.assert_allclose(unitwise_clip(norm, limit, g), [0.6, 0.8, 0.5, 1.0, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(unitwise_clip(jnp.zeros(2), jnp.zeros(2), jnp.zeros(2)), 0)
    assert unitwise_clip(jnp.ones(1), jnp.ones(1), jnp.ones(1, jnp.bfloat16)).dtype == jnp.bfloat16


# smallest inputs


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_smallest_inputs(shape, dtype):
    size = int(np.prod(shape))
    g, eps = jnp.full(shape, 2.0, dtype), float(jnp.finfo(dtype).eps)
    for tx, expected in [
        (oc.clip(1.0), 1.0),
        (oc.clip_by_block_rms(1.0), 1.0),
        (oc.clip_by_global_norm(1.0), size**-0.5),
        (oc.adaptive_grad_clip(0.25), 0.5),
    ]:
        out = np.asarray(clipped(tx, g, g), np.float64)
        np.testing.assert_allclose(out, np.full(shape, expected), rtol=2 * eps)
        np.testing.assert_array_equal(clipped(tx, jnp.zeros(shape, dtype), g), np.zeros(shape))
