"""The builders of messages: which transform, which leaf, what was found, what to do."""

import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optchain.core import errors
from tests.naming import short


class Box(NamedTuple):
    value: object


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (jnp.ones((3, 4)), "float32[3,4]"),
        (np.ones((), np.float16), "float16[]"),
        (jax.ShapeDtypeStruct((2,), jnp.bfloat16), "bfloat16[2]"),
        (None, "None"),
        (3, "a value of type int"),
        ("text", "a value of type str"),
    ],
    ids=short,
)
def test_what_was_found(value, text):
    assert errors.describe(value) == text


def test_where_it_was_found():
    tree = {"layer": [Box(1.0)]}
    ((path, _),) = errors.paths(tree)
    assert errors.at(path) == "at ['layer'][0].value"
    assert errors.at(()) == "at the root"


def test_paths_count_none_as_a_leaf():
    assert [value for _, value in errors.paths({"a": None, "b": 1.0, "c": ()})] == [None, 1.0]


def test_missing_params():
    error = errors.missing_params("adamw")
    assert isinstance(error, ValueError)
    assert str(error) == "adamw needs the parameters: call update(grads, state, params)."


@pytest.mark.parametrize(
    ("leaf", "found", "advice"),
    [
        (jnp.arange(3), r"int32\[3\]", "Cast it to a floating dtype"),
        (np.array([True]), r"bool\[1\]", "Cast it to a floating dtype"),
        (np.zeros((2,), jax.dtypes.float0), r".*\[2\]", "leave it out of the tree"),
        (jax.random.key(0), r"key<fry>\[\]", "Cast it to a floating dtype|leave it out"),
        ("relu", "a value of type str", "Keep only the arrays"),
        (True, "a value of type bool", "Keep only the arrays"),
        (jnp.tanh, "a value of type", "Keep only the arrays"),
    ],
    ids=short,
)
def test_a_leaf_that_cannot_be_optimized(leaf, found, advice):
    error = errors.not_a_leaf("sgd", "gradient", {"ok": jnp.ones(2), "also": 1.0, "none": None, "x": [leaf]})
    assert isinstance(error, TypeError)
    with pytest.raises(TypeError, match=rf"^sgd: the gradient leaf at \['x'\]\[0\] is {found}.*, not a floating"):
        raise error
    with pytest.raises(TypeError, match=advice):
        raise error


@pytest.mark.parametrize(
    ("tree", "reference", "found"),
    [
        ({"a": 1.0, "b": 1.0}, {"a": 1.0, "c": 1.0}, r"params has a leaf at \['c'\] where updates has one at \['b'\]"),
        ({"a": 1.0}, {"a": 1.0, "b": 1.0}, r"only params has a leaf at \['b'\]"),
        ({"a": 1.0, "b": [1.0]}, {"a": 1.0}, r"only updates has a leaf at \['b'\]\[0\]"),
        (
            {"a": None, "b": 1.0},
            {"a": 1.0, "b": 1.0},
            r"at \['a'\] params holds a value of type float and updates holds None",
        ),
        ([1.0, 2.0], (1.0, 2.0), r"the containers differ: PyTreeDef\(\[\*, \*\]\) against PyTreeDef\(\(\*, \*\)\)"),
        ({"a": 1.0, "b": ()}, {"a": 1.0, "b": []}, "the containers differ"),
        ({}, {"a": 1.0}, r"only params has a leaf at \['a'\]"),
        ({"a": 1.0}, None, r"params has a leaf at the root where updates has one at \['a'\]|only updates has a leaf"),
    ],
    ids=short,
)
def test_trees_of_different_structure(tree, reference, found):
    error = errors.structure_mismatch("trace", "updates", tree, "params", reference)
    assert isinstance(error, ValueError)
    with pytest.raises(
        ValueError, match=rf"^trace: updates and params have different tree structures: ({found}).*\. Pass gradients"
    ):
        raise error


def test_leaves_of_different_shapes():
    error = errors.shape_mismatch(
        "trace",
        "updates",
        {"a": jnp.ones(2), "b": [jnp.ones((2, 3))], "n": None},
        "params",
        {"a": np.ones(2), "b": [np.ones((3, 2), np.float16)], "n": None},
    )
    assert isinstance(error, ValueError)
    assert str(error) == (
        "trace: updates at ['b'][0] is float32[2,3] but params there is float16[3,2]. "
        "Shapes must be equal; nothing is broadcast."
    )


@pytest.mark.parametrize(
    ("state", "found"),
    [((1, 2), "a tuple of 2"), (Box(1), "a value of type Box"), (None, "a value of type NoneType")],
    ids=short,
)
def test_wrong_states(state, found):
    with pytest.raises(ValueError, match=f"^ema: the state has no field 'count'; found {found}. Pass the state"):
        errors.check_state("ema", ("count",), state)
    assert f"2 links (clip, sgd); found {found}. Make it with init" in str(
        errors.wrong_chain_state("chain", ("clip", "sgd"), state)
    )


def test_pairs_are_checked():
    errors.check_pair("chain", 0, types.SimpleNamespace(init=len, update=len))
    with pytest.raises(TypeError, match=r"chain: argument 0 is <class .*Box'>, not a pair.*call it: Box\(\.\.\.\)"):
        errors.check_pair("chain", 0, Box)
    with pytest.raises(TypeError, match=r"chain: argument 2 is Box\(value=1\), not a pair.*pass a transform"):
        errors.check_pair("chain", 2, Box(1))
    with pytest.raises(TypeError, match="not a pair"):
        errors.check_pair("chain", 0, types.SimpleNamespace(init=len, update=3))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, True),
        (1.0, True),
        (1j, True),
        (True, False),
        ("1", False),
        (None, False),
        (jnp.ones(2), True),
        (jnp.ones(2, jnp.bfloat16), True),
        (np.ones(2, np.complex64), True),
        (jax.ShapeDtypeStruct((), jnp.float32), True),
        (np.float64(1.0), True),
        (jnp.arange(2), False),
        (np.array(["text"]), False),
        (np.zeros(2, jax.dtypes.float0), False),
    ],
    ids=short,
)
def test_what_can_be_optimized(value, expected):
    assert errors.is_inexact(value) is expected


def test_numbers_are_pythons_without_bools():
    assert [errors.is_number(x) for x in (1, 1.5, 2j, True, None, "1", jnp.ones(()), np.ones(()))] == [True] * 3 + [
        False
    ] * 5
