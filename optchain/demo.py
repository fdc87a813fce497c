"""``python -m optchain demo``: a small network learns handwritten digits."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import optchain.optimizers
from optchain.core.chain import chain
from optchain.core.pair import GradientTransformation
from optchain.training import compile_train
from optchain.transforms.clipping import clip_by_global_norm

MAX_NORM = 1.0
HIDDEN = 128
TRAIN_SIZE = 1437  # four fifths of the 1,797 digits; the others are the test split
PLOT_SUFFIXES = (".png", ".svg", ".pdf")

# What suits this problem; a rule that is not listed normalizes its step, as Adam does, and takes the last one.
LEARNING_RATES = {"sgd": 0.1}
LEARNING_RATE = 1e-3


class MissingPackage(Exception):
    """A package that only the demo needs is not installed."""


class Data(NamedTuple):
    """Images, float32 of shape (n, 64) with values from 0 to 1, and their digits, int32 of shape (n,), split in two."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class History(NamedTuple):
    """The curves of a training.

    Attributes:
      loss: The loss of each batch before its step.
      grad_norm: The global norm of its gradient before clipping.
      test_loss: The loss of the test split after each epoch.
      test_accuracy: The share of the test split that is recognized after each epoch.
      first_step: Seconds that the first step took, with its compilation.
      seconds: Seconds that all other steps took together.
    """

    loss: np.ndarray
    grad_norm: np.ndarray
    test_loss: np.ndarray
    test_accuracy: np.ndarray
    first_step: float
    seconds: float


def optimizers() -> dict[str, Callable[..., GradientTransformation]]:
    """The optimizers of the library that a learning rate alone determines, by name."""
    public = {name: value for name, value in vars(optchain.optimizers).items() if not name.startswith("_")}
    return {name: value for name, value in public.items() if inspect.isfunction(value) and _takes_learning_rate(value)}


def _takes_learning_rate(builder: Callable[..., Any]) -> bool:
    """Whether the first parameter is a learning rate and no other one is required."""
    parameters = list(inspect.signature(builder).parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters[1:] if p.default is p.empty and p.kind not in variadic]
    return [p.name for p in parameters[:1]] == ["learning_rate"] and not required


