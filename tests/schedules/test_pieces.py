"""The piecewise schedules against loops over their pieces in NumPy float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain.schedules as sch

COUNTS = [*range(60), 10**3, 10**6, 2**31 - 1]

TABLES = [
    None,
    {},
    {10: 0.5},
    {10: 0.5, 20: 0.5},
    {20: 0.1, 3: 2.0, 7: 0.0, 40: 5.0},
    {0: 3.0, 5: 0.5},
    {-4: 3.0, 0: 2.0, 5: 0.5},
    {1: 2.0, 2: 2.0, 3: 2.0},
    {7.5: 0.5, 12.25: 0.5},
    {10: 0.5, 2**31 + 1000: 0.5},
]


def piecewise_constant(t, start, table):
    return start * math.prod(scale for bound, scale in (table or {}).items() if t >= bound)


def through(t, knots, values, kind):
    """The value at `t` of a curve through values at ascending knots; where knots coincide the last one counts."""
    last = max(i for i, knot in enumerate(knots) if knot <= t)
    if last == len(knots) - 1:
        return values[-1]
    done = (t - knots[last]) / (knots[last + 1] - knots[last])
    weight = done if kind == "linear" else (1 - math.cos(math.pi * done)) / 2
    return values[last] + (values[last + 1] - values[last]) * weight


def piecewise_interpolate(t, kind, start, table):
    knots, values = [0], [start]
    for bound, scale in sorted((table or {}).items()):
        knots.append(max(bound, 0))
        values.append(values[-1] * scale)
    return through(t, knots, values, kind)


def check(made, expected, counts=COUNTS, rtol=2e-6, atol=1e-6):
    want = np.array([expected(t) for t in counts])
    np.testing.assert_allclose([made(t) for t in counts], want, rtol=rtol, atol=atol)
    np.testing.assert_allclose(made(np.array(counts)), want, rtol=rtol, atol=atol)
    with jax.enable_x64(True):
        found = made(jnp.array(counts))
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("start", [1.0, -0.1, 3])
def test_piecewise_constant(table, start):
    check(sch.piecewise_constant_schedule(start, table), lambda t: piecewise_constant(t, start, table))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_piecewise_interpolate(table, kind):
    check(sch.piecewise_interpolate_schedule(kind, 2.0, table), lambda t: piecewise_interpolate(t, kind, 2.0, table))


def test_the_factors_of_an_interpolation_accumulate():
    made = sch.piecewise_interpolate_schedule("linear", 1.0, {10: 0.5, 20: 0.5})
    np.testing.assert_allclose([made(10), made(15), made(20)], [0.5, 0.375, 0.25], rtol=1e-6)


ONECYCLES = [(100, 0.3), (50, 0.0), (10, 1.0), (3, 0.3), (2, 0.3), (1, 0.3), (1, 1.0)]


@pytest.mark.parametrize(("steps", "pct"), ONECYCLES)
@pytest.mark.parametrize("end", [None, 0.0, 0.01])
def test_cosine_onecycle(steps, pct, end):
    values = [0.2, 2.0, 0.2 / 50 if end is None else end]
    factors = dict(final_div_factor=50.0) if end is None else dict(end_value=end)
    check(
        sch.cosine_onecycle_schedule(steps, 2.0, pct, div_factor=10.0, **factors),
        lambda t: through(t, [0, int(pct * steps), steps], values, "cosine"),
    )


@pytest.mark.parametrize(("steps", "pct"), ONECYCLES)
@pytest.mark.parametrize("final", [0.3, 0.85, 1.0])
@pytest.mark.parametrize("end", [None, 0.0, 0.01])
def test_linear_onecycle(steps, pct, final, end):
    final = max(pct, final)
    values = [0.2, 2.0, 0.2, 0.2 / 50 if end is None else end]
    factors = dict(final_div_factor=50.0) if end is None else dict(end_value=end)
    check(
        sch.linear_onecycle_schedule(steps, 2.0, pct, final, div_factor=10.0, **factors),
        lambda t: through(t, [0, int(pct * steps), int(final * steps), steps], values, "linear"),
    )


def test_defaults_of_the_one_cycles():
    linear, cosine = sch.linear_onecycle_schedule(100, 1.0), sch.cosine_onecycle_schedule(100, 1.0)
    np.testing.assert_allclose(linear(np.array([0, 30, 85, 100])), [0.04, 1.0, 0.04, 4e-6], rtol=1e-6)
    np.testing.assert_allclose(cosine(np.array([0, 30, 100])), [0.04, 1.0, 4e-6], rtol=1e-6)


def test_derivatives_by_array_settings():
    def interpolated(v):
        return sch.piecewise_interpolate_schedule("linear", v[0], {10: v[1], 20: v[2]})(15)

    # (v0 v1 + v0 v1 v2) / 2
    found = jax.grad(interpolated)(jnp.array([1.0, 0.5, 0.25]))
    np.testing.assert_allclose(found, [0.3125, 0.625, 0.25], rtol=1e-6)
    found = jax.grad(lambda v: sch.piecewise_constant_schedule(v[0], {10: v[1], 20: v[2]})(15))(
        jnp.array([2.0, 0.5, 0.0])
    )
    np.testing.assert_allclose(found, [0.5, 2.0, 0.0], rtol=1e-6)
    found = jax.grad(lambda v: sch.cosine_onecycle_schedule(10, v)(3))(jnp.float32(2.0))
    np.testing.assert_allclose(found, 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: sch.piecewise_constant_schedule(1.0, {3: 1.0, 5: -0.1}),
            ValueError,
            "piecewise_constant_schedule: the factors must not be negative, got -0.1 at boundary 5",
        ),
        (
            lambda: sch.piecewise_interpolate_schedule("linear", 1.0, {5: -3}),
            ValueError,
            "piecewise_interpolate_schedule: the factors must not be negative, got -3 at boundary 5",
        ),
        (
            lambda: sch.piecewise_interpolate_schedule("linar", 1.0),
            ValueError,
            "piecewise_interpolate_schedule: interpolate_type must be 'linear' or 'cosine', got 'linar'",
        ),
        (
            lambda: sch.piecewise_constant_schedule(1.0, [(3, 1.0)]),
            TypeError,
            "piecewise_constant_schedule: boundaries_and_scales must map steps to factors",
        ),
        (
            lambda: sch.linear_onecycle_schedule(0, 1.0),
            ValueError,
            "linear_onecycle_schedule: transition_steps must be positive, got 0",
        ),
        (
            lambda: sch.cosine_onecycle_schedule(-1, 1.0),
            ValueError,
            "cosine_onecycle_schedule: transition_steps must be positive, got -1",
        ),
        (
            lambda: sch.linear_onecycle_schedule(10, 1.0, 0.9, 0.5),
            ValueError,
            "linear_onecycle_schedule: pct_start and pct_final must be fractions",
        ),
        (
            lambda: sch.cosine_onecycle_schedule(10, 1.0, 30),
            ValueError,
            "cosine_onecycle_schedule: pct_start must be a fraction between 0 and 1, got 30",
        ),
        (
            lambda: sch.cosine_onecycle_schedule(10, 1.0, div_factor=0.0),
            ValueError,
            "cosine_onecycle_schedule: div_factor must be positive, got 0.0",
        ),
        (
            lambda: sch.linear_onecycle_schedule(10, 1.0, final_div_factor=-1),
            ValueError,
            "linear_onecycle_schedule: final_div_factor must be positive, got -1",
        ),
        (
            lambda: sch.cosine_onecycle_schedule(10, 1.0, final_div_factor=10.0, end_value=0.1),
            ValueError,
            "cosine_onecycle_schedule: final_div_factor and end_value both set the final value",
        ),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call()
