"""What the compiled step refuses, and what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optchain
from optchain.training import TrainStep, compile_train

BATCH = (jnp.ones((4, 3)), jnp.ones(4))


def squared_error(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


CLIMBERS = [optchain.clip(1.0), optchain.chain(), optchain.chain(optchain.clip(1.0), optchain.scale_by_adam())]


@pytest.mark.parametrize("tx", CLIMBERS, ids=repr)
def test_an_optimizer_that_would_climb(tx):
    with pytest.raises(ValueError, match=r"compile_train: .* would climb the loss.*scale_by_learning_rate\(.*sgd\("):
        compile_train(squared_error, tx)


def test_other_signs_pass():
    by_hand = optchain.GradientTransformation(lambda params: (), lambda u, state, params=None: (u, state))
    mixed = optchain.chain(optchain.clip(1.0), optax.sgd(0.1))
    for tx in (optchain.scale(-0.1), optchain.set_to_zero(), by_hand, mixed):
        assert isinstance(compile_train(squared_error, tx), TrainStep)


def test_arguments_of_the_wrong_kind():
    with pytest.raises(TypeError, match=r"compile_train: argument tx is .*not a pair of init and update; .*sgd\("):
        compile_train(squared_error, optchain.sgd)
    with pytest.raises(TypeError, match="loss_fn is a value of type int"):
        compile_train(3, optchain.sgd(0.1))
    for metrics in ("grad_norm", ("norm",), ("grad_norm", 1), ("loss",), None):
        with pytest.raises(ValueError, match="'grad_norm', 'update_norm'"):
            compile_train(squared_error, optchain.sgd(0.1), metrics=metrics)


@pytest.mark.parametrize(
    ("loss_fn", "has_aux", "message"),
    [
        (lambda w: w**2, False, r"the loss must be a scalar, not float32\[3\]; .*jnp\.mean"),
        (lambda w: jnp.sum(w) + 1j, False, r"real floating-point number, not complex64\[\]"),
        (lambda w: jnp.sum(w > 0), False, r"real floating-point number, not int32\[\]"),
        (lambda w: jnp.all(w > 0), False, r"real floating-point number, not bool\[\]"),
        (lambda w: None, False, "must return a scalar array; it returned None"),
        (lambda w: {"loss": jnp.sum(w)}, False, "it returned a value of type dict"),
        (lambda w: (jnp.sum(w), w), False, "returned a tuple of 2 where a scalar was expected; pass has_aux=True"),
        (lambda w: jnp.sum(w), True, r"with has_aux=True loss_fn must return \(loss, aux\); it returned float32\[\]"),
        (lambda w: (jnp.sum(w), w, w), True, r"must return \(loss, aux\); it returned a tuple of 3"),
        (lambda w: (w, jnp.sum(w)), True, r"the loss must be a scalar, not float32\[3\]"),
    ],
)
def test_what_a_loss_must_return(loss_fn, has_aux, message):
    step = compile_train(loss_fn, optchain.sgd(0.1), has_aux=has_aux)
    with pytest.raises(TypeError, match=f"compile_train: .*{message}"):
        step(step.init(jnp.ones(3)))


@pytest.mark.parametrize(
    ("leaf", "found", "fix"),
    [
        (np.array([1, 2]), r"int64\[2\]", "leave it out of params .* close over it, or pass it in the batch"),
        (jnp.array([True]), r"bool\[1\]", "leave it out of params"),
        (jax.random.key(0), r"key<fry>\[\]", "leave it out of params"),
        ("text", "a value of type str", "keep only arrays in params"),
    ],
)
def test_parameters_without_a_gradient(leaf, found, fix):
    step = compile_train(lambda p: jnp.sum(p["w"]), optchain.sgd(0.1))
    with pytest.raises(TypeError, match=rf"compile_train: the parameter at \['n'\] is {found}, .*{fix}"):
        step.init({"w": jnp.ones(2), "n": leaf, "x": None})


def test_integers_in_a_state_of_the_users_own():
    step = compile_train(lambda p: jnp.sum(p), optchain.sgd(0.1))
    state = step.init(jnp.ones(2))._replace(params=jnp.array([1, 2]))
    with pytest.raises(TypeError, match=r"compile_train: the parameter at the root is int32\[2\]"):
        step(state)


@pytest.mark.parametrize("state", [(1.0, 2.0, 3.0), {"params": 1.0}, None, jnp.ones(3)])
def test_states_of_another_kind(state):
    step = compile_train(squared_error, optchain.sgd(0.1))
    with pytest.raises(TypeError, match=r"compile_train: the first argument of a step is .*step\.init\(params\)"):
        step(state, *BATCH)
    with pytest.raises(TypeError, match="not a TrainState"):
        step.lower(state, *BATCH)


def test_state_of_another_optimizer():
    adam = compile_train(squared_error, optchain.adam(0.1))
    sgd = compile_train(squared_error, optchain.sgd(0.1))
    with pytest.raises(ValueError, match="adam"):
        adam(sgd.init(jnp.zeros(3)), *BATCH)


def test_an_error_of_the_loss_itself_is_its_own():
    def loss_fn(w):
        raise KeyError("mine")

    step = compile_train(loss_fn, optchain.sgd(0.1))
    with pytest.raises(KeyError, match="mine"):
        step(step.init(jnp.zeros(3)))
