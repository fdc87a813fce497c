"""Joined schedules, warm-ups and warm restarts against their pieces in NumPy float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain.schedules as sch

COUNTS = [*range(45), 10**3, 10**6, 2**31 - 1]


def line(t, start, end, steps):
    return start if steps <= 0 else start + (end - start) * min(t / steps, 1)


def warmup_cosine(t, start, peak, warmup, decay, end=0.0, exponent=1.0):
    if t < warmup:
        return line(t, start, peak, warmup)
    end = end if peak else 0.0
    done = min((t - warmup) / (decay - warmup), 1)
    return end + (peak - end) * ((1 + math.cos(math.pi * done)) / 2) ** exponent


def warmup_exponential(t, start, peak, warmup, steps, rate, begin=0, staircase=False, end=None):
    if t < warmup:
        return line(t, start, peak, warmup)
    if steps <= 0 or rate == 0:
        return peak
    periods = max(t - warmup - max(begin, 0), 0) / steps
    value = peak * rate ** (math.floor(periods) if staircase else periods)
    return value if end is None else max(value, end) if rate < 1 else min(value, end)


def check(made, expected, counts=COUNTS, rtol=2e-6, atol=5e-7):
    want = np.array([expected(t) for t in counts])
    np.testing.assert_allclose([made(t) for t in counts], want, rtol=rtol, atol=atol)
    np.testing.assert_allclose(made(np.array(counts)), want, rtol=rtol, atol=atol)
    with jax.enable_x64(True):
        found = made(jnp.array(counts))
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-15)


def test_each_member_starts_at_its_own_step_zero():
    made = sch.join_schedules([lambda c: 1.0 * c, lambda c: 100.0 + c, lambda c: 1000.0 + 2 * c], [3, 5])
    expected = [0, 1, 2, 100, 101, 1000, 1002, 1004]
    np.testing.assert_array_equal([made(t) for t in range(8)], expected)
    np.testing.assert_array_equal(made(np.arange(8)), expected)
    np.testing.assert_array_equal(jax.jit(made)(np.arange(8)), expected)


def test_no_member_sees_a_negative_count():
    made = sch.join_schedules([sch.constant_schedule(1.0), lambda c: jnp.sqrt(c * 1.0)], [10])
    assert made(3) == 1.0
    assert made(14) == 2.0
    # the square root of a negative count would be NaN, and so would its derivative in the member that is not used
    scaled = jax.grad(lambda v: sch.join_schedules([lambda c: v, lambda c: jnp.sqrt(v * c + 1)], [10])(3))(2.0)
    assert scaled == 1.0


def test_integers_are_joined_in_floating_point():
    made = sch.join_schedules([sch.constant_schedule(1), sch.constant_schedule(2)], [3])
    assert made(0).dtype == made(5).dtype == jnp.float32
    assert [float(made(t)) for t in (2, 3)] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("boundaries", "expected"),
    [([0, 4], [2, 2, 2, 2, 3, 3]), ([2, 2], [1, 1, 3, 3, 3, 3]), ([2, 2**31 + 7], [1, 1, 2, 2, 2, 2])],
)
def test_members_of_no_length(boundaries, expected):
    made = sch.join_schedules([sch.constant_schedule(v) for v in (1.0, 2.0, 3.0)], boundaries)
    assert [float(made(t)) for t in range(6)] == expected


def test_a_single_schedule():
    made = sch.join_schedules([sch.linear_schedule(1.0, 0.0, 4)], [])
    assert [float(made(t)) for t in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("warmup", [1, 7, 40])
def test_warmup_constant(warmup):
    check(sch.warmup_constant_schedule(0.1, 2.0, warmup), lambda t: line(t, 0.1, 2.0, warmup))


@pytest.mark.parametrize("warmup", [0, -3])
def test_warmup_constant_without_warmup_stays_at_its_initial_value(warmup):
    check(sch.warmup_constant_schedule(0.1, 2.0, warmup), lambda t: 0.1)


@pytest.mark.parametrize(("warmup", "decay"), [(0, 1), (0, 30), (1, 2), (10, 11), (10, 40), (5, 10**10)])
@pytest.mark.parametrize(("peak", "end"), [(1.0, 0.0), (0.5, 1e-4), (1.21, -3.0), (0.0, 2.0)])
@pytest.mark.parametrize("exponent", [1.0, 2])
def test_warmup_cosine(warmup, decay, peak, end, exponent):
    check(
        sch.warmup_cosine_decay_schedule(0.2, peak, warmup, decay, end, exponent),
        lambda t: warmup_cosine(t, 0.2, peak, warmup, decay, end, exponent),
        atol=2e-6,
    )


@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize("steps", [-1, 0, 1, 10])
@pytest.mark.parametrize(("rate", "begin", "staircase", "end"), [
    (0.5, 0, False, None), (0.5, 3, True, 0.01), (0.0, 0, False, 0.5), (1.0, -2, False, None), (0.9, -2, False, 0.3),
])  # fmt: skip
def test_warmup_exponential(warmup, steps, rate, begin, staircase, end):
    check(
        sch.warmup_exponential_decay_schedule(0.0, 1.5, warmup, steps, rate, begin, staircase, end),
        lambda t: warmup_exponential(t, 0.0, 1.5, warmup, steps, rate, begin, staircase, end),
        rtol=5e-6,
    )


def test_sgdr():
    cycles = [
        dict(init_value=0.0, peak_value=1.6, warmup_steps=3, decay_steps=10, end_value=0.1),
        dict(init_value=0.1, peak_value=0.8, warmup_steps=0, decay_steps=20),
        dict(init_value=0.0, peak_value=0.4, warmup_steps=5, decay_steps=6, exponent=2.0),
    ]

    def expected(t):
        cycle = 0 if t < 10 else 1 if t < 30 else 2
        c = cycles[cycle]
        arguments = [c["init_value"], c["peak_value"], c["warmup_steps"], c["decay_steps"]]
        return warmup_cosine(t - [0, 10, 30][cycle], *arguments, c.get("end_value", 0.0), c.get("exponent", 1.0))

    check(sch.sgdr_schedule(cycles), expected)
    check(sch.sgdr_schedule(c for c in cycles), expected)


def test_traced_settings_work_where_a_value_decides():
    def warmup(v):
        return sch.warmup_cosine_decay_schedule(0.0, v[0], 5, 10, v[1])(np.array([5, 10]))

    np.testing.assert_allclose(jax.jit(warmup)(jnp.array([2.0, 0.5])), [2.0, 0.5])
    np.testing.assert_array_equal(jax.jit(warmup)(jnp.array([0.0, 0.5])), [0.0, 0.0])
    np.testing.assert_allclose(jax.jacobian(warmup)(jnp.array([2.0, 0.5])), np.eye(2), atol=1e-6)

    def decayed(v):
        return sch.warmup_exponential_decay_schedule(0.0, 1.0, 0, 10, v, end_value=0.1)(20)

    found = jax.vmap(decayed)(jnp.array([0.0, 0.1, 0.5, 1.0, 2.0]))
    np.testing.assert_allclose(found, [1.0, 0.1, 0.25, 0.1, 0.1], rtol=1e-6)


CYCLE = dict(init_value=0.0, peak_value=1.0, warmup_steps=2, decay_steps=10)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sch.join_schedules([], []), ValueError, "join_schedules: the boundaries must be one fewer"),
        (
            lambda: sch.join_schedules([sch.constant_schedule(1.0)] * 2, [1, 2]),
            ValueError,
            "join_schedules: the boundaries must be one fewer than the schedules, got 2 for 2 schedules",
        ),
        (
            lambda: sch.join_schedules([sch.constant_schedule(1.0)] * 3, [5, 2]),
            ValueError,
            "join_schedules: the boundaries must ascend, got 2 after 5",
        ),
        (
            lambda: sch.join_schedules([sch.constant_schedule(1.0), 0.1], [5]),
            TypeError,
            r"join_schedules: schedules\[1\] is not a schedule but 0.1; for a number use constant_schedule",
        ),
        (
            lambda: sch.warmup_cosine_decay_schedule(0.0, 1.0, 10, 10),
            ValueError,
            "warmup_cosine_decay_schedule: decay_steps counts the warm-up in and must be more than warmup_steps",
        ),
        (
            lambda: sch.warmup_cosine_decay_schedule(0.0, 1.0, 1, 10, exponent=-1.0),
            ValueError,
            "warmup_cosine_decay_schedule: exponent must not be negative",
        ),
        (
            lambda: sch.warmup_exponential_decay_schedule(0.0, 1.0, 5, 10, -0.5),
            ValueError,
            "warmup_exponential_decay_schedule: decay_rate must not be negative",
        ),
        (lambda: sch.sgdr_schedule([]), ValueError, "sgdr_schedule: cosine_kwargs must hold the arguments of at least"),
        (
            lambda: sch.sgdr_schedule([CYCLE, {**CYCLE, "warmup_steps": 10}]),
            ValueError,
            r"sgdr_schedule: cosine_kwargs\[1\]: .*decay_steps counts the warm-up in",
        ),
        (
            lambda: sch.sgdr_schedule([{"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 2}]),
            TypeError,
            r"sgdr_schedule: cosine_kwargs\[0\]: .*missing a required argument: 'decay_steps'",
        ),
    ],
)
def test_wrong_settings_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: sch.warmup_cosine_decay_schedule(0.0, 1.0, 10, 10),
        lambda: sch.warmup_cosine_decay_schedule(0.0, 1.0, 1, 10, exponent=-1.0),
        lambda: sch.warmup_exponential_decay_schedule(0.0, 1.0, 5, 10, -0.5),
    ],
)
def test_a_message_names_no_schedule_that_was_not_called(call):
    with pytest.raises(ValueError, match=r"^warmup") as caught:
        call()
    assert ": cosine_decay_schedule" not in str(caught.value)
    assert ": exponential_decay" not in str(caught.value)
