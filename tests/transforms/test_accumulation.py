"""Running sums and averages against NumPy's double precision and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc


def run(tx, grads):
    state, made = tx.init(jnp.zeros_like(grads[0])), []
    for g in grads:
        u, state = tx.update(g, state)
        made.append(u)
    return made, state


def trace_in_numpy(grads, decay, nesterov):
    m, made = np.zeros_like(grads[0]), []
    for g in grads:
        m = g + decay * m
        made.append(g + decay * m if nesterov else m)
    return made, m


def ema_in_numpy(grads, decay, debias):
    m, made = np.zeros_like(grads[0]), []
    for t, g in enumerate(grads, start=1):
        m = decay * m + (1 - decay) * g
        made.append(m / (1 - decay**t) if debias else m)
    return made, m


@pytest.mark.parametrize("decay", [0.0, 0.9, 1.0, -0.5])
@pytest.mark.parametrize("nesterov", [False, True])
def test_trace(x64, decay, nesterov):
    grads = np.random.default_rng(0).normal(size=(5, 3, 2))
    expected, last = trace_in_numpy(grads, decay, nesterov)
    for dtype, rtol in [(jnp.float64, 1e-14), (jnp.float32, 1e-6)]:
        made, state = run(oc.trace(decay, nesterov), jnp.asarray(grads, dtype))
        np.testing.assert_allclose(made, expected, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(state.trace, last, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("debias", [False, True])
def test_ema(x64, decay, debias):
    grads = np.random.default_rng(0).normal(size=(5, 3, 2))
    expected, last = ema_in_numpy(grads, decay, debias)
    for dtype, rtol in [(jnp.float64, 1e-13), (jnp.float32, 2e-6)]:
        made, state = run(oc.ema(decay, debias), jnp.asarray(grads, dtype))
        np.testing.assert_allclose(made, expected, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(state.ema, last, rtol=rtol, atol=rtol)
        assert int(state.count) == 5


@pytest.mark.parametrize("decay", [0.9, 0.999, 1 - 1e-7])
def test_the_average_of_a_constant_is_the_constant(decay):
    made, _ = run(oc.ema(decay), [jnp.full(2, 3.0)] * 10)
    np.testing.assert_allclose(made, np.full((10, 2), 3.0), rtol=1e-5)


def test_the_sum_of_a_constant():
    made, _ = run(oc.trace(0.5), [jnp.ones(1)] * 4)
    np.testing.assert_array_equal(made, [[1.0], [1.5], [1.75], [1.875]])
    made, _ = run(oc.trace(0.5, nesterov=True), [jnp.ones(1)] * 3)
    np.testing.assert_array_equal(made, [[1.5], [1.75], [1.875]])


@pytest.mark.parametrize("build", [oc.trace, oc.ema])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("accumulator", [None, "float32", "bfloat16"])
def test_dtypes(build, dtype, accumulator):
    made, state = run(build(0.9, accumulator_dtype=accumulator), [jnp.ones(2, dtype)])
    stored = state.trace if build is oc.trace else state.ema
    assert stored.dtype == (accumulator or dtype)
    assert made[0].dtype == dtype


@pytest.mark.parametrize("build", [oc.trace, oc.ema])
def test_complex(build):
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(3, 2)) + 1j * rng.normal(size=(3, 2))
    expected, _ = trace_in_numpy(grads, 0.9, False) if build is oc.trace else ema_in_numpy(grads, 0.9, True)
    for accumulator in (None, "float32"):
        made, _ = run(build(0.9, accumulator_dtype=accumulator), jnp.asarray(grads, jnp.complex64))
        np.testing.assert_allclose(made, expected, rtol=1e-5)


@pytest.mark.parametrize("decay", [1.0, 2.0, -0.1])
def test_an_average_without_bias_needs_a_decay_below_one(decay):
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        run(oc.ema(decay), [jnp.ones(1)])


@pytest.mark.parametrize("build", [oc.trace, oc.ema])
def test_nan_stays(build):
    made, _ = run(build(0.9), [jnp.array([np.nan, 1.0]), jnp.ones(2)])
    np.testing.assert_array_equal(np.isnan(made), [[True, False]] * 2)


@pytest.mark.parametrize("build", [oc.trace, oc.ema])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 3)])
def test_smallest_inputs(build, shape):
    made, _ = run(build(0.5), [jnp.full(shape, 2.0)] * 2)
    np.testing.assert_allclose(made[0], np.full(shape, 2.0), rtol=1e-6)
    np.testing.assert_allclose(made[1], np.full(shape, 3.0 if build is oc.trace else 2.0), rtol=1e-6)
    assert not np.any(run(build(0.5), [jnp.zeros(shape)] * 2)[0])


@pytest.mark.parametrize(("build", "field"), [(oc.trace, "trace"), (oc.ema, "ema")])
def test_the_wrong_shape_is_refused(build, field):
    tx = build(0.5)
    with pytest.raises(
        ValueError, match=rf"{field}: updates at \['w'\] is float32\[3\] but {field} there is float32\[2,3\]"
    ):
        jax.jit(tx.update)({"w": jnp.ones(3)}, tx.init({"w": jnp.ones((2, 3))}))
