"""What every public transform promises as a value, and what it says of wrong input, for each entry of the registry."""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc
from optchain import schedules
from tests import registry
from tests.promises import (
    assert_close,
    assert_names,
    each,
    gradients,
    keeps_arrays,
    normal,
    pair,
    run_compiled,
    where,
    zeros,
)

# values


@where(lambda e: e.plain)
def test_equal_calls_are_equal(entry):
    a, b = entry.make(), entry.make()
    assert a == b
    assert hash(a) == hash(b)
    for name, value in entry.numbers.items():
        assert entry.make(**{name: value * 1.5 if value < 0.5 else value * 0.5}) != a


@where(lambda e: e.plain)
def test_copies_are_equal(entry):
    tx = pair(entry)
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert copy.copy(tx) == tx
    assert copy.deepcopy(tx) == tx


@where(lambda e: e.plain)
def test_repr_evaluates_back(entry):
    tx = pair(entry)
    assert eval(repr(tx), {**vars(registry), **vars(schedules), **vars(oc)}) == tx


@where(lambda e: e.plain)
def test_equal_transforms_trace_once_as_a_static_argument(entry):
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def step(tx, grads, params):
        traces.append(None)
        return tx.update(grads, tx.init(params), params)

    for _ in range(3):
        step.trace(entry.make(), normal(1), normal(0))
    assert len(traces) == 1


@each
def test_the_sign_is_true(entry):
    tx = pair(entry)
    grads = normal(1)
    updates, _ = run_compiled(entry, [grads], zeros())
    products = [float(jnp.vdot(g, u)) for g, u in zip(*map(jax.tree.leaves, (grads, updates[0])), strict=True)]
    if tx.sign is not None:
        assert all(np.sign(p) == tx.sign for p in products), (tx.sign, products)


def is_sequence(entry):
    state = jax.eval_shape(pair(entry).init, normal(0))
    return (type(state) is tuple or isinstance(state, dict)) and not entry.joins


@where(is_sequence)
def test_a_chain_equals_its_links_one_by_one(entry):
    tx, params = pair(entry), normal(0)
    state = tx.init(params)
    by_hand = [link.init(params) for link in tx.links]
    for grads in gradients():
        updates, state = tx.update(grads, state, params)
        for i, link in enumerate(tx.links):
            grads, by_hand[i] = link.update(grads, by_hand[i], params)
        assert_close(updates, grads)
    assert_close(list(state.values()) if isinstance(state, dict) else list(state), by_hand)


# wrong input


@where(keeps_arrays)
def test_gradients_of_another_tree_are_refused(entry):
    tx, params, grads = pair(entry), normal(0), normal(1)
    state = tx.init(params)
    w = grads["layer"].pop("w")
    for wrong in (grads, {**grads, "layer": {**grads["layer"], "v": w}}, {**grads, "layer": None}, w):
        with pytest.raises(ValueError) as error:
            jax.eval_shape(tx.update, wrong, state, wrong)
        assert_names(error, tx)
    with pytest.raises(ValueError) as error:
        jax.eval_shape(tx.update, grads, state, grads)
    assert_names(error, tx, "['layer']['w']")


@where(keeps_arrays)
@pytest.mark.parametrize("shape", [(3, 4), (4,), (), (1, 3), (4, 3, 1)])
def test_gradients_of_another_shape_are_refused(entry, shape):
    tx, params, grads = pair(entry), normal(0), normal(1)
    grads["layer"]["w"] = jnp.zeros(shape)
    with pytest.raises(ValueError) as error:
        jax.eval_shape(tx.update, grads, tx.init(params), grads)
    assert_names(error, tx, *(["['layer']['w']", "[4,3]", f"[{','.join(map(str, shape))}]"] if len(shape) == 2 else []))


@where(lambda e: e.params)
def test_missing_parameters_are_refused(entry):
    tx, params = pair(entry), normal(0)
    with pytest.raises(ValueError, match=r"update\(grads, state, params\)") as error:
        tx.update(normal(1), tx.init(params))
    assert_names(error, tx)


@where(lambda e: e.params)
def test_parameters_of_another_shape_are_refused(entry):
    tx, params, grads = pair(entry), normal(0), normal(1)
    state = tx.init(params)
    params["layer"]["w"] = jnp.ones((1, 3))
    with pytest.raises(ValueError, match="params") as error:
        jax.eval_shape(tx.update, grads, state, params)
    assert_names(error, tx, "['layer']['w']", "float32[4,3]", "float32[1,3]")
    del params["layer"]["w"]
    with pytest.raises(ValueError, match="params") as error:
        jax.eval_shape(tx.update, grads, state, params)
    assert_names(error, tx, "['layer']['w']")


@where(lambda e: e.checks)
@pytest.mark.parametrize(
    "leaf",
    [np.ones((4, 3), np.int32), np.ones((4, 3), bool), np.zeros((4, 3), jax.dtypes.float0), np.sin, "w", object()],
    ids=["int32", "bool", "float0", "function", "str", "object"],
)
def test_leaves_that_are_no_floating_arrays_are_refused(entry, leaf):
    tx, params = pair(entry), normal(0)
    state = tx.init(params)
    wrong = normal(0)
    wrong["layer"]["w"] = leaf
    found = (
        "float0"
        if getattr(leaf, "dtype", None) == jax.dtypes.float0
        else str(getattr(leaf, "dtype", type(leaf).__name__))
    )
    with pytest.raises(TypeError) as error:
        tx.update(wrong, state, params)
    assert_names(error, tx, "['layer']['w']", found)
    with pytest.raises(TypeError) as error:
        tx.init(wrong)
    assert_names(error, tx, "['layer']['w']", found)


@where(keeps_arrays)
def test_a_state_of_another_transform_is_refused(entry):
    tx, params = pair(entry), normal(0)
    with pytest.raises(ValueError) as error:
        tx.update(normal(1), oc.ScaleByScheduleState(jnp.zeros([], jnp.int32)), params)
    assert_names(error, tx, "ScaleByScheduleState")
