"""Turns samples into medians, ratios, a table and JSON."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.measure import MEMORY, Case


def machine() -> dict[str, Any]:
    """The versions, the processor and the device that the numbers belong to."""
    versions = {"python": platform.python_version()}
    for package in ("optchain", "optax", "jax", "jaxlib", "numpy"):
        with contextlib.suppress(ImportError):
            versions[package] = importlib.import_module(package).__version__
    return {
        "versions": versions,
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
    }


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def summary(columns: Mapping[str, Mapping[str, list[float]]], contenders: Iterable[str]) -> dict[str, Any]:
    """For each column the median of each contender and the ratio of the first one to each other.

    A ratio is the median over the rounds of the ratio within a round, and None where it does not exist.
    """
    first, *peers = contenders
    rows = {}
    for column, samples in columns.items():
        medians = {name: statistics.median(values) for name, values in samples.items()}
        ratios = {name: paired_ratio(samples.get(first, []), samples.get(name, [])) for name in peers}
        rows[column] = {"median": medians, "ratio": ratios, "samples": {name: list(v) for name, v in samples.items()}}
    return rows


def paired_ratio(ours: list[float], theirs: list[float]) -> float | None:
    if not ours or len(ours) != len(theirs) or 0 in theirs:
        return None
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def describe(tree: str, rule: str, shapes_leaves: list[tuple[int, ...]], case: Case, contenders: Iterable[str]) -> dict:
    """One case as it stands in the JSON."""
    return {
        "tree": tree,
        "rule": rule,
        "leaves": len(shapes_leaves),
        "parameters": sum(math.prod(shape) for shape in shapes_leaves),
        "steps": case.steps,
        "difference_in_learning_rates": case.difference,
        "columns": summary(case.samples, contenders),
    }


def geometric_means(cases: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """By column and peer, the geometric mean of the ratios over all cases; None if one of them has no logarithm."""
    collected: dict[str, dict[str, list[float | None]]] = {}
    for case in cases:
        for column, row in case["columns"].items():
            for peer, ratio in row["ratio"].items():
                collected.setdefault(column, {}).setdefault(peer, []).append(ratio)
    return {c: {peer: geometric_mean(ratios) for peer, ratios in row.items()} for c, row in collected.items()}


def geometric_mean(ratios: list[float | None]) -> float | None:
    if not all(ratios):
        return None
    return statistics.geometric_mean(ratios)


def machine_text(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{versions}\n{machine['cpu']}, {machine['cores']} cores; {machine['backend']}: {machine['device']}"


def case_text(case: Mapping[str, Any]) -> str:
    """One case as a table."""
    contenders = list(dict.fromkeys(name for row in case["columns"].values() for name in row["median"]))
    peers = list(dict.fromkeys(name for row in case["columns"].values() for name in row["ratio"]))
    head = f"{'':12}" + "".join(f"{name:>14}" for name in contenders) + "".join(f"{'/' + name:>10}" for name in peers)
    lines = [
        f"{case['tree']} ({case['leaves']:,} leaves, {case['parameters']:,} parameters), {case['rule']}; "
        f"after {case['steps']} steps {case['difference_in_learning_rates']:.1e} learning rates apart",
        head,
    ]
    for column, row in case["columns"].items():
        show = size_text if column in MEMORY else time_text
        values = "".join(f"{show(row['median'].get(name)):>14}" for name in contenders)
        lines.append(f"{column:12}{values}" + "".join(f"{ratio_text(row['ratio'][name]):>10}" for name in peers))
    return "\n".join(lines)


def means_text(means: Mapping[str, Mapping[str, float | None]]) -> str:
    peers = list(dict.fromkeys(name for row in means.values() for name in row))
    lines = ["geometric means of the ratios", f"{'':12}" + "".join(f"{'/' + name:>10}" for name in peers)]
    for column, row in means.items():
        lines.append(f"{column:12}" + "".join(f"{ratio_text(row.get(name)):>10}" for name in peers))
    return "\n".join(lines)


def time_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f} ms"


def size_text(size: float | None) -> str:
    if size is None:
        return "-"
    unit, divisor = ("MiB", 2**20) if size >= 2**20 else ("KiB", 2**10)
    return f"{size / divisor:,.1f} {unit}"


def ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
