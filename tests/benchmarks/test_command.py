"""The command runs. Nothing here looks at how long anything takes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command, cases, measure, worker

ROOT = Path(__file__).resolve().parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_command_line_prints_json():
    # In a process of its own, as it is used: a warning or a stray line would spoil the JSON.
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
    assert set(results) == {"command", "machine", "settings", "import", "cases", "failed", "geometric_means"}
    assert results["command"] == "python -m benchmarks --trees tiny --rules clip+adamw --quick"
    assert set(results["machine"]) == {"versions", "cpu", "cores", "system", "backend", "device"}
    libraries = {"python", "optchain", "optax", "jax", "jaxlib", "numpy", *(["torch"] if HAS_TORCH else [])}
    assert libraries == set(results["machine"]["versions"])
    assert set(results["import"]["import"]["median"]) == {"optchain", "optax"}

    (case,) = results["cases"]
    assert (case["tree"], case["rule"], case["leaves"], case["parameters"]) == ("tiny", "clip+adamw", 2, 36)
    assert case["difference_in_learning_rates"] < 1e-2
    assert list(case["columns"]) == list(measure.COLUMNS) == list(results["geometric_means"]["all"])
    torch = {"torch"} if HAS_TORCH else set()
    for column, row in case["columns"].items():
        has = set(row["median"]) - {"packed"}
        expected = {"optchain", "optax"} | ({"handwritten"} if column != "eager" else set())
        assert has == expected | (torch if column in ("step", "eager") else set()), column
        assert {"optchain/optax"} <= set(row["ratio"])
    # Gradients, parameters and both moments are 36 numbers of 4 bytes each.
    assert min(case["columns"]["peak"]["median"].values()) >= 4 * 36 * 4


@pytest.mark.parametrize("option", ["--trees", "--rules", "--contenders", "--columns"])
def test_unknown_names_are_refused_with_the_known_ones(option, capsys):
    with pytest.raises(SystemExit):
        command.main([option, "nonsense"])
    assert "unknown nonsense; choose from" in capsys.readouterr().err


def test_repeats_must_be_a_positive_number(capsys):
    with pytest.raises(SystemExit):
        command.main(["--repeats", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_names_of_groups_stand_for_their_members():
    parse = command.chosen("abc", two="ab")
    assert parse("two") == ("a", "b")
    assert parse("all") == ("a", "b", "c")
    assert parse("c,a") == ("c", "a")


MACHINE = dict(versions=dict(python="3"), cpu="a cpu", cores=2, system="a system", backend="gpu", device="a device")


def test_an_absent_contender_and_a_failed_case_are_named(monkeypatch, capsys):
    def disagree(*_):
        raise cases.Disagreement("they differ")

    monkeypatch.setattr(worker, "machine", lambda: MACHINE)
    monkeypatch.setattr(cases, "measure_case", disagree)
    assert command.main(["--trees", "tiny", "--rules", "sgd", "--columns", "step"]) == 1
    out, err = capsys.readouterr()
    assert out.count("without torch: ") == 1  # not measured on this backend, or not installed
    assert "they differ" in err


def test_a_worker_that_fails_says_what_it_measured_and_why():
    with (
        worker.Worker("step", tree="tiny", rule="sgd", name="nobody", settings={}) as failing,
        pytest.raises(worker.WorkerFailed, match=r"(?s)measuring step sgd tiny nobody ended .*KeyError: 'nobody'"),
    ):
        failing.receive()
    assert failing.process.returncode is not None
