"""Pairs of this library in other libraries, and theirs in `chain`; the numbers are Optax's, or NumPy's."""

import equinox as eqx
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import optchain

PARAMS = {"w": jnp.array([[0.5, -1.0, 2.0], [0.1, 0.2, -0.3]]), "b": jnp.array([1.0, -0.5, 0.25])}


def gradients_of(params, steps):
    rng = np.random.default_rng(0)
    return [jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), params) for _ in range(steps)]


def weights_only(tree):
    return jax.tree.map(lambda x: jnp.ndim(x) > 1, tree)


def train(tx, params=PARAMS, steps=4, apply=optchain.apply_updates, **extra_args):
    """The parameters after a few jitted steps, and the state."""
    state, update = tx.init(params), jax.jit(tx.update)
    for gradient in gradients_of(params, steps):
        updates, state = update(gradient, state, params, **extra_args)
        params = apply(params, updates)
    return params, state


def assert_close(one, other, rtol=1e-5, atol=1e-5):
    # Optax forms 1 - b2^t of Adam's bias correction in float32, which puts its steps of 0.1 off by up to 3e-6 each.
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


RULES = {
    "clip and sgd": (lambda lib: lib.chain(lib.clip_by_global_norm(1.0), lib.sgd(0.1, momentum=0.9, nesterov=True))),
    "adamw": lambda lib: lib.adamw(0.1, weight_decay=0.1, mask=weights_only),
    "adam": lambda lib: lib.adam(0.1, nesterov=True),
    "schedule": lambda lib: lib.sgd(lambda count: 0.1 / (1.0 + count)),
}


# Inside Optax


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_numbers_are_those_of_optax(rule):
    params, _ = train(rule(optchain))
    assert_close(params, train(rule(optax), apply=optax.apply_updates)[0])


@pytest.mark.parametrize("rule", [RULES["clip and sgd"], RULES["adamw"]], ids=["clip and sgd", "adamw"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda tx: optax.chain(optax.scale(2.0), tx, optax.clip(0.05)),
        lambda tx: optax.named_chain(("rule", tx), ("scale", optax.scale(2.0))),
        lambda tx: optax.masked(tx, weights_only),
        lambda tx: optax.apply_if_finite(tx, 2),
        lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
        lambda tx: optax.with_extra_args_support(tx),
        lambda tx: optax.partition({"a": tx, "b": optax.set_to_zero()}, {"w": "a", "b": "b"}),
    ],
    ids=["chain", "named_chain", "masked", "apply_if_finite", "MultiSteps", "extra_args", "partition"],
)
def test_a_pair_runs_inside_optax(rule, wrap):
    params, state = train(wrap(rule(optchain)), apply=optax.apply_updates)
    expected, _ = train(wrap(rule(optax)), apply=optax.apply_updates)
    assert_close(params, expected)
    assert len(jax.tree.leaves(state)) >= len(jax.tree.leaves(rule(optchain).init(PARAMS))) // 2


def test_a_guard_of_optax_sees_what_a_clip_does_with_nan():
    tx = optax.apply_if_finite(optchain.chain(optchain.clip_by_global_norm(1.0), optchain.sgd(0.1)), 3)
    state = tx.init(PARAMS)
    bad = PARAMS | {"b": jnp.array([1.0, jnp.nan, 1.0])}
    updates, state = tx.update(bad, state, PARAMS)
    assert_close(updates, jax.tree.map(jnp.zeros_like, PARAMS))
    assert int(state.notfinite_count) == 1


def test_injected_hyperparameters_of_optax_reach_the_rule():
    def build(lib):
        return optax.inject_hyperparams(lib.adam)(learning_rate=lambda count: 0.1 / (1 + count), b1=0.8)

    params, state = train(build(optchain), apply=optax.apply_updates)
    assert_close(params, train(build(optax), apply=optax.apply_updates)[0])
    np.testing.assert_allclose(state.hyperparams["learning_rate"], 0.1 / 4)


