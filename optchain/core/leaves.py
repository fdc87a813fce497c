"""Leaf rules: from a function of arrays to a link over pytrees.

The mathematics of an elementwise transform is one small function of arrays. `leafwise` lifts it: it makes the state,
counts steps, checks the trees, and runs the function as one compiled kernel a leaf. A link made so is data
(`LeafLink`), which is why a chain can run several in one kernel (`optchain.core.plan`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from optchain.core import errors
from optchain.core.kernels import array_of, canonical, compute_dtype, dtype_of, kernel, run_each
from optchain.core.masks import MaskTree, visible
from optchain.core.pair import EmptyState, GradientTransformationExtraArgs, Info
from optchain.core.plan import Node, pair_of


@dataclasses.dataclass(frozen=True)
class Slot:
    """One array a parameter in a transform's state.

    Attributes:
      dtype: What it is stored in; None for the parameter's dtype. Storage only, arithmetic is float32 or wider. A real
        dtype for a complex parameter means the complex dtype of that width.
      fill: The value it starts with.
      squared: Whether it holds squared magnitudes. These are real for complex parameters, and float32 or wider unless
        `dtype` says otherwise: half precision cannot hold an average that moves by 0.1 per cent a step.
    """

    dtype: Any = None
    fill: float = 0.0
    squared: bool = False

    def dtype_for(self, dtype: Any) -> Any:
        """The dtype stored for a parameter of `dtype`."""
        if self.squared:
            return canonical(self.dtype or compute_dtype(dtype))
        if self.dtype is None:
            return dtype
        wanted = canonical(self.dtype)
        return jnp.promote_types(wanted, jnp.complex64) if jnp.issubdtype(dtype, jnp.complexfloating) else wanted

    def make(self, param: Any) -> jax.Array:
        """A fresh array for one parameter, with its shape and sharding."""
        return jnp.full_like(param, self.fill, dtype=self.dtype_for(dtype_of(param)))


def leafwise(
    rule: Callable[..., Any],
    state: Any = EmptyState,
    *,
    slots: tuple[str, ...] | Mapping[str, Slot] = (),
    scalars: Callable[[Any], dict[str, Any]] | None = None,
    tree_scalars: Callable[[Any, Any, Any], dict[str, Any]] | None = None,
    static: Mapping[str, Any] | None = None,
    needs_params: bool = False,
    elementwise: bool = False,
    sign: int | None = None,
) -> GradientTransformationExtraArgs:
    """Lifts a function of arrays to a transform over pytrees.

    For each leaf the rule is called as ``rule(u, p, *slots, **scalars, **static)`` with the update `u`, the parameter
    `p` (None unless `needs_params`) and the leaf's slots, all in float32 or wider. It returns the new update followed
    by the new slots, each of the shape of `u`. The update is cast back to the dtype of the incoming one, each slot to
    its own.

    Args:
      rule: The function, at module level so that its compiled kernel is shared. It may reduce within its leaf.
      state: The NamedTuple class of the state: its fields are the slots and, if there is one more, the int32 step
        count.
      slots: Names of the fields that hold one array a parameter, or a mapping from names to `Slot`.
      scalars: From the state before the step to numbers for the rule, computed once a step. Python numbers become
        operands of the kernel, so that a new value compiles nothing.
      tree_scalars: The same from ``(updates, state, params)``, for numbers that reduce over the whole tree, such as a
        norm.
      static: Arguments of the rule that are no numbers: bools, strings, tuples of axes.
      needs_params: Whether the rule or `tree_scalars` reads the parameters.
      elementwise: Whether an entry of the results depends on the same entry of the arrays and on the scalars alone: not
        on other entries, nor on the shape. Nor may `tree_scalars` depend on how the tree is cut into leaves. `packed`
        asks for it.
      sign: +1 if the rule keeps the direction of the update, -1 if it flips it; None says nothing.

    Returns:
      A pair. Decorate the function that returns it with `transform` to give it a name and make it a value.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> def soft_sign_rule(u, p, *, width):
      ...     return u / (width + abs(u))
      >>> @optchain.transform
      ... def soft_sign(width=1.0):
      ...     return optchain.leafwise(soft_sign_rule, scalars=lambda state: dict(width=width), sign=+1)
      >>> tx = optchain.chain(soft_sign(3.0), optchain.sgd(0.1))
      >>> updates, _ = tx.update(jnp.array([1.0, -3.0]), tx.init(jnp.zeros(2)))
      >>> [round(float(u), 6) for u in updates]
      [-0.025, 0.05]
    """
    named = dict(slots) if isinstance(slots, Mapping) else {name: Slot() for name in slots}
    counters = [field for field in getattr(state, "_fields", ()) if field not in named]
    if len(counters) > 1 or any(name not in state._fields for name in named):
        raise TypeError(
            f"leafwise: the fields of {state.__name__} must be the slots {list(named)} and at most one count, "
            f"not {state._fields}."
        )
    link = LeafLink(
        rule=rule,
        state=state,
        slots=named,
        counter=counters[0] if counters else None,
        scalars=scalars,
        tree_scalars=tree_scalars,
        static=tuple(sorted((static or {}).items())),
        needs_params=needs_params,
        elementwise=elementwise,
    )
    return pair_of(link, Info(sign=sign))


@dataclasses.dataclass(frozen=True, eq=False)
class LeafLink(Node):
    """A leaf rule with what it needs; the fields are the arguments of `leafwise`, and `masks`, outermost first."""

    rule: Callable[..., Any]
    state: Any
    slots: dict[str, Slot]
    counter: str | None
    scalars: Callable[[Any], dict[str, Any]] | None
    tree_scalars: Callable[[Any, Any, Any], dict[str, Any]] | None
    static: tuple[tuple[str, Any], ...]
    needs_params: bool
    elementwise: bool
    masks: tuple[MaskTree, ...] = ()

    @property
    def label(self) -> str:
        return self.name or self.rule.__name__

    def masked(self, mask, mask_extra_args=False):
        return dataclasses.replace(self, masks=(mask, *self.masks))

    def map_masks(self, f):
        return dataclasses.replace(self, masks=tuple(map(f, self.masks)))

    def init(self, params):
        leaves, treedef = jax.tree.flatten(params)
        errors.check_leaves(self.label, "parameter", leaves, params)
        for name, slot in self.slots.items():
            if slot.dtype is not None and not jnp.issubdtype(slot.dtype, jnp.floating):
                raise TypeError(f"{self.label}: {name} cannot be stored in {slot.dtype}; pass a floating dtype.")
        fields = {k: treedef.unflatten([slot.make(p) for p in leaves]) for k, slot in self.slots.items()}
        if self.counter:
            fields[self.counter] = jnp.zeros([], jnp.int32)
        return self.state(**fields)

    def joins(self, first):
        # Scalars of the whole tree must see the updates that the links before made.
        return isinstance(first, LeafLink) and self.tree_scalars is None

    def run(self, atoms, states, updates, params, extra_args):
        """Runs consecutive leaf links as one kernel a leaf."""
        del extra_args
        leaves, treedef = jax.tree.flatten(updates)
        # Those that need the parameters first: a user knows these, and not what the slots of a state are called.
        order = sorted(range(len(atoms)), key=lambda k: not atoms[k].needs_params)
        ready = {k: atoms[k].open(states[k], updates, params) for k in order}
        opened = [ready[k] for k in range(len(atoms))]
        if params is not None and not atoms[order[0]].needs_params:
            check_params(self.label, updates, params)
        groups: dict[tuple[bool, ...], list[int]] = {}  # by the links that see a leaf; without masks there is one
        for i in range(len(leaves)):
            groups.setdefault(tuple(o.rows[i] is not None for o in opened), []).append(i)
        done: list[list] = [[None] * len(leaves) for _ in atoms]
        for seen, indices in groups.items():
            active = [k for k, flag in enumerate(seen) if flag]
            if not active:
                continue
            inputs = []
            for i in indices:
                rows = [opened[k].rows[i] for k in active]
                p = next((row[0] for row in rows if row[0] is not None), None)
                inputs.append((array_of(leaves[i]), array_of(p), tuple(tuple(row[1:]) for row in rows)))
            run = kernel(tuple((atoms[k].rule, atoms[k].static, atoms[k].label) for k in active))
            numbers = tuple(opened[k].numbers for k in active)
            for i, (leaf, slots) in zip(indices, run_each(run, inputs, numbers), strict=True):
                leaves[i] = leaf
                for k, new in zip(active, slots, strict=True):
                    done[k][i] = new
        return treedef.unflatten(leaves), [o.close(rows) for o, rows in zip(opened, done, strict=True)]

    def open(self, state: Any, updates: Any, params: Any) -> Open:
        """Checks updates, state and parameters against each other and computes the scalars of one step."""
        errors.check_state(self.label, (*self.slots, *((self.counter,) if self.counter else ())), state)
        if not self.needs_params:
            params = None
        elif params is None:
            raise errors.missing_params(self.label)
        elif jax.tree.structure(params) != jax.tree.structure(updates):
            raise errors.structure_mismatch(self.label, "updates", updates, "params", params)
        seen, updates, params = visible(self.masks, self.label, updates, params)
        leaves, treedef = jax.tree.flatten(updates)
        errors.check_leaves(self.label, "gradient", leaves, updates)
        against = functools.partial(match, self.label, updates, leaves, treedef)
        needed = against("params", params) if self.needs_params else repeat(None)
        slots = [against(name, getattr(state, name), slot.squared) for name, slot in self.slots.items()]
        numbers = dict(self.scalars(state)) if self.scalars else {}
        if self.tree_scalars:
            numbers |= self.tree_scalars(updates, state, params)
        rows: list[Any] = [row for _, *row in zip(leaves, needed, *slots, strict=False)]
        if seen is not None:
            inner = iter(rows)
            rows = [next(inner) if flag else None for flag in seen]
        return Open(self, state, treedef, rows, concrete(self.label, numbers, leaves))


@dataclasses.dataclass(frozen=True, eq=False)
class Open:
    """A leaf link in the middle of a step.

    Attributes:
      treedef: The structure of the updates that the link sees.
      rows: For each leaf of the whole tree None if the link does not see it, else the parameter, or None if it is not
        needed, followed by the slots.
      numbers: The scalars of this step.
    """

    link: LeafLink
    state: Any
    treedef: Any
    rows: list[list | None]
    numbers: dict[str, Any]

    def close(self, rows: list[tuple | None]) -> Any:
        """The state after the step, from the new slots of each leaf that the link sees."""
        link, new = self.link, {}
        rows = [row for row in rows if row is not None]
        if link.slots:
            columns = zip(*rows, strict=True) if rows else [()] * len(link.slots)
            new = {name: self.treedef.unflatten(column) for name, column in zip(link.slots, columns, strict=True)}
        if link.counter:
            new[link.counter] = safe_increment(getattr(self.state, link.counter))
        return self.state._replace(**new) if new else self.state


def match(name: str, updates: Any, leaves: list, treedef: Any, what: str, tree: Any, squared: bool = False) -> list:
    """The leaves of `tree`, which must be of the structure, the shapes and the kind of those of `updates`.

    The kind is real or complex; squared magnitudes are real.
    """
    column, structure = jax.tree.flatten(tree)
    if structure != treedef:
        raise errors.structure_mismatch(name, "updates", updates, what, tree)
    errors.check_leaves(name, what, column, tree)
    for u, x in zip(leaves, column, strict=True):
        if getattr(u, "shape", ()) != getattr(x, "shape", ()):
            raise errors.shape_mismatch(name, "updates", updates, what, tree)
        if np.iscomplexobj(x) != (np.iscomplexobj(u) and not squared):
            raise errors.kind_mismatch(name, "updates", updates, what, tree, squared)
    return column


def check_params(name: str, updates: Any, params: Any) -> None:
    """Refuses parameters of another structure or shape than the updates, for links that do not read them.

    A None among the updates may face anything, since nothing happens there.
    """
    given = params
    if jax.tree.structure(params) != jax.tree.structure(updates):
        leaves, treedef = jax.tree.flatten(updates, is_leaf=lambda x: x is None)
        with contextlib.suppress(ValueError):  # the trees part further up
            faced = zip(leaves, treedef.flatten_up_to(params), strict=True)
            params = treedef.unflatten([None if u is None else p for u, p in faced])
        if jax.tree.structure(params) != jax.tree.structure(updates):
            raise errors.structure_mismatch(name, "updates", updates, "params", given)
    for u, p in zip(jax.tree.leaves(updates), jax.tree.leaves(params), strict=True):
        if getattr(u, "shape", ()) != getattr(p, "shape", ()):
            raise errors.shape_mismatch(name, "updates", updates, "params", params)


def concrete(name: str, numbers: dict[str, Any], leaves: list) -> dict[str, Any]:
    """The scalars as the kernels take them: as they are in a trace, arrays made once a step in eager code."""
    traced = any(isinstance(x, Tracer) for x in leaves[:1])

    def operand(path: tuple, x: Any) -> Any:
        if jnp.ndim(x):
            raise ValueError(
                f"{name}: {path[0].key} is {errors.describe(x)}; a hyperparameter that is an array must be a scalar."
            )
        x = float(x) if isinstance(x, int) else x  # an integer may not fit the integers of JAX
        return x if traced else jnp.asarray(x)

    return jax.tree.map_with_path(operand, numbers)


@jax.jit
def safe_increment(count: jax.typing.ArrayLike) -> jax.Array:
    """Adds one to a count, which stays at the largest value of its dtype instead of overflowing.

    Args:
      count: A scalar of an integer or floating dtype.

    Returns:
      The next count, in the same dtype.

    Raises:
      ValueError: for any other dtype.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> optchain.safe_increment(jnp.int32(3)).item(), optchain.safe_increment(jnp.int32(2**31 - 1)).item()
      (4, 2147483647)
    """
    count = jnp.asarray(count)
    if jnp.issubdtype(count.dtype, jnp.integer):
        top = jnp.iinfo(count.dtype).max
    elif jnp.issubdtype(count.dtype, jnp.floating):
        top = jnp.finfo(count.dtype).max
    else:
        raise ValueError(f"safe_increment: {count.dtype} does not count; use an integer or floating dtype.")
    return jnp.where(count < top, count + jnp.ones([], count.dtype), jnp.full([], top, count.dtype))
