"""The simplest transforms: `identity`, `set_to_zero`, `stateless`, `stateless_with_tree_map`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain
from optchain import EmptyState, chain, identity, scale, set_to_zero, stateless, stateless_with_tree_map
from tests.naming import short

TREE = {"a": jnp.array([1.0, -2.0, jnp.nan]), "b": (jnp.float32(3.0), None, jnp.zeros((0, 2)))}


def assert_trees_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_identity_returns_what_it_was_given(wrap):
    tx = identity()
    updates, state = wrap(tx.update)(TREE, tx.init(TREE), TREE)
    assert_trees_equal(updates, TREE)
    assert state == EmptyState()
    assert isinstance(state, EmptyState)


def test_the_identity_takes_any_tree():
    tx = chain(identity(), identity())
    tree = {"n": jnp.arange(3), "key": jax.random.key(0), "text": "x"}
    updates, state = tx.update(tree, tx.init(tree))
    assert updates["text"] == "x"
    assert updates["key"] is tree["key"]
    assert state == (EmptyState(), EmptyState())


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_set_to_zero_replaces_every_entry(wrap):
    tx = set_to_zero()
    tree = {"nan": jnp.array([jnp.nan, jnp.inf]), "half": jnp.ones(2, jnp.bfloat16), "n": jnp.arange(3), "none": None}
    updates, state = wrap(tx.update)(tree, tx.init(tree))
    assert_trees_equal(
        updates, {"nan": jnp.zeros(2), "half": jnp.zeros(2, jnp.bfloat16), "n": jnp.zeros(3, jnp.int32), "none": None}
    )
    assert updates["half"].dtype == jnp.bfloat16
    assert state == EmptyState()


def test_gradients_that_are_set_to_zero_are_not_computed():
    # The frozen weight's gradient is the only matrix product of this shape.
    tx = optchain.partition({"train": optchain.sgd(0.1), "fix": set_to_zero()}, {"w": "fix", "b": "train"})
    params = {"w": jnp.ones((5, 7)), "b": jnp.ones(7)}
    state = tx.init(params)

    def step(params, x):
        gradient = jax.grad(lambda p: jnp.sum((x @ p["w"] + p["b"]) ** 2))(params)
        return tx.update(gradient, state, params)[0]

    compiled = jax.jit(step).lower(params, jnp.ones((3, 5))).compile().as_text()
    alone = jax.jit(lambda p, x: jax.grad(lambda p: jnp.sum((x @ p["w"] + p["b"]) ** 2))(p))
    assert "f32[5,7]" in alone.lower(params, jnp.ones((3, 5))).compile().as_text()
    assert compiled.count("dot") < alone.lower(params, jnp.ones((3, 5))).compile().as_text().count("dot")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_stateless_sees_the_whole_trees(wrap):
    def centre(updates, params):
        mean = sum(jnp.sum(u) for u in jax.tree.leaves(updates)) / 4
        return jax.tree.map(lambda u, p: u - mean + 0 * p, updates, params)

    tx = chain(stateless(centre), scale(2.0))
    tree = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.float32(6.0)}
    updates, state = wrap(tx.update)(tree, tx.init(tree), tree)
    np.testing.assert_array_equal(updates["a"], [-4.0, -2.0, 0.0])
    assert updates["b"] == 6.0
    assert state == (EmptyState(), EmptyState())


def test_stateless_is_a_decorator():
    @stateless
    def halve(updates, params):
        assert params is None
        return jax.tree.map(lambda u: u / 2, updates)

    assert halve.update(3.0, halve.init(1.0)) == (1.5, EmptyState())
    assert halve.name == "stateless"
    assert repr(halve) == "stateless(f=halve)"

    @stateless_with_tree_map
    def plus(u, p):
        return u + p

    assert plus.update((3.0, None), plus.init((1.0, None)), (2.0, None)) == ((5.0, None), EmptyState())


def test_a_function_of_one_leaf_sees_arrays_in_their_own_dtype():
    seen = []

    def note(u, p):
        seen.append((u.dtype, None if p is None else p.dtype))
        return u

    tx = stateless_with_tree_map(note)
    tree = {"a": jnp.ones(2, jnp.bfloat16), "n": jnp.arange(2), "none": None}
    tx.update(tree, tx.init(tree), tree)
    tx.update(tree, tx.init(tree))
    assert seen == [
        (jnp.bfloat16, jnp.bfloat16),
        (jnp.int32, jnp.int32),
        (jnp.bfloat16, None),
        (jnp.int32, None),
    ]


@pytest.mark.parametrize("build", [stateless, stateless_with_tree_map])
def test_equal_functions_make_equal_transforms_without_a_sign(build):
    def f(updates, params):
        return updates

    assert build(f) == build(f)
    assert build(f) != build(lambda updates, params: updates)
    assert build(f).sign is None


@pytest.mark.parametrize("tx", [identity(), set_to_zero(), stateless(lambda u, p: u)], ids=short)
def test_extra_arguments_are_ignored(tx):
    assert tx.update(jnp.zeros(2), tx.init(jnp.zeros(2)), value=1.0)[1] == EmptyState()


@pytest.mark.parametrize("tx", [identity(), set_to_zero(), stateless_with_tree_map(lambda u, p: u)], ids=short)
@pytest.mark.parametrize("tree", [{}, (), None, {"a": None}], ids=short)
def test_empty_trees_pass(tx, tree):
    assert tx.update(tree, tx.init(tree), tree) == (tree, EmptyState())
