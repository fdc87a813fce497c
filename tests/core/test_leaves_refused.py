"""What `leafwise` refuses, by the name of the transform and the path of the leaf, and what passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain
from optchain import chain
from tests.core.averages import (
    GRADS,
    PARAMS,
    SlotOnly,
    average,
    average_reference,
    share_of_total,
)
from tests.naming import short

# Wrong input


def test_missing_parameters():
    tx = average()
    with pytest.raises(ValueError, match=r"^average needs the parameters: call update\(grads, state, params\)\.$"):
        tx.update(GRADS, tx.init(PARAMS))
    for tx in (optchain.adamw(0.1), optchain.adamw(0.1, mask=lambda tree: jax.tree.map(lambda x: True, tree))):
        with pytest.raises(ValueError, match=r"^add_decayed_weights needs the parameters"):
            tx.update(GRADS, tx.init(PARAMS))


@pytest.mark.parametrize(
    ("leaf", "found"),
    [
        (jnp.arange(2), r"int32\[2\]"),
        (np.array([True]), r"bool\[1\]"),
        (np.zeros((2,), jax.dtypes.float0), r"\[\('float0'.*\[2\]|.*\[2\]"),
        ("relu", "a value of type str"),
        (jnp.tanh, "a value of type"),
        (True, "a value of type bool"),
    ],
    ids=short,
)
def test_leaves_that_cannot_be_optimized_are_refused_by_path(leaf, found):
    tx = average()
    with pytest.raises(TypeError, match=rf"^average: the parameter leaf at \['b'\]\[1\] is {found}"):
        tx.init({"a": jnp.ones(2), "b": [None, leaf]})
    good = {"a": jnp.ones(2), "b": [None, jnp.ones(2)]}
    with pytest.raises(TypeError, match=rf"^average: the gradient leaf at \['b'\]\[1\] is {found}"):
        tx.update({"a": jnp.ones(2), "b": [None, leaf]}, tx.init(good), good)


GOOD = {"a": jnp.ones(2), "b": [jnp.ones((2, 3)), None]}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": jnp.ones(2)}, r"only params has a leaf at \['b'\]"),
        ({"a": jnp.ones(2), "b": [jnp.ones((2, 3)), jnp.ones(1)]}, r"\['b'\]\[1\]"),
        (
            {"a": jnp.ones(2), "c": [jnp.ones((2, 3)), None]},
            r"has a leaf at \['b'\]\[0\] where updates has one at \['c'\]",
        ),
        ({"a": jnp.ones(2), "b": (jnp.ones((2, 3)), None)}, "the containers differ"),
        ([jnp.ones(2), jnp.ones((2, 3))], r"has a leaf at \['a'\] where updates has one at \[0\]"),
        (None, r"params has a leaf at \['a'\] where updates has one at the root"),
    ],
    ids=short,
)
def test_gradients_of_another_structure_are_refused_by_path(wrap, bad, message):
    tx = average()
    with pytest.raises(ValueError, match=rf"^average: updates and params have different tree structures: .*{message}"):
        wrap(tx.update)(bad, tx.init(GOOD), GOOD)
    tx = optchain.trace(0.9)
    with pytest.raises(ValueError, match=r"^trace: updates and trace have different tree structures: "):
        wrap(tx.update)(bad, tx.init(GOOD))
    tx = optchain.add_decayed_weights(0.9)
    with pytest.raises(ValueError, match=r"^add_decayed_weights: updates and params have different tree structures: "):
        wrap(tx.update)(bad, tx.init(GOOD), GOOD)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("shape", [(3, 2), (1, 3), (3,), (), (2, 3, 1)], ids=short)
def test_leaves_of_another_shape_are_refused_by_path(wrap, shape):
    bad = {"a": jnp.ones(2), "b": [jnp.ones(shape), None]}
    sizes = ",".join(map(str, shape))
    found = rf"updates at \['b'\]\[0\] is float32\[{sizes}\] but {{}} there is float32\[2,3\]\. .*nothing is broadcast"
    tx = optchain.trace(0.9)
    with pytest.raises(ValueError, match=r"^trace: " + found.format("trace")):
        wrap(tx.update)(bad, tx.init(GOOD))
    tx = optchain.add_decayed_weights(0.1)
    with pytest.raises(ValueError, match=r"^add_decayed_weights: " + found.format("params")):
        wrap(tx.update)(bad, tx.init(GOOD), GOOD)


@pytest.mark.parametrize("state", [(), None, optchain.EmptyState(), SlotOnly({"a": 1.0}), 3.0], ids=short)
def test_states_of_another_transform_are_refused(state):
    with pytest.raises(ValueError, match=r"^average: the state has no field 'slow'; found"):
        average().update(GRADS, state, PARAMS)


@pytest.mark.parametrize("tree", [{}, (), [], {"a": None}], ids=short)
def test_empty_trees_pass(tree):
    tx = chain(average(), share_of_total())
    updates, state = tx.update(tree, tx.init(tree), tree)
    assert updates == tree
    assert int(state[0].step) == 1
    assert state[0].slow == tree


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_empty_leaves_and_scalars_pass(wrap):
    tree = {"empty": jnp.zeros((0, 3)), "scalar": jnp.float32(2.0), "none": None}
    tx = average()
    updates, state = wrap(tx.update)(tree, tx.init(tree), tree)
    assert updates["empty"].shape == state.slow["empty"].shape == (0, 3)
    np.testing.assert_allclose(updates["scalar"], average_reference([2.0], 2.0)[0], rtol=1e-6)
    assert updates["none"] is None


# What is given must be of the kind of the updates, whether it is read or not


@pytest.mark.parametrize("dtype", [jnp.int32, bool, jnp.complex64])
def test_slots_are_stored_in_a_floating_dtype(dtype):
    with pytest.raises(TypeError, match=r"^trace: trace cannot be stored in .*; pass a floating dtype"):
        optchain.sgd(0.1, 0.9, accumulator_dtype=dtype).init(GOOD)
    with pytest.raises(TypeError, match=r"^scale_by_adam: nu cannot be stored in"):
        optchain.adam(0.1, nu_dtype=dtype).init(GOOD)


def test_parameters_and_slots_of_integers_are_refused():
    g = {"w": jnp.ones(2)}
    whole = {"w": jnp.ones(2, int)}
    tx = optchain.adamw(0.1)
    with pytest.raises(TypeError, match=r"^add_decayed_weights: the params leaf at \['w'\] is int32\[2\]"):
        tx.update(g, tx.init(g), whole)
    with pytest.raises(TypeError, match=r"^trace: the trace leaf at \['w'\] is int32\[2\]"):
        optchain.trace(0.9).update(g, optchain.TraceState(whole))


def test_real_and_complex_do_not_mix():
    real, both = {"w": jnp.ones(2)}, {"w": jnp.ones(2, jnp.complex64)}
    tx = optchain.adamw(0.1)
    with pytest.raises(TypeError, match=r"updates at \['w'\] is complex64\[2\] and params there is float32\[2\]; both"):
        tx.update(both, tx.init(both), real)
    with pytest.raises(
        TypeError, match=r"updates at \['w'\] is complex64\[2\] and mu there is float32\[2\]; both must"
    ):
        tx.update(both, tx.init(real), both)
    state = tx.init(both)
    wrong = (state[0]._replace(nu=both), *state[1:])
    with pytest.raises(TypeError, match=r"and nu there is complex64\[2\]; it must be real"):
        tx.update(both, wrong, both)


@pytest.mark.parametrize(
    "build", [lambda: optchain.sgd(0.1), lambda: optchain.clip(1.0), lambda: optchain.sgd(0.1, 0.9)]
)
def test_parameters_that_are_not_read_must_fit_too(build):
    tx, params = build(), {"w": jnp.ones(3), "b": jnp.ones(())}
    updates = {"w": jnp.ones((3, 1)), "b": jnp.ones(())}
    with pytest.raises(ValueError, match=r"at \['w'\] is float32\[3,1\] but params there is float32\[3\]"):
        tx.update(updates, tx.init(updates), params)
    with pytest.raises(ValueError, match=r"different tree structures: .*\['w'\]"):
        tx.update({"b": jnp.ones(())}, tx.init({"b": jnp.ones(())}), params)
    none = {"w": jnp.ones(3), "b": None}  # no gradient: nothing happens there
    assert tx.update(none, tx.init(none), params)[0]["b"] is None


def test_a_state_for_another_kind_of_learning_rate_is_refused():
    g = jnp.ones(2)
    constant, scheduled = optchain.adam(0.1), optchain.adam(optchain.constant_schedule(0.1))
    with pytest.raises(
        ValueError, match=r"^scale_by_learning_rate: the state has no field 'count'; found .* EmptyState"
    ):
        scheduled.update(g, constant.init(g))
    with pytest.raises(ValueError, match=r"^scale_by_learning_rate: the state must be empty; found .*ScheduleState"):
        constant.update(g, scheduled.init(g))


def test_a_tree_in_place_of_an_empty_state_is_refused():
    with pytest.raises(ValueError, match=r"^clip_by_global_norm: the state must be empty"):
        optchain.clip_by_global_norm(1.0).update(GRADS, GRADS)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (lambda u, p: (u, u), "the rule returned 2 values; it must return the update and 0 slots"),
        (lambda u, p: None, "the rule returned None for float32"),
        (lambda u, p: 1.0, "the rule returned a value of type float for float32"),
    ],
)
def test_rules_that_return_something_else_are_refused(rule, found):
    with pytest.raises(TypeError, match=found):
        optchain.leafwise(rule).update(jnp.ones(2), optchain.EmptyState())
