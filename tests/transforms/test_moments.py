"""The pieces of averages, against NumPy's double precision."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optchain.transforms import moments


def exact_debias(rate, count):
    """``1 / (1 - rate**count)`` for the binary number `rate`, without rounding before the end."""
    return float(1 / (1 - fractions.Fraction(rate) ** count))


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 0.999, 0.999999, 1 - 1e-7, 1 - 1e-9])
@pytest.mark.parametrize("count", [1, 2, 10, 300])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_debias(rate, count, wrap):
    actual = wrap(lambda c: moments.debias(rate, c))(jnp.int32(count))
    np.testing.assert_allclose(actual, exact_debias(rate, count), rtol=5e-7)


@pytest.mark.parametrize("rate", [0.5, 0.999, 1 - 1e-7])
def test_debias_in_double_precision(x64, rate):
    for count in (1, 7, 1000):
        np.testing.assert_allclose(moments.debias(rate, jnp.int32(count)), exact_debias(rate, count), rtol=1e-13)


def test_debias_after_many_steps_is_one():
    assert float(moments.debias(0.9, jnp.int32(2**31 - 1))) == 1.0


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 0.999])
def test_debias_of_an_array(rate):
    rate = np.float32(rate)
    np.testing.assert_allclose(moments.debias(jnp.asarray(rate), 3), exact_debias(float(rate), 3), rtol=1e-4)


@pytest.mark.parametrize("rate", [1.0, 1, 1.5, -0.1, math.inf, math.nan])
def test_debias_refuses_rates_out_of_range(rate):
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        moments.debias(rate, 1)


def test_decay_takes_the_difference_in_double_precision():
    assert moments.decay(0.9999) == (0.9999, 1 - 0.9999)


def test_moving():
    old, new = np.random.default_rng(0).normal(size=(2, 5))
    actual = moments.moving(jnp.asarray(old, jnp.float32), jnp.asarray(new, jnp.float32), moments.decay(0.9))
    np.testing.assert_allclose(actual, 0.9 * old + 0.1 * new, rtol=1e-6, atol=1e-7)


def test_abs_sq():
    np.testing.assert_array_equal(moments.abs_sq(jnp.array([3.0, -2.0])), [9, 4])
    squares = moments.abs_sq(jnp.array([3 + 4j, -1j], jnp.complex64))
    assert squares.dtype == jnp.float32
    np.testing.assert_array_equal(squares, [25, 1])


def test_safe_sqrt():
    x = jnp.array([0.0, 4.0, 0.25, 1e-30, np.inf])
    np.testing.assert_allclose(moments.safe_sqrt(x), np.sqrt(np.asarray(x)), rtol=1e-6)
    slope = jax.vmap(jax.grad(moments.safe_sqrt))(x[:3])
    np.testing.assert_array_equal(slope, [0.0, 0.25, 1.0])
    assert np.isnan(moments.safe_sqrt(jnp.array([np.nan, -1.0]))).all()


@pytest.mark.parametrize(
    ("rate", "count"), [(0.0, 1), (0.0, 2), (0.3, 1), (0.3, 5), (0.7, 3), (0.999, 1), (0.999, 100)]
)
def test_debias_of_an_array_and_its_derivative(rate, count):
    value, slope = jax.value_and_grad(moments.debias)(jnp.float32(rate), count)
    rate = float(np.float32(rate))
    np.testing.assert_allclose(value, 1 / (1 - rate**count), rtol=3e-5)
    np.testing.assert_allclose(slope, count * rate ** (count - 1) / (1 - rate**count) ** 2, rtol=1e-4)
