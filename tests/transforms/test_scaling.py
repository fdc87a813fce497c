"""Scaling: exact products, and what the step count sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc


def updates_of(tx, grads):
    state, made = tx.init(jnp.zeros_like(jnp.asarray(grads[0]))), []
    for g in grads:
        u, state = tx.update(g, state)
        made.append(u)
    return made, state


@pytest.mark.parametrize("factor", [0.3, -2, np.float32(0.25), jnp.float32(-0.5), 0.0])
def test_scale(factor):
    g = jnp.array([1.0, -2.0, 0.0])
    np.testing.assert_array_equal(updates_of(oc.scale(factor), [g])[0][0], np.float32(factor) * np.asarray(g))


def test_scale_keeps_double_precision(x64):
    g = jnp.array([1.0, 3.0])
    np.testing.assert_array_equal(updates_of(oc.scale(0.1), [g])[0][0], [0.1, 0.1 * 3.0])
    assert updates_of(oc.scale(0.1), [g.astype(jnp.float32)])[0][0].dtype == jnp.float32


def test_scale_of_half_precision_is_rounded_once():
    # 1.001 is 1 in bfloat16, so that a factor rounded first would change nothing.
    g = jnp.full(1, 256.0, jnp.bfloat16)
    assert float(updates_of(oc.scale(1.005), [g])[0][0][0]) == float(jnp.bfloat16(257.28))


def test_scale_of_complex_updates():
    g = jnp.array([1 + 2j], jnp.complex64)
    np.testing.assert_array_equal(updates_of(oc.scale(-1.0), [g])[0][0], [-1 - 2j])
    np.testing.assert_array_equal(updates_of(oc.scale(1j), [g])[0][0], [-2 + 1j])
    with pytest.raises(TypeError, match=r"scale: .*complex"):
        updates_of(oc.scale(1j), [jnp.ones(1)])


def test_scale_refuses_an_array_that_would_widen_the_updates():
    with pytest.raises(ValueError, match=r"scale: .*float32\[2\].*scalar"):
        updates_of(oc.scale(jnp.ones(2)), [jnp.ones(())])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scale_passes_what_is_not_finite(bad):
    out = updates_of(oc.scale(-1.0), [jnp.array([bad, 1.0])])[0][0]
    np.testing.assert_array_equal(out, np.float32([-bad, -1.0]))


@pytest.mark.parametrize(
    ("tx", "sign"),
    [
        (oc.scale(2.0), 1),
        (oc.scale(-2), -1),
        (oc.scale(0.0), 0),
        (oc.scale(jnp.float32(2.0)), 1),
        (oc.scale(np.float32(-2.0)), -1),
        (oc.scale(2j), None),
        (oc.scale_by_learning_rate(0.1), -1),
        (oc.scale_by_learning_rate(-0.1), 1),
        (oc.scale_by_learning_rate(0.1, flip_sign=False), 1),
        (oc.scale_by_learning_rate(jnp.float32(0.1)), -1),
        (oc.scale_by_learning_rate(np.float32(-0.1)), 1),
        (oc.scale_by_learning_rate(oc.constant_schedule(0.1)), -1),
        (oc.scale_by_learning_rate(), 1),
        (oc.scale_by_schedule(oc.constant_schedule(0.1)), None),
    ],
)
def test_signs(tx, sign):
    assert tx.sign == sign


def test_schedule_counts_from_zero():
    made, state = updates_of(oc.scale_by_schedule(lambda count: count + 10.0), [jnp.ones(2)] * 4)
    np.testing.assert_array_equal(made, [[10] * 2, [11] * 2, [12] * 2, [13] * 2])
    assert int(state.count) == 4
    assert state.count.dtype == jnp.int32


def test_learning_rate():
    g = jnp.array([2.0, -4.0])
    np.testing.assert_array_equal(updates_of(oc.scale_by_learning_rate(0.5), [g])[0][0], [-1, 2])
    np.testing.assert_array_equal(updates_of(oc.scale_by_learning_rate(0.5, flip_sign=False), [g])[0][0], [1, -2])
    np.testing.assert_array_equal(updates_of(oc.scale_by_learning_rate(), [g])[0][0], g)
    made, state = updates_of(oc.scale_by_learning_rate(oc.linear_schedule(1.0, 0.0, 4)), [g] * 5)
    np.testing.assert_array_equal(made, [-rate * np.asarray(g) for rate in (1.0, 0.75, 0.5, 0.25, 0.0)])
    assert type(state) is oc.ScaleByScheduleState
    flipped, _ = updates_of(oc.scale_by_learning_rate(oc.linear_schedule(1.0, 0.0, 4), flip_sign=False), [g])
    np.testing.assert_array_equal(flipped[0], g)


def test_schedule_of_a_python_number():
    made, _ = updates_of(oc.scale_by_schedule(lambda count: 0.5), [jnp.ones(1)])
    np.testing.assert_array_equal(made[0], [0.5])


def test_a_count_at_its_end_stays():
    top = np.iinfo(np.int32).max
    tx = oc.scale_by_schedule(lambda count: count / top)
    _, state = tx.update(jnp.ones(1), oc.ScaleByScheduleState(jnp.int32(top)))
    assert int(state.count) == top


def test_schedule_under_jit():
    tx = oc.scale_by_learning_rate(oc.exponential_decay(1.0, 1, 0.5))
    g, state, update = jnp.ones(1), tx.init(jnp.ones(1)), jax.jit(tx.update)
    for expected in (-1.0, -0.5, -0.25):
        u, state = update(g, state)
        np.testing.assert_allclose(u, [expected], rtol=1e-6)


def test_the_sign_of_a_traced_number_is_not_known_yet():
    signs = []

    @jax.jit
    def build(rate):
        signs.extend([oc.scale(rate).sign, oc.sgd(rate).sign])
        return rate

    build(0.1)
    assert signs == [None, -1]  # a learning rate is taken to be positive
