"""Small leaves in one buffer: `packed`, `flatten`, and their states in the usual layout."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from optchain.core import errors
from optchain.core.kernels import array_of, dtype_of
from optchain.core.leaves import LeafLink, check_params
from optchain.core.masks import MaskedNode, MaskTree, ParamsPlaceholder, resolve, visible
from optchain.core.pair import GradientTransformation, GradientTransformationExtraArgs, Info
from optchain.core.plan import node_of, pair_of
from optchain.core.value import transform


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where each leaf of a tree lies.

    Attributes:
      treedef: The structure of the tree.
      shapes: The shape of each leaf.
      dtypes: The dtype of each leaf when the layout was made.
      groups: For each vector the leaves in it, by position; they have one dtype and the same links see them.
      rest: The leaves that stay as they are.
    """

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    groups: tuple[tuple[int, ...], ...]
    rest: tuple[int, ...]

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.treedef, self.shapes, self.groups))

    @classmethod
    def of(cls, tree: Any, max_size: float, seen: Callable[[Any], list[list[bool]]]) -> Layout:
        """The layout for `tree`; `seen` tells for each link which leaves it sees."""
        leaves, treedef = jax.tree.flatten(tree)
        shapes, dtypes = tuple(jnp.shape(x) for x in leaves), tuple(map(dtype_of, leaves))
        alike: dict[Any, list[int]] = {}
        links = seen(treedef.unflatten(map(jax.ShapeDtypeStruct, shapes, dtypes)))
        for i, x in enumerate(map(array_of, leaves)):
            if 0 < x.size <= max_size and not any(jax.typeof(x).sharding.spec):
                alike.setdefault((dtypes[i], *(flags[i] for flags in links)), []).append(i)
        groups = tuple(tuple(group) for group in alike.values() if len(group) > 1)
        inside = {i for group in groups for i in group}
        return cls(treedef, shapes, dtypes, groups, tuple(i for i in range(len(leaves)) if i not in inside))

    def pack(self, tree: Any, join: Callable[[list], Any]) -> Packed:
        """`tree` with the leaves of each group joined; a group of masked leaves is one `MaskedNode`."""
        parts = self.treedef.flatten_up_to(tree)
        groups = [[parts[i] for i in group] for group in self.groups]
        vectors = [part[0] if isinstance(part[0], MaskedNode) else join(part) for part in groups]
        return Packed(tuple(vectors), tuple(parts[i] for i in self.rest), self)

    def unpack(self, packed: Packed, cut: Callable[[Any, tuple[int, ...]], list]) -> Any:
        """The tree that was packed, with ``cut(vector, group)`` in the places of the leaves of a group."""
        parts: list[Any] = [None] * len(self.shapes)
        for group, vector in zip(self.groups, packed.vectors, strict=True):
            whole = isinstance(vector, MaskedNode)
            for i, part in zip(group, [vector] * len(group) if whole else cut(vector, group), strict=True):
                parts[i] = part
        for i, part in zip(self.rest, packed.rest, strict=True):
            parts[i] = part
        return self.treedef.unflatten(parts)

    def cut(self, vector: jax.Array, group: tuple[int, ...], dtypes: tuple[Any, ...] | None = None) -> list[jax.Array]:
        """The leaves of a group from their vector, in its dtype unless `dtypes` are given."""
        return _cut(vector, tuple(self.shapes[i] for i in group), dtypes or (vector.dtype,) * len(group))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["vectors", "rest"], meta_fields=["layout"])
@dataclasses.dataclass(frozen=True)
class Packed:
    """A tree whose small leaves lie in a few vectors; it stands in a packed state where the tree would.

    Attributes:
      vectors: One array of one axis for each group of leaves.
      rest: The leaves that are in no group.
      layout: Which leaf lies where.
    """

    vectors: tuple[Any, ...]
    rest: tuple[Any, ...]
    layout: Layout

    @property
    def shapes(self) -> Any:
        """The tree that was packed, with `jax.ShapeDtypeStruct` and `MaskedNode` for leaves."""
        structs = list(map(jax.ShapeDtypeStruct, self.layout.shapes, self.layout.dtypes))
        rest = tuple(
            x if isinstance(x, MaskedNode) else structs[i] for i, x in zip(self.layout.rest, self.rest, strict=True)
        )
        return self.layout.unpack(Packed(self.vectors, rest, self.layout), lambda _, group: [structs[i] for i in group])


