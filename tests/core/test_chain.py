"""`chain` and `named_chain`: flat, ordered, with checked states."""

import collections
import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain
from optchain import adam, chain, clip, clip_by_global_norm, identity, named_chain, scale, sgd, trace
from tests.naming import short

PARAMS = {"w": jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "b": jnp.array([3.0, 4.0, 12.0])}


def add_value():
    """A pair that needs the extra argument `value`."""
    return optchain.GradientTransformationExtraArgs(
        lambda params: (),
        lambda updates, state, params=None, *, value, **extra_args: (jax.tree.map(lambda u: u + value, updates), state),
    )


def count_steps():
    """A plain pair with a state, which takes no extra arguments."""
    return optchain.GradientTransformation(
        lambda params: jnp.zeros([], jnp.int32), lambda updates, state, params=None: (updates, state + 1)
    )


def assert_trees_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


# Flat


def test_a_chain_in_a_chain_contributes_its_links():
    a, b, c = clip(1.0), trace(0.9), scale(-0.1)
    flat = chain(a, b, c)
    for tx in (chain(chain(a, b), c), chain(a, chain(b, c)), chain(chain(chain(a)), chain(), chain(b, chain(c)))):
        assert tx == flat
        assert hash(tx) == hash(flat)
        assert tx.links == (a, b, c)
        assert repr(tx) == "chain(clip(max_delta=1.0), trace(decay=0.9), scale(step_size=-0.1))"
        assert_trees_equal(tx.init(PARAMS), flat.init(PARAMS))
    assert len(flat.init(PARAMS)) == 3


def test_a_chain_of_pairs_without_a_value_is_flat_too():
    a, b, c = count_steps(), scale(jnp.float32(2.0)), count_steps()
    tx = chain(chain(a, b), c)
    assert [link is x for link, x in zip(tx.links, (a, b, c), strict=True)] == [True] * 3
    _, state = tx.update(PARAMS, tx.init(PARAMS))
    assert (int(state[0]), state[1], int(state[2])) == (1, optchain.EmptyState(), 1)


def test_a_finished_optimizer_a_mask_and_a_named_chain_are_one_link():
    links = sgd(0.1, momentum=0.9), optchain.masked(chain(clip(1.0), scale(2.0)), True), named_chain(("a", clip(1.0)))
    tx = chain(chain(links[0]), *links[1:])
    assert tx.links == links
    state = tx.init(PARAMS)
    assert [type(part) for part in state] == [tuple, optchain.transforms.MaskedState, collections.OrderedDict]
    assert len(state[0]) == 2


def test_the_empty_chain_is_the_identity():
    tx = chain()
    state = tx.init(PARAMS)
    assert state == ()
    updates, state = tx.update(PARAMS, state, PARAMS)
    assert_trees_equal(updates, PARAMS)
    assert state == ()
    assert tx.sign == 1
    assert tx.links == ()
    with_integers = {"n": jnp.arange(3), "name": "x"}
    assert tx.update(with_integers, ())[0] == with_integers


def test_a_chain_of_one_has_a_tuple_of_one():
    tx = chain(scale(3.0))
    assert tx.init(PARAMS) == (optchain.EmptyState(),)
    np.testing.assert_array_equal(tx.update(PARAMS, tx.init(PARAMS))[0]["b"], [9.0, 12.0, 36.0])


def test_one_link_may_occur_twice():
    link = trace(0.5)
    tx = chain(link, link)
    state = tx.init(jnp.zeros(1))
    totals = []
    for _ in range(3):
        updates, state = tx.update(jnp.ones(1), state)
        totals.append(float(updates[0]))
    assert totals == [1.0, 2.0, 2.75]  # of 1, 1.5, 1.75
    assert (float(state[0].trace[0]), float(state[1].trace[0])) == (1.75, 2.75)


def test_the_state_of_a_chain_is_a_plain_tuple():
    state = chain(clip_by_global_norm(1.0), adam(0.1)).init(PARAMS)
    assert type(state) is tuple
    assert state[0] == optchain.EmptyState()
    assert type(state[1]) is tuple
    assert type(state[1][0]).__name__ == "ScaleByAdamState"


# Order


