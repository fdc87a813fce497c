"""The compiled function that runs the rules of consecutive links on one leaf, and the dtypes inside it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from optchain.core import errors

# From this many leaves of one kind on, several go to a call: fewer do not pay for the trace of one more function.
FEW = 32


@functools.lru_cache(maxsize=4096)
def kernel(program: tuple[tuple[Callable, tuple, str], ...]) -> Callable:
    """The compiled function of one leaf for a sequence of rules, each with its static arguments and its name.

    Its arguments are the update, the parameter or None, the slots and the scalars of each rule. Equal programs share
    it, whatever the values of the scalars, and it serves every leaf of the same shape and dtype.
    """

    def apply(u, p, slots, numbers):
        real = compute_dtype(*(x.dtype for x in (u, p, *(s for row in slots for s in row)) if x is not None))
        x, p, new = widen(u, real), None if p is None else widen(p, real), []
        for (rule, static, name), row, values in zip(program, slots, numbers, strict=True):
            scalars = jax.tree.map(lambda v: widen(v, real), values)
            out = rule(x, p, *(widen(s, real) for s in row), **scalars, **dict(static))
            x, *rest = out if isinstance(out, tuple) else (out,)
            if len(rest) != len(row):
                raise TypeError(
                    f"{name}: the rule returned {1 + len(rest)} values; it must return the update and {len(row)} slots."
                )
            for made, old in zip((x, *rest), (u, *row), strict=True):
                check(name, made, old)
            new.append(tuple(lax.convert_element_type(made, old.dtype) for made, old in zip(rest, row, strict=True)))
        return lax.convert_element_type(x, u.dtype), tuple(new)

    return jax.jit(apply)


def run_each(run: Callable, leaves: list[tuple], numbers: Any) -> list:
    """``[run(*leaf, numbers) for leaf in leaves]``, in fewer calls: leaves of one kind go several to a call.

    What a call costs, in eager code, in tracing and in lowering, is most of the cost of a small leaf. As many calls as
    leaves in each are the fewest to trace, and powers of two are shared between trees.

    Args:
      run: A compiled function of one leaf, as `kernel` makes it.
      leaves: For each leaf the arguments of `run`, the first an array.
      numbers: The last argument, one for all leaves.
    """
    kinds: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        kinds.setdefault((leaf[0].shape, *map(kind, jax.tree.leaves(leaf))), []).append(i)
    made: list[Any] = [None] * len(leaves)
    for indices in kinds.values():
        size = 2 ** round(math.log2(len(indices)) / 2)
        stop = len(indices) // size * size if len(indices) >= FEW else 0
        for start in range(0, stop, size):
            batch = indices[start : start + size]
            for i, out in zip(batch, several(run)([leaves[i] for i in batch], numbers), strict=True):
                made[i] = out
        for i in indices[stop:]:
            made[i] = run(*leaves[i], numbers)
    return made


def kind(x: Any) -> tuple:
    """What arrays of one shape must share to take the same place in calls that are compiled once."""
    if isinstance(x, jax.Array) and not isinstance(x, Tracer):
        return x.dtype, x.weak_type, x.sharding, x.committed  # arrays on different devices cannot enter one call
    return getattr(x, "dtype", type(x)), getattr(x, "weak_type", False)


@functools.lru_cache(maxsize=4096)
def several(run: Callable) -> Callable:
    """The compiled function that calls `run` for each of a list of leaves."""
    return jax.jit(lambda leaves, numbers: [run(*leaf, numbers) for leaf in leaves])


def compute_dtype(*dtypes: Any) -> Any:
    """The real dtype in which arrays of these dtypes are computed with: float64 if one is as wide, else float32."""
    floating = (dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact))
    return jnp.float64 if any(jnp.finfo(dtype).bits == 64 for dtype in floating) else jnp.float32


def widen(x: Any, real: Any) -> jax.Array:
    """`x` in the compute dtype: floating and complex values at the precision `real`, integers and bools as they are."""
    if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        return jnp.asarray(x)
    return lax.convert_element_type(x, jnp.promote_types(real, jnp.complex64) if jnp.iscomplexobj(x) else real)


def check(name: str, made: jax.Array, old: jax.Array) -> None:
    """Refuses a result of a rule that cannot take the place of what it was made from."""
    if not hasattr(made, "shape"):
        raise TypeError(f"{name}: the rule returned {errors.describe(made)} for {errors.describe(old)}, not an array.")
    if made.shape != old.shape:
        raise ValueError(
            f"{name}: the rule made {errors.describe(made)} from {errors.describe(old)}; it must keep the shape."
        )
    if jnp.iscomplexobj(made) and not jnp.iscomplexobj(old):
        raise TypeError(
            f"{name}: the rule made complex values for a real leaf; take the real part of the hyperparameter."
        )


def dtype_of(x: Any) -> Any:
    """The dtype of an array, or the one that a Python number becomes."""
    return canonical(x.dtype if hasattr(x, "dtype") else complex if isinstance(x, complex) else float)


def array_of(x: Any) -> Any:
    """`x`, or the array that a Python number becomes."""
    return jnp.asarray(x, dtype_of(x)) if errors.is_number(x) else x


def canonical(dtype: Any) -> Any:
    """The dtype that JAX stores for `dtype` in its present precision mode."""
    return jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True)