def test_extra_arguments_pass_through_both_libraries():
    def update(updates, state, params=None, *, value, **extra_args):
        return jax.tree.map(lambda u: u * value, updates), state

    by_value = optchain.GradientTransformationExtraArgs(lambda params: (), update)
    ours = optchain.chain(by_value, optchain.sgd(0.5))
    # Optax passes extra arguments on to pairs of its own class only.
    tx = optax.chain(optax.scale(2.0), optax.GradientTransformationExtraArgs(*ours))
    updates, _ = tx.update(jnp.ones(1), tx.init(jnp.ones(1)), jnp.ones(1), value=3.0)
    np.testing.assert_allclose(updates, [-3.0])


# Optax inside


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_pair_of_optax_runs_inside_a_chain(rule):
    tx = optchain.chain(optchain.scale(2.0), rule(optax), optchain.clip(0.05))
    expected = optax.chain(optax.scale(2.0), rule(optax), optax.clip(0.05))
    assert_close(train(tx)[0], train(expected)[0])
    assert len(tx.links) == 3
    assert tx.sign is None


def test_pairs_of_optax_run_in_masks_partitions_and_named_chains():
    links = optax.trace(0.9), optax.scale_by_adam(), optax.sgd(0.1)
    masked = optchain.chain(optchain.masked(links[0], weights_only), optchain.sgd(0.1))
    expected = optax.chain(optax.masked(links[0], weights_only), optax.sgd(0.1))
    assert_close(train(masked)[0], train(expected)[0])
    labels = {"w": "a", "b": "b"}
    parts = optchain.partition({"a": optax.adam(0.1), "b": optchain.sgd(0.2)}, labels)
    expected = optax.partition({"a": optax.adam(0.1), "b": optax.sgd(0.2)}, labels)
    assert_close(train(parts)[0], train(expected)[0])
    named = optchain.named_chain(*zip("xyz", links, strict=True))
    params, state = train(named)
    assert_close(params, train(optax.chain(*links))[0])
    assert list(state) == ["x", "y", "z"]


def test_a_pair_of_optax_that_wants_extra_arguments_gets_them():
    # The step of Polyak is value / |gradient|^2 (with f_min = 0), bounded.
    params, gradient = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
    tx = optchain.chain(optchain.scale(2.0), optax.polyak_sgd(max_learning_rate=10.0), optchain.scale(0.5))
    updates, _ = jax.jit(tx.update)(gradient, tx.init(params), params, value=jnp.float32(5.0))
    np.testing.assert_allclose(updates, -0.5 * 5.0 / 100.0 * np.array([6.0, 8.0]), rtol=1e-5)
    alone = optchain.chain(optchain.clip(100.0), optax.scale_by_polyak(max_learning_rate=0.01))
    updates, _ = alone.update(gradient, alone.init(params), params, value=5.0, other="unused")
    np.testing.assert_allclose(updates, [0.03, 0.04], rtol=1e-5)


def test_extra_arguments_do_not_reach_a_pair_of_optax_that_takes_none():
    tx = optchain.chain(optax.scale_by_adam(), optax.scale(-0.1))
    expected = optax.chain(optax.scale_by_adam(), optax.scale(-0.1))
    assert_close(train(tx, value=1.0)[0], train(expected)[0])


def test_states_of_both_libraries_have_the_same_structure():
    # A checkpoint that one wrote can be read into the other, leaf by leaf.
    for rule in RULES.values():
        ours, theirs = train(rule(optchain))[1], train(rule(optax))[1]
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(ours)] == [
            (x.shape, x.dtype) for x in jax.tree.leaves(theirs)
        ]


# Flax


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.0, rngs=rngs)
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(jnp.tanh(self.hidden(x))))


X = jnp.asarray(np.random.default_rng(1).normal(size=(16, 3)), jnp.float32)
Y = jnp.sum(X, axis=1, keepdims=True)


def nnx_train(tx, steps=3):
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        def loss(model):
            return jnp.mean((model(x) - y) ** 2)

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    losses = [float(step(model, optimizer, X, Y)) for _ in range(steps)]
    assert int(optimizer.step[...]) == steps
    return losses, jax.tree.leaves(nnx.state(model, nnx.Param))


