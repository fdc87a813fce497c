import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optchain import tree


def test_cast():
    x = {"a": jnp.array([1.5, -2.25]), "b": jnp.array([3]), "c": None, "d": 0.5}
    got = tree.cast(x, jnp.bfloat16)
    assert {got[k].dtype for k in "abd"} == {jnp.dtype(jnp.bfloat16)}
    assert got["a"].tolist() == [1.5, -2.25]
    assert got["c"] is None
    assert tree.cast(x, jnp.int32)["a"].tolist() == [1, -2]
    assert tree.cast(x, None) is x


def test_cast_like():
    x = {"a": jnp.array([1.5, -2.25]), "b": jnp.array([3])}
    got = tree.cast_like(x, {"a": np.zeros((), np.int32), "b": 1.0})
    assert got["a"].tolist() == [1, -2]
    assert got["a"].dtype == got["b"].dtype == jnp.int32
    with pytest.raises(ValueError, match=r"tree\.cast_like.*\['c'\]"):
        tree.cast_like(x, {"a": jnp.ones(1), "c": jnp.ones(1)})


def test_dtype_of_one_kind():
    assert tree.dtype({"a": jnp.ones(2, jnp.float16), "b": jnp.ones(1, jnp.float16), "c": None}) == jnp.float16
    assert tree.dtype(jnp.ones(1, jnp.int32), "lowest") == jnp.int32
    assert tree.dtype([1.0, jnp.ones(1)]) == jnp.float32


@pytest.mark.parametrize("empty", [{}, [], (), None, {"a": [None]}])
def test_dtype_of_no_leaves_is_the_default(empty):
    assert tree.dtype(empty) == tree.dtype(empty, "lowest") == jnp.float32
    with jax.enable_x64(True):
        assert tree.dtype(empty) == jnp.float64


def leaves(*dtypes):
    return [jnp.ones(2, d) for d in dtypes]


@pytest.mark.parametrize(
    ("dtypes", "lowest", "highest"),
    [
        ((jnp.bfloat16, jnp.float32), jnp.bfloat16, jnp.float32),
        ((jnp.float32, jnp.bfloat16), jnp.bfloat16, jnp.float32),
        ((jnp.float32, jnp.complex64, jnp.float16), jnp.float16, jnp.complex64),
        ((jnp.float16, jnp.int8, jnp.float32), jnp.int8, jnp.float32),
    ],
)
def test_dtype_of_mixed_leaves(dtypes, lowest, highest):
    assert tree.dtype(leaves(*dtypes), "lowest") == lowest
    assert tree.dtype(leaves(*dtypes), "highest") == tree.dtype(leaves(*dtypes), "promote") == highest


def test_mixed_leaves_are_refused_by_path():
    with pytest.raises(ValueError, match=r"have different dtypes: float32 at \[0\], bfloat16 at \[1\]"):
        tree.dtype(leaves(jnp.float32, jnp.bfloat16))


@pytest.mark.parametrize("handler", ["lowest", "highest"])
def test_dtypes_without_an_order_are_refused(handler):
    with pytest.raises(ValueError, match=rf"have no {handler} dtype: float16 at \[0\], bfloat16 at \[1\]"):
        tree.dtype(leaves(jnp.float16, jnp.bfloat16), handler)
    assert tree.dtype(leaves(jnp.float16, jnp.bfloat16), "promote") == jnp.float32


def test_the_order_of_the_leaves_does_not_matter():
    for order in itertools.permutations((jnp.float16, jnp.bfloat16, jnp.float32)):
        assert tree.dtype(leaves(*order), "highest") == jnp.float32
        with pytest.raises(ValueError, match="no lowest dtype"):
            tree.dtype(leaves(*order), "lowest")


def test_an_unknown_handler_is_refused():
    with pytest.raises(ValueError, match="'largest'; it must be"):
        tree.dtype(leaves(jnp.float32), "largest")