@transform
def packed(inner: GradientTransformation, max_size: int | None = 2**12) -> GradientTransformationExtraArgs:
    """Runs an elementwise transform on the small leaves of each dtype joined to one vector.

    The numbers are those of `inner` on its own, but for the last rounding of norms over the whole tree and of half
    precision. The state of small leaves lies in the vectors: a thousand small leaves cost a handful of kernels and one
    each for their updates.
    `unpack_state` and `pack_state` convert the state.

    Args:
      inner: A transform each of whose links changes every entry by itself, such as `adamw` behind a
        `clip_by_global_norm`. Masks in it are looked up once, on the shapes and dtypes of the parameters.
      max_size: The most entries of a leaf that is joined; None joins all leaves.

    Returns:
      A pair whose state is that of `inner`, with a `Packed` in place of each tree like the parameters.

    Raises:
      TypeError: if a link of `inner` looks at whole tensors, or does not say that it does not, as a pair written by
        hand; from ``init`` and while tracing, if a leaf is no array of a floating or complex dtype.
      ValueError: if `max_size` is less than 1; while tracing, if updates do not fit the parameters.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.packed(optchain.trace(0.9))
      >>> params = {"b": jnp.zeros(3), "w": jnp.zeros((2, 2))}
      >>> state = tx.init(params)
      >>> [vector.shape for vector in state.trace.vectors]
      [(7,)]
      >>> updates, state = tx.update({"b": jnp.ones(3), "w": jnp.ones((2, 2))}, state)
      >>> updates["w"].tolist()
      [[1.0, 1.0], [1.0, 1.0]]
    """
    errors.check_pair("packed", "inner", inner)
    if max_size is not None and not (isinstance(max_size, int) and max_size >= 1):
        raise ValueError(
            f"packed: max_size must be an integer of at least 1, or None for all leaves, not {max_size!r}."
        )
    return _packed("packed", inner, math.inf if max_size is None else max_size)


@transform
def flatten(inner: GradientTransformation) -> GradientTransformationExtraArgs:
    """Runs an elementwise transform on all leaves of each dtype joined to one vector: `packed` for leaves of any size.

    Args:
      inner: See `packed`.

    Returns:
      A pair whose state is that of `inner`, with a `Packed` in place of each tree like the parameters.

    Raises:
      TypeError: if a link of `inner` looks at whole tensors, or does not say that it does not.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> tx = optchain.flatten(optchain.sgd(0.5))
      >>> params = {"b": jnp.ones(1), "w": jnp.ones((1, 2))}
      >>> tx.update(params, tx.init(params))[0]["w"].tolist()
      [[-0.5, -0.5]]

    Notes:
      Optax joins leaves of different dtypes in their common dtype, and takes rules that look at whole tensors, which
      then see all leaves as one.
    """
    errors.check_pair("flatten", "inner", inner)
    return _packed("flatten", inner, math.inf)


def unpack_state(state: Any) -> Any:
    """Converts the state of a packed transform to that of the transform inside.

    Args:
      state: A state, or any tree with states of `packed` or `flatten` in it.

    Returns:
      The same with the trees like the parameters in their usual form. Arrays of leaves that were not joined are shared.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> state = optchain.packed(optchain.trace(0.9)).init([jnp.zeros(2), jnp.zeros(())])
      >>> optchain.unpack_state(state).trace
      [Array([0., 0.], dtype=float32), Array(0., dtype=float32)]
    """

    def unpack(part: Any) -> Any:
        return part.layout.unpack(part, part.layout.cut) if _is_packed(part) else part

    return jax.tree.map(unpack, state, is_leaf=_is_packed)


def pack_state(tx: GradientTransformation, state: Any, params: Any) -> Any:
    """Converts a state of the transform inside a packed one to a state of the packed one.

    Args:
      tx: What `packed` or `flatten` returned.
      state: A state of the transform that it was given.
      params: The parameters, or their shapes and dtypes (`jax.ShapeDtypeStruct`).

    Returns:
      A state for ``tx.update``.

    Raises:
      ValueError: if `state` is not one of the transform inside for these parameters, by structure, shapes and dtypes.
      TypeError: if `tx` is no packed transform.

    Example:
      >>> import jax.numpy as jnp, optchain
      >>> params, inner = [jnp.zeros(2), jnp.zeros(())], optchain.trace(0.9)
      >>> state = optchain.pack_state(optchain.packed(inner), inner.init(params), params)
      >>> state.trace.vectors
      (Array([0., 0., 0.], dtype=float32),)
    """
    call = tx.info.call if isinstance(tx, GradientTransformation) else None
    if call is None or call.builder not in (packed, flatten):
        raise TypeError(f"pack_state: tx is {tx!r}; pass what packed or flatten returned.")
    expected, fix = jax.eval_shape(tx.links[0].init, params), "Pass its state, and the parameters that it was made for."
    if jax.tree.structure(state) != jax.tree.structure(expected):
        raise ValueError(f"pack_state: the state does not have the structure that {tx.links[0]!r} gives it. {fix}")
    for (path, x), like in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(expected), strict=True):
        if (jnp.shape(x), dtype_of(x)) != (like.shape, like.dtype):
            raise ValueError(
                f"pack_state: the state {errors.at(path)} is {errors.describe(x)}, but {tx.links[0]!r} has "
                f"{errors.describe(like)} there. {fix}"
            )
    like, structure = jax.tree.flatten(jax.eval_shape(tx.init, params), is_leaf=_is_packed)
    parts = structure.flatten_up_to(state)
    return structure.unflatten(
        x.layout.pack(part, _join) if _is_packed(x) else part for x, part in zip(like, parts, strict=True)
    )


