"""Every public transform with arguments for it, and what it keeps: the list that the tests of promises run over."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax

import optchain as oc
from optchain import schedules


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One way to call a public builder.

    Attributes:
      name: What the case is called.
      builder: The public function that it covers.
      build: Makes the pair from the numbers.
      numbers: The numeric arguments; each must also work as an array, traced and differentiated.
      zero: Whether zero gradients give zero updates whatever the parameters are.
      params: Whether the update needs the parameters.
      nonfinite: What becomes NaN for one NaN in the gradient: that "entry", its "unit" of weights, its "leaf", the
        whole "tree", or nothing ("erased").
      complex: Whether complex leaves work; else they are refused by name.
      checks: Whether leaves that are no floating-point arrays are refused.
      local: Whether a leaf's update depends on that leaf only.
      joins: Whether leaves are joined, which loses their sharding.
      plain: Whether the call can be read back from `repr`.
    """

    name: str
    builder: Callable[..., Any]
    build: Callable[..., oc.GradientTransformation]
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)
    zero: bool = True
    params: bool = False
    nonfinite: str = "entry"
    complex: bool = True
    checks: bool = True
    local: bool = True
    joins: bool = False
    plain: bool = True

    def make(self, **numbers: Any) -> Any:
        return self.build(**{**self.numbers, **numbers})


def call(name: str, builder: Callable[..., Any], numbers: dict[str, float] | None = None, **kwargs: Any) -> Entry:
    """An entry for a plain call of `builder`; fields of `Entry` are told from the builder's own arguments by name."""
    fields = {f.name for f in dataclasses.fields(Entry)}
    own = {k: v for k, v in kwargs.items() if k not in fields}
    return Entry(
        name,
        builder,
        lambda **given: builder(**own, **given),
        numbers or {},
        **{k: v for k, v in kwargs.items() if k in fields},
    )


def matrices(tree):
    """A mask: leaves with two axes or more, and what is no array."""
    return jax.tree.map(lambda x: getattr(x, "ndim", 2) > 1, tree)


def shape_labels(tree):
    """Labels for `partition`: matrices and the rest."""
    return jax.tree.map(lambda x: "matrix" if getattr(x, "ndim", 2) > 1 else "rest", tree)


def twice(updates, params):
    return jax.tree.map(lambda u: 2.0 * u, updates)


def thrice_leaf(u, p):
    return 3.0 * u


def partial_sums_rule(u, p, total, *, step_size):
    total = total + u
    return step_size * total, total


@oc.transform
def partial_sums(step_size):
    """A link made with `leafwise` outside the library."""
    return oc.leafwise(
        partial_sums_rule, oc.TraceState, slots=("trace",), scalars=lambda state: dict(step_size=step_size)
    )


def by_hand_update(updates, state, params=None):
    return jax.tree.map(lambda u: -0.5 * u, updates), state


def by_hand():
    """A pair that knows nothing of the library."""
    return oc.GradientTransformation(lambda params: oc.EmptyState(), by_hand_update)


falling = schedules.linear_schedule(0.2, 0.1, 4)
ADAM = dict(b1=0.8, b2=0.95, eps=1e-3, eps_root=1e-4)

