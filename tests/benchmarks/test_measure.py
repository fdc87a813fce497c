"""What is measured of a contender, and how contenders are compared."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from benchmarks import cases, measure, trees
from benchmarks.contenders import Program

QUICK = measure.Settings(repeats=1, steps=2, warmup=1)


def sgd_program(learning_rate):
    def update(grads, state, params):
        return jax.tree.map(lambda g: -learning_rate * g, grads), state

    def step(params, state, grads):
        return jax.tree.map(lambda p, g: p - learning_rate * g, params, grads), state

    return Program(lambda params: (), step, update)


@pytest.mark.parametrize(
    ("tree", "count", "parameters"),
    [
        ("large", 8, 8 * 2048**2),
        # each layer: qkv, out, up, down with biases (12 d^2 + 9 d) and two norms (4 d)
        ("gpt2", 2 + 12 * 12 + 2, (8192 + 1024) * 256 + 12 * (12 * 256**2 + 13 * 256) + 2 * 256),
        ("small", 1000, 100 * (1 + 3 + 16 + 64 + 128 + 64 + 256 + 35 + 128 + 24)),
        ("small:10", 10, 1 + 3 + 16 + 64 + 128 + 64 + 256 + 35 + 128 + 24),
        ("resnet50", 161, 25_557_032),  # the published size of the network
        ("tiny", 2, 36),
        ("blocks:1", 1, 2**20),
        ("blocks:16", 4, 2**24),
        ("blocks:18", 5, 18 * 2**20),
    ],
)
def test_trees_have_their_stated_size(tree, count, parameters):
    shapes = trees.shapes_of(trees.tree_of(tree))
    assert len(shapes) == count
    assert sum(math.prod(shape) for shape in shapes) == parameters


def test_fill_depends_on_the_seed_alone():
    a, b, c = (trees.fill(trees.small(20), seed) for seed in (0, 0, 1))
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not any(np.array_equal(x, y) for x, y in zip(a, c, strict=True))
    assert all(x.dtype == np.float32 for x in a)


def test_every_measurement_can_repeat():
    program = sgd_program(0.1)
    for job, columns in (
        (measure.ColdStarts, {"trace", "lower", "trace+lower", "compile"}),
        (measure.EagerSteps, {"eager"}),
        (measure.CompiledSteps, {"step"}),
    ):
        measurement = job(trees.tiny(), program, QUICK)
        assert set(measurement.round()) == set(measurement.round()) == columns


def test_cold_starts_compile_only_where_that_is_wanted():
    measurement = measure.ColdStarts(trees.tiny(), sgd_program(0.1), QUICK._replace(columns=("trace",)))
    assert "compile" not in measurement.round()


def test_compiled_steps_end_where_gradient_descent_does(tmp_path, monkeypatch):
    monkeypatch.setattr(measure.roofline, "bandwidth", lambda: 1.0)
    file = tmp_path / "final.npz"
    measurement = measure.CompiledSteps(trees.tiny(), sgd_program(0.1), QUICK, str(file))
    measurement.round()
    known = measurement.finish()
    start, grads = trees.fill(trees.tiny(), seed=0), trees.fill(trees.tiny(), seed=1)
    expected = jax.tree.leaves(jax.tree.map(lambda p, g: p - 3 * 0.1 * g, start, grads))
    assert all(np.allclose(x, y, atol=1e-6) for x, y in zip(np.load(file).values(), expected, strict=True))
    # Per number: read the parameter and the gradient, write the parameter.
    assert known["moved"] == pytest.approx(3 * 4 * 36, abs=16)
    assert known["peak"] >= 2 * 4 * 36


def final(tmp_path, **finals):
    files = {name: str(tmp_path / f"{name}.npz") for name in finals}
    for name, values in finals.items():
        np.savez(files[name], np.array(values))
    return files


@pytest.mark.parametrize("theirs", [[1.0, 2.2], [np.nan, 2.0], [np.inf, 2.0]])
def test_a_difference_beyond_the_tolerance_is_refused(theirs, tmp_path):
    finals = final(tmp_path, ours=[1.0, 2.0], theirs=theirs)
    with pytest.raises(cases.Disagreement, match="ours and theirs do not compute the same"):
        cases.max_difference([np.zeros(2)], finals)


def test_a_small_difference_is_measured(tmp_path):
    finals = final(tmp_path, ours=[1.0, 2.0], a=[1.0, 2.0], b=[1.0625, 2.0])
    assert cases.max_difference([np.zeros(2)], finals) == 0.0625


def test_the_first_contender_goes_last_in_every_other_round():
    assert list(cases.alternate(["a", "b"], 3)) == [["a", "b"], ["b", "a"], ["a", "b"]]
