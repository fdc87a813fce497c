"""The compiled step against closed forms in NumPy float64."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optchain
from optchain.training import TrainState, compile_train

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.1 * RNG.normal(size=16)
BATCH = (jnp.asarray(X, jnp.float32), jnp.asarray(Y, jnp.float32))


def squared_error(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def descent(rate, steps, bound=np.inf):
    """Parameters and losses of gradient descent from zero with clipped gradients on `squared_error`."""
    w, losses = np.zeros(3), []
    for _ in range(steps):
        residual = X @ w - Y
        losses.append(np.mean(residual**2))
        gradient = 2 * X.T @ residual / len(Y)
        w = w - rate * gradient * min(1.0, bound / np.linalg.norm(gradient))
    return w, losses


def run(step, state, *batch, steps=1):
    losses = []
    for _ in range(steps):
        state, metrics = step(state, *batch)
        losses.append(metrics["loss"])
    return state, losses


def sgd_by_hand(rate):
    """A pair that this library did not make."""
    return optchain.GradientTransformation(
        lambda params: (), lambda updates, state, params=None: (jax.tree.map(lambda u: -rate * u, updates), state)
    )


# numbers


@pytest.mark.parametrize("donate", [True, False])
def test_linear_regression(donate):
    step = compile_train(squared_error, optchain.sgd(0.1), donate=donate)
    state, losses = run(step, step.init(jnp.zeros(3)), *BATCH, steps=20)
    w, expected = descent(0.1, 20)
    np.testing.assert_allclose(state.params, w, rtol=1e-5)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert isinstance(state, TrainState)
    assert (state.step, state.step.dtype, state.step.shape) == (20, jnp.int32, ())
    assert step.compilations == 1


def test_clip_then_sgd():
    tx = optchain.chain(optchain.clip_by_global_norm(1.0), optchain.sgd(0.1))
    step = compile_train(lambda p: jnp.dot(p, jnp.array([3.0, 4.0])), tx, metrics=("grad_norm", "update_norm"))
    state, metrics = step(step.init(jnp.array([1.0, 1.0])))
    np.testing.assert_allclose(state.params, [0.94, 0.92], rtol=1e-6)
    np.testing.assert_allclose([metrics["loss"], metrics["grad_norm"], metrics["update_norm"]], [7, 5, 0.1], rtol=1e-6)


def test_clipped_regression():
    tx = optchain.chain(optchain.clip_by_global_norm(0.5), optchain.sgd(0.1))
    step = compile_train(squared_error, tx)
    state, losses = run(step, step.init(jnp.zeros(3)), *BATCH, steps=20)
    w, expected = descent(0.1, 20, bound=0.5)
    np.testing.assert_allclose(state.params, w, rtol=1e-5)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_the_loss_is_that_before_the_step():
    step = compile_train(lambda w: w**2, optchain.sgd(0.25))
    _, losses = run(step, step.init(jnp.array(4.0)), steps=3)
    assert losses == [16, 4, 1]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision(dtype):
    # The gradient w - 3 is exact, so the step is -0.25 (w - 3) rounded to the dtype, and the sum is rounded once.
    step = compile_train(lambda w: jnp.sum((w - 3) ** 2) / 2, optchain.sgd(0.25), metrics=("grad_norm",))
    state = step.init(jnp.asarray([1.0, 2.5], dtype))
    expected = np.array([1.0, 2.5], np.float32)
    for _ in range(8):
        state, metrics = step(state)
        gradient = (expected - 3).astype(dtype).astype(np.float32)
        expected = (expected + (-0.25 * gradient).astype(dtype).astype(np.float32)).astype(dtype).astype(np.float32)
        assert state.params.dtype == dtype
        np.testing.assert_array_equal(np.asarray(state.params, np.float32), expected)
        assert metrics["grad_norm"].dtype == jnp.float32
    assert step.compilations == 1


def test_float64():
    with jax.enable_x64(True):
        step = compile_train(squared_error, optchain.sgd(0.1), metrics=("update_norm",))
        state, losses = run(step, step.init(jnp.zeros(3, jnp.float64)), jnp.asarray(X), jnp.asarray(Y), steps=20)
        w, expected = descent(0.1, 20)
        assert state.params.dtype == np.float64
        assert state.step.dtype == np.int32
        np.testing.assert_allclose(state.params, w, rtol=1e-12)
        np.testing.assert_allclose(losses, expected, rtol=1e-12)
        assert step.compilations == 1


def test_complex_parameters_descend():
    # The loss |z - w|^2 falls along -2 (z - w): with rate 0.1 the distance shrinks by 0.8 a step.
    target = np.array([2 - 1j, 0.5j])
    step = compile_train(lambda z: jnp.sum(jnp.abs(z - target) ** 2), optchain.sgd(0.1), metrics=("grad_norm",))
    start = np.array([1 + 1j, -1j])
    state, losses = run(step, step.init(jnp.asarray(start, jnp.complex64)), steps=10)
    np.testing.assert_allclose(state.params, target + 0.8**10 * (start - target), rtol=1e-5)
    np.testing.assert_allclose(losses, np.sum(np.abs(start - target) ** 2) * 0.64 ** np.arange(10), rtol=1e-5)
    _, metrics = step(step.init(jnp.asarray(start, jnp.complex64)))
    np.testing.assert_allclose(metrics["grad_norm"], 2 * np.linalg.norm(start - target), rtol=1e-6)


def test_none_leaves_and_nested_trees():
    step = compile_train(lambda p: jnp.sum(p["a"][0] ** 2) + p["c"] ** 2, optchain.adam(0.1))
    state, _ = step(step.init({"a": (jnp.array([1.0, -2.0]), None), "b": None, "c": jnp.array(3.0)}))
    assert state.params["b"] is None
    assert state.params["a"][1] is None
    # Adam's first step is the rate times the sign of the gradient.
    np.testing.assert_allclose(state.params["a"][0], [0.9, -1.9], rtol=1e-6)
    np.testing.assert_allclose(state.params["c"], 2.9, rtol=1e-6)


def test_python_numbers_and_empty_trees_as_parameters():
    step = compile_train(lambda w: 1.0 * w**2, optchain.sgd(0.25))
    assert run(step, step.init(2))[0].params == 1.0
    step = compile_train(lambda p, x: x, optchain.sgd(0.25), metrics=("grad_norm",))
    state, metrics = step(step.init({}), jnp.array(1.0))
    assert state.params == {}
    assert (metrics["loss"], metrics["grad_norm"]) == (1.0, 0.0)


# memory


@pytest.mark.parametrize("tx", [optchain.adam(0.1), optax.adam(0.1)], ids=["optchain", "optax"])
def test_donation(tx):
    params = jnp.zeros(3)
    step = compile_train(squared_error, tx)
    state = step.init(params)
    new, _ = step(state, *BATCH)
    assert all(x.is_deleted() for x in jax.tree.leaves(state))
    assert not any(x.is_deleted() for x in jax.tree.leaves((new, params, BATCH)))
    with pytest.raises(RuntimeError, match="compile_train: this state was given to a step before"):
        step(state, *BATCH)
    again = step.init(params)
    np.testing.assert_array_equal(step(again, *BATCH)[0].params, new.params)


def test_no_donation():
    step = compile_train(squared_error, optchain.adam(0.1), donate=False)
    state = step.init(jnp.zeros(3))
    first, _ = step(state, *BATCH)
    assert not any(x.is_deleted() for x in jax.tree.leaves(state))
    np.testing.assert_array_equal(step(state, *BATCH)[0].params, first.params)


def test_init_copies_what_a_foreign_state_shares():
    constant = jnp.array(0.1)
    shared = optchain.GradientTransformation(
        lambda params: (params, params, constant, 0),
        lambda u, s, params=None: (jax.tree.map(lambda x: -s[2] * x, u), (*s[:3], s[3] + 1)),
    )
    params = {"w": jnp.ones(2), "v": jnp.ones(2)}
    params["v"] = params["w"]
    step = compile_train(lambda p: jnp.sum(p["w"]) + jnp.sum(p["v"]), shared)
    for _ in range(2):
        state, _ = run(step, step.init(params), steps=2)
        np.testing.assert_allclose(state.params["w"], 0.8, rtol=1e-6)
        assert state.opt_state[3] == 2
    assert not constant.is_deleted()
    assert step.compilations == 1


def test_init_keeps_sharding_and_dtypes():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    params = {"w": jax.device_put(jnp.ones(4, jnp.bfloat16), sharding), "v": np.ones(2)}
    state = compile_train(lambda p: jnp.sum(p["w"]), optchain.sgd(0.1)).init(params)
    assert state.params["w"].sharding == sharding
    assert state.params["w"].dtype == jnp.bfloat16
    assert state.params["v"].dtype == jnp.float32


# compilation


def test_compilations_count_shapes_dtypes_and_structures():
    step = compile_train(lambda w, x: jnp.mean((w * x) ** 2), optchain.sgd(0.1))
    state = step.init(jnp.array(1.0))
    assert step.compilations == 0
    for batch, expected in (
        (jnp.ones(4), 1),
        (2 * jnp.ones(4), 1),
        (np.ones(4, np.float32), 1),
        (jnp.ones(5), 2),
        (jnp.ones(4, jnp.bfloat16), 3),
        (jnp.ones(5), 3),
        (jnp.ones(4), 3),
    ):
        state, _ = step(state, batch)
        assert step.compilations == expected
    assert state.params.dtype == jnp.float32


def test_weakly_typed_parameters_compile_once():
    step = compile_train(lambda w: w**2, optchain.sgd(0.1))
    run(step, step.init(jnp.asarray(1.0)), steps=3)
    assert step.compilations == 1


def test_a_failed_trace_does_not_count():
    step = compile_train(squared_error, optchain.sgd(0.1))
    state = step.init(jnp.zeros(3))
    with pytest.raises(TypeError):
        step(state, jnp.ones((2, 5)), jnp.ones(2))
    assert step.compilations == 0
    assert step(state, *BATCH)[0].step == 1
    assert step.compilations == 1


def test_inside_jit_and_scan():
    step = compile_train(squared_error, optchain.sgd(0.1))
    state = jax.jit(step.init)(jnp.zeros(3))
    w, losses = descent(0.1, 20)

    @jax.jit
    def train(state):
        return jax.lax.scan(lambda s, _: step(s, *BATCH), state, None, length=20)

    for last, metrics in (train(state), jax.lax.scan(lambda s, _: step(s, *BATCH), state, None, length=20)):
        np.testing.assert_allclose(last.params, w, rtol=1e-5)
        np.testing.assert_allclose(metrics["loss"], losses, rtol=1e-5)
        assert last.step == 20
    np.testing.assert_allclose(jax.jit(step)(state, *BATCH)[0].params, descent(0.1, 1)[0], rtol=1e-6)
    assert not state.params.is_deleted()
    many = jax.vmap(step, in_axes=(0, None, None))(jax.vmap(step.init)(jnp.zeros((2, 3))), *BATCH)[0]
    np.testing.assert_allclose(many.params, np.stack([descent(0.1, 1)[0]] * 2), rtol=1e-6)


def test_lower_takes_shapes_alone():
    step = compile_train(squared_error, optchain.sgd(0.1))
    state = jax.eval_shape(step.init, jax.ShapeDtypeStruct((3,), jnp.float32))
    lowered = step.lower(state, jax.ShapeDtypeStruct((16, 3), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.float32))
    assert "train_step" in lowered.as_text()
    out, _ = lowered.compile()(step.init(jnp.zeros(3)), *BATCH)
    np.testing.assert_allclose(out.params, descent(0.1, 1)[0], rtol=1e-6)


def test_two_steps_share_one_state():
    tx = optchain.sgd(0.1, momentum=0.5)
    up, down = compile_train(lambda w: 3 * w, tx), compile_train(lambda w: -w, tx)
    state = up.init(jnp.array(1.0))
    state, _ = up(state)  # trace 3, w 0.7
    state, _ = down(state)  # trace 0.5, w 0.65
    state, _ = up(state)  # trace 3.25, w 0.325
    np.testing.assert_allclose(state.params, 0.325, rtol=1e-6)
    assert state.step == 3
    assert (up.compilations, down.compilations) == (1, 1)


# what is reported


def test_metrics_only_when_asked():
    def names(**options):
        step = compile_train(squared_error, optchain.sgd(0.1), **options)
        state = step.init(jnp.zeros(3))
        text = step.lower(state, *BATCH).as_text()
        return set(step(state, *BATCH)[1]), "sqrt" in text

    assert names() == ({"loss"}, False)
    assert names(metrics=("grad_norm",)) == ({"loss", "grad_norm"}, True)
    assert names(metrics=["update_norm"]) == ({"loss", "update_norm"}, True)


def test_norms_are_of_the_whole_tree():
    step = compile_train(
        lambda p: 3 * p["a"] + 4 * jnp.sum(p["b"]), optchain.sgd(0.5), metrics=("grad_norm", "update_norm")
    )
    _, metrics = step(step.init({"a": jnp.array(1.0), "b": jnp.ones(1)}))
    assert (metrics["grad_norm"], metrics["update_norm"]) == (5.0, 2.5)
    assert metrics["grad_norm"].dtype == metrics["update_norm"].dtype == jnp.float32


def test_aux_is_a_pytree():
    def loss_fn(w, x, y):
        error = x @ w - y
        return jnp.mean(error**2), {"error": error, "count": (error.size, None)}

    step = compile_train(loss_fn, optchain.sgd(0.1), has_aux=True)
    state, metrics = step(step.init(jnp.zeros(3)), *BATCH)
    assert set(metrics) == {"loss", "aux"}
    np.testing.assert_allclose(metrics["aux"]["error"], -Y, rtol=1e-6)
    assert metrics["aux"]["count"] == (16, None)
    np.testing.assert_allclose(state.params, descent(0.1, 1)[0], rtol=1e-6)


def test_batches_may_be_trees_or_absent():
    def loss_fn(w, batch, weight):
        return jnp.mean(((batch["x"][0] @ w - batch["y"]) * weight) ** 2)

    step = compile_train(loss_fn, optchain.sgd(0.1))
    state, _ = step(step.init(jnp.zeros(3)), {"x": (BATCH[0], None), "y": BATCH[1]}, True)
    np.testing.assert_allclose(state.params, descent(0.1, 1)[0], rtol=1e-6)


# extra arguments


@pytest.mark.parametrize("has_aux", [True, False])
@pytest.mark.parametrize("place", ["alone", "in a chain"])
def test_value_grad_and_value_fn_reach_a_link(has_aux, place):
    def update(updates, state, params=None, *, value, grad, value_fn, **_):
        return updates, (value, grad, value_fn(params + 1))

    spy = optchain.GradientTransformationExtraArgs(lambda params: (jnp.zeros([]), params, jnp.zeros([])), update)
    tx = spy if place == "alone" else optchain.chain(optchain.sgd(0.1), spy)
    step = compile_train(lambda w, x: (x * w**2, x) if has_aux else x * w**2, tx, has_aux=has_aux)
    state, _ = step(step.init(jnp.array(3.0)), jnp.array(2.0))
    seen = state.opt_state if place == "alone" else state.opt_state[-1]
    assert seen == (18.0, 12.0, 32.0)


@pytest.mark.parametrize("tx", [sgd_by_hand(0.1), optax.sgd(0.1), optax.chain(optax.clip(1e9), optchain.sgd(0.1))])
def test_foreign_pairs(tx):
    step = compile_train(squared_error, tx)
    state, losses = run(step, step.init(jnp.zeros(3)), *BATCH, steps=20)
    np.testing.assert_allclose(state.params, descent(0.1, 20)[0], rtol=1e-5)
    np.testing.assert_allclose(losses, descent(0.1, 20)[1], rtol=1e-5)
    assert step.compilations == 1


def test_a_foreign_line_search_finds_value_fn():
    tx = optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(max_backtracking_steps=20))
    step = compile_train(squared_error, tx)
    _, losses = run(step, step.init(jnp.zeros(3)), *BATCH, steps=10)
    assert np.all(np.diff(losses) < 0)


# the object


def test_repr_reads_like_the_call():
    step = compile_train(squared_error, optchain.sgd(0.1))
    assert repr(step) == "compile_train(loss_fn=squared_error, tx=sgd(learning_rate=0.1))"
    step = compile_train(squared_error, optchain.sgd(0.1), has_aux=True, donate=False, metrics=("grad_norm",))
    assert repr(step).endswith("has_aux=True, donate=False, metrics=('grad_norm',))")


def test_a_step_cannot_be_changed():
    step = compile_train(squared_error, optchain.sgd(0.1))
    with pytest.raises(AttributeError):
        step.donate = False


def test_a_state_continues_after_pickling():
    step = compile_train(squared_error, optchain.adam(0.1))
    state, _ = run(step, step.init(jnp.zeros(3)), *BATCH, steps=3)
    saved = pickle.dumps(jax.tree.map(np.asarray, state))
    straight, _ = run(step, state, *BATCH, steps=3)
    resumed, _ = run(step, pickle.loads(saved), *BATCH, steps=3)
    for a, b in zip(jax.tree.leaves(straight), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(a, b)
    assert step.compilations == 1


@pytest.mark.parametrize("spec", [jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()])
def test_sharded_parameters_compile_once(spec):
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    w = jax.device_put(jnp.arange(8.0), jax.sharding.NamedSharding(mesh, spec))
    step = optchain.compile_train(
        lambda p: jnp.sum(p["w"] ** 2), optchain.chain(optchain.clip(1.0), optchain.adam(0.1))
    )
    state = step.init({"w": w})
    for _ in range(3):
        state, _ = step(state)
    assert step.compilations == 1
    assert state.params["w"].sharding.is_equivalent_to(w.sharding, 1)
    np.testing.assert_allclose(np.asarray(state.params["w"])[1:], np.arange(1.0, 8.0) - 0.3, atol=1e-5)