@pytest.mark.parametrize("name", ["clip and sgd", "adamw"])
def test_flax_nnx_trains_as_with_optax(name):
    losses, params = nnx_train(RULES[name](optchain))
    expected, others = nnx_train(RULES[name](optax))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_close(params, others)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["clip and sgd", "adamw"])
def test_flax_train_state_trains_as_with_optax(name):
    def run(tx):
        state = TrainState.create(apply_fn=lambda p, x: x @ p["w"].T, params=PARAMS, tx=tx)

        @jax.jit
        def step(state, x):
            def loss(p):
                return jnp.mean(state.apply_fn(p, x) ** 2) + jnp.sum(p["b"] ** 2)

            value, gradient = jax.value_and_grad(loss)(state.params)
            return state.apply_gradients(grads=gradient), value

        losses = []
        for _ in range(3):
            state, value = step(state, X)
            losses.append(float(value))
        return losses, state.params

    losses, params = run(RULES[name](optchain))
    expected, others = run(RULES[name](optax))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_close(params, others)


# Equinox


def equinox_train(tx, model, steps=3):
    @eqx.filter_jit
    def step(model, state, x, y):
        value, gradient = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2))(model)
        updates, state = tx.update(gradient, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    state, losses = tx.init(eqx.filter(model, eqx.is_inexact_array)), []
    for _ in range(steps):
        model, state, value = step(model, state, X, Y)
        losses.append(float(value))
    return losses, jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))


@pytest.mark.parametrize("name", ["clip and sgd", "adamw"])
def test_equinox_trains_as_with_optax(name):
    model = eqx.nn.MLP(3, 1, width_size=4, depth=1, key=jax.random.key(0))
    losses, params = equinox_train(RULES[name](optchain), model)
    expected, others = equinox_train(RULES[name](optax), model)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert_close(params, others)
    assert losses[-1] < losses[0]


def test_an_equinox_module_that_was_not_filtered_is_refused_with_advice():
    model = eqx.nn.MLP(3, 1, width_size=4, depth=1, key=jax.random.key(0))
    with pytest.raises(
        TypeError, match=r"scale_by_adam: the parameter leaf at \.activation is .*equinox\.filter\(model"
    ):
        optchain.adam(0.1).init(model)


def test_a_mask_made_of_a_module_that_can_be_called_is_a_tree():
    model = eqx.filter(eqx.nn.Linear(3, 2, key=jax.random.key(0)), eqx.is_inexact_array)
    mask = eqx.tree_at(lambda m: (m.weight, m.bias), model, (True, False))
    tx = optchain.add_decayed_weights(0.5, mask=mask)
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, model), tx.init(model), model)
    np.testing.assert_allclose(updates.weight, 0.5 * model.weight)
    np.testing.assert_array_equal(updates.bias, [0.0, 0.0])


# Plain dicts


def test_plain_dicts_against_numpy():
    params, state = {"w": jnp.array([1.0, -2.0]), "b": jnp.array([0.5])}, None
    tx = optchain.chain(optchain.clip_by_global_norm(1.0), optchain.sgd(0.1, momentum=0.9))

    def loss(p):
        return jnp.sum(p["w"] ** 2) * 2 + jnp.sum(p["b"] ** 4)

    @jax.jit
    def step(params, state):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optchain.apply_updates(params, updates), state

    state = tx.init(params)
    w, b, sums = np.array([1.0, -2.0]), np.array([0.5]), [np.zeros(2), np.zeros(1)]
    for _ in range(5):
        params, state = step(params, state)
        gradient = [4 * w, 4 * b**3]
        norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
        sums = [g * min(1.0, 1.0 / norm) + 0.9 * m for g, m in zip(gradient, sums, strict=True)]
        w, b = w - 0.1 * sums[0], b - 0.1 * sums[1]
    np.testing.assert_allclose(params["w"], w, rtol=1e-5)
    np.testing.assert_allclose(params["b"], b, rtol=1e-5)