def test_clip_then_sgd_is_not_sgd_then_clip():
    params, gradient = jnp.array([1.0, 1.0]), jnp.array([3.0, 4.0])
    first = chain(clip_by_global_norm(1.0), sgd(0.1))
    updates, _ = first.update(gradient, first.init(params), params)
    np.testing.assert_allclose(updates, [-0.06, -0.08], rtol=1e-6)
    np.testing.assert_allclose(optchain.apply_updates(params, updates), [0.94, 0.92], rtol=1e-6)
    second = chain(sgd(0.1), clip_by_global_norm(1.0))
    updates, _ = second.update(gradient, second.init(params), params)
    np.testing.assert_allclose(updates, [-0.3, -0.4], rtol=1e-6)
    np.testing.assert_allclose(optchain.apply_updates(params, updates), [0.7, 0.6], rtol=1e-6)


def test_links_run_left_to_right():
    tx = chain(optchain.stateless(lambda u, p: u + 1.0), scale(2.0), optchain.stateless(lambda u, p: u * u))
    assert tx.update(jnp.float32(3.0), tx.init(jnp.float32(0.0)))[0] == 64.0


# Extra arguments


def test_extra_arguments_reach_the_links_that_take_them():
    tx = chain(count_steps(), add_value(), sgd(0.5), optchain.masked(add_value(), True), adam_free())
    updates, state = jax.jit(tx.update)({"a": jnp.ones(2)}, tx.init({"a": jnp.ones(2)}), value=3.0, other=jnp.ones(3))
    np.testing.assert_array_equal(updates["a"], [1.0, 1.0])  # -0.5 * (1 + 3) + 3
    assert int(state[0]) == 1


def adam_free():
    return optchain.stateless_with_tree_map(lambda u, p: u)


def test_extra_arguments_reach_links_in_nested_and_named_chains():
    tx = named_chain(("inner", chain(scale(2.0), add_value())), ("outer", add_value()))
    updates, _ = tx.update(jnp.ones(1), tx.init(jnp.ones(1)), value=3.0)
    np.testing.assert_array_equal(updates, [8.0])


def test_a_missing_extra_argument_is_the_error_of_the_pair_that_wants_it():
    tx = chain(scale(1.0), add_value())
    with pytest.raises(TypeError, match="value"):
        tx.update(jnp.ones(1), tx.init(jnp.ones(1)))


# Wrong input


def test_what_is_no_pair_is_refused_with_a_hint():
    with pytest.raises(
        TypeError, match=r"chain: argument 1 is <function .*adam.*>, not a pair.*call it: adam\(\.\.\.\)"
    ):
        chain(clip(1.0), adam)
    with pytest.raises(TypeError, match=r"chain: argument 0 is 0.1, not a pair of init and update; pass a transform"):
        chain(0.1)
    with pytest.raises(TypeError, match="chain: argument 0 is None"):
        chain(None)
    with pytest.raises(TypeError, match=r"chain: argument 0 is \[scale.*, not a pair"):
        chain([scale(1.0), scale(2.0)])


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ((), "a tuple of 0"),
        ((optchain.EmptyState(),), "a tuple of 1"),
        ((optchain.EmptyState(), (), ()), "a tuple of 3"),
        (None, "a value of type NoneType"),
        (optchain.EmptyState(), "a value of type EmptyState"),
        (3.0, "a value of type float"),
        ({"a": 1, "b": 2}, "a value of type dict"),
    ],
    ids=short,
)
def test_a_state_of_the_wrong_shape_shows_the_expected_links(state, found):
    tx = chain(clip_by_global_norm(1.0), sgd(0.1))
    message = (
        r"chain: the state must have one entry for each of the 2 links \(clip_by_global_norm, sgd\); "
        f"found {found}. Make it with init"
    )
    with pytest.raises(ValueError, match=message):
        tx.update(PARAMS, state, PARAMS)
    with pytest.raises(ValueError, match="clip_by_global_norm, sgd"):
        jax.jit(lambda u: tx.update(u, state, u))(PARAMS)


def test_the_error_of_a_finished_optimizer_names_it():
    with pytest.raises(ValueError, match=r"^adam: the state must .* 2 links \(scale_by_adam, scale_by_learning_rate\)"):
        adam(0.1).update(PARAMS, (), PARAMS)
    tx = chain(clip(1.0), adam(0.1))
    with pytest.raises(ValueError, match=r"^adam: the state must"):
        tx.update(PARAMS, (optchain.EmptyState(), ()), PARAMS)


def test_the_states_of_two_links_exchanged_are_refused():
    tx = chain(trace(0.9), optchain.ema(0.9))
    a, b = tx.init(PARAMS)
    with pytest.raises(ValueError, match="trace: the state has no field 'trace'; found a value of type EmaState"):
        tx.update(PARAMS, (b, a))


def test_a_pair_written_by_hand_is_called_custom_in_messages():
    tx = chain(scale(1.0), count_steps())
    with pytest.raises(ValueError, match=r"2 links \(scale, custom\)"):
        tx.update(PARAMS, ())


