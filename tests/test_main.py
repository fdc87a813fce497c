"""``python -m optchain``: what it prints, and that a wrong value does not pass."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optchain
from optchain import check, demo
from optchain.__main__ import main, strict

ROOT = Path(__file__).resolve().parents[1]

# The step by hand. The gradient [3, 4] has norm 5; the learning rate is 0.1.
BY_HAND = [
    [[0.6, 0.8], [-0.06, -0.08], [-0.06, -0.08], [0.94, 0.92]],
    [[-0.3, -0.4], [-0.3, -0.4], [-0.3, -0.4], [0.7, 0.6]],
]
CHAINS = [
    "chain(clip_by_global_norm(max_norm=1.0), sgd(learning_rate=0.1))",
    "chain(sgd(learning_rate=0.1), clip_by_global_norm(max_norm=1.0))",
]


def run(*arguments):
    """The command in a process of its own, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "optchain", *arguments],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )


def report_of(capsys, *arguments, status=0):
    assert main(["--json", *arguments]) == status
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """The message with which wrong arguments are refused."""
    with pytest.raises(SystemExit) as error:
        main(list(arguments))
    assert error.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


class TestCheck:
    def test_command(self):
        done = run()
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        lines = done.stdout.splitlines()
        assert lines[:2] == [f"optchain  {optchain.__version__}", f"python    {platform.python_version()}"]
        assert "backend   cpu" in lines
        assert sum(line.endswith("  OK") for line in lines) == 8
        assert [line for line in lines if line.startswith("chain(")] == CHAINS
        assert lines[-1] == "The order counts: clipping first gives [0.94, 0.92], SGD first [0.7, 0.6]."

    def test_command_prints_json(self):
        done = run("--json")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        report = json.loads(done.stdout)
        assert list(report) == ["versions", "backend", "devices", "check"]
        assert report["backend"] == "cpu"
        assert report["check"]["ok"] is True

    def test_versions_and_devices(self, capsys):
        report = report_of(capsys)
        assert report["versions"] == {
            "optchain": optchain.__version__,
            "python": platform.python_version(),
            "jax": metadata.version("jax"),
            "jaxlib": metadata.version("jaxlib"),
            "numpy": metadata.version("numpy"),
            "flax": metadata.version("flax"),
        }
        assert report["backend"] == jax.default_backend()
        assert report["devices"] == [str(device) for device in jax.devices()]

    def test_flax_may_be_missing(self, capsys, monkeypatch):
        version = metadata.version

        def without_flax(name):
            if name == "flax":
                raise metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(metadata, "version", without_flax)
        assert report_of(capsys)["versions"]["flax"] is None
        assert main([]) == 0
        assert "flax" not in capsys.readouterr().out

    def test_flax_is_not_imported(self):
        code = "import sys; from optchain.__main__ import main; main([]); assert 'flax' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        assert done.returncode == 0

    def test_values_are_those_worked_out_by_hand(self, capsys):
        report = report_of(capsys)["check"]
        assert (report["params"], report["gradient"], report["tolerance"]) == ([1.0, 1.0], [3.0, 4.0], 1e-6)
        assert [order["chain"] for order in report["orders"]] == CHAINS
        clip, sgd, rest = "after clip_by_global_norm", "after sgd", ["the chain, compiled", "new parameters"]
        names = [[row["name"] for row in order["values"]] for order in report["orders"]]
        assert names == [[clip, sgd, *rest], [sgd, clip, *rest]]
        for order, by_hand in zip(report["orders"], BY_HAND, strict=True):
            for row, expected in zip(order["values"], by_hand, strict=True):
                np.testing.assert_allclose(row["value"], expected, rtol=0, atol=1e-6)
                np.testing.assert_allclose(row["numpy"], expected, rtol=0, atol=1e-15)
                assert row["error"] == max(abs(a - b) for a, b in zip(row["value"], row["numpy"], strict=True))
                assert row["ok"] is True

    def test_under_x64(self, capsys):
        with jax.enable_x64(True):
            report = report_of(capsys)["check"]
        errors = [row["error"] for order in report["orders"] for row in order["values"]]
        assert max(errors) < 1e-6


