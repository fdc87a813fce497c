"""How links run: fused runs give the numbers of the links one by one, and those of NumPy in float64."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import optchain
from optchain import chain, named_chain
from optchain.core.kernels import kernel
from tests.core.links import POOL, by_rank, labels_by_rank, np_chain
from tests.naming import short

PARAMS = {
    "w": np.array([[0.5, -1.0, 2.0], [0.1, 0.2, -0.3]], np.float32),
    "b": (np.array([1.0, -0.5], np.float32), None, np.float32(0.7)),
}


def gradients_of(params, steps, seed=0):
    rng = np.random.default_rng(seed)
    return [jax.tree.map(lambda p: np.asarray(rng.normal(size=np.shape(p)), np.float32), params) for _ in range(steps)]


def run(tx, params, gradients, wrap=lambda f: f):
    """The updates of each step at fixed parameters, and the state at the end."""
    state, update, out = tx.init(params), wrap(tx.update), []
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        assert jax.tree.structure(updates) == jax.tree.structure(params)
        out.append(updates)
    return out, state


def run_apart(links, params, gradients):
    """The same with each link's own ``init`` and ``update``, one link after the other."""
    states, out = [tx.init(params) for tx in links], []
    for updates in gradients:
        for i, tx in enumerate(links):
            updates, states[i] = tx.update(updates, states[i], params)
        out.append(updates)
    return out, tuple(states)


def run_numpy(links, params, gradients):
    leaves = [np.asarray(p, np.float64) for p in jax.tree.leaves(params)]
    step = np_chain(*links)(leaves)
    return [step([np.asarray(g, np.float64) for g in jax.tree.leaves(gradient)], leaves) for gradient in gradients]


def assert_close(one, other, rtol=1e-5, atol=1e-6):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


