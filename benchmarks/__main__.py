"""``python -m benchmarks``: the speed of optchain beside its peers, in one run.

What a step costs depends on the state of the allocator that earlier work left behind. ``--columns step`` gives a
process that compiles once and then only steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable

import jax

from benchmarks import report
from benchmarks.contenders import CONTENDERS, MissingContender
from benchmarks.measure import COLUMNS, Disagreement, Settings, measure
from benchmarks.rules import RULES
from benchmarks.trees import TREES, is_shape


def names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of comma-separated names; ``all`` is all of them but ``tiny``, which measures nothing."""
    known = tuple(known)

    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(name for name in known if name != "tiny") if text == "all" else tuple(text.split(","))
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; choose from {', '.join(known)}, all")
        return chosen

    return parse


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="The speed of optchain beside its peers.")
    for option, known, default in (
        ("--trees", TREES, "large,gpt2,small"),
        ("--rules", RULES, "clip+sgd,adam,clip+adamw"),
        ("--columns", COLUMNS, "all"),
    ):
        text = f"some of {', '.join(known)}; default %(default)s"
        parser.add_argument(option, type=names(known), default=default, metavar="NAME,...", help=text)
    parser.add_argument("--repeats", type=positive, metavar="N", help="rounds of every measurement (default 3)")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE too; - prints JSON and no tables")
    parser.add_argument("--quick", action="store_true", help="one round of few steps: whether it runs, not how fast")
    return parser


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    settings = Settings(repeats=1, steps=2, warmup=1) if options.quick else Settings()
    settings = settings._replace(columns=options.columns, repeats=options.repeats or settings.repeats)
    show = (lambda text: None) if options.json == "-" else (lambda text: print(text, end="\n\n", flush=True))
    jax.config.update("jax_enable_compilation_cache", False)  # a compilation read from disk is none

    cases = []
    try:
        machine = report.machine()
        show(report.machine_text(machine))
        for tree in options.trees:
            for rule in options.rules:
                programs = {name: build(rule) for name, build in CONTENDERS.items()}
                programs = {name: program for name, program in programs.items() if program}
                print(f"measuring {rule} on {tree} ...", file=sys.stderr)
                shapes = TREES[tree]()
                case = measure(shapes, programs, RULES[rule].learning_rate, settings)
                cases.append(report.describe(tree, rule, jax.tree.leaves(shapes, is_leaf=is_shape), case, programs))
                show(report.case_text(cases[-1]))
    except (MissingContender, Disagreement) as error:
        print(error, file=sys.stderr)
        return 1

    means = report.geometric_means(cases)
    show(report.means_text(means))
    if options.json:
        results = {"machine": machine, "settings": settings._asdict(), "cases": cases, "geometric_means": means}
        text = json.dumps(results, indent=1) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            with open(options.json, "w") as file:
                file.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
