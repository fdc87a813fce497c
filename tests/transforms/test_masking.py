"""Masks and partitions: which leaves move, what state there is, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain as oc

PARAMS = {"a": jnp.array([1.0, 2.0]), "b": {"c": jnp.array([3.0]), "d": jnp.float32(4.0)}}
TREE = {"a": True, "b": {"c": False, "d": True}}


def applied(tx, updates=PARAMS, params=PARAMS, **extra_args):
    return tx.update(updates, tx.init(params), params, **extra_args)[0]


def assert_negated(updates, a, c, d):
    """The sign was flipped where the flag says so; the rest is as it came."""
    for (name, found), flag in zip(
        [("a", updates["a"]), ("c", updates["b"]["c"]), ("d", updates["b"]["d"])], (a, c, d), strict=True
    ):
        came = PARAMS["a"] if name == "a" else PARAMS["b"][name]
        np.testing.assert_array_equal(found, -np.asarray(came) if flag else came)


@jax.tree_util.register_pytree_node_class
class Model:
    """A model that is a pytree and can be called, and must not be."""

    def __init__(self, w, b):
        self.w, self.b = w, b

    def __call__(self, *args):
        raise AssertionError("the model was called")

    def tree_flatten(self):
        return (self.w, self.b), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


# masked


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (TREE, (True, False, True)),
        ({"a": False, "b": True}, (False, True, True)),
        ({"a": True, "b": False}, (True, False, False)),
        (True, (True, True, True)),
        (False, (False, False, False)),
        (np.bool_(True), (True, True, True)),
        (lambda tree: jax.tree.map(lambda x: jnp.ndim(x) == 0, tree), (False, False, True)),
        (lambda tree: {"a": False, "b": True}, (False, True, True)),
    ],
    ids=["tree", "prefix", "prefix2", "true", "false", "numpy", "function", "function to a prefix"],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_masks(mask, expected, wrap):
    tx = oc.masked(oc.scale(-1.0), mask)
    assert_negated(wrap(tx.update)(PARAMS, tx.init(PARAMS))[0], *expected)


@pytest.mark.parametrize("foreign", [False, True])
def test_every_inner_pair_sees_only_its_leaves(foreign):
    """A pair of the library, and one written by hand that counts what it is given."""
    seen = []

    def update(updates, state, params=None):
        seen.append((len(jax.tree.leaves(updates)), len(jax.tree.leaves(params))))
        return jax.tree.map(jnp.negative, updates), state

    inner = (
        oc.GradientTransformation(lambda params: len(jax.tree.leaves(params)), update) if foreign else oc.scale(-1.0)
    )
    tx = oc.masked(inner, TREE)
    if foreign:
        assert tx.init(PARAMS).inner_state == 2
    assert_negated(applied(tx), True, False, True)
    assert seen == ([(2, 2)] if foreign else [])


def test_the_rest_passes_raw():
    g = {"a": jnp.ones(1), "b": jnp.ones(1)}
    tx = oc.masked(oc.sgd(0.1), {"a": True, "b": False})
    u = tx.update(g, tx.init(g))[0]
    np.testing.assert_allclose(u["a"], [-0.1], rtol=1e-6)
    np.testing.assert_array_equal(u["b"], [1.0])
    frozen = oc.chain(tx, oc.masked(oc.set_to_zero(), {"a": False, "b": True}))
    u = frozen.update({**g, "b": jnp.full(1, np.nan)}, frozen.init(g))[0]
    np.testing.assert_allclose(u["a"], [-0.1], rtol=1e-6)
    np.testing.assert_array_equal(u["b"], [0.0])


def test_state_has_no_place_for_the_rest():
    state = oc.masked(oc.adam(0.1), TREE).init(PARAMS)
    assert type(state) is oc.MaskedState
    mu = state.inner_state[0].mu
    assert mu["b"]["c"] == oc.MaskedNode()
    assert len(jax.tree.leaves(mu)) == 2
    whole = oc.masked(oc.adam(0.1), {"a": True, "b": False}).init(PARAMS).inner_state[0].nu
    assert whole["b"] == oc.MaskedNode()


def test_masks_in_masks():
    tx = oc.masked(oc.masked(oc.scale(-1.0), lambda tree: {"a": True, "b": True}), TREE)
    assert_negated(applied(tx), True, False, True)
    inner = lambda tree: jax.tree.map(lambda x: jnp.ndim(x) == 0, tree)  # noqa: E731
    assert_negated(applied(oc.masked(oc.masked(oc.scale(-1.0), inner), TREE)), False, False, True)
    assert_negated(applied(oc.masked(oc.masked(oc.trace(0.5), inner), TREE)), False, False, False)
    twice = oc.chain(oc.masked(oc.scale(-1.0), TREE), oc.masked(oc.scale(-1.0), {"a": True, "b": False}))
    assert_negated(applied(twice), False, False, True)


def test_a_masked_chain_equals_a_chain_of_masked_links():
    links = [oc.trace(0.9), oc.scale_by_adam(), oc.add_decayed_weights(0.1), oc.scale(-0.1)]
    together = oc.masked(oc.chain(*links), TREE)
    apart = oc.chain(*(oc.masked(link, TREE) for link in links))
    a, b = together.init(PARAMS), apart.init(PARAMS)
    for _ in range(3):
        u, a = together.update(PARAMS, a, PARAMS)
        v, b = apart.update(PARAMS, b, PARAMS)
        jax.tree.map(np.testing.assert_array_equal, u, v)


def test_a_norm_sees_the_masked_leaves_only():
    g = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([1e9])}
    u = applied(oc.masked(oc.clip_by_global_norm(1.0), {"a": True, "b": False}), g, g)
    np.testing.assert_allclose(u["a"], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(u["b"], g["b"])


def test_a_callable_model_is_a_tree():
    params = Model(jnp.ones(2), jnp.ones(1))
    for tx in (
        oc.masked(oc.scale(-1.0), Model(True, False)),
        oc.partition({"x": oc.scale(-1.0), "y": oc.identity()}, Model("x", "y")),
    ):
        u = applied(tx, params, params)
        np.testing.assert_array_equal(u.w, [-1, -1])
        np.testing.assert_array_equal(u.b, [1])
    updates = applied(oc.adamw(0.1, weight_decay=1.0, mask=Model(True, False)), params, params)
    np.testing.assert_allclose(updates.w, [-0.2, -0.2], rtol=1e-5)
    np.testing.assert_allclose(updates.b, [-0.1], rtol=1e-5)


def test_integer_leaves_may_stand_outside_the_mask():
    params = {"w": jnp.ones(2), "steps": jnp.arange(3)}
    tx = oc.masked(oc.adam(0.1), {"w": True, "steps": False})
    u = applied(tx, params, params)
    np.testing.assert_allclose(u["w"], [-0.1, -0.1], rtol=1e-5)
    np.testing.assert_array_equal(u["steps"], [0, 1, 2])


@pytest.mark.parametrize("bad", [1, 0.0, "yes", jnp.array(True), np.array([True])], ids=repr)
def test_a_mask_leaf_that_is_no_bool_is_refused(bad):
    tx = oc.masked(oc.scale(-1.0), {"a": True, "b": {"c": bad, "d": True}})
    with pytest.raises(TypeError, match=r"masked: the mask at \['b'\]\['c'\] .* not a bool"):
        tx.init(PARAMS)


@pytest.mark.parametrize(
    "mask",
    [{"a": True}, {"a": True, "x": True}, {"a": True, "b": {"c": True}}, [True, False], {"a": {"z": True}, "b": True}],
    ids=str,
)
def test_a_mask_of_another_structure_is_refused(mask):
    for tx in (oc.masked(oc.scale(-1.0), mask), oc.masked(oc.scale(-1.0), lambda tree: mask)):
        with pytest.raises(ValueError, match="masked: the mask does not fit the tree"):
            tx.init(PARAMS)
        with pytest.raises(ValueError, match=r"(masked|scale): the mask does not fit the tree"):
            tx.update(PARAMS, oc.MaskedState(oc.EmptyState()))


def test_what_is_no_pair_is_refused():
    with pytest.raises(TypeError, match=r"masked: .*not a pair"):
        oc.masked(oc.scale, TREE)
    with pytest.raises(TypeError, match=r"partition: .*'x'.*not a pair"):
        oc.partition({"x": 0.1}, "x")


def test_a_state_without_mask_is_refused():
    tx = oc.masked(oc.trace(0.5), TREE)
    with pytest.raises(ValueError, match="masked: the state has no field 'inner_state'"):
        tx.update(PARAMS, oc.trace(0.5).init(PARAMS))


def test_extra_arguments_are_masked_on_request():
    def update(updates, state, params=None, *, weights, factor):
        return jax.tree.map(lambda u, w: factor * u * w, updates, weights), state

    inner = oc.GradientTransformationExtraArgs(lambda params: (), update)
    tx = oc.masked(inner, TREE, mask_compatible_extra_args=True)
    assert_negated(applied(tx, weights=jax.tree.map(jnp.ones_like, PARAMS), factor=-1.0), True, False, True)


@pytest.mark.parametrize("mask", [{}, True, lambda tree: tree])
def test_an_empty_tree_passes(mask):
    assert applied(oc.masked(oc.adam(0.1), mask), {}, {}) == {}


def test_none_leaves_pass():
    params = {"a": jnp.ones(2), "n": None}
    u = applied(oc.masked(oc.scale(-1.0), {"a": True, "n": None}), params, params)
    assert u["n"] is None
    np.testing.assert_array_equal(u["a"], [-1, -1])
    assert applied(oc.masked(oc.scale(-1.0), True), params, params)["n"] is None


def test_signs():
    assert oc.masked(oc.scale(2.0), True).sign == 1
    assert oc.masked(oc.sgd(0.1), True).sign is None  # the rest is not flipped
    assert oc.partition({"x": oc.sgd(0.1), "y": oc.adam(0.1), "z": oc.set_to_zero()}, "x").sign == -1
    assert oc.partition({"x": oc.sgd(0.1), "y": oc.clip(0.1)}, "x").sign is None
    assert oc.partition({"x": oc.set_to_zero()}, "x").sign == 0


# partition


LABELS = {"a": "x", "b": {"c": "y", "d": "x"}}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (LABELS, (True, False, True)),
        ({"a": "y", "b": "x"}, (False, True, True)),
        ("x", (True, True, True)),
        (lambda tree: jax.tree.map(lambda v: "x" if jnp.ndim(v) == 0 else "y", tree), (False, False, True)),
        (lambda tree: {"a": "x", "b": "y"}, (True, False, False)),
    ],
    ids=["tree", "prefix", "one", "function", "function to a prefix"],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_partition(labels, expected, wrap):
    tx = oc.partition({"x": oc.scale(-1.0), "y": oc.identity()}, labels)
    assert_negated(wrap(tx.update)(PARAMS, tx.init(PARAMS))[0], *expected)


def test_partition_equals_its_rules_on_their_parts():
    tx = oc.partition({"x": oc.adamw(0.1, weight_decay=0.2), "y": oc.sgd(0.5, 0.9)}, LABELS)
    adam, sgd = oc.adamw(0.1, weight_decay=0.2), oc.sgd(0.5, 0.9)
    part = [PARAMS["a"], PARAMS["b"]["d"]]
    state, s, t = tx.init(PARAMS), adam.init(part), sgd.init(PARAMS["b"]["c"])
    for _ in range(3):
        u, state = tx.update(PARAMS, state, PARAMS)
        (a, d), s = adam.update(part, s, part)
        c, t = sgd.update(PARAMS["b"]["c"], t)
        jax.tree.map(np.testing.assert_array_equal, u, {"a": a, "b": {"c": c, "d": d}})


def test_labels_of_any_hashable_type():
    tx = oc.partition({0: oc.scale(-1.0), (1, 2): oc.identity(), "t": oc.identity()}, {"a": 0, "b": "t"})
    assert_negated(applied(tx), True, False, False)


def test_a_clip_in_a_group_is_per_group():
    g, labels = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}, {"a": "x", "b": "y"}
    outer = oc.chain(oc.clip_by_global_norm(1.0), oc.partition({"x": oc.scale(1.0), "y": oc.scale(1.0)}, labels))
    inner = oc.partition({k: oc.clip_by_global_norm(1.0) for k in "xy"}, labels)
    outer, inner = (applied(tx, g, g) for tx in (outer, inner))
    np.testing.assert_allclose([outer["a"][0], outer["b"][0]], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose([inner["a"][0], inner["b"][0]], [1, 1], rtol=1e-6)


@pytest.mark.parametrize("labels", [{"a": "x", "b": "z"}, lambda tree: {"a": "x", "b": "z"}], ids=["tree", "function"])
def test_an_unknown_label_is_refused(labels):
    tx = oc.partition({"x": oc.scale(-1.0), "y": oc.identity()}, labels)
    message = r"partition: the label at \['b'\] is 'z', and there is no transform for it.*\['x', 'y'\]"
    with pytest.raises(ValueError, match=message):
        tx.init(PARAMS)
    known = oc.partition({"x": oc.scale(-1.0), "y": oc.identity()}, "x").init(PARAMS)
    with pytest.raises(ValueError, match=message):
        tx.update(PARAMS, known)


def test_labels_of_another_structure_are_refused():
    with pytest.raises(ValueError, match="partition"):
        oc.partition({"x": oc.scale(-1.0)}, {"a": "x"}).init(PARAMS)


def test_state_of_partition():
    tx = oc.partition({"x": oc.trace(0.5), "y": oc.identity()}, LABELS)
    state = tx.init(PARAMS)
    assert type(state) is oc.PartitionState
    assert list(state.inner_states) == ["x", "y"]
    assert state.inner_states["y"] == oc.MaskedState(oc.EmptyState())
    assert state.inner_states["x"].inner_state.trace["b"]["c"] == oc.MaskedNode()
    with pytest.raises(ValueError, match=r"partition: .*inner_states"):
        tx.update(PARAMS, ())
    with pytest.raises(ValueError, match=r"partition: .*x, y"):
        tx.update(PARAMS, oc.PartitionState({"x": state.inner_states["x"]}))


def test_a_group_without_leaves_and_empty_containers_pass():
    tx = oc.partition({"x": oc.adam(0.1), "never": oc.adam(0.1)}, "x")
    for params in ({}, (), {"a": ()}, {"a": {}, "b": None}):
        assert applied(tx, params, params) == params
    u = applied(tx, {"a": jnp.ones(1), "e": {}}, {"a": jnp.ones(1), "e": {}})
    np.testing.assert_allclose(u["a"], [-0.1], rtol=1e-5)
    assert u["e"] == {}
    u = applied(
        oc.partition({"x": oc.scale(-1.0)}, {"a": "x", "e": {}}),
        {"a": jnp.ones(1), "e": {}},
        {"a": jnp.ones(1), "e": {}},
    )
    np.testing.assert_array_equal(u["a"], [-1])


def test_nan_in_a_group_set_to_zero_becomes_zero():
    params = {"enc": {"k": jnp.array([np.nan])}, "head": jnp.ones(1)}
    tx = oc.partition({"fix": oc.set_to_zero(), "train": oc.sgd(0.5)}, {"enc": "fix", "head": "train"})
    u = applied(tx, params, params)
    np.testing.assert_array_equal(u["enc"]["k"], [0])
    np.testing.assert_array_equal(u["head"], [-0.5])


def test_partition_in_partition():
    inner = oc.partition({"p": oc.scale(-1.0), "q": oc.identity()}, {"a": "p", "b": {"c": oc.MaskedNode(), "d": "q"}})
    tx = oc.partition({"x": inner, "y": oc.identity()}, LABELS)
    assert_negated(applied(tx), True, False, False)


def test_missing_parameters_in_a_group_name_the_link():
    tx = oc.partition({"x": oc.adamw(0.1), "y": oc.identity()}, LABELS)
    with pytest.raises(ValueError, match="add_decayed_weights needs the parameters"):
        tx.update(PARAMS, tx.init(PARAMS))
