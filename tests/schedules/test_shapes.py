"""The smooth schedules against their formulas in NumPy float64, step by step."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain.schedules as sch

COUNTS = [*range(45), 10**3, 10**6, 2**31 - 1]


def polynomial(t, start, end, power, steps, begin=0):
    if steps <= 0:
        return start
    done = min(max(t - max(begin, 0), 0) / steps, 1)
    return end + (start - end) * (1 - done) ** power


def linear(t, start, end, steps, begin=0):
    return polynomial(t, start, end, 1, steps, begin)


def cosine(t, start, steps, end=0.0, exponent=1.0):
    return end + (start - end) * ((1 + math.cos(math.pi * min(t / steps, 1))) / 2) ** exponent


def exponential(t, start, steps, rate, begin=0, staircase=False, end=None):
    if steps <= 0 or rate == 0:
        return start
    periods = max(t - max(begin, 0), 0) / steps
    value = start * rate ** (math.floor(periods) if staircase else periods)
    if end is None:
        return value
    return max(value, end) if rate < 1 else min(value, end)


def check(made, expected, counts=COUNTS, rtol=2e-6, atol=1e-9):
    want = np.array([expected(t) for t in counts])
    np.testing.assert_allclose([made(t) for t in counts], want, rtol=rtol, atol=atol)
    np.testing.assert_allclose(made(np.array(counts)), want, rtol=rtol, atol=atol)
    with jax.enable_x64(True):
        found = made(jnp.array(counts))
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, want, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("value", [5, 0.1, np.float32(2), jnp.float32(2)])
def test_constant_returns_what_it_was_given(value):
    made = sch.constant_schedule(value)
    for count in (0, np.arange(3)):
        assert type(made(count)) is type(value)
        assert made(count) == value


SPANS = [(1, 0), (10, 0), (10, 7), (40, 3), (10, -5), (0, 0), (0, 4), (-3, 0), (2**31 - 1, 0), (10**10, 5)]


@pytest.mark.parametrize(("steps", "begin"), SPANS)
@pytest.mark.parametrize(("start", "end"), [(1.0, 0.0), (0.0, 0.3), (10, 20), (-1.0, 1e-3), (0.0, 0.0)])
def test_linear(steps, begin, start, end):
    check(sch.linear_schedule(start, end, steps, begin), lambda t: linear(t, start, end, steps, begin), atol=2e-7)


@pytest.mark.parametrize(("steps", "begin"), SPANS)
@pytest.mark.parametrize("power", [0, 0.5, 1, 2, 3.7])
def test_polynomial(steps, begin, power):
    check(
        sch.polynomial_schedule(25.0, 10.0, power, steps, begin),
        lambda t: polynomial(t, 25.0, 10.0, power, steps, begin),
    )


@pytest.mark.parametrize("steps", [1, 7, 40, 12.5, 2**31 - 1, 10**10])
@pytest.mark.parametrize("exponent", [0, 0.5, 1.0, 2])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0, -3.0])
def test_cosine(steps, exponent, alpha):
    check(
        sch.cosine_decay_schedule(0.5, steps, alpha, exponent),
        lambda t: cosine(t, 0.5, steps, 0.5 * alpha, exponent),
        rtol=4e-6,
        atol=4e-7,
    )


@pytest.mark.parametrize("end", [0.0, 0.1, 2.0])
def test_cosine_ends_at_end_value(end):
    made = sch.cosine_decay_schedule(init_value=1, decay_steps=10, end_value=end)
    check(made, lambda t: cosine(t, 1, 10, end), atol=2e-7)
    assert made(10) == made(11) == np.float32(end)


@pytest.mark.parametrize(("steps", "begin"), SPANS)
@pytest.mark.parametrize("staircase", [False, True])
@pytest.mark.parametrize(("rate", "end"), [(0.5, None), (0.5, 0.1), (1.0, 0.1), (1.0, None), (0.0, 0.1), (0.97, 3.0)])
def test_exponential_decay(steps, begin, staircase, rate, end):
    made = sch.exponential_decay(2.0, steps, rate, begin, staircase, end)
    check(made, lambda t: exponential(t, 2.0, steps, rate, begin, staircase, end), rtol=5e-6)


def test_exponential_growth_stops_at_end_value():
    made = sch.exponential_decay(1.0, 2, 2.0, transition_begin=3, end_value=30.0)
    check(made, lambda t: exponential(min(t, 60), 1.0, 2, 2.0, 3, False, 30.0))


def test_exponential_growth_from_zero_stays_zero():
    np.testing.assert_array_equal(sch.exponential_decay(0.0, 1, 2.0)(np.array([0, 1000, 2**31 - 1])), 0)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("linear", sch.linear_schedule(3e-4, 7e-5, 10)),
        ("polynomial", sch.polynomial_schedule(3e-4, 7e-5, 0.7, 10)),
        ("cosine", sch.cosine_decay_schedule(3e-4, 10, end_value=7e-5)),
    ],
)
def test_both_ends_are_exact(name, made):
    assert made(0) == np.float32(3e-4)
    assert made(10) == made(2**31 - 1) == np.float32(7e-5)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 41, 47, 49, 10**7, 2**31 - 1])
def test_compiled_ends_are_exact_and_nothing_lies_beyond_them(steps):
    # A compiler that knows the number of steps divides by its reciprocal, and n * (1 / n) is not always 1.
    counts = np.array([0, 1, steps - 1, steps])
    for made in (
        sch.linear_schedule(0.0, 1.0, steps),
        sch.polynomial_schedule(0.0, 1.0, 1, steps),
        sch.cosine_decay_schedule(0.0, steps, end_value=1.0),
    ):
        found = jax.jit(lambda made=made: made(counts))()
        assert (found[0], found[-1]) == (0.0, 1.0)
        assert (found >= 0).all()
        assert (found <= 1).all()


@pytest.mark.parametrize("part", [1, 10, 1000])
def test_both_ends_of_a_long_transition_keep_their_relative_precision(part):
    steps = 2**31 - 1
    np.testing.assert_allclose(sch.linear_schedule(1.0, 0.0, steps)(steps - part), part / steps, rtol=1e-6)
    np.testing.assert_allclose(sch.linear_schedule(0.0, 1.0, steps)(part), part / steps, rtol=1e-6)
    half = math.sin(math.pi / 2 * part / steps)
    np.testing.assert_allclose(sch.cosine_decay_schedule(1.0, steps)(steps - part), half**2, rtol=1e-6)


def test_a_staircase_counts_in_integers():
    # 2^24 + 1 is no float32: rounded to 2^24 it would be on the step before.
    made = sch.exponential_decay(1.0, 2**24 + 1, 0.5, staircase=True)
    assert [float(made(2**24 + d)) for d in (0, 1, 2)] == [1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("made", "at", "slopes"),
    [
        # d/d(init, end, alpha, ...) written down by hand
        (lambda v: sch.linear_schedule(v[0], v[1], 10), 3, [0.7, 0.3]),
        (lambda v: sch.linear_schedule(v[0], v[1], 10), 12, [0.0, 1.0]),
        (lambda v: sch.polynomial_schedule(2.0, v[0], v[1] + 1, 10), 5, [0.5, 1.0 * 0.5 * math.log(0.5)]),
        (lambda v: sch.polynomial_schedule(2.0, v[0], v[1] + 1, 10), 10, [1.0, 0.0]),
        (lambda v: sch.cosine_decay_schedule(v[0], 10, v[1]), 5, [0.5 + 0.5 * 0.0, 0.5 * 1.0]),
        (lambda v: sch.cosine_decay_schedule(2.0, 10, 0.0, v[0] - 0.5, end_value=v[1]), 10, [0.0, 1.0]),
        (lambda v: sch.exponential_decay(v[0], 10, v[1] + 0.5), 20, [0.25, 1.0 * 2 * 0.5]),
        (lambda v: sch.exponential_decay(v[0], 10, v[1] + 0.5), 0, [1.0, 0.0]),
    ],
)
def test_derivatives_by_array_settings(made, at, slopes):
    found = jax.grad(lambda v: made(v)(at))(jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(found, slopes, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sch.polynomial_schedule(1.0, 0.0, -1, 10), "polynomial_schedule: power must not be negative, got -1"),
        (lambda: sch.cosine_decay_schedule(1.0, 0), "cosine_decay_schedule: decay_steps must be positive, got 0"),
        (lambda: sch.cosine_decay_schedule(1.0, -2), "cosine_decay_schedule: decay_steps must be positive, got -2"),
        (lambda: sch.cosine_decay_schedule(1.0, 9, 0.0, -1.0), "cosine_decay_schedule: exponent must not be negative"),
        (lambda: sch.cosine_decay_schedule(1.0, 9, 0.1, end_value=0.1), "cosine_decay_schedule: alpha and end_value"),
        (lambda: sch.exponential_decay(1.0, 10, -0.5), "exponential_decay: decay_rate must not be negative, got -0.5"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
