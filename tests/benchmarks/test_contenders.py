"""Who is measured, and that all compute the same."""

from __future__ import annotations

import importlib.util
import sys

import jax
import numpy as np
import optax
import pytest

from benchmarks import contenders, handwritten, measure, pytorch, rules, trees

SHAPES = {"w": (8, 4), "b": (4,), "large": (300, 300)}  # one leaf beyond what is concatenated
STEPS = 4


def optax_pair(name):
    plain = {
        "sgd": optax.sgd(0.1),
        "momentum": optax.sgd(0.1, momentum=0.9),
        "nesterov": optax.sgd(0.1, momentum=0.9, nesterov=True),
        "adam": optax.adam(1e-3),
        "adamw": optax.adamw(1e-3),
    }[name.removeprefix("clip+")]
    return optax.chain(optax.clip_by_global_norm(1.0), plain) if name.startswith("clip+") else plain


def trajectory(name):
    """Final parameters of Optax, written without the tables that are tested here."""
    tx = optax_pair(name)
    params, grads = trees.fill(SHAPES, 0), trees.fill(SHAPES, 1)
    state = tx.init(params)
    for _ in range(STEPS):
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return jax.tree.leaves(params)


def final(program):
    params, grads = trees.fill(SHAPES, 0), trees.fill(SHAPES, 1)
    if isinstance(program, contenders.Program):
        step = jax.jit(program.step)
        carry = params, program.init(params)
        call = lambda params, state: step(params, state, grads)  # noqa: E731
    else:
        call, carry = program.start(params, grads)
    for _ in range(STEPS):
        carry = call(*carry)
    return [measure.array(x) for x in jax.tree.leaves(carry[0])]


def present(name):
    return name not in contenders.absent("cpu")


@pytest.mark.parametrize("rule", rules.CORE)
@pytest.mark.parametrize("name", contenders.CONTENDERS)
def test_contenders_follow_optax(name, rule):
    if not present(name):
        pytest.skip(f"{name} is not here")
    program = contenders.CONTENDERS[name](rule, SHAPES)
    assert program is not None
    for ours, theirs in zip(final(program), trajectory(rule), strict=True):
        assert np.allclose(ours, theirs, rtol=1e-5, atol=2e-6)


def test_every_shared_optimizer_can_be_built_in_both_libraries():
    for name, rule in rules.rules().items():
        for library in ("optchain", "optax"):
            assert contenders.plain(rules.library(library), rule), name


def test_rules_are_found_in_the_library():
    known = rules.rules()
    assert list(known)[:10] == rules.CORE
    assert {"adam", "adamw", "sgd"} <= {rule.optimizer for rule in known.values()}
    assert {f"clip+{name}" for name in known if "+" not in name} == {name for name in known if "+" in name}
    assert all(known[name].clipped == name.startswith("clip+") for name in known)


def test_an_optimizer_is_a_public_function_of_a_learning_rate():
    assert rules.is_optimizer("adam", optax.adam)
    assert not rules.is_optimizer("scale_by_adam", optax.scale_by_adam)
    assert not rules.is_optimizer("clip", optax.clip)
    assert not rules.is_optimizer("ScaleByAdamState", optax.ScaleByAdamState)


def test_a_missing_library_is_named_with_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)  # what import looks at first
    with pytest.raises(rules.MissingContender, match=r"optax cannot be imported .* '\.\[bench\]'"):
        contenders.CONTENDERS["optax"]("adam", SHAPES)


def test_what_cannot_take_part_is_told_with_the_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "bench-torch" in contenders.absent("cpu")["torch"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert "torch" not in contenders.absent("cpu")
    assert contenders.absent("gpu")["torch"] == "measured on CPU only"


def test_a_rule_without_a_hand_written_or_fused_form_is_left_out():
    assert handwritten.program("clip+lion") is None
    assert pytorch.stepper("clip+lion") is None


class Refusing:
    """A library whose `packed` refuses, as for a rule that looks at whole tensors."""

    @staticmethod
    def sgd(learning_rate):
        return optax.sgd(learning_rate)

    @staticmethod
    def packed(tx):
        raise ValueError("whole tensors")


def test_packed_takes_part_where_most_leaves_are_small_and_the_rule_allows_it():
    rule = rules.rules()["sgd"]
    assert contenders.packed(Refusing, rule, trees.small(10)) is None
    assert contenders.packed(None, rule, [(2048, 2048), (4,)]) is None
    accepting = type("Accepting", (Refusing,), dict(packed=staticmethod(lambda tx: tx), apply_updates=None))
    assert contenders.packed(accepting, rule, trees.small(10)) is not None
