"""The protocol: pairs written by hand, in either class or none, and who gets the extra arguments."""

import copy
import functools
import pickle
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain
from optchain.core.pair import takes_extra_args
from tests.naming import short

CLASSES = (optchain.GradientTransformation, optchain.GradientTransformationExtraArgs)


def init_nothing(params):
    return ()


def update_double(updates, state, params=None):
    return jax.tree.map(lambda u: 2 * u, updates), state


def update_by_value(updates, state, params=None, *, value, **extra_args):
    return jax.tree.map(lambda u: value * u, updates), state


class Update(NamedTuple):
    """A foreign class of pairs."""

    init: object
    update: object


@pytest.mark.parametrize("cls", CLASSES)
def test_a_pair_written_by_hand(cls):
    tx = cls(init_nothing, update_double)
    init, update = tx
    assert isinstance(tx, tuple)
    assert (init, update) == (tx.init, tx.update) == (init_nothing, update_double)
    assert tx == cls(init=init_nothing, update=update_double)
    assert tx._fields == ("init", "update")
    assert tx.update(3.0, tx.init(1.0)) == (6.0, ())


@pytest.mark.parametrize("cls", CLASSES)
def test_a_pair_written_by_hand_says_nothing_of_itself(cls):
    tx = cls(init_nothing, update_double)
    assert tx.name == "custom"
    assert tx.hyperparameters == {}
    assert tx.links == ()
    assert tx.sign is None
    assert repr(tx).startswith(f"{cls.__name__}(init=<function init_nothing")


def test_one_class_extends_the_other():
    assert issubclass(optchain.GradientTransformationExtraArgs, optchain.GradientTransformation)
    assert isinstance(optchain.scale(1.0), optchain.GradientTransformationExtraArgs)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda tx: pickle.loads(pickle.dumps(tx))])
def test_a_pair_written_by_hand_is_copied_and_pickled(cls, again):
    tx = again(cls(init_nothing, update_double))
    assert type(tx) is cls
    assert tx == cls(init_nothing, update_double)
    assert hash(tx) == hash(cls(init_nothing, update_double))


@pytest.mark.parametrize("cls", [*CLASSES, Update, types.SimpleNamespace])
def test_any_pair_runs_in_a_chain(cls):
    foreign = cls(init=init_nothing, update=lambda u, state, params=None, **extra_args: (u + 1, state))
    tx = optchain.chain(optchain.scale(2.0), foreign, optchain.scale(10.0))
    params = jnp.array([1.0, -4.0])
    updates, state = jax.jit(tx.update)(params, tx.init(params))
    np.testing.assert_array_equal(updates, [30.0, -70.0])
    assert state == (optchain.EmptyState(), (), optchain.EmptyState())
    assert tx.links[1] is foreign


@pytest.mark.parametrize("cls", [*CLASSES, Update, types.SimpleNamespace])
def test_a_pair_that_takes_any_keyword_gets_the_extra_arguments(cls):
    tx = optchain.chain(optchain.scale(2.0), cls(init=init_nothing, update=update_by_value))
    assert takes_extra_args(cls(init=init_nothing, update=update_by_value))
    updates, _ = tx.update(jnp.array([1.0]), tx.init(jnp.ones(1)), None, value=3.0, loss=jnp.ones(1))
    np.testing.assert_array_equal(updates, [6.0])


@pytest.mark.parametrize("cls", [optchain.GradientTransformation, Update, types.SimpleNamespace])
def test_a_pair_that_does_not_take_any_keyword_gets_none(cls):
    seen = []

    def update(updates, state, params=None, value="none"):
        seen.append(value)
        return updates, state

    foreign = cls(init=init_nothing, update=update)
    assert not takes_extra_args(foreign)
    tx = optchain.chain(foreign, optchain.scale(2.0))
    tx.update(jnp.ones(1), tx.init(jnp.ones(1)), value=3.0)
    assert seen == ["none"]


