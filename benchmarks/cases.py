"""Lets the contenders take turns.

Every round measures each contender once, in the process that it has to itself, the first one last in every other round.
The ratio that is reported is the median of the rounds' own ratios: what slows the machine down for a while slows down
both.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import measure, report
from benchmarks.measure import Settings
from benchmarks.rules import rules
from benchmarks.trees import fill, shapes_of, tree_of
from benchmarks.worker import ROOT, Worker, WorkerFailed

Samples = dict[str, dict[str, list[float]]]  # by column and contender, one value a round

IMPORT = "import jax, time; begin = time.process_time(); import {}; print(time.process_time() - begin)"

LIMIT = 120  # seconds, after which no further round begins: a thread pool that waits on a busy machine may take hours

# Contenders that end further apart than this share of the way that the parameters went do not compute the same thing.
TOLERANCE = 0.05


class Disagreement(Exception):
    """Two contenders computed different things, so that comparing their speed means nothing."""


def alternate(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """The names, in turned order in every other round."""
    for i in range(rounds):
        yield list(reversed(names)) if i % 2 else list(names)


def measure_case(tree: str, rule: str, names: Sequence[str], settings: Settings) -> dict[str, Any]:
    """All wanted columns of one rule on one tree, as they stand in the JSON."""
    sizes = [math.prod(shape) for shape in shapes_of(tree_of(tree))]
    known: dict[str, Any] = {"leaves": len(sizes), "parameters": sum(sizes)}
    samples: Samples = {}
    wanted = set(settings.columns)
    if wanted & set(measure.COLD):
        samples |= take_turns("cold", tree, rule, names, settings)[0]
    if wanted & {"step", *measure.MEMORY}:
        found, facts = compare_steps(tree, rule, names, settings)
        samples |= found
        known |= facts
    if wanted & set(measure.EAGER):
        samples |= take_turns("eager", tree, rule, names, settings)[0]
    columns = report.summary({column: samples[column] for column in settings.columns if column in samples})
    return {"tree": tree, "rule": rule, **known, "columns": columns}


def compare_steps(tree: str, rule: str, names: Sequence[str], settings: Settings) -> tuple[Samples, dict[str, Any]]:
    """Compiled steps, their memory, and how far apart the contenders end.

    Raises:
      Disagreement: If they end with different parameters.
    """
    with tempfile.TemporaryDirectory() as folder:
        finals = {name: str(Path(folder) / f"{name}.npz") for name in names}
        samples, known = take_turns("step", tree, rule, names, settings, finals)
        if not known:  # nobody has this rule
            return {}, {}
        start = jax.tree.leaves(fill(tree_of(tree), seed=0))
        difference = max_difference(start, {name: finals[name] for name in known})
    bandwidth = max(facts["bandwidth"] for facts in known.values())
    size = 4 * sum(x.size for x in start)
    samples |= {column: defaultdict(list) for column in measure.MEMORY}
    for name, facts in known.items():
        for column in ("temporaries", "peak"):
            if column in facts:
                samples[column][name] = [facts[column]]
        if "moved" in facts:
            samples["passes"][name] = [facts["moved"] / size]
            samples["roofline"][name] = [facts["moved"] / bandwidth / seconds for seconds in samples["step"][name]]
    return samples, {
        "steps": len(next(iter(samples["step"].values()))) * (settings.warmup + settings.steps),
        "bandwidth": report.rounded(bandwidth),
        "difference_in_learning_rates": report.rounded(difference / rules()[rule].learning_rate),
    }


def take_turns(
    job: str,
    tree: str,
    rule: str,
    names: Sequence[str],
    settings: Settings,
    finals: Mapping[str, str] | None = None,
) -> tuple[Samples, dict[str, dict[str, Any]]]:
    """The samples of a job, and what its workers know at the end, of the contenders that take part."""
    samples: Samples = defaultdict(lambda: defaultdict(list))
    common = dict(tree=tree, rule=rule, settings=settings._asdict(), share=1 / len(names))
    with contextlib.ExitStack() as stack:
        workers = {}
        for name in names:  # they prepare side by side
            more = {"final": finals[name]} if finals else {}
            workers[name] = stack.enter_context(Worker(job, name=name, **common, **more))
        workers = {name: worker for name, worker in workers.items() if worker.receive()}
        stop = time.monotonic() + LIMIT
        for turns in alternate(list(workers), settings.repeats * (4 if job == "step" else 1)):
            for name in turns:
                for column, value in workers[name].ask("round").items():
                    samples[column][name].append(value)
            if time.monotonic() > stop:
                break
        return samples, {name: worker.ask("finish") for name, worker in workers.items()}


def import_seconds(libraries: Sequence[str], rounds: int) -> Samples:
    """Processor seconds that importing a library adds in an interpreter that has JAX, after one unmeasured round."""
    samples: dict[str, list[float]] = {name: [] for name in libraries}
    for turns in alternate(libraries, rounds + 1):
        for name in turns:
            arguments = [sys.executable, "-c", IMPORT.format(name)]
            done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise WorkerFailed(f"importing {name} failed:\n{done.stderr.strip()}")
            samples[name].append(float(done.stdout))
    return {"import": {name: seconds[1:] for name, seconds in samples.items()}}  # the first may compile the sources


def max_difference(start: list[np.ndarray], finals: Mapping[str, str]) -> float:
    """The largest difference between the first contender's final parameters and another's.

    Args:
      start: The parameters that all started from, a list of leaves.
      finals: By contender, the file with its final parameters.

    Raises:
      Disagreement: If a difference is more than `TOLERANCE` of the farthest way that a parameter went, or not a number.
    """
    (first, file), *peers = finals.items()
    ours = list(np.load(file).values())
    way = max_distance(start, ours)
    worst = 0.0
    for name, file in peers:
        difference = max_distance(ours, list(np.load(file).values()))
        if not difference <= TOLERANCE * way:  # also if either is NaN
            raise Disagreement(
                f"{first} and {name} do not compute the same: after equal steps from equal parameters they differ "
                f"by {difference:.3g}, where the parameters went {way:.3g}. Their times cannot be compared."
            )
        worst = max(worst, difference)
    return worst


def max_distance(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return float(np.max([np.abs(x - y).max(initial=0.0) for x, y in zip(a, b, strict=True)]))
