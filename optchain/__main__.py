"""``python -m optchain``: versions, devices and a check against NumPy; ``python -m optchain demo`` trains a network."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optchain import check, demo


def number(kind: Callable[[str], Any], accepts: Callable[[Any], bool], what: str) -> Callable[[str], Any]:
    """A parser of one command-line number, which is refused as not being `what`."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


def optimizer(text: str) -> str:
    """The name of an optimizer of the library."""
    known = demo.optimizers()
    if text not in known:
        raise argparse.ArgumentTypeError(f"there is no optimizer {text!r}; choose from {', '.join(sorted(known))}")
    return text


def plot_file(text: str) -> Path:
    """A file that a figure can be written to, so that a wrong name is known before the training."""
    path = Path(text)
    if path.suffix.lower() not in demo.PLOT_SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text!r} must end in one of {', '.join(demo.PLOT_SUFFIXES)}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {str(path.parent)!r} does not exist")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    return path


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m optchain",
        description="Print versions and devices, and check one step of clipping and SGD against NumPy.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    commands = parser.add_subparsers(dest="command", title="commands")
    sub = commands.add_parser(
        "demo",
        help="train a small network on handwritten digits",
        description="Train a small network on the 1,797 handwritten digits of scikit-learn, "
        "with chain(clip_by_global_norm(1.0), OPTIMIZER).",
    )
    whole = number(int, lambda n: n >= 1, "a whole number of at least 1")
    size = number(int, lambda n: 1 <= n <= demo.TRAIN_SIZE, f"a whole number from 1 to {demo.TRAIN_SIZE}")
    seed = number(int, lambda n: 0 <= n < 2**32, f"a whole number from 0 to {2**32 - 1}")
    rate = number(float, lambda x: 0 < x < math.inf, "a positive number")
    for option, parse, default, metavar, text in (
        ("--optimizer", optimizer, "sgd", "NAME", f"{', '.join(sorted(demo.optimizers()))} (default: sgd)"),
        ("--learning-rate", rate, None, "X", "default: one that suits the optimizer, 0.1 for sgd"),
        ("--epochs", whole, 30, "N", "passes over the data (default: 30)"),
        ("--batch-size", size, 32, "N", "digits in a step (default: 32)"),
        ("--seed", seed, 0, "N", "of the split, the weights and the batches (default: 0)"),
        (
            "--plot",
            plot_file,
            None,
            "FILE",
            f"draw loss and gradient norm ({', '.join(demo.PLOT_SUFFIXES)})",
        ),
    ):
        sub.add_argument(option, type=parse, default=default, metavar=metavar, help=text)
    # Without a default of its own, so that --json before the command counts as well.
    sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the summary as JSON")
    return parser


def show(report: dict[str, Any], text: Callable[[dict[str, Any]], str], as_json: bool) -> None:
    """Prints a report as text or as JSON."""
    print(json.dumps(strict(report), indent=1, allow_nan=False) if as_json else text(report), flush=True)


def strict(value: Any) -> Any:
    """The value as strict JSON can say it: NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: strict(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(argv: list[str] | None = None) -> int:
    """Runs a command line and returns its exit status: 0 if all is well, 1 if not; wrong arguments exit with 2."""
    options = arguments().parse_args(argv)
    if options.command is None:
        report = check.report()
        show(report, check.text, options.json)
        return 0 if report["check"]["ok"] else 1
    try:
        report = demo.run(
            optimizer=options.optimizer,
            learning_rate=options.learning_rate,
            epochs=options.epochs,
            batch_size=options.batch_size,
            seed=options.seed,
            plot=options.plot,
        )
    except demo.MissingPackage as error:
        print(error, file=sys.stderr)
        return 1
    show(report, demo.text, options.json)
    if not math.isfinite(report["test_loss"]):
        print("The training diverged: the loss is not finite. Try a smaller --learning-rate.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