def test_keywords_are_found_through_a_partial_and_in_a_callable_object():
    class Named:
        def __call__(self, updates, state, params=None, **extra_args):
            return updates, state

    class Unreadable:
        __signature__ = "no signature"

        def __call__(self, updates, state, params=None):
            return updates, state

    assert takes_extra_args(Update(init_nothing, functools.partial(update_by_value, value=1.0)))
    assert takes_extra_args(Update(init_nothing, Named()))
    assert not takes_extra_args(Update(init_nothing, Unreadable()))
    tx = optchain.chain(Update(init_nothing, Unreadable()))
    assert tx.update(1.0, tx.init(1.0), value=2.0) == (1.0, ((),))


def test_extra_args_support_drops_what_the_pair_does_not_take():
    plain = optchain.GradientTransformation(init_nothing, update_double)
    with pytest.raises(TypeError):
        plain.update(1.0, (), value=3.0)
    tx = optchain.with_extra_args_support(plain)
    assert isinstance(tx, optchain.GradientTransformationExtraArgs)
    assert tx.init is plain.init
    assert tx.update(1.0, (), None, value=3.0) == (2.0, ())
    assert tx.update(1.0, ()) == (2.0, ())


def test_extra_args_support_passes_on_what_the_pair_takes():
    tx = optchain.with_extra_args_support(optchain.GradientTransformation(init_nothing, update_by_value))
    assert isinstance(tx, optchain.GradientTransformationExtraArgs)
    assert tx.update(2.0, (), value=3.0) == (6.0, ())


def test_extra_args_support_returns_a_pair_that_has_it():
    by_hand = optchain.GradientTransformationExtraArgs(init_nothing, update_by_value)
    for tx in (by_hand, optchain.sgd(0.1), optchain.chain()):
        assert optchain.with_extra_args_support(tx) is tx


def test_parameters_reach_the_pair():
    def update(updates, state, params=None):
        return jax.tree.map(lambda u, p: u + 0.5 * p, updates, params), state

    tx = optchain.chain(optchain.scale(2.0), optchain.GradientTransformation(init_nothing, update))
    updates, _ = tx.update({"a": jnp.array([1.0])}, tx.init({"a": jnp.array([4.0])}), {"a": jnp.array([4.0])})
    np.testing.assert_array_equal(updates["a"], [4.0])


def test_empty_state_has_no_leaves():
    assert jax.tree.leaves(optchain.EmptyState()) == []
    assert optchain.EmptyState() == ()
    assert repr(optchain.EmptyState()) == "EmptyState()"


@pytest.mark.parametrize(
    ("tx", "sign"),
    [
        (optchain.identity(), 1),
        (optchain.clip_by_global_norm(1.0), 1),
        (optchain.scale(-2.0), -1),
        (optchain.scale(2), 1),
        (optchain.scale(0.0), 0),
        (optchain.set_to_zero(), 0),
        (optchain.sgd(0.1), -1),
        (optchain.sgd(-0.1), 1),
        (optchain.adamw(lambda count: 0.1), -1),
        (optchain.scale_by_learning_rate(0.1, flip_sign=False), 1),
        (optchain.scale_by_schedule(lambda count: 1.0), None),
        (optchain.scale(jnp.float32(2.0)), 1),
        (optchain.scale(float("nan")), None),
        (optchain.stateless(lambda updates, params: updates), None),
        (optchain.chain(), 1),
        (optchain.chain(optchain.scale(-1.0), optchain.scale(-1.0)), 1),
        (optchain.chain(optchain.clip(1.0), optchain.sgd(0.1)), -1),
        (optchain.chain(optchain.set_to_zero(), optchain.sgd(0.1)), 0),
        (optchain.chain(optchain.sgd(0.1), optchain.GradientTransformation(init_nothing, update_double)), None),
        (optchain.chain(Update(init_nothing, update_double)), None),
        (optchain.named_chain(("clip", optchain.clip(1.0)), ("rule", optchain.adam(0.1))), -1),
        (optchain.masked(optchain.clip(1.0), True), 1),
        (optchain.masked(optchain.sgd(0.1), True), None),
        (optchain.partition({"a": optchain.sgd(0.1), "b": optchain.set_to_zero()}, "a"), -1),
        (optchain.partition({"a": optchain.sgd(0.1), "b": optchain.scale(1.0)}, "a"), None),
    ],
    ids=short,
)
def test_the_sign_is_known_or_not_said(tx, sign):
    assert tx.sign == sign
