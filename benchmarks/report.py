"""Turns samples into medians, ratios and tables of text."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

import optchain
from benchmarks.contenders import PAIRS
from benchmarks.pytorch import cores
from benchmarks.rules import CORE

DIGITS = 4  # that are kept: more would say what was not measured


def machine() -> dict[str, Any]:
    """The versions, the processor and the device that the numbers belong to."""
    versions = {"python": platform.python_version(), "optchain": optchain.__version__}
    for package in ("optax", "jax", "jaxlib", "numpy", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "versions": versions,
        "cpu": cpu_model(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
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


def summary(columns: Mapping[str, Mapping[str, list[float]]], pairs: Iterable[tuple[str, str]] = PAIRS) -> Any:
    """For each column the median of each contender, and the ratio of each pair of which both were measured.

    A ratio is the median over the rounds of the ratio within a round, and None where it does not exist.
    """
    rows = {}
    for column, samples in columns.items():
        medians = {name: rounded(statistics.median(values)) for name, values in samples.items() if values}
        both = [(a, b) for a, b in pairs if a in medians and b in medians]
        rows[column] = {
            "median": medians,
            "ratio": {f"{a}/{b}": rounded(paired_ratio(samples[a], samples[b])) for a, b in both},
        }
    return rows


def paired_ratio(ours: list[float], theirs: list[float]) -> float | None:
    if 0 in theirs:
        return None
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def all_means(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """The geometric means over all cases, and over those of the core rules and of each tree where these are others."""
    trees = dict.fromkeys(case["tree"] for case in cases)
    groups = {"core rules": [case for case in cases if case["rule"] in CORE]}
    groups |= {tree: [case for case in cases if case["tree"] == tree] for tree in trees}
    others = {name: group for name, group in groups.items() if group and group != cases}
    return {name: geometric_means(group) for name, group in {"all": cases, **others}.items()}


def geometric_means(cases: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """By column and pair, the geometric mean of the ratios over the cases that have it.

    It is None if one of the ratios has no logarithm.
    """
    collected: dict[str, dict[str, list[float | None]]] = {}
    for case in cases:
        for column, row in case["columns"].items():
            for pair, ratio in row["ratio"].items():
                collected.setdefault(column, {}).setdefault(pair, []).append(ratio)
    return {c: {pair: geometric_mean(ratios) for pair, ratios in row.items()} for c, row in collected.items()}


def geometric_mean(ratios: list[float | None]) -> float | None:
    return rounded(statistics.geometric_mean(ratios)) if all(ratios) else None


def machine_text(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{versions}\n{machine['cpu']}, {machine['cores']} cores; {machine['backend']}: {machine['device']}"


def case_text(case: Mapping[str, Any]) -> str:
    """One case as a table."""
    title = f"{case['tree']}, {case['rule']}"
    if "steps" in case:
        title = (
            f"{case['tree']} ({case['leaves']:,} leaves, {case['parameters']:,} parameters), {case['rule']}; "
            f"after {case['steps']} steps {case['difference_in_learning_rates']:.1e} learning rates apart"
        )
    return f"{title}\n{columns_text(case['columns'])}"


def columns_text(columns: Mapping[str, Any]) -> str:
    contenders = list(dict.fromkeys(name for row in columns.values() for name in row["median"]))
    pairs = list(dict.fromkeys(name for row in columns.values() for name in row["ratio"]))
    lines = [f"{'':12}" + "".join(f"{name:>14}" for name in contenders) + ratios_head(pairs)]
    for column, row in columns.items():
        values = "".join(f"{value_text(column, row['median'].get(name)):>14}" for name in contenders)
        lines.append(f"{column:12}{values}{ratios_line(row['ratio'], pairs)}")
    return "\n".join(lines)


def means_text(means: Mapping[str, Any]) -> str:
    lines = []
    for group, columns in means.items():
        pairs = list(dict.fromkeys(name for row in columns.values() for name in row))
        lines += [f"geometric means of the ratios, {group}", f"{'':12}{ratios_head(pairs)}"]
        lines += [f"{column:12}{ratios_line(row, pairs)}" for column, row in columns.items()]
    return "\n".join(lines)


def ratios_head(pairs: Iterable[str]) -> str:
    return "".join(f"  {pair:>14}" for pair in pairs)


def ratios_line(ratios: Mapping[str, float | None], pairs: Iterable[str]) -> str:
    return "".join(f"  {ratio_text(ratios.get(pair)):>{max(14, len(pair))}}" for pair in pairs)


def value_text(column: str, value: float | None) -> str:
    if value is None:
        return "-"
    if column in ("temporaries", "peak"):
        unit, divisor = ("MiB", 2**20) if value >= 2**20 else ("KiB", 2**10)
        return f"{value / divisor:,.1f} {unit}"
    return f"{value:.2f}" if column in ("passes", "roofline") else f"{1e3 * value:,.2f} ms"


def ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
