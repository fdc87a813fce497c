import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optchain
from optchain import tree

PARAMS = {"w": jnp.ones((2, 3)), "b": (jnp.ones(3), jnp.ones(()))}
SPECS = {"w": "split", "b": ("whole", "scalar")}

Moments = collections.namedtuple("Moments", ["count", "mu", "nu"])


def moments(params):
    return Moments(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))


BY_HAND = optchain.GradientTransformation(moments, lambda updates, state, params=None: (updates, state))


def test_only_what_mirrors_the_parameters_is_mapped():
    for initable in (BY_HAND, BY_HAND.init):
        got = tree.map_params(initable, lambda x: x + 2, BY_HAND.init(PARAMS))
        assert got.count == 0
        for part in (got.mu, got.nu):
            assert jax.tree.structure(part) == jax.tree.structure(PARAMS)
            assert all(np.all(x == 2) for x in jax.tree.leaves(part))


def test_specs_of_the_parameters_become_those_of_the_state():
    tx = optchain.chain(optchain.clip(1.0), BY_HAND, optchain.scale(0.1), optchain.trace(0.9))
    state = tx.init(PARAMS)
    got = tree.map_params(tx, lambda _, spec: spec, state, SPECS, transform_non_params=lambda _: "everywhere")
    assert got == (state[0], Moments("everywhere", SPECS, SPECS), state[2], optchain.TraceState(trace=SPECS))


def test_several_trees_reach_the_function():
    got = tree.map_params(BY_HAND, lambda x, p, spec: (x.shape, p.shape, spec), BY_HAND.init(PARAMS), PARAMS, SPECS)
    assert got.mu == {"w": ((2, 3), (2, 3), "split"), "b": (((3,), (3,), "whole"), ((), (), "scalar"))}


def test_results_may_be_none():
    state = BY_HAND.init({"a": jnp.zeros(2)})
    assert tree.map_params(BY_HAND, lambda _: None, state, transform_non_params=lambda _: None) == Moments(
        None, {"a": None}, {"a": None}
    )


@pytest.mark.parametrize("params", [jnp.ones(2), {}, {"a": None, "b": jnp.ones(1)}])
def test_parameters_of_any_shape(params):
    got = tree.map_params(BY_HAND, lambda x: x + 1, BY_HAND.init(params))
    expected = jax.tree.map(jnp.ones_like, params)
    assert jax.tree.structure(got.mu) == jax.tree.structure(expected)
    assert jax.tree.all(jax.tree.map(np.array_equal, got.mu, expected))


def test_named_states():
    tx = optchain.named_chain(("first", BY_HAND), ("second", optchain.identity()))
    got = tree.map_params(tx, lambda _: 1, tx.init({"a": jnp.zeros(2)}), transform_non_params=lambda _: 0)
    assert got == {"first": Moments(0, {"a": 1}, {"a": 1}), "second": optchain.EmptyState()}


@pytest.mark.parametrize("mask", [{"w": True, "b": (False, True)}, lambda params: {"w": True, "b": (False, True)}])
def test_masked_parameters(mask):
    tx = optchain.masked(BY_HAND, mask)
    state = tx.init(PARAMS)
    got = tree.map_params(tx, lambda x: x + 1, state)
    assert jax.tree.structure(got) == jax.tree.structure(state)
    assert np.all(got.inner_state.mu["w"] == 1)
    masked = optchain.MaskedNode
    got = tree.map_params(
        tx,
        lambda x, spec: x if isinstance(x, masked) else spec,
        state,
        SPECS,
        transform_non_params=lambda _: None,
        is_leaf=lambda x: isinstance(x, masked),
    )
    expected = {"w": "split", "b": (masked(), "scalar")}
    assert got.inner_state == Moments(None, expected, expected)


def test_masked_parameters_beside_specs_need_is_leaf():
    tx = optchain.masked(BY_HAND, {"w": True, "b": (False, True)})
    with pytest.raises(ValueError, match=r"`rest` .* pass is_leaf=lambda x: isinstance\(x, MaskedNode\)"):
        tree.map_params(tx, lambda x, spec: spec, tx.init(PARAMS), SPECS)


def test_optimizers_of_optax():
    tx = optax.adam(optax.linear_schedule(1e-2, 1e-4, 10))
    got = tree.map_params(tx, lambda _: 1, tx.init({"a": jnp.zeros(2)}), transform_non_params=lambda _: 0)
    assert got == (optax.ScaleByAdamState(0, {"a": 1}, {"a": 1}), optax.ScaleByScheduleState(0))


def test_a_state_of_another_transform_is_refused():
    with pytest.raises(ValueError, match="map_params: the state does not have the structure that init gives it"):
        tree.map_params(BY_HAND, lambda x: x, optchain.trace(0.9).init(PARAMS))


def test_errors_of_the_function_pass_through():
    def fail(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        tree.map_params(BY_HAND, fail, BY_HAND.init(PARAMS))
