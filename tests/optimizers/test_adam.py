"""Adam and AdamW against their formulas in NumPy's double precision and against PyTorch's recorded steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc
from tests.golden import trajectories

RATES = [0.2, 0.15, 0.1, 0.05, 0.02]
HALF = ("float16", "bfloat16")


def adam_in_numpy(grads, b1=0.9, b2=0.999, eps=1e-8, eps_root=0.0, nesterov=False):
    """The directions of each step, and the two averages at the end."""
    m = v = np.zeros_like(grads[0])
    made = []
    for t, g in enumerate(grads, start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (g * np.conj(g)).real
        mean = m / (1 - b1**t)
        if nesterov:
            mean = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        made.append(mean / (np.sqrt(v / (1 - b2**t) + eps_root) + eps))
    return made, m, v


def run(tx, grads, params=None):
    state, made = tx.init(jnp.zeros_like(grads[0]) if params is None else params), []
    for g in grads:
        u, state = tx.update(g, state, params)
        made.append(u)
    return made, state


SETTINGS = [
    {},
    dict(b1=0.8, b2=0.95, eps=1e-2),
    dict(b1=0.8, b2=0.95, eps=1e-3, eps_root=0.1),
    dict(nesterov=True),
    dict(b1=0.5, b2=0.6, eps=0.1, eps_root=0.01, nesterov=True),
    dict(b1=0.0, b2=0.0),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_formula(x64, settings):
    grads = np.random.default_rng(0).normal(size=(5, 3, 2))
    expected, mu, nu = adam_in_numpy(grads, **settings)
    for dtype, rtol in [(jnp.float64, 1e-12), (jnp.float32, 5e-6)]:
        made, state = run(oc.scale_by_adam(**settings), jnp.asarray(grads, dtype))
        assert {u.dtype for u in made} == {jnp.dtype(dtype)}
        np.testing.assert_allclose(made, expected, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(state.mu, mu, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(state.nu, nu, rtol=rtol, atol=rtol)
        assert int(state.count) == 5


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_adam_multiplies_by_the_learning_rate(x64, schedule, nesterov):
    grads = np.random.default_rng(1).normal(size=(5, 4))
    learning_rate = (lambda count: jnp.asarray(RATES)[count]) if schedule else 0.3
    rates = np.array(RATES if schedule else [0.3] * 5)[:, None]
    made, _ = run(oc.adam(learning_rate, 0.8, 0.9, 1e-4, nesterov=nesterov), jnp.asarray(grads))
    expected = -rates * adam_in_numpy(grads, 0.8, 0.9, 1e-4, nesterov=nesterov)[0]
    np.testing.assert_allclose(made, expected, rtol=1e-12)


@pytest.mark.parametrize("mask", [None, {"a": True, "b": False}])
@pytest.mark.parametrize("decay", ["number", "schedule"])
def test_adamw_decays_the_parameters_by_learning_rate_times_decay(x64, mask, decay):
    rng = np.random.default_rng(2)
    grads = [{k: rng.normal(size=3) for k in "ab"} for _ in range(5)]
    params = {k: rng.normal(size=3) for k in "ab"}
    decays = RATES if decay == "schedule" else [0.3] * 5
    tx = oc.adamw(
        0.1, 0.8, weight_decay=(lambda count: jnp.asarray(RATES)[count]) if decay == "schedule" else 0.3, mask=mask
    )
    theirs = {k: adam_in_numpy([g[k] for g in grads], 0.8)[0] for k in "ab"}
    p, state = jax.tree.map(jnp.asarray, params), tx.init(params)
    for step, g in enumerate(grads):
        updates, state = tx.update(jax.tree.map(jnp.asarray, g), state, p)
        p = jax.tree.map(jnp.add, p, updates)
        for k in "ab":
            wd = decays[step] if mask is None or mask[k] else 0.0
            params[k] = params[k] - 0.1 * (theirs[k][step] + wd * params[k])
            np.testing.assert_allclose(p[k], params[k], rtol=1e-12)


@pytest.mark.parametrize(
    ("trace", "tx", "sign"),
    [
        ("adam_default", oc.adam(1e-3), 1),
        ("adam_lr_betas", oc.adam(0.05, 0.8, 0.95), 1),
        ("adam_eps_large", oc.adam(0.05, eps=0.1), 1),
        ("adam_maximize", oc.chain(oc.add_decayed_weights(0.1), oc.adam(0.05)), -1),
        ("adamw_default", oc.adamw(0.01, weight_decay=0.01), 1),
        ("adamw_wd_large", oc.adamw(0.05, weight_decay=0.3), 1),
    ],
)
def test_recorded_steps(x64, trace, tx, sign):
    trajectories.assert_recorded(trajectories.replay(tx, sign=sign), "torch_optim", f"{trace}/p")


def test_recorded_steps_with_a_schedule(x64):
    rates = jnp.asarray(trajectories.load("torch_optim")["adamw_lr_schedule/lr"])
    tx = oc.adamw(lambda count: rates[count], weight_decay=0.1)
    trajectories.assert_recorded(trajectories.replay(tx), "torch_optim", "adamw_lr_schedule/p")


def test_eps_is_outside_the_bias_correction():
    # The paper's and PyTorch's form gives 1 / (1 + eps) at the first step; TensorFlow's would give 0.96935.
    updates, _ = run(oc.adam(1.0, eps=1e-3), [jnp.ones(1)])
    np.testing.assert_allclose(updates[0], [-1 / 1.001], rtol=1e-6)


def test_complex_updates_have_a_real_second_moment():
    rng = np.random.default_rng(3)
    grads = rng.normal(size=(4, 3)) + 1j * rng.normal(size=(4, 3))
    expected, mu, nu = adam_in_numpy(grads)
    made, state = run(oc.scale_by_adam(), jnp.asarray(grads, jnp.complex64))
    np.testing.assert_allclose(state.mu, mu, rtol=1e-5)
    assert (state.mu.dtype, state.nu.dtype) == (jnp.complex64, jnp.float32)
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    np.testing.assert_allclose(state.nu, nu, rtol=1e-5)


# half precision


@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.parametrize("build", [oc.scale_by_adam, lambda: oc.scale_by_adam(nesterov=True), lambda: oc.adam(0.1)])
def test_a_zero_gradient_gives_exactly_zero(build, dtype):
    zero = jnp.zeros(3, dtype)
    made, _ = run(build(), [zero] * 3)
    for u in made:
        assert u.dtype == dtype
        np.testing.assert_array_equal(u, 0)


@pytest.mark.parametrize("dtype", HALF)
def test_the_second_moment_of_half_precision_keeps_moving(dtype):
    # For a constant gradient g the average of squares after n steps is g^2 (1 - b2^n).
    w, tx = jnp.ones(1, dtype), oc.scale_by_adam()
    state, update = tx.init(w), jax.jit(tx.update)
    assert state.nu.dtype == jnp.float32
    for _ in range(300):
        _, state = update(2 * w, state, w)
    np.testing.assert_allclose(state.nu, [4 * (1 - 0.999**300)], rtol=1e-5)


def test_dtypes_of_the_moments():
    w = jnp.ones(2)
    state = oc.adam(1e-3, mu_dtype="bfloat16", nu_dtype="float16").init(w)[0]
    assert (state.mu.dtype, state.nu.dtype) == (jnp.bfloat16, jnp.float16)
    state = oc.adamw(1e-3, nu_dtype=jnp.bfloat16).init(w)[0]
    assert (state.mu.dtype, state.nu.dtype) == (jnp.float32, jnp.bfloat16)
    tx = oc.adam(1e-3, nu_dtype=jnp.bfloat16)
    _, state = tx.update(w, tx.init(w))
    assert float(state[0].nu[0]) == float(jnp.bfloat16(0.001))  # computed in float32, rounded once


@pytest.mark.parametrize("dtype", HALF)
def test_wide_moments_do_not_widen_the_update(dtype):
    w = jnp.ones(2, dtype)
    tx = oc.adamw(1e-3, mu_dtype=jnp.float32, nu_dtype=jnp.float32)
    updates, state = tx.update(w, tx.init(w), w)
    assert updates.dtype == dtype
    assert state[0].mu.dtype == state[0].nu.dtype == jnp.float32


@pytest.mark.parametrize("scale", [1e-6, 6e-8, 1e-3, 1.0, 6e4])
def test_float16_gradients_of_any_size_step_by_the_learning_rate(scale):
    # The square of the gradient leaves the range of float16 at both ends; the first step is the sign all the same.
    g = jnp.array([scale, -scale], jnp.float16)
    updates, _ = run(oc.scale_by_adam(eps=0.0), [g])
    np.testing.assert_array_equal(updates[0], [1, -1])


@pytest.mark.parametrize("scale", [1e-17, 1e-9, 1.0, 1e9, 1e18])  # where (1 - b2) g^2 is a normal number
def test_float32_gradients_of_any_size_step_by_the_learning_rate(scale):
    updates, _ = run(oc.scale_by_adam(eps=0.0), [jnp.array([scale, -scale])])
    np.testing.assert_allclose(updates[0], [1, -1], rtol=1e-5)


# bias correction


@pytest.mark.parametrize("b2", [0.9, 0.999, 0.999999, 1 - 1e-7])
def test_bias_correction_is_accurate_for_decays_near_one(b2):
    updates, _ = run(oc.scale_by_adam(b2=b2, eps=0.0), [jnp.full(1, 3.0)] * 3)
    np.testing.assert_allclose(updates, np.ones((3, 1)), rtol=1e-5)


def test_a_constant_gradient_gives_steps_of_one_forever():
    tx = oc.scale_by_adam(eps=0.0)
    g = jnp.array([0.3, -7.0])

    def body(state, _):
        u, state = tx.update(g, state)
        return state, u

    _, made = jax.lax.scan(body, tx.init(g), length=1000)
    np.testing.assert_allclose(made, np.broadcast_to([1.0, -1.0], (1000, 2)), rtol=1e-4)


# derivatives


def test_derivative_by_b1():
    # The first update is 1 whatever b1 is; the second at gradients (1, 0) is
    # (b1 (1-b1) / (1-b1^2)) / sqrt(b2 (1-b2) / (1-b2^2)) = (b1 / (1+b1)) / sqrt(b2 / (1+b2)).
    def second(b1):
        return run(oc.scale_by_adam(b1, eps=0.0), [jnp.ones(()), jnp.zeros(())])[0][1]

    slope = jax.jit(jax.grad(second))(0.9)
    np.testing.assert_allclose(slope, 1 / 1.9**2 / np.sqrt(0.999 / 1.999), rtol=1e-4)
    first = jax.grad(lambda b1: run(oc.adam(0.1, b1=b1), [jnp.ones(())])[0][0])(0.9)
    np.testing.assert_allclose(first, 0, atol=1e-5)


def test_derivative_at_zero_is_finite():
    def loss(g):
        return jnp.sum(run(oc.scale_by_adam(), [g, g])[0][1])

    assert np.isfinite(jax.grad(loss)(jnp.zeros(3))).all()


# smallest inputs


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 3), (5, 1, 2)])
def test_smallest_inputs(shape):
    g = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape) + np.float32(0.25)
    made, _ = run(oc.adamw(0.5, weight_decay=0.5), [jnp.asarray(g)], jnp.ones(shape))
    np.testing.assert_allclose(made[0], -0.5 * (np.sign(g) + 0.5), rtol=1e-6)


def test_wrong_input_names_link_and_leaf():
    params = {"w": jnp.ones((2, 3))}
    tx = oc.adam(0.1)
    with pytest.raises(ValueError, match=r"scale_by_adam: .*\['w'\].*float32\[3,2\]"):
        tx.update({"w": jnp.ones((3, 2))}, tx.init(params), params)
    tx = oc.adamw(0.1)
    state = tx.init(params)
    with pytest.raises(ValueError, match=r"add_decayed_weights .*update\(grads, state, params\)"):
        tx.update(params, state)
    with pytest.raises(ValueError, match="scale_by_adam"):
        oc.adam(0.1).update(jnp.ones(1), oc.adam(0.1).init(params), params)
    with pytest.raises(ValueError, match=r"\['w'\].*float32\[3,2\]"):
        tx.update({"w": jnp.ones((3, 2))}, state, params)


@pytest.mark.parametrize("build", [lambda m: oc.adamw(0.1, mask=m), lambda m: oc.add_decayed_weights(0.1, m)])
def test_missing_parameters_name_the_decay_behind_a_mask(build):
    params = {"w": jnp.ones(2)}
    tx = build({"w": True})
    with pytest.raises(ValueError, match=r"add_decayed_weights .*update\(grads, state, params\)"):
        tx.update(params, tx.init(params))


@pytest.mark.parametrize("nesterov", [False, True])
def test_chain_link_by_link(nesterov):
    """clip, Adam, decay and learning rate, each by itself, against the chain and against NumPy."""
    rng = np.random.default_rng(5)
    grads, params = rng.normal(size=(3, 4, 2)), rng.normal(size=(4, 2))
    tx = oc.chain(oc.clip_by_global_norm(1.0), oc.adamw(0.1, weight_decay=0.2, nesterov=nesterov))
    links = [
        oc.clip_by_global_norm(1.0),
        oc.scale_by_adam(nesterov=nesterov),
        oc.add_decayed_weights(0.2),
        oc.scale(-0.1),
    ]
    p = jnp.asarray(params, jnp.float32)
    state, states = tx.init(p), [link.init(p) for link in links]
    clipped = [g * min(1, 1 / np.linalg.norm(g)) for g in grads]
    directions = adam_in_numpy(clipped, nesterov=nesterov)[0]
    for step, g in enumerate(grads):
        u = jnp.asarray(g, jnp.float32)
        together, state = tx.update(u, state, p)
        expected = [clipped[step], directions[step]]
        expected += [expected[1] + 0.2 * params]
        expected += [-0.1 * expected[2]]
        for i, link in enumerate(links):
            u, states[i] = link.update(u, states[i], p)
            np.testing.assert_allclose(u, expected[i], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(together, u, rtol=5e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("argument", "rate"), [("b1", 1.0), ("b2", 1), ("b1", -0.1), ("b2", 1.5), ("b1", float("nan"))]
)
def test_a_decay_rate_out_of_range_is_refused_by_name(argument, rate):
    with pytest.raises(ValueError, match=rf"^scale_by_adam: {argument} is {rate}; .* in \[0, 1\)"):
        oc.adamw(0.1, **{argument: rate})


def test_a_decay_rate_of_zero_keeps_nothing_of_the_past():
    updates = run(oc.scale_by_adam(b1=0.0, b2=0.0), jnp.array([[3.0], [-0.5]]))[0]
    np.testing.assert_allclose(updates, [[1.0], [-1.0]], rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_last_count_goes_on(nesterov):
    tx = oc.scale_by_adam(nesterov=nesterov)
    state = tx.init(jnp.zeros(1))._replace(count=jnp.int32(2**31 - 1), mu=jnp.ones(1), nu=jnp.ones(1))
    updates, state = tx.update(jnp.ones(1), state)
    np.testing.assert_allclose(updates, [1.0], rtol=1e-6)
    assert state.count == 2**31 - 1