def test_a_list_is_taken_for_the_tuple():
    # What reads a state from JSON or msgpack may turn tuples into lists.
    tx = chain(scale(2.0), scale(3.0))
    updates, state = tx.update(jnp.ones(1), [optchain.EmptyState(), optchain.EmptyState()])
    np.testing.assert_array_equal(updates, [6.0])
    assert type(state) is tuple


# named_chain


def test_the_state_of_a_named_chain_is_an_ordered_mapping():
    tx = named_chain(("z", trace(0.5)), ("a", scale(-1.0)), ("m", count_steps()))
    state = tx.init(jnp.zeros(1))
    assert isinstance(state, collections.OrderedDict)
    assert list(state) == ["z", "a", "m"]
    for _ in range(2):
        updates, state = jax.jit(tx.update)(jnp.ones(1), state)
    assert list(state) == ["z", "a", "m"]
    np.testing.assert_array_equal(updates, [-1.5])
    np.testing.assert_array_equal(state["z"].trace, [1.5])
    assert int(state["m"]) == 2


def test_a_named_chain_gives_the_numbers_of_a_chain():
    links = clip_by_global_norm(1.0), adam(0.1), scale(0.5)
    plain, named = chain(*links), named_chain(*zip("abc", links, strict=True))
    params, other = PARAMS, PARAMS
    state, by_name = plain.init(params), named.init(params)
    for _ in range(3):
        updates, state = plain.update(params, state, params)
        named_updates, by_name = named.update(other, by_name, other)
        assert_trees_equal(updates, named_updates)
        params, other = optchain.apply_updates(params, updates), optchain.apply_updates(other, named_updates)
    assert_trees_equal(list(state), list(by_name.values()))


def test_the_entries_of_a_named_state_are_found_by_name():
    tx = named_chain(("a", trace(0.5)), ("b", scale(2.0)))
    state = tx.init(jnp.ones(1))
    updates, _ = tx.update(jnp.ones(1), dict(reversed(state.items())))
    np.testing.assert_array_equal(updates, [2.0])


def test_a_named_chain_is_a_value():
    tx = named_chain(("clip", clip(1.0)), ("rule", sgd(0.1)))
    assert tx == named_chain(("clip", clip(1.0)), ("rule", sgd(0.1)))
    assert tx != named_chain(("clip", clip(1.0)), ("other", sgd(0.1)))
    assert tx == copy.deepcopy(tx) == pickle.loads(pickle.dumps(tx))
    assert tx.links == (clip(1.0), sgd(0.1))
    assert tx.sign == -1


def test_names_that_occur_twice_are_refused():
    with pytest.raises(ValueError, match="named_chain: the name 'a' occurs twice"):
        named_chain(("a", scale(1.0)), ("b", scale(1.0)), ("a", scale(2.0)))


@pytest.mark.parametrize("argument", [scale(1.0), ("a",), ("a", scale(1.0), 3), (1, scale(1.0)), "ab"], ids=short)
def test_arguments_of_a_named_chain_are_names_with_pairs(argument):
    with pytest.raises(TypeError, match=r"named_chain: argument 1 is .*; pass a pair \('name', transform\)"):
        named_chain(("x", scale(1.0)), argument)


def test_what_is_no_pair_is_refused_by_name():
    with pytest.raises(TypeError, match=r"named_chain: argument 'rule' is .*; call it: sgd\(\.\.\.\)"):
        named_chain(("rule", sgd))


@pytest.mark.parametrize("state", [(), {}, {"clip": ()}, {"clip": (), "rule": (), "more": ()}], ids=short)
def test_a_named_state_with_other_names_is_refused(state):
    tx = named_chain(("clip", clip(1.0)), ("rule", sgd(0.1)))
    with pytest.raises(ValueError, match=r"named_chain: the state must .* the 2 links \(clip, rule\)"):
        tx.update(PARAMS, state)


def test_an_empty_named_chain_is_the_identity():
    tx = named_chain()
    updates, state = tx.update(PARAMS, tx.init(PARAMS))
    assert_trees_equal(updates, PARAMS)
    assert state == {}


# Trees


@pytest.mark.parametrize("tree", [{}, (), None, [], {"a": None, "b": ()}], ids=short)
def test_empty_trees_pass(tree):
    tx = chain(clip_by_global_norm(1.0), identity(), adam(0.1))
    updates, state = jax.jit(tx.update)(tree, tx.init(tree), tree)
    assert updates == tree
    assert int(state[2][0].count) == 1