def _packed(name: str, inner: GradientTransformation, max_size: float) -> GradientTransformationExtraArgs:
    node = node_of(inner)
    for atom in node.atoms:
        if not (isinstance(atom, LeafLink) and atom.elementwise):
            label = atom.label if isinstance(atom, LeafLink) else atom.name or "a pair written by hand"
            raise TypeError(
                f"{name}: {label} may look at whole tensors, which the joined leaves no longer are. Leave it outside, "
                "as in chain(..., packed(...)); if it changes every entry by itself, build it with "
                "leafwise(..., elementwise=True)."
            )
    run = pair_of(node.map_masks(functools.partial(_mask_of_packed, name)), Info())

    def layout_of(tree: Any) -> Layout:
        atoms = [atom for atom in node.atoms if isinstance(atom, LeafLink) and atom.masks]
        return Layout.of(tree, max_size, lambda tree: [visible(a.masks, a.label, tree)[0] or [] for a in atoms])

    def init(params: Any) -> Any:
        if isinstance(params, ParamsPlaceholder):
            return inner.init(params)
        errors.check_leaves(name, "parameter", jax.tree.leaves(params), params)
        return run.init(layout_of(params).pack(params, _join))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        leaves, treedef = jax.tree.flatten(updates)
        errors.check_leaves(name, "gradient", leaves, updates)
        if params is not None:
            check_params(name, updates, params)
            errors.check_leaves(name, "params", jax.tree.leaves(params), params)
        found = next(filter(_is_packed, jax.tree.leaves(state, is_leaf=_is_packed)), None)
        layout = found.layout if found else layout_of(updates if params is None else params)
        if treedef != layout.treedef or tuple(map(jnp.shape, leaves)) != layout.shapes:
            like = layout.treedef.unflatten(map(jax.ShapeDtypeStruct, layout.shapes, layout.dtypes))
            raise (errors.structure_mismatch if treedef != layout.treedef else errors.shape_mismatch)(
                name, "updates", updates, "the parameters of init", like
            )
        if params is not None:
            params = layout.pack(params, _join)
        new, state = run.update(layout.pack(updates, _join), state, params, **extra_args)
        dtypes = tuple(map(dtype_of, leaves))
        return layout.unpack(new, lambda v, group: layout.cut(v, group, tuple(dtypes[i] for i in group))), state

    info = Info(links=(inner,), sign=getattr(inner, "sign", None))
    return GradientTransformationExtraArgs.build(init, update, info)


def _mask_of_packed(name: str, mask: MaskTree) -> Callable[[Packed], Packed]:
    """The mask of a packed tree: a group is masked as its leaves are, which are all masked alike."""

    def mask_of(tree: Packed) -> Packed:
        shapes = tree.shapes
        flags = jax.tree.broadcast(resolve(mask, shapes, name), shapes)
        values = tree.layout.treedef.flatten_up_to(flags)
        for group in tree.layout.groups:
            for i in group:
                if values[i] != values[group[0]]:
                    like = jax.tree.unflatten(tree.layout.treedef, range(len(values)))
                    path = next(path for path, position in errors.paths(like) if position == i)
                    raise ValueError(
                        f"{name}: the mask {errors.at(path)} is {values[i]}, but this state was made with a mask that "
                        "is the same for this leaf and those that are joined with it. Convert the state: "
                        "pack_state(tx, unpack_state(state), params)."
                    )
        return tree.layout.pack(flags, lambda group: group[0])

    return mask_of


def _is_packed(node: Any) -> bool:
    return isinstance(node, Packed)


def _join(arrays: list) -> jax.Array:
    if isinstance(arrays[0], jax.ShapeDtypeStruct):
        return jax.eval_shape(_join_arrays, arrays)
    return _join_arrays(list(map(array_of, arrays)))


@jax.jit
def _join_arrays(arrays: list[jax.Array]) -> jax.Array:
    dtype = jnp.result_type(*(x.dtype for x in arrays))
    return lax.concatenate([lax.reshape(x, (x.size,)).astype(dtype) for x in arrays], 0)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _cut(vector: jax.Array, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[Any, ...]) -> list[jax.Array]:
    sizes = [math.prod(shape) for shape in shapes]
    starts = _unknown([0, *itertools.accumulate(sizes[:-1])], vector)
    cut = functools.partial(lax.dynamic_slice, vector, allow_negative_indices=False)
    parts = [cut((start,), (size,)) for start, size in zip(starts, sizes, strict=True)]
    return [lax.reshape(x, shape).astype(dtype) for x, shape, dtype in zip(parts, shapes, dtypes, strict=True)]


def _unknown(numbers: list[int], vector: jax.Array) -> list[jax.Array]:
    """Integers that XLA on CPU does not know, so that it compiles one kernel for all slices of one size."""

    def constants() -> list[jax.Array]:
        return [lax.full((), n, jnp.int32) for n in numbers]

    # Both branches are the same; which one runs depends on the data, and XLA does not compare them.
    return lax.platform_dependent(
        vector.real[0] > 0, cpu=lambda which: lax.cond(which, constants, constants), default=lambda which: constants()
    )
