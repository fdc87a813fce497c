"""How the cost of a step grows with the parameters and with the leaves.

Every point is one contender in a process of its own, clip and AdamW.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import take_turns
from benchmarks.measure import Settings
from benchmarks.report import rounded

RULE = "clip+adamw"
CONTENDERS = ("optchain", "optax")
MILLIONS = (1, 4, 16, 64, 256)
LEAVES = (10, 30, 100, 300, 1000, 3000)
UPPER = 3  # the slope is that of so many of the largest points: below them fixed costs bend the curve


def measure_scaling(settings: Settings, note: Callable[[str], None], millions=MILLIONS, leaves=LEAVES) -> dict:
    """Step times by millions of parameters, step times and trace+lower times by small leaves, and their slopes."""

    def point(tree: str, name: str) -> dict[str, float]:
        note(f"measuring {RULE} on {tree} with {name} ...")
        wanted = settings._replace(columns=("step", "trace+lower"))
        samples = take_turns("step", tree, RULE, [name], wanted._replace(repeats=1))[0]
        if tree.startswith("small"):
            samples |= take_turns("cold", tree, RULE, [name], wanted)[0]
        return {
            column: rounded(statistics.median(samples[column][name])) for column in wanted.columns if column in samples
        }

    return {
        "parameters": curves([n * 2**20 for n in millions], lambda i, name: point(f"blocks:{millions[i]}", name)),
        "leaves": curves(list(leaves), lambda i, name: point(f"small:{leaves[i]}", name)),
    }


def curves(counts: list[int], point: Callable[[int, str], dict[str, float]]) -> dict[str, Any]:
    """By column and contender the seconds at each count, and the slope at the upper end."""
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for i in range(len(counts)):
        for name in CONTENDERS:
            measured[name].append(point(i, name))
    columns = list(measured[CONTENDERS[0]][0])
    return {
        "counts": counts,
        "columns": {
            column: {
                name: {"seconds": (seconds := [p[column] for p in points]), "slope": slope(counts, seconds)}
                for name, points in measured.items()
            }
            for column in columns
        },
    }


def slope(counts: list[int], seconds: list[float]) -> float:
    """The exponent of growth: 1 is linear."""
    x, y = np.log(counts[-UPPER:]), np.log(seconds[-UPPER:])
    return rounded(float(np.polyfit(x, y, 1)[0]))


def scaling_text(scaling: dict[str, Any]) -> str:
    lines = []
    for axis, found in scaling.items():
        for column, by_name in found["columns"].items():
            for name, curve in by_name.items():
                points = ", ".join(
                    f"{n:,}: {1e3 * s:.3g} ms" for n, s in zip(found["counts"], curve["seconds"], strict=True)
                )
                lines.append(f"{column} by {axis}, {name}: {points}; exponent {curve['slope']:.2f}")
    return "\n".join(lines)
