"""Masks over pytrees: trees, prefixes and functions, and what is refused."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from optchain.core.masks import MaskedNode, flags, is_mask_function, merge, resolve, select
from tests.naming import short

TREE = {"layer": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "head": [jnp.ones(1), jnp.float32(2.0)], "none": None}


class Pair(NamedTuple):
    left: object
    right: object


@jax.tree_util.register_pytree_node_class
class Model:
    """A model that is a tree and can be called."""

    def __init__(self, w, b):
        self.w, self.b = w, b

    def __call__(self, x):
        raise AssertionError("a model is no mask function")

    def tree_flatten(self):
        return (self.w, self.b), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


def test_a_masked_node_has_no_leaves():
    assert jax.tree.leaves(MaskedNode()) == []
    assert MaskedNode() == MaskedNode()
    assert repr(MaskedNode()) == "MaskedNode()"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (True, [True] * 4),
        (False, [False] * 4),
        ({"layer": True, "head": False, "none": True}, [False, False, True, True]),
        ({"layer": {"w": False, "b": True}, "head": False, "none": None}, [False, False, True, False]),
        ({"layer": False, "head": [True, False], "none": False}, [True, False, False, False]),
        (np.True_, [True] * 4),
        (lambda tree: jax.tree.map(lambda x: x.ndim == 2, tree), [False, False, False, True]),
        (lambda tree: {"layer": True, "head": False, "none": True}, [False, False, True, True]),
        (lambda tree: True, [True] * 4),
    ],
)
def test_a_mask_is_a_tree_a_prefix_or_a_function(mask, expected):
    # The order of leaves is that of the sorted keys: head, layer.b, layer.w.
    where = resolve(mask, TREE, "masked")
    assert flags(where, TREE) == expected
    kept = [x for x, flag in zip(jax.tree.leaves(TREE), expected, strict=True) if flag]
    selected = select(where, TREE)
    assert [a is b for a, b in zip(jax.tree.leaves(selected), kept, strict=True)] == [True] * len(kept)
    merged = merge(where, jax.tree.map(lambda x: x * 5, selected), TREE)
    assert jax.tree.structure(merged) == jax.tree.structure(TREE)
    for new, old, flag in zip(jax.tree.leaves(merged), jax.tree.leaves(TREE), expected, strict=True):
        np.testing.assert_array_equal(new, old * (5 if flag else 1))


def test_a_model_that_can_be_called_is_a_mask_not_a_function():
    assert is_mask_function(lambda tree: tree)
    assert not is_mask_function(Model(True, False))
    assert not is_mask_function(True)
    tree = Model(jnp.ones(2), jnp.ones(3))
    assert flags(resolve(Model(True, False), tree, "masked"), tree) == [True, False]


def test_a_mask_function_sees_the_tree_once():
    calls = []

    def mask(tree):
        calls.append(tree)
        return True

    resolve(mask, TREE, "masked")
    assert calls == [TREE] or (len(calls) == 1 and calls[0] is TREE)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"layer": 1, "head": True, "none": True}, r"masked: the mask at \['layer'\] is 1, not a bool"),
        ({"layer": {"w": "no", "b": True}, "head": True, "none": True}, r"at \['layer'\]\['w'\] is 'no', not a bool"),
        (1.0, r"masked: the mask at the root is 1.0, not a bool"),
        (jnp.array(True), r"masked: the mask at the root is Array\(True, dtype=bool\), not a bool"),
        (lambda tree: 0, r"masked: the mask at the root is 0, not a bool"),
        (lambda tree: jax.tree.map(lambda x: x > 0, tree), r"masked: the mask at \['head'\]\[0\] is .*, not a bool"),
    ],
)
def test_masks_that_are_not_bools_are_refused(mask, message):
    with pytest.raises(TypeError, match=message):
        resolve(mask, TREE, "masked")


def test_traced_masks_are_refused_by_name():
    with pytest.raises(TypeError, match=r"masked: the mask at the root is .*not a bool"):
        jax.jit(lambda m: resolve(m, TREE, "masked"))(True)


@pytest.mark.parametrize(
    "mask",
    [
        {"layer": True},
        {"layer": True, "head": True, "none": True, "more": True},
        {"layer": {"w": True, "b": True, "c": True}, "head": True, "none": True},
        {"layer": {"w": {"x": True}, "b": True}, "head": True, "none": True},
        {"layer": True, "head": (True, True), "none": True},
        {"layer": True, "head": [True], "none": True},
        [True],
        lambda tree: [True],
    ],
    ids=short,
)
def test_masks_that_do_not_fit_are_refused_by_name(mask):
    with pytest.raises(
        ValueError, match=r"^adamw: the mask does not fit the tree: .*It needs the structure of the tree"
    ):
        resolve(mask, TREE, "adamw")


trees = st.recursive(
    st.sampled_from([None, 1.0, 2.0]),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(tree=trees, data=st.data())
def test_random_masks_keep_and_restore(tree, data):
    where = jax.tree.map(lambda _: data.draw(st.booleans()), tree)
    expected = jax.tree.leaves(where)
    assert flags(where, tree) == expected
    selected = select(where, tree)
    assert len(jax.tree.leaves(selected)) == sum(expected)
    merged = merge(where, jax.tree.map(lambda x: -x, selected), tree)
    assert merged == jax.tree.map(lambda flag, x: -x if flag else x, where, tree)
    # A mask over a masked tree: the hidden parts stay hidden.
    assert flags(True, selected) == [True] * sum(expected)
    assert flags(resolve(lambda t: jax.tree.map(lambda x: x == 1.0, t), selected, "masked"), selected) == [
        x == 1.0 for x, flag in zip(jax.tree.leaves(tree), expected, strict=True) if flag
    ]
