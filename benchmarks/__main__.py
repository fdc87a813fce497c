"""``python -m benchmarks``: the speed of optchain beside its peers, in one run."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import cases, contenders, measure, report, scaling, worker
from benchmarks.rules import CORE, MissingContender, rules
from benchmarks.trees import TREES

COLUMNS = ("import", *measure.COLUMNS)


def chosen(known: Iterable[str], **groups: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of comma-separated names; ``all``, and the name of a group, stand for several."""
    known = tuple(known)
    groups = {"all": known, **groups}

    def parse(text: str) -> tuple[str, ...]:
        picked = tuple(groups[text] if text in groups else text.split(","))
        if unknown := [name for name in picked if name not in known]:
            raise argparse.ArgumentTypeError(
                f"unknown {', '.join(unknown)}; choose from {', '.join((*known, *groups))}"
            )
        return picked

    return parse


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="The speed of optchain beside its peers.")
    measuring = [tree for tree in TREES if tree != "tiny"]  # that one is for trying things out
    for option, default, known, groups in (
        ("--trees", "all", TREES, dict(all=measuring)),
        ("--rules", "core", rules(), dict(core=CORE)),
        ("--contenders", "all", contenders.CONTENDERS, {}),
        ("--columns", "all", COLUMNS, {}),
    ):
        text = f"some of {', '.join(known)}; default %(default)s"
        parser.add_argument(option, type=chosen(known, **groups), default=default, metavar="NAME,...", help=text)
    parser.add_argument("--repeats", type=positive, metavar="N", help="rounds of every measurement (default 2)")
    parser.add_argument("--scaling", action="store_true", help="also how a step grows with parameters and leaves")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE too; - prints JSON and no tables")
    parser.add_argument("--quick", action="store_true", help="one round of few steps: whether it runs, not how fast")
    return parser


def run(options: argparse.Namespace, show: Callable[[str], None], note: Callable[[str], None]) -> dict[str, Any]:
    """Measures what the options ask for; returns what is written as JSON."""
    settings = measure.Settings(repeats=1, steps=2, warmup=1) if options.quick else measure.Settings()
    settings = settings._replace(columns=options.columns, repeats=options.repeats or settings.repeats)
    machine = worker.machine()
    show(report.machine_text(machine))
    absent = contenders.absent(machine["backend"])
    programs = [name for name in options.contenders if name not in absent]
    for name in options.contenders:
        if name in absent:
            show(f"without {name}: {absent[name]}")

    results: dict[str, Any] = {"machine": machine, "settings": settings._asdict()}
    if "import" in options.columns:
        libraries = [name for name in ("optchain", "optax") if name in programs]
        note("measuring imports ...")
        results["import"] = report.summary(cases.import_seconds(libraries, 3 * settings.repeats))
        show(report.columns_text(results["import"]))
    results |= {"cases": [], "failed": []}
    for tree in options.trees:
        for rule in options.rules:
            note(f"measuring {rule} on {tree} ...")
            try:
                results["cases"].append(cases.measure_case(tree, rule, programs, settings))
                show(report.case_text(results["cases"][-1]))
            except (cases.Disagreement, worker.WorkerFailed) as error:  # the other cases are still worth measuring
                note(str(error))
                results["failed"].append({"tree": tree, "rule": rule, "reason": str(error)})
    results["geometric_means"] = report.all_means(results["cases"])
    show(report.means_text(results["geometric_means"]))
    if options.scaling:
        results["scaling"] = scaling.measure_scaling(settings, note)
        show(scaling.scaling_text(results["scaling"]))
    return results


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        options = arguments().parse_args(argv)
        file = ("--json", options.json, f"--json={options.json}")  # where it goes is no part of what was measured
        command = shlex.join(["python", "-m", "benchmarks", *(word for word in argv if word not in file)])
        show = (lambda text: None) if options.json == "-" else (lambda text: print(text, end="\n\n", flush=True))
        results = {"command": command} | run(options, show, lambda text: print(text, file=sys.stderr))
    except (MissingContender, worker.WorkerFailed) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        text = json.dumps(results, indent=1) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            with open(options.json, "w") as file:
                file.write(text)
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