def run(
    *, optimizer: str, learning_rate: float | None, epochs: int, batch_size: int, seed: int, plot: Path | None
) -> dict[str, Any]:
    """Trains, draws the curves if there is a file to draw them to, and returns the summary as plain data."""
    progress = need("tqdm", "tqdm").tqdm
    if plot is not None:
        need("matplotlib.figure", "matplotlib")  # now, and not after the training
    data = load(seed)
    rate = LEARNING_RATES.get(optimizer, LEARNING_RATE) if learning_rate is None else learning_rate
    tx = chain(clip_by_global_norm(MAX_NORM), optimizers()[optimizer](rate))
    history = train(tx, data, epochs, batch_size, seed, progress)
    if plot is not None:
        draw(history, repr(tx), plot)
    steps = len(history.loss)
    return {
        "optimizer": repr(tx),
        "train_digits": len(data.y),
        "test_digits": len(data.y_test),
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "steps": steps,
        "train_loss": float(np.mean(history.loss[-(steps // epochs) :])),
        "test_loss": float(history.test_loss[-1]),
        "test_accuracy": float(history.test_accuracy[-1]),
        "first_step_seconds": history.first_step,
        "steps_per_second": (steps - 1) / history.seconds if steps > 1 else None,
        "plot": None if plot is None else str(plot),
    }


def need(module: str, package: str) -> Any:
    """Imports what only the demo needs, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPackage(
            f"The demo needs {package}: python -m pip install 'optchain[demo]', or '.[demo]' in a checkout."
        ) from None


def load(seed: int) -> Data:
    """The digits of scikit-learn, shuffled and split."""
    digits = need("sklearn.datasets", "scikit-learn").load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    x = (digits.data[order] / 16).astype(np.float32)
    y = digits.target[order].astype(np.int32)
    return Data(x[:TRAIN_SIZE], y[:TRAIN_SIZE], x[TRAIN_SIZE:], y[TRAIN_SIZE:])


def make_params(seed: int) -> dict[str, Any]:
    """The weights of the network: 64 pixels, a hidden layer, 10 digits."""
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "hidden": {"w": jax.random.normal(first, (64, HIDDEN)) * (2 / 64) ** 0.5, "b": jnp.zeros(HIDDEN)},
        "output": {"w": jax.random.normal(second, (HIDDEN, 10)) * (1 / HIDDEN) ** 0.5, "b": jnp.zeros(10)},
    }


def logits(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """The score of each digit, of shape (n, 10)."""
    hidden = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["output"]["w"] + params["output"]["b"]


def loss_fn(params: dict[str, Any], x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean cross-entropy."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], axis=1))


@jax.jit
def evaluate(params: dict[str, Any], x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean cross-entropy, and the share of digits that are recognized."""
    return loss_fn(params, x, y), jnp.mean(jnp.argmax(logits(params, x), axis=1) == y)


def batches(data: Data, batch_size: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One epoch of batches in random order, all of one size, so that one compilation serves them all."""
    order = rng.permutation(len(data.y))
    for start in range(0, len(order) - batch_size + 1, batch_size):
        chosen = order[start : start + batch_size]
        yield data.x[chosen], data.y[chosen]


def train(tx: GradientTransformation, data: Data, epochs: int, batch_size: int, seed: int, progress: Any) -> History:
    """Trains the network with a progress bar made by ``progress``, which has the interface of tqdm."""
    step = compile_train(loss_fn, tx, metrics=("grad_norm",))
    state = step.init(make_params(seed))
    rng = np.random.default_rng(seed)
    reports, tests, times = [], [], []
    # disable=None draws the bar on a terminal only.
    with progress(total=epochs * (len(data.y) // batch_size), unit="step", desc="training", disable=None) as bar:
        for _ in range(epochs):
            start = time.perf_counter()
            for batch in batches(data, batch_size, rng):
                state, metrics = step(state, *batch)
                reports.append(metrics)
                if len(reports) == 1:  # it compiles: timed apart
                    jax.block_until_ready(state)
                    times.append(time.perf_counter() - start)
                    start = time.perf_counter()
                bar.update()
            jax.block_until_ready(state)
            times.append(time.perf_counter() - start)
            tests.append(jax.device_get(evaluate(state.params, data.x_test, data.y_test)))
            bar.set_postfix(test_loss=f"{tests[-1][0]:.3f}", test_accuracy=f"{tests[-1][1]:.3f}")
    reports = jax.device_get(reports)
    return History(
        loss=np.array([report["loss"] for report in reports]),
        grad_norm=np.array([report["grad_norm"] for report in reports]),
        test_loss=np.array([loss for loss, _ in tests]),
        test_accuracy=np.array([accuracy for _, accuracy in tests]),
        first_step=times[0],
        seconds=sum(times[1:]),
    )


def text(report: dict[str, Any]) -> str:
    """The summary for a terminal."""
    speed = report["steps_per_second"]
    lines = [
        f"optimizer      {report['optimizer']}",
        f"data           {report['train_digits']:,} digits to train on, {report['test_digits']} held back for the test",
        f"training       {report['steps']:,} steps: epochs {report['epochs']}, batch size {report['batch_size']}, "
        f"seed {report['seed']}",
        f"training loss  {report['train_loss']:.4f} (mean of the last epoch)",
        f"test loss      {report['test_loss']:.4f}",
        f"test accuracy  {report['test_accuracy']:.4f}",
        f"first step     {report['first_step_seconds']:.2f} s, with its compilation",
    ]
    lines += [f"after it       {speed:,.0f} steps/s"] if speed else []
    lines += [f"curves         {report['plot']}"] if report["plot"] else []
    return "\n".join(lines)


def draw(history: History, title: str, path: Path) -> None:
    """Writes the curves of loss and gradient norm to a file, in the format that its suffix names."""
    figure = need("matplotlib.figure", "matplotlib").Figure(figsize=(8, 7), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    steps = np.arange(1, len(history.loss) + 1)
    epochs = steps.reshape(len(history.test_loss), -1)
    for axes, curve, color in ((upper, history.loss, "tab:blue"), (lower, history.grad_norm, "tab:green")):
        means = curve.reshape(epochs.shape).mean(axis=1)
        axes.plot(steps, curve, color=color, alpha=0.35, linewidth=0.8, label="training, each batch")
        axes.plot(epochs.mean(axis=1), means, color=color, marker=".", label="mean of an epoch")
    upper.plot(epochs[:, -1], history.test_loss, color="tab:orange", marker=".", label="test, after each epoch")
    lower.axhline(MAX_NORM, color="black", linestyle="--", linewidth=1, label=f"clipped to {MAX_NORM:g}")
    upper.set(ylabel="cross-entropy (nats)", yscale="log")
    lower.set(ylabel="gradient norm before clipping", yscale="log", xlabel="step", xlim=(0, len(steps) + 1))
    figure.suptitle(title)
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)  # above the curves, not on them
    figure.savefig(path, dpi=150)
