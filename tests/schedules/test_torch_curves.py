"""Learning-rate curves recorded from PyTorch 2.13 (``tests/golden/schedules.npz``), where it has the same rule.

Every curve is the rate at the steps 0 to 49; the base rate is 0.1, or 0.5 and 1.0 at the peak of the one-cycles.
"""

import pathlib

import jax
import numpy as np
import pytest

import optchain.schedules as sch

CURVES = np.load(pathlib.Path(__file__).parents[1] / "golden" / "schedules.npz")


def restarts(lengths, end):
    return [dict(init_value=0.0, peak_value=0.1, warmup_steps=0, decay_steps=n, end_value=end) for n in lengths]


# PyTorch's one-cycle has its peak at step pct_start * 50 - 1 and its end at step 49.
SAME = {
    "cosine_T50": lambda: sch.cosine_decay_schedule(0.1, 50),
    "warm_restarts_10": lambda: sch.sgdr_schedule(restarts([10] * 5, 0.0)),
    "warm_restarts_7_mult2": lambda: sch.sgdr_schedule(restarts([7, 14, 28, 56], 0.01)),
    "onecycle_cos_default": lambda: sch.cosine_onecycle_schedule(49, 0.5, pct_start=14.5 / 49),
    "onecycle_cos_set": lambda: sch.cosine_onecycle_schedule(
        49, 1.0, 9.5 / 49, div_factor=10.0, final_div_factor=100.0
    ),
    "onecycle_linear_default": lambda: sch.piecewise_interpolate_schedule("linear", 0.02, {14: 25.0, 49: 1 / 25e4}),
    "onecycle_linear_set": lambda: sch.piecewise_interpolate_schedule("linear", 0.1, {9: 10.0, 49: 1e-3}),
    "linear_default": lambda: sch.linear_schedule(0.1 / 3, 0.1, 5),
    "linear_set": lambda: sch.warmup_constant_schedule(0.01, 0.1, 20),
    "constant": lambda: sch.join_schedules([sch.constant_schedule(0.025), sch.constant_schedule(0.1)], [10]),
    "poly_default": lambda: sch.polynomial_schedule(0.1, 0.0, 1, 40),
    "poly_p2": lambda: sch.polynomial_schedule(0.1, 0.0, 2.0, 40),
    "exponential_09": lambda: sch.exponential_decay(0.1, 1, 0.9),
    "exponential_11": lambda: sch.exponential_decay(0.1, 1, 1.1),
    "step_10": lambda: sch.exponential_decay(0.1, 10, 0.5, staircase=True),
    "multistep": lambda: sch.piecewise_constant_schedule(0.1, {10: 0.1, 25: 0.1, 40: 0.1}),
    "multistep_repeat": lambda: sch.piecewise_constant_schedule(0.1, {5: 0.25, 30: 0.5}),
    "sequential_warmup_cosine": lambda: sch.warmup_cosine_decay_schedule(0.01, 0.1, 10, 50),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(("x64", "rtol"), [(False, 2e-6), (True, 1e-12)])
def test_a_curve_is_the_recorded_one(name, x64, rtol):
    with jax.enable_x64(x64):
        found = np.asarray(SAME[name]()(np.arange(50)))
    np.testing.assert_allclose(found, CURVES[name], rtol=rtol, atol=rtol * 1e-2)


def test_a_cosine_stays_at_its_end_where_the_recorded_one_rises_again():
    with jax.enable_x64(True):
        found = np.asarray(sch.cosine_decay_schedule(0.1, 20, end_value=0.01)(np.arange(50)))
    np.testing.assert_allclose(found[:21], CURVES["cosine_T20_min"][:21], rtol=1e-12)
    np.testing.assert_array_equal(found[21:], 0.01)
    assert CURVES["cosine_T20_min"][30] > 0.05


@pytest.mark.parametrize(
    ("name", "builder", "largest"),
    [
        ("onecycle_cos_default", sch.cosine_onecycle_schedule, 0.03),
        ("onecycle_linear_default", sch.linear_onecycle_schedule, 0.08),
    ],
)
def test_a_one_cycle_of_as_many_steps_is_not_the_recorded_one(name, builder, largest):
    difference = np.abs(np.asarray(builder(50, 0.5)(np.arange(50))) - CURVES[name]).max()
    assert 0.5 * largest < difference < 1.5 * largest
