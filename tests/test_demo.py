"""The demonstration learns, says what it did, and says what it misses. Nothing here looks at times."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from optchain import chain, clip_by_global_norm, demo, sgd
from optchain.__main__ import main

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
tqdm = pytest.importorskip("tqdm").tqdm

ROOT = Path(__file__).resolve().parents[1]
TIMES = {"first_step_seconds", "steps_per_second"}


def summary_of(capsys, *arguments, status=0):
    assert main(["demo", "--json", *arguments]) == status
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def command():
    """The command of the README, in a process of its own, with warnings as errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "optchain", "demo", "--json"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )


class TestDefault:
    def test_runs_without_a_word_on_the_error_stream(self, command):
        assert command.returncode == 0, command.stderr
        assert command.stderr == ""  # the progress bar is for terminals

    def test_recognizes_most_of_the_digits_it_has_not_seen(self, command):
        summary = json.loads(command.stdout)
        assert 0.95 <= summary["test_accuracy"] < 1
        assert 0 < summary["test_loss"] < 0.2
        assert 0 < summary["train_loss"] < summary["test_loss"] * 2

    def test_says_what_it_did(self, command):
        summary = json.loads(command.stdout)
        assert list(summary) == [
            "optimizer",
            "train_digits",
            "test_digits",
            "epochs",
            "batch_size",
            "seed",
            "steps",
            "train_loss",
            "test_loss",
            "test_accuracy",
            "first_step_seconds",
            "steps_per_second",
            "plot",
        ]
        assert summary["optimizer"] == "chain(clip_by_global_norm(max_norm=1.0), sgd(learning_rate=0.1))"
        assert (summary["train_digits"], summary["test_digits"]) == (1437, 360)
        assert (summary["epochs"], summary["batch_size"], summary["seed"]) == (30, 32, 0)
        assert summary["steps"] == 30 * (1437 // 32)
        assert summary["first_step_seconds"] > 0
        assert summary["steps_per_second"] > 0
        assert summary["plot"] is None

    def test_is_the_same_every_time(self, command, capsys):
        first, second = json.loads(command.stdout), summary_of(capsys)
        assert {k: v for k, v in first.items() if k not in TIMES} == {k: v for k, v in second.items() if k not in TIMES}


class TestOptions:
    def test_text_shows_the_summary(self, capsys):
        assert main(["demo", "--epochs", "1"]) == 0
        out, err = capsys.readouterr()
        shown = dict(line.split("  ", 1) for line in out.splitlines())
        assert list(shown) == [
            "optimizer",
            "data",
            "training",
            "training loss",
            "test loss",
            "test accuracy",
            "first step",
            "after it",
        ]
        assert shown["training"].strip() == "44 steps: epochs 1, batch size 32, seed 0"
        assert err == ""

    @pytest.mark.parametrize("name", sorted(demo.optimizers()))
    def test_every_optimizer_learns(self, name, capsys):
        summary = summary_of(capsys, "--optimizer", name, "--epochs", "3")
        assert f"{name}(learning_rate=" in summary["optimizer"]
        # Chance is one in ten, and a loss of log(10) = 2.3. An optimizer that its learning rate does not suit needs an
        # entry in demo.LEARNING_RATES.
        assert summary["test_accuracy"] > 0.6
        assert summary["test_loss"] < 1.8

    def test_learning_rate(self, capsys):
        slow = summary_of(capsys, "--learning-rate", "1e-6", "--epochs", "1")
        assert slow["optimizer"].endswith("sgd(learning_rate=1e-06))")
        # 44 steps of at most 1e-6 leave the loss of the first batches, near chance.
        assert slow["train_loss"] > 2

    def test_another_seed_is_another_training(self, capsys):
        first, second = (summary_of(capsys, "--epochs", "1", "--seed", seed) for seed in ("1", "2"))
        assert first["test_loss"] != second["test_loss"]

    def test_one_step_has_no_speed(self, capsys):
        summary = summary_of(capsys, "--epochs", "1", "--batch-size", "1437")
        assert summary["steps"] == 1
        assert summary["steps_per_second"] is None
        assert main(["demo", "--epochs", "1", "--batch-size", "1437"]) == 0
        assert "steps/s" not in capsys.readouterr().out

    def test_divergence_is_a_failure(self, capsys):
        assert main(["demo", "--json", "--epochs", "1", "--learning-rate", "1e30"]) == 1
        out, err = capsys.readouterr()
        assert json.loads(out)["test_loss"] is None
        assert err == "The training diverged: the loss is not finite. Try a smaller --learning-rate.\n"


class TestPlot:
    @pytest.mark.parametrize(
        ("name", "start"), [("a.png", b"\x89PNG\r\n\x1a\n"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")]
    )
    def test_suffix_names_the_format(self, name, start, tmp_path, capsys):
        path = tmp_path / name
        assert summary_of(capsys, "--epochs", "1", "--plot", str(path))["plot"] == str(path)
        assert path.read_bytes().startswith(start)
        assert path.stat().st_size > 5_000

    def test_has_all_curves(self, tmp_path):
        history = demo.History(
            loss=np.array([2.0, 1.0, 0.5, 0.25]),
            grad_norm=np.array([3.0, 2.0, 0.5, 0.1]),
            test_loss=np.array([1.5, 0.75]),
            test_accuracy=np.array([0.5, 0.9]),
            first_step=1.0,
            seconds=1.0,
        )
        path = tmp_path / "curves.png"
        demo.draw(history, "title", path)
        image = pytest.importorskip("matplotlib.image").imread(path)
        assert image.shape[:2] == (7 * 150, 8 * 150)
        # Blue, orange and green of the curves, in the colours of matplotlib.
        for red, green, blue in ((31, 119, 180), (255, 127, 14), (44, 160, 44)):
            distance = np.abs(image[..., :3] * 255 - np.array([red, green, blue])).max(axis=-1)
            assert np.sum(distance < 2) > 100

    def test_a_diverged_training_can_be_drawn(self, tmp_path, capsys):
        path = tmp_path / "curves.png"
        summary_of(capsys, "--epochs", "1", "--learning-rate", "1e30", "--plot", str(path), status=1)
        assert path.stat().st_size > 5_000


class TestMissingPackages:
    @pytest.mark.parametrize(
        ("module", "package", "options"),
        [
            ("sklearn.datasets", "scikit-learn", []),
            ("tqdm", "tqdm", []),
            ("matplotlib.figure", "matplotlib", ["--plot", "curves.png"]),
        ],
    )
    def test_one_line_says_what_to_install(self, module, package, options, monkeypatch, tmp_path, capsys):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, module, None)  # makes its import fail
        assert main(["demo", "--epochs", "1", *options]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        fix = "python -m pip install 'optchain[demo]', or '.[demo]' in a checkout."
        assert err == f"The demo needs {package}: {fix}\n"

    def test_matplotlib_is_needed_for_a_plot_only(self, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        assert summary_of(capsys, "--epochs", "1")["epochs"] == 1

    def test_the_check_needs_none_of_them(self, monkeypatch):
        for module in ("sklearn", "sklearn.datasets", "tqdm", "matplotlib", "matplotlib.figure"):
            monkeypatch.setitem(sys.modules, module, None)
        assert main([]) == 0


class TestPieces:
    def test_splits_share_no_digit(self):
        data = demo.load(0)
        assert data.x.shape == (1437, 64)
        assert data.x_test.shape == (360, 64)
        assert (data.x.dtype, data.y.dtype) == (np.float32, np.int32)
        assert (data.x.min(), data.x.max()) == (0, 1)
        # All of them are there: the sums are those of the whole set.
        digits = pytest.importorskip("sklearn.datasets").load_digits()
        assert 16 * (data.x.sum(dtype=np.float64) + data.x_test.sum(dtype=np.float64)) == digits.data.sum()
        counts = np.bincount(data.y, minlength=10) + np.bincount(data.y_test, minlength=10)
        np.testing.assert_array_equal(counts, np.bincount(digits.target))

    def test_an_epoch_has_each_digit_at_most_once(self):
        data = demo.Data(np.arange(10.0)[:, None], np.arange(10), np.zeros((0, 1)), np.zeros(0))
        found = list(demo.batches(data, 3, np.random.default_rng(0)))
        assert [x.shape for x, _ in found] == [(3, 1)] * 3
        labels = np.concatenate([y for _, y in found])
        assert len(set(labels)) == 9
        np.testing.assert_array_equal(np.concatenate([x[:, 0] for x, _ in found]), labels)

    def test_loss_and_accuracy_against_numpy(self):
        data, params = demo.load(0), demo.make_params(0)
        loss, accuracy = demo.evaluate(params, data.x_test, data.y_test)
        p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
        hidden = np.maximum(data.x_test @ p["hidden"]["w"] + p["hidden"]["b"], 0)
        scores = hidden @ p["output"]["w"] + p["output"]["b"]
        chosen = scores[np.arange(360), data.y_test]
        expected = np.mean(np.log(np.sum(np.exp(scores), axis=1)) - chosen)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        # accuracy: the share where the right score is the largest
        np.testing.assert_allclose(accuracy, np.mean(chosen == scores.max(axis=1)), atol=1e-6)

    def test_training_follows_numpy(self):
        # Two steps on the whole training split. The gradient of a softmax layer has a closed form, and that of the
        # hidden layer follows by the chain rule.
        data = demo.load(0)
        history = demo.train(chain(clip_by_global_norm(1.0), sgd(0.1)), data, 2, 1437, 0, tqdm)
        p = jax.tree.map(lambda x: np.asarray(x, np.float64), demo.make_params(0))
        for step in range(2):
            hidden = np.maximum(data.x @ p["hidden"]["w"] + p["hidden"]["b"], 0)
            scores = np.exp(hidden @ p["output"]["w"] + p["output"]["b"])
            share = scores / scores.sum(axis=1, keepdims=True)
            loss = -np.mean(np.log(share[np.arange(1437), data.y]))
            wrong = (share - np.eye(10)[data.y]) / 1437
            below = (wrong @ p["output"]["w"].T) * (hidden > 0)
            grads = {
                "hidden": {"w": data.x.T @ below, "b": below.sum(axis=0)},
                "output": {"w": hidden.T @ wrong, "b": wrong.sum(axis=0)},
            }
            norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(grads)))
            np.testing.assert_allclose(history.loss[step], loss, rtol=1e-5)
            np.testing.assert_allclose(history.grad_norm[step], norm, rtol=1e-4)
            factor = 0.1 * min(1.0, 1 / norm)
            p = jax.tree.map(lambda x, g, factor=factor: x - factor * g, p, grads)
        assert len(history.test_loss) == len(history.test_accuracy) == 2

    @pytest.mark.parametrize("terminal", [True, False])
    def test_progress_bar_is_for_terminals(self, terminal):
        class Stream(io.StringIO):
            def isatty(self):
                return terminal

        stream = Stream()
        progress = functools.partial(tqdm, file=stream, ncols=120)
        demo.train(sgd(0.1), demo.load(0), epochs=2, batch_size=479, seed=0, progress=progress)
        assert ("100%" in stream.getvalue() and "| 6/6 [" in stream.getvalue()) == terminal
        assert ("test_accuracy=" in stream.getvalue()) == terminal
        assert terminal or stream.getvalue() == ""

    def test_optimizers_take_a_learning_rate(self):
        found = demo.optimizers()
        assert {"sgd", "adam", "adamw"} <= set(found)
        assert found["sgd"](0.1) == sgd(0.1)
        assert not any(name.startswith("scale_by") for name in found)