def check(names, params, gradients, wrap=lambda f: f):
    links, references = zip(*(POOL[name] for name in names), strict=True) if names else ((), ())
    updates, state = run(chain(*links), params, gradients, wrap)
    apart, states = run_apart(links, params, gradients)
    assert_close(updates, apart)
    assert_close(state, states)
    expected = run_numpy(references, params, gradients)
    for got, wanted in zip(updates, expected, strict=True):
        for u, x in zip(jax.tree.leaves(got), wanted, strict=True):
            np.testing.assert_allclose(u, x, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", POOL)
def test_each_link_alone(name):
    check([name], PARAMS, gradients_of(PARAMS, 3))


@pytest.mark.parametrize(
    "names",
    [
        ("clip", "trace", "decay", "scale"),
        ("norm", "adamw"),
        ("trace", "norm", "ema", "norm", "scale"),
        ("scale", "masked trace", "decay", "masked decay", "clip"),
        ("ema", "masked chain", "trace", "partition", "scale"),
        ("trace", "opaque", "ema", "masked opaque", "decay"),
        ("partition", "norm", "partition"),
        ("masked norm", "adam", "masked norm", "named", "schedule"),
        ("identity", "sgd", "identity", "sgd"),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_fused_run_is_its_links_one_by_one(names, wrap):
    check(names, PARAMS, gradients_of(PARAMS, 3), wrap)


class Point(NamedTuple):
    x: object
    y: object


trees = st.recursive(
    st.one_of(st.none(), st.sampled_from([(), (2,), (2, 3)]).map(np.ones)),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.lists(inner, max_size=2),
        st.builds(Point, inner, inner),
    ),
    max_leaves=5,
).map(lambda tree: {"root": tree})  # None instead of parameters means that there are none


@settings(deadline=None, max_examples=12)
@given(tree=trees, names=st.lists(st.sampled_from(sorted(POOL)), max_size=5), seed=st.integers(0, 99))
def test_random_chains_on_random_trees(tree, names, seed):
    params = gradients_of(tree, 1, seed)[0]
    check(names, params, gradients_of(tree, 2, seed + 1), jax.jit)


# What is fused


@pytest.fixture
def kernels(monkeypatch):
    """The names of the rules of each kernel that is asked for."""
    asked = []

    def note(program):
        asked.append([name for _, _, name in program])
        return kernel(program)

    monkeypatch.setattr("optchain.core.leaves.kernel", note)
    return asked


def test_consecutive_leaf_rules_share_one_kernel(kernels):
    tx = chain(optchain.clip(1.0), optchain.adamw(0.1), optchain.trace(0.5))
    run(tx, PARAMS, gradients_of(PARAMS, 1))
    assert kernels == [["clip", "scale_by_adam", "add_decayed_weights", "scale_by_learning_rate", "trace"]]


def test_whole_tree_scalars_start_a_new_run(kernels):
    tx = chain(optchain.trace(0.5), optchain.clip_by_global_norm(1.0), optchain.scale(2.0))
    run(tx, PARAMS, gradients_of(PARAMS, 1))
    assert kernels == [["trace"], ["clip_by_global_norm", "scale"]]


def test_a_pair_written_by_hand_ends_a_run(kernels):
    tx = chain(optchain.scale(0.5), POOL["opaque"][0], optchain.clip(1.0), optchain.scale(2.0))
    run(tx, PARAMS, gradients_of(PARAMS, 1))
    assert kernels == [["scale"], ["clip", "scale"]]


def test_masks_leave_one_run_with_a_kernel_for_each_set_of_links(kernels):
    tx = chain(optchain.clip(1.0), optchain.add_decayed_weights(0.1, by_rank), optchain.scale(-0.1))
    run(tx, PARAMS, gradients_of(PARAMS, 1))
    assert sorted(kernels) == [["clip", "add_decayed_weights", "scale"], ["clip", "scale"]]


def test_parts_of_a_partition_run_together(kernels):
    tx = optchain.partition({"wide": optchain.sgd(0.1, momentum=0.9), "narrow": optchain.scale(2.0)}, labels_by_rank)
    run(tx, PARAMS, gradients_of(PARAMS, 1))
    assert sorted(kernels) == [["scale"], ["trace", "scale_by_learning_rate"]]


# Numbers


def test_the_norm_is_that_of_the_updates_in_the_middle_of_the_chain():
    tx = chain(optchain.scale(10.0), optchain.clip_by_global_norm(1.0), optchain.scale(3.0))
    updates, _ = jax.jit(tx.update)({"a": jnp.array([3.0]), "b": jnp.float32(4.0)}, tx.init(PARAMS))
    np.testing.assert_allclose([updates["a"][0], updates["b"]], [1.8, 2.4], rtol=1e-6)


def test_a_clip_in_a_mask_sees_the_unmasked_part_alone():
    tx = optchain.masked(optchain.clip_by_global_norm(1.0), {"a": True, "b": True, "c": False})
    gradient = {"a": jnp.array([3.0]), "b": jnp.array([4.0]), "c": jnp.array([1e6])}
    updates, _ = tx.update(gradient, tx.init(gradient))
    np.testing.assert_allclose([updates[k][0] for k in "abc"], [0.6, 0.8, 1e6], rtol=1e-6)


def test_masks_in_masks_apply_together():
    inner = optchain.masked(optchain.trace(0.5), lambda tree: jax.tree.map(lambda x: x.ndim == 1, tree))
    tx = chain(optchain.masked(inner, {"a": True, "b": True, "c": False}), optchain.scale(2.0))
    params = {"a": jnp.ones(2), "b": jnp.float32(1.0), "c": jnp.ones(2)}
    updates, state = run(tx, params, [params] * 2, jax.jit)
    np.testing.assert_array_equal(updates[-1]["a"], [3.0, 3.0])
    assert updates[-1]["b"] == 2.0
    np.testing.assert_array_equal(updates[-1]["c"], [2.0, 2.0])
    masked = optchain.transforms.MaskedNode()
    trace = state[0].inner_state.inner_state.trace
    np.testing.assert_array_equal(trace["a"], [1.5, 1.5])
    assert (trace["b"], trace["c"]) == (masked, masked)


def test_states_hold_masked_nodes_where_the_mask_is_false():
    tx = optchain.adamw(0.1, mask=by_rank)
    wide = optchain.masked(optchain.scale_by_adam(), by_rank)
    assert jax.tree.structure(tx.init(PARAMS)[0].mu) == jax.tree.structure(PARAMS)
    state = wide.init(PARAMS).inner_state
    assert state.mu["b"] == (state.mu["b"][0], None, optchain.transforms.MaskedNode())
    assert state.mu["b"][0].shape == (2,)


def test_an_opaque_link_in_a_mask_gets_masked_parameters_and_extra_arguments():
    seen = []

    def update(updates, state, params=None, **extra_args):
        seen.append((updates, params, extra_args))
        return jax.tree.map(lambda u: -u, updates), state

    by_hand = optchain.GradientTransformation(lambda params: (), update)
    tree, hidden = {"a": jnp.ones(1), "b": jnp.ones(2)}, optchain.transforms.MaskedNode()
    for compatible in (False, True):
        tx = optchain.masked(by_hand, {"a": True, "b": False}, mask_compatible_extra_args=compatible)
        updates, _ = tx.update(tree, tx.init(tree), tree, hessian=tree, value=3.0)
        assert (updates["a"][0], updates["b"][0]) == (-1.0, 1.0)
        inner, params, extra_args = seen.pop()
        assert (inner["b"], params["b"], extra_args["value"]) == (hidden, hidden, 3.0)
        assert (extra_args["hessian"]["b"] == hidden) if compatible else (extra_args["hessian"]["b"].shape == (2,))


def test_rounding_between_links_is_that_of_one_kernel_at_most():
    links = optchain.scale(1 / 3), optchain.trace(0.9), optchain.scale(-0.7)
    gradient = jnp.array([0.3, -1.7, 2.9, 100.0], jnp.bfloat16)
    together, _ = run(chain(*links), gradient, [gradient])
    apart, _ = run_apart(links, gradient, [gradient])
    exact = np.asarray(gradient, np.float64) / 3 * -0.7
    np.testing.assert_allclose(np.asarray(together[0], np.float64), exact, rtol=2.0**-8)
    np.testing.assert_allclose(np.asarray(apart[0], np.float64), exact, rtol=4 * 2.0**-8)


def test_nothing_is_done_for_an_identity_and_an_empty_chain(kernels):
    tx = chain(optchain.identity(), named_chain(), optchain.masked(optchain.identity(), True))
    updates, state = tx.update(PARAMS, tx.init(PARAMS))
    assert updates is PARAMS
    assert kernels == []
    assert state == (optchain.EmptyState(), {}, optchain.transforms.MaskedState(optchain.EmptyState()))


# Wrong input


def test_errors_in_a_run_name_their_own_link():
    tx = chain(optchain.scale(2.0), optchain.trace(0.5), optchain.add_decayed_weights(0.1))
    with pytest.raises(ValueError, match=r"^add_decayed_weights needs the parameters"):
        tx.update(PARAMS, tx.init(PARAMS))
    bad = {"w": jnp.ones((2, 3)), "b": (jnp.ones(3), None, jnp.float32(0.7))}
    with pytest.raises(
        ValueError, match=r"^trace: updates at \['b'\]\[0\] is float32\[2\] but trace there is float32\[3\]"
    ):
        tx.update(PARAMS, tx.init(bad), PARAMS)
    with pytest.raises(
        ValueError,
        match=r"^add_decayed_weights: updates at \['b'\]\[0\] is float32\[2\] but params there is float32\[3\]",
    ):
        tx.update(PARAMS, tx.init(PARAMS), bad)


def test_the_error_for_a_gradient_leaf_names_the_first_link_of_a_run():
    tx = chain(optchain.trace(0.5), optchain.scale(2.0))
    good = {"a": jnp.ones(2)}
    with pytest.raises(TypeError, match=r"^trace: the gradient leaf at \['a'\] is int32\[2\]"):
        tx.update({"a": jnp.arange(2)}, tx.init(good))


def test_a_masked_state_of_another_kind_is_refused():
    tx = chain(optchain.clip(1.0), optchain.masked(optchain.trace(0.5), by_rank))
    with pytest.raises(
        ValueError, match="masked: the state has no field 'inner_state'; found a value of type EmptyState"
    ):
        tx.update(PARAMS, (optchain.EmptyState(), optchain.EmptyState()))


@pytest.mark.parametrize("state", [(), {"wide": (), "narrow": ()}, optchain.EmptyState()], ids=short)
def test_a_partition_state_of_another_kind_is_refused(state):
    tx = POOL["partition"][0]
    with pytest.raises(ValueError, match=r"^partition: the state has no field 'inner_states'"):
        tx.update(PARAMS, state, PARAMS)


def test_a_partition_state_with_other_labels_is_refused():
    tx = POOL["partition"][0]
    state = optchain.transforms.PartitionState({"wide": ()})
    with pytest.raises(
        ValueError, match=r"^partition: the state must have one entry for each of the 2 links \(wide, narrow\)"
    ):
        tx.update(PARAMS, state, PARAMS)


def test_masked_leaves_may_be_of_any_kind():
    tx = chain(optchain.masked(optchain.trace(0.5), {"a": True, "n": False}))
    tree = {"a": jnp.ones(2), "n": jnp.arange(3)}
    updates, _ = run(tx, tree, [tree], jax.jit)
    np.testing.assert_array_equal(updates[0]["n"], [0, 1, 2])
    assert updates[0]["n"].dtype == jnp.int32


@pytest.mark.parametrize("kept", [jnp.zeros(3, jnp.int32), np.zeros(3, jax.dtypes.float0)], ids=["int32", "float0"])
def test_integer_parameters_may_be_left_out_by_a_partition(kept):
    rule = chain(optchain.clip_by_global_norm(1.0), optchain.adamw(0.1))
    tx = optchain.partition({"train": rule, "fix": optchain.set_to_zero()}, {"w": "train", "n": "fix"})
    params = {"w": jnp.array([1.0]), "n": jnp.arange(3)}
    updates, _ = tx.update({"w": jnp.array([2.0]), "n": kept}, tx.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.1 * (1 + 1e-4)], rtol=1e-5)
    np.testing.assert_array_equal(optchain.apply_updates(params, updates)["n"], [0, 1, 2])
