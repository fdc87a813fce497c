"""The benchmark runs and computes its figures rightly. Nothing here looks at how long anything takes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import contenders, measure, report, rules, trees
from benchmarks.__main__ import main

ROOT = Path(__file__).resolve().parents[1]


def leaves(shapes):
    return jax.tree.leaves(shapes, is_leaf=trees.is_shape)


def test_command_line_prints_json():
    # In a process of its own: the benchmark empties JAX's caches.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--trees", "tiny", "--rules", "clip+adamw", "--quick", "--json", "-"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert set(results) == {"machine", "settings", "cases", "geometric_means"}
    assert set(results["machine"]) == {"versions", "cpu", "cores", "system", "backend", "device"}
    assert {"python", "optchain", "optax", "jax", "jaxlib", "numpy"} == set(results["machine"]["versions"])
    (case,) = results["cases"]
    assert (case["tree"], case["rule"], case["leaves"], case["parameters"]) == ("tiny", "clip+adamw", 2, 36)
    assert case["difference_in_learning_rates"] < 1e-2
    assert list(case["columns"]) == list(measure.COLUMNS) == list(results["geometric_means"])
    for row in case["columns"].values():
        assert set(row) == {"median", "ratio", "samples"}
        assert set(row["median"]) == set(row["samples"]) == {"optchain", "optax"}
        assert set(row["ratio"]) == {"optax"}
    # Gradients, parameters and both moments are 36 numbers of 4 bytes each.
    assert min(case["columns"]["peak"]["median"].values()) >= 4 * 36 * 4


@pytest.mark.parametrize("option", ["--trees", "--rules", "--columns"])
def test_unknown_names_are_refused_with_the_known_ones(option, capsys):
    with pytest.raises(SystemExit):
        main([option, "nonsense"])
    assert "unknown nonsense; choose from" in capsys.readouterr().err


def test_repeats_must_be_a_positive_number(capsys):
    with pytest.raises(SystemExit):
        main(["--repeats", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_a_missing_library_is_named_with_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)  # what import looks at first
    with pytest.raises(contenders.MissingContender, match=r"optax cannot be imported .* '\.\[bench\]'"):
        contenders.CONTENDERS["optax"]("adam")


@pytest.mark.parametrize(
    ("tree", "count", "parameters"),
    [
        ("large", 8, 8 * 2048**2),
        # each layer: qkv, out, up, down with biases (12 d^2 + 9 d) and two norms (4 d)
        ("gpt2", 2 + 12 * 12 + 2, (8192 + 1024) * 256 + 12 * (12 * 256**2 + 13 * 256) + 2 * 256),
        ("small", 1000, 100 * (1 + 3 + 16 + 64 + 128 + 64 + 256 + 35 + 128 + 24)),
        ("resnet50", 161, 25_557_032),  # the published size of the network
        ("tiny", 2, 36),
    ],
)
def test_trees_have_their_stated_size(tree, count, parameters):
    shapes = leaves(trees.TREES[tree]())
    assert len(shapes) == count
    assert sum(math.prod(shape) for shape in shapes) == parameters


def test_fill_depends_on_the_seed_alone():
    a, b, c = (trees.fill(trees.small(20), seed) for seed in (0, 0, 1))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not any(np.array_equal(x, y) for x, y in zip(a, c, strict=True))
    assert all(x.dtype == np.float32 for x in a)


def test_every_rule_is_there_behind_a_clip_too():
    assert {f"clip+{name}" for name in rules.RULES if "+" not in name} == {name for name in rules.RULES if "+" in name}


def sgd_program(learning_rate, eager=True):
    def update(grads, state, params):
        return jax.tree.map(lambda g: -learning_rate * g, grads), state

    def step(params, state, grads):
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, grads), state

    return contenders.Program(lambda params: (), step, update if eager else None)


QUICK = measure.Settings(repeats=1, steps=2, warmup=1)


def test_any_program_can_join():
    programs = {"ours": sgd_program(0.1), "compiled only": sgd_program(0.1, eager=False)}
    case = measure.measure(trees.tiny(), programs, learning_rate=0.1, settings=QUICK)
    described = report.describe("tiny", "sgd", leaves(trees.tiny()), case, programs)
    assert described["difference_in_learning_rates"] == 0
    assert described["columns"]["eager"]["ratio"] == {"compiled only": None}
    assert set(described["columns"]["step"]["median"]) == set(programs)
    table = report.case_text(described)
    assert all(f"\n{column}" in table for column in measure.COLUMNS)


def test_programs_that_disagree_are_refused():
    programs = {"ours": sgd_program(0.1), "theirs": sgd_program(0.11)}
    with pytest.raises(measure.Disagreement, match="ours and theirs do not compute the same"):
        measure.measure(trees.tiny(), programs, learning_rate=0.1, settings=QUICK._replace(columns=("trace",)))


@pytest.mark.parametrize("theirs", [np.array([1.0, 2.2]), np.array([np.nan, 2.0]), np.array([np.inf, 2.0])])
def test_a_difference_beyond_the_tolerance_is_refused(theirs):
    with pytest.raises(measure.Disagreement):
        measure.max_difference(np.zeros(2), {"ours": np.array([1.0, 2.0]), "theirs": theirs})


def test_a_small_difference_is_measured():
    final = {"ours": np.array([1.0, 2.0]), "a": np.array([1.0, 2.0]), "b": np.array([1.0625, 2.0])}
    assert measure.max_difference(np.zeros(2), final) == 0.0625


def test_the_first_contender_goes_last_in_every_other_round():
    assert list(measure.alternate({"a": 0, "b": 0}, 3)) == ["a", "b", "b", "a", "a", "b"]


def test_ratios_are_paired_within_a_round():
    # The machine is 10 times slower in the last two rounds, for both: each round says 1/2.
    row = report.summary({"step": {"ours": [1.0, 10.0, 10.0], "theirs": [2.0, 20.0, 20.0]}}, ["ours", "theirs"])["step"]
    assert row["ratio"] == {"theirs": 0.5}
    assert row["median"] == {"ours": 10.0, "theirs": 20.0}


def test_a_ratio_to_nothing_does_not_exist():
    assert report.paired_ratio([4.0], [0.0]) is None
    assert report.paired_ratio([], [1.0]) is None
    assert report.paired_ratio([0.0], [4.0]) == 0.0


def test_geometric_means_go_over_the_cases():
    cases = [{"columns": {"step": {"ratio": {"optax": ratio}}}} for ratio in (0.25, 1.0)]
    assert report.geometric_means(cases) == {"step": {"optax": pytest.approx(0.5)}}
    cases.append({"columns": {"step": {"ratio": {"optax": None}}}})
    assert report.geometric_means(cases) == {"step": {"optax": None}}