ENTRIES = [
    # links without a rule
    call("identity", oc.identity, checks=False),
    call("set_to_zero", oc.set_to_zero, checks=False, nonfinite="erased"),
    Entry("stateless", oc.stateless, lambda: oc.stateless(twice), checks=False),
    Entry(
        "stateless_with_tree_map",
        oc.stateless_with_tree_map,
        lambda: oc.stateless_with_tree_map(thrice_leaf),
        checks=False,
    ),
    Entry("leafwise", oc.leafwise, partial_sums, dict(step_size=0.5)),
    Entry(
        "with_extra_args_support",
        oc.with_extra_args_support,
        lambda: oc.with_extra_args_support(by_hand()),
        checks=False,
        plain=False,
    ),
    # clipping
    call("clip", oc.clip, dict(max_delta=0.7), complex=False),
    call("clip_by_block_rms", oc.clip_by_block_rms, dict(threshold=0.4), nonfinite="leaf"),
    call("clip_by_global_norm", oc.clip_by_global_norm, dict(max_norm=1.3), nonfinite="tree", local=False),
    call("adaptive_grad_clip", oc.adaptive_grad_clip, dict(clipping=0.3, eps=1e-3), params=True, nonfinite="unit"),
    # scaling
    call("scale", oc.scale, dict(step_size=-0.3)),
    call("scale_by_learning_rate", oc.scale_by_learning_rate, dict(learning_rate=0.3)),
    call("scale_by_learning_rate_none", oc.scale_by_learning_rate, checks=False),
    call("scale_by_learning_rate_schedule", oc.scale_by_learning_rate, learning_rate=falling),
    call("scale_by_schedule", oc.scale_by_schedule, step_size_fn=falling),
    # accumulation
    call("trace", oc.trace, dict(decay=0.8)),
    call("trace_nesterov", oc.trace, dict(decay=0.8), nesterov=True),
    call("trace_bfloat16", oc.trace, dict(decay=0.8), accumulator_dtype="bfloat16"),
    call("ema", oc.ema, dict(decay=0.8)),
    call("ema_biased", oc.ema, dict(decay=0.8), debias=False, accumulator_dtype="float32"),
    # decay
    call("add_decayed_weights", oc.add_decayed_weights, dict(weight_decay=0.1), zero=False, params=True),
    call("add_decayed_weights_schedule", oc.add_decayed_weights, weight_decay=falling, zero=False, params=True),
    call(
        "add_decayed_weights_mask",
        oc.add_decayed_weights,
        dict(weight_decay=0.1),
        mask=matrices,
        zero=False,
        params=True,
    ),
    # parts of the tree
    Entry(
        "masked",
        oc.masked,
        lambda decay, step_size: oc.masked(oc.chain(oc.trace(decay), oc.scale(step_size)), matrices),
        dict(decay=0.8, step_size=-0.5),
    ),
    Entry(
        "masked_clip",
        oc.masked,
        lambda max_norm: oc.masked(oc.clip_by_global_norm(max_norm), matrices),
        dict(max_norm=1.3),
        nonfinite="leaf",
        local=False,
    ),
    Entry(
        "partition",
        oc.partition,
        lambda learning_rate, b1: oc.partition(
            {"matrix": oc.adam(learning_rate, b1), "rest": oc.sgd(0.1, momentum=0.5)}, shape_labels
        ),
        dict(learning_rate=0.2, b1=0.8),
    ),
    Entry(
        "partition_clip",
        oc.partition,
        lambda max_norm: oc.partition(
            {"matrix": oc.chain(oc.clip_by_global_norm(max_norm), oc.sgd(0.1)), "rest": oc.identity()}, shape_labels
        ),
        dict(max_norm=1.3),
        nonfinite="leaf",
        local=False,
    ),
    # small leaves together
    Entry(
        "packed",
        oc.packed,
        lambda max_norm, learning_rate: oc.packed(
            oc.chain(oc.clip_by_global_norm(max_norm), oc.adamw(learning_rate, mask=matrices))
        ),
        dict(max_norm=1.3, learning_rate=0.1),
        zero=False,
        params=True,
        nonfinite="tree",
        local=False,
        joins=True,
    ),
    Entry(
        "packed_momentum",
        oc.packed,
        lambda learning_rate: oc.packed(oc.sgd(learning_rate, momentum=0.8), 11),
        dict(learning_rate=0.1),
        joins=True,
    ),
    Entry(
        "flatten",
        oc.flatten,
        lambda learning_rate: oc.flatten(oc.adam(learning_rate)),
        dict(learning_rate=0.1),
        joins=True,
    ),
    # rules
    call("sgd", oc.sgd, dict(learning_rate=0.1)),
    call("sgd_momentum", oc.sgd, dict(learning_rate=0.1, momentum=0.8)),
    call("sgd_nesterov", oc.sgd, dict(learning_rate=0.1, momentum=0.8), nesterov=True, accumulator_dtype="float32"),
    call("sgd_schedule", oc.sgd, dict(momentum=0.8), learning_rate=falling),
    call("scale_by_adam", oc.scale_by_adam, ADAM),
    call("scale_by_adam_plain_eps", oc.scale_by_adam, dict(b1=0.9, b2=0.999, eps=1e-8)),
    call("scale_by_adam_nesterov", oc.scale_by_adam, ADAM, nesterov=True),
    call("scale_by_adam_bfloat16", oc.scale_by_adam, ADAM, mu_dtype="bfloat16", nu_dtype="bfloat16"),
    call("adam", oc.adam, dict(learning_rate=0.1, **ADAM)),
    call("adam_nesterov_schedule", oc.adam, ADAM, learning_rate=falling, nesterov=True),
    call("adamw", oc.adamw, dict(learning_rate=0.1, weight_decay=0.1, **ADAM), zero=False, params=True),
    call("adamw_mask", oc.adamw, dict(learning_rate=0.1, weight_decay=0.1), mask=matrices, zero=False, params=True),
    call(
        "adamw_schedules",
        oc.adamw,
        ADAM,
        learning_rate=falling,
        weight_decay=falling,
        nesterov=True,
        zero=False,
        params=True,
    ),
    # chains
    Entry("chain_none", oc.chain, oc.chain, checks=False),
    Entry(
        "clip_then_sgd",
        oc.chain,
        lambda max_norm, learning_rate: oc.chain(oc.clip_by_global_norm(max_norm), oc.sgd(learning_rate)),
        dict(max_norm=1.3, learning_rate=0.1),
        nonfinite="tree",
        local=False,
    ),
    Entry(
        "sgd_then_clip",
        oc.chain,
        lambda max_norm, learning_rate: oc.chain(oc.sgd(learning_rate, 0.8), oc.clip_by_global_norm(max_norm)),
        dict(max_norm=0.2, learning_rate=0.1),
        nonfinite="tree",
        local=False,
    ),
    Entry(
        "clip_then_adamw",
        oc.chain,
        lambda max_norm, learning_rate, weight_decay: oc.chain(
            oc.clip_by_global_norm(max_norm), oc.adamw(learning_rate, weight_decay=weight_decay, mask=matrices)
        ),
        dict(max_norm=1.3, learning_rate=0.1, weight_decay=0.1),
        zero=False,
        params=True,
        nonfinite="tree",
        local=False,
    ),
    Entry(
        "chain_of_chains",
        oc.chain,
        lambda decay: oc.chain(
            oc.chain(oc.clip_by_block_rms(0.5), oc.ema(decay)), oc.chain(oc.adaptive_grad_clip(0.5), oc.scale(-0.5))
        ),
        dict(decay=0.8),
        params=True,
        nonfinite="leaf",
    ),
    Entry(
        "chain_with_foreign_pair",
        oc.chain,
        lambda: oc.chain(oc.clip_by_block_rms(0.5), by_hand(), oc.trace(0.8)),
        nonfinite="leaf",
        plain=False,
    ),
    Entry(
        "named_chain",
        oc.named_chain,
        lambda max_delta, learning_rate: oc.named_chain(("clip", oc.clip(max_delta)), ("rule", oc.adam(learning_rate))),
        dict(max_delta=0.7, learning_rate=0.1),
        complex=False,
    ),
]

PAIRS = ("GradientTransformation", "GradientTransformationExtraArgs")


def public_builders() -> dict[str, Callable[..., Any]]:
    """Every function that a public package of the library names and that says it returns a pair."""
    found: dict[str, Callable[..., Any]] = {}
    packages, seen = [oc], set()
    while packages:
        package = packages.pop()
        seen.add(package.__name__)
        for name, value in vars(package).items():
            if name.startswith("_"):
                continue
            if inspect.ismodule(value) and hasattr(value, "__path__") and value.__name__.startswith(oc.__name__):
                packages += [value] if value.__name__ not in seen else []
            elif inspect.isfunction(value) and inspect.signature(value).return_annotation in PAIRS:
                found[f"{package.__name__}.{name}"] = value
    return found
