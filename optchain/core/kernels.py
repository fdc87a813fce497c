"""The compiled function that runs the rules of consecutive links on one leaf, and the dtypes inside it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from optchain.core import errors


@functools.lru_cache(maxsize=4096)
def kernel(program: tuple[tuple[Callable, tuple, str], ...]) -> Callable:
    """The compiled function of one leaf for a sequence of rules, each with its static arguments and its name.

    Its arguments are the update, the parameter or None, the slots and the scalars of each rule. Equal programs share
    it, whatever the values of the scalars, and it serves every leaf of the same shape and dtype.
    """

    def apply(u, p, slots, numbers):
        arrays = [u, p, *(x for row in slots for x in row)]
        real = jnp.finfo(jnp.result_type(jnp.float32, *(x for x in arrays if x is not None))).dtype
        x, p, new = widen(u, real), None if p is None else widen(p, real), []
        for (rule, static, name), row, values in zip(program, slots, numbers, strict=True):
            operands = jax.tree.map(lambda v: widen(v, real), values)
            out = rule(x, p, *(widen(s, real) for s in row), **operands, **dict(static))
            x, *row_out = out if isinstance(out, tuple) else (out,)
            new.append(tuple(narrow(name, a, old) for a, old in zip(row_out, row, strict=True)))
        return narrow(program[-1][2], x, u), tuple(new)

    return jax.jit(apply)


def widen(x: Any, real: Any) -> jax.Array:
    """`x` in the compute dtype: floating and complex values at the precision `real`, integers and bools as they are."""
    if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        return jnp.asarray(x)
    return jax.lax.convert_element_type(x, jnp.promote_types(real, jnp.complex64) if jnp.iscomplexobj(x) else real)


def narrow(name: str, x: jax.Array, like: jax.Array) -> jax.Array:
    """A result in the dtype of what it replaces; its shape and realness must already be the same."""
    if x.shape != like.shape:
        raise ValueError(
            f"{name}: the rule made {errors.describe(x)} from {errors.describe(like)}; "
            "a hyperparameter that is an array must be a scalar."
        )
    if jnp.iscomplexobj(x) and not jnp.iscomplexobj(like):
        raise TypeError(
            f"{name}: the rule made complex values for a real leaf; take the real part of the hyperparameter."
        )
    return jax.lax.convert_element_type(x, like.dtype)


def dtype_of(x: Any) -> Any:
    """The dtype of an array, or the one that a Python number becomes."""
    return x.dtype if hasattr(x, "dtype") else canonical(float if not isinstance(x, complex) else complex)


def canonical(dtype: Any) -> Any:
    """The dtype that JAX stores for `dtype` in its present precision mode."""
    return jax.dtypes.canonicalize_dtype(dtype)
