"""SGD against its formula in NumPy's double precision and against PyTorch's recorded steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc
from tests.golden import trajectories

RATES = [0.2, 0.15, 0.1, 0.05]


def sgd_in_numpy(grads, rates, momentum=None, nesterov=False):
    """The updates of each step."""
    m, made = 0.0, []
    for g, rate in zip(grads, rates, strict=True):
        u = g
        if momentum is not None:
            m = g + momentum * m
            u = g + momentum * m if nesterov else m
        made.append(-rate * u)
    return made


def updates_of(tx, grads):
    state, made = tx.init(jnp.zeros_like(grads[0])), []
    for g in grads:
        u, state = tx.update(g, state)
        made.append(u)
    return made


CASES = [(None, False), (0.0, False), (0.9, False), (0.9, True), (1.0, True)]


@pytest.mark.parametrize(("momentum", "nesterov"), CASES)
@pytest.mark.parametrize("schedule", [False, True])
def test_formula(x64, momentum, nesterov, schedule):
    grads = np.random.default_rng(0).normal(size=(4, 3, 2))
    rates = RATES if schedule else [0.2] * 4
    learning_rate = (lambda count: jnp.asarray(RATES)[count]) if schedule else 0.2
    expected = sgd_in_numpy(grads, rates, momentum, nesterov)
    tx = oc.sgd(learning_rate, momentum, nesterov)
    for dtype, rtol in [(jnp.float64, 1e-14), (jnp.float32, 1e-6)]:
        actual = updates_of(tx, jnp.asarray(grads, dtype))
        assert all(u.dtype == dtype for u in actual)
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("trace", "tx", "sign"),
    [
        ("sgd_plain", oc.sgd(0.1), 1),
        ("sgd_momentum", oc.sgd(0.1, 0.9), 1),
        ("sgd_nesterov", oc.sgd(0.1, 0.9, nesterov=True), 1),
        ("sgd_maximize", oc.sgd(0.1, 0.9), -1),
        ("sgd_weight_decay", oc.chain(oc.add_decayed_weights(0.05), oc.sgd(0.1, 0.9)), 1),
        ("sgd_nesterov_wd", oc.chain(oc.add_decayed_weights(0.1), oc.sgd(0.02, 0.8, nesterov=True)), 1),
    ],
)
def test_recorded_steps(x64, trace, tx, sign):
    trajectories.assert_recorded(trajectories.replay(tx, sign=sign), "torch_optim", f"{trace}/p")


def test_state():
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    assert oc.sgd(0.1).init(params) == (oc.EmptyState(), oc.EmptyState())
    plain, wide = oc.sgd(0.1, 0.9).init(params), oc.sgd(0.1, 0.9, accumulator_dtype="float32").init(params)
    assert type(plain[0]) is oc.TraceState
    assert (plain[0].trace["w"].dtype, wide[0].trace["w"].dtype) == (jnp.bfloat16, jnp.float32)
    assert type(oc.sgd(oc.constant_schedule(0.1)).init(params)[1]) is oc.ScaleByScheduleState


def test_a_wide_accumulator_does_not_widen_the_update():
    w = jnp.ones(2, jnp.bfloat16)
    tx = oc.sgd(1e-3, 0.9, accumulator_dtype=jnp.float32)
    updates, state = tx.update(w, tx.init(w), w)
    assert updates.dtype == jnp.bfloat16
    assert state[0].trace.dtype == jnp.float32


def test_a_wide_accumulator_keeps_what_half_precision_loses():
    # In bfloat16 the sum stops at 256, where adding 1 rounds back; in float32 it is exact.
    w = jnp.ones(1, jnp.bfloat16)
    for dtype, expected in [(None, 256.0), ("float32", 300.0)]:
        tx = oc.trace(1.0, accumulator_dtype=dtype)
        state, update = tx.init(w), jax.jit(tx.update)
        for _ in range(300):
            _, state = update(w, state)
        assert float(state.trace[0]) == expected


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_learning_rate_can_be_differentiated(wrap):
    def after_one_step(rate):
        tx = oc.sgd(rate)
        updates, _ = tx.update(jnp.float32(2.0), tx.init(jnp.ones(())))
        return 1.0 + updates

    assert float(wrap(jax.grad(after_one_step))(0.1)) == -2.0


def test_each_number_can_be_differentiated():
    # The second update at gradients g, h is -rate * (h + momentum * g).
    def second_update(rate, momentum):
        return updates_of(oc.sgd(rate, momentum), jnp.array([3.0, 5.0]))[1]

    by_rate, by_momentum = jax.jit(jax.grad(second_update, argnums=(0, 1)))(0.1, 0.5)
    np.testing.assert_allclose([by_rate, by_momentum], [-6.5, -0.3], rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 3), (7, 1, 2)])
def test_smallest_inputs(shape):
    grads = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    tx = oc.sgd(0.5, 0.5)
    first, second = updates_of(tx, [jnp.asarray(grads)] * 2)
    np.testing.assert_array_equal(first, -0.5 * grads)
    np.testing.assert_array_equal(second, -0.75 * grads)


def test_all_zeros_stay():
    assert not np.any(updates_of(oc.sgd(0.5, 0.9, nesterov=True), [jnp.zeros((2, 3))] * 3))


def test_a_whole_tree_is_checked_against_the_sum():
    tx = oc.sgd(0.1, 0.9)
    state = tx.init({"w": jnp.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"trace: .*\['w'\].*float32\[3,2\].*float32\[2,3\]"):
        tx.update({"w": jnp.ones((3, 2))}, state)
    with pytest.raises(ValueError, match=r"trace: .*\['w'\].*float32\[3\]"):
        tx.update({"w": jnp.ones(3)}, state)


def test_order_of_clip_and_sgd_matters():
    g = jnp.array([3.0, 4.0])
    clip_first = oc.chain(oc.clip_by_global_norm(1.0), oc.sgd(0.1))
    sgd_first = oc.chain(oc.sgd(0.1), oc.clip_by_global_norm(1.0))
    np.testing.assert_allclose(clip_first.update(g, clip_first.init(g))[0], [-0.06, -0.08], rtol=1e-6)
    np.testing.assert_allclose(sgd_first.update(g, sgd_first.init(g))[0], [-0.3, -0.4], rtol=1e-6)