class TestWrongValues:
    @pytest.fixture
    def shift(self, monkeypatch):
        """Adds a number to the first new parameter of every step."""
        right = check.apply_updates

        def install(amount):
            monkeypatch.setattr(check, "apply_updates", lambda p, u: right(p, u) + jnp.array([amount, 0.0]))

        return install

    def test_a_parameter_that_is_off_fails(self, shift, capsys):
        shift(2e-6)
        assert main([]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines if line.endswith("WRONG")] == ["new", "new"]
        assert sum(line.endswith("  OK") for line in lines) == 6
        assert lines[-1] == "Values are off by more than 1e-06."

    def test_the_tolerance_is_one_millionth(self, shift):
        shift(5e-7)
        assert main([]) == 0

    def test_json_says_which_value_is_off(self, shift, capsys):
        shift(-2e-6)
        report = report_of(capsys, status=1)["check"]
        assert report["ok"] is False
        assert [[row["ok"] for row in order["values"]] for order in report["orders"]] == [[True, True, True, False]] * 2

    def test_nan_fails_and_stays_strict_json(self, shift, capsys):
        shift(math.nan)
        report = report_of(capsys, status=1)["check"]
        last = report["orders"][0]["values"][-1]
        assert last["value"][0] is None
        assert last["error"] is None
        assert last["ok"] is False

    def test_a_wrong_link_fails_where_it_stands(self, monkeypatch, capsys):
        # A clip that bounds each entry instead of the norm gives [1, 1] for [3, 4].
        monkeypatch.setattr(check, "clip_by_global_norm", optchain.clip)
        report = report_of(capsys, status=1)["check"]
        first = report["orders"][0]["values"]
        assert first[0]["value"] == [1.0, 1.0]
        assert [row["ok"] for row in first] == [False] * 4
        # Behind SGD neither clip has anything to do.
        assert all(row["ok"] for row in report["orders"][1]["values"])


class TestArguments:
    def test_unknown_optimizer_is_refused_with_those_known(self, capsys):
        message = refused(capsys, "demo", "--optimizer", "sdg")
        assert "there is no optimizer 'sdg'; choose from " in message
        assert {"adam", "adamw", "sgd"} <= set(message.split("choose from ")[1].split(", "))

    @pytest.mark.parametrize("name", ["scale_by_adam", "ScaleByAdamState", "clip", "__name__", ""])
    def test_only_optimizers_are_optimizers(self, name, capsys):
        assert "there is no optimizer" in refused(capsys, "demo", "--optimizer", name)

    @pytest.mark.parametrize(
        ("option", "value", "message"),
        [
            ("--epochs", "0", "'0' is not a whole number of at least 1"),
            ("--epochs", "2.5", "'2.5' is not a whole number of at least 1"),
            ("--batch-size", "0", "'0' is not a whole number from 1 to 1437"),
            ("--batch-size", "1438", "'1438' is not a whole number from 1 to 1437"),
            ("--seed", "-1", "'-1' is not a whole number from 0 to 4294967295"),
            ("--seed", "4294967296", "'4294967296' is not a whole number from 0 to 4294967295"),
            ("--learning-rate", "0", "'0' is not a positive number"),
            ("--learning-rate", "-0.1", "'-0.1' is not a positive number"),
            ("--learning-rate", "nan", "'nan' is not a positive number"),
            ("--learning-rate", "inf", "'inf' is not a positive number"),
            ("--learning-rate", "fast", "'fast' is not a positive number"),
            ("--plot", "curves.txt", "'curves.txt' must end in one of .png, .svg, .pdf"),
            ("--plot", "no-such-folder/curves.png", "the folder 'no-such-folder' does not exist"),
        ],
    )
    def test_wrong_values_are_refused(self, option, value, message, capsys):
        shown = refused(capsys, "demo", f"{option}={value}")
        assert shown == f"python -m optchain demo: error: argument {option}: {message}"

    def test_a_folder_is_no_plot_file(self, tmp_path, capsys):
        folder = tmp_path / "curves.png"
        folder.mkdir()
        assert refused(capsys, "demo", "--plot", str(folder)).endswith("is a folder")

    def test_unknown_command_is_refused(self, capsys):
        assert "invalid choice: 'train'" in refused(capsys, "train")

    def test_unknown_option_is_refused(self, capsys):
        assert "unrecognized arguments: --fast" in refused(capsys, "demo", "--fast")

    def test_options_reach_the_demo(self, monkeypatch, tmp_path):
        seen = {}
        monkeypatch.setattr(demo, "run", lambda **options: seen.update(options) or {"test_loss": 0.0})
        plot = tmp_path / "curves.PNG"
        words = ["demo", "--json", "--optimizer", "adamw", "--learning-rate", "1e-2", "--epochs", "3"]
        assert main([*words, "--batch-size", "16", "--seed", "7", "--plot", str(plot)]) == 0
        expected = dict(optimizer="adamw", learning_rate=0.01, epochs=3, batch_size=16, seed=7, plot=plot)
        assert seen == expected

    def test_help_lists_the_optimizers(self, capsys):
        with pytest.raises(SystemExit) as error:
            main(["demo", "--help"])
        assert error.value.code == 0
        assert "adam, adamw" in capsys.readouterr().out


def test_strict_json():
    assert strict({"a": [1.0, math.nan], "b": (math.inf, "nan"), "c": {"d": -math.inf, "e": True, "f": None}}) == {
        "a": [1.0, None],
        "b": [None, "nan"],
        "c": {"d": None, "e": True, "f": None},
    }
