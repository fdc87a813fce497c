"""Draws how a cost grows, as SVG that is the same for the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def path(results: str, axis: str, column: str) -> str:
    """Where a figure lies, seen from the documentation."""
    return f"figures/{results}-{column.replace('+', '-')}-by-{axis}.svg"


def draw(file: Path, axis: str, column: str, counts: list[int], curves: dict[str, Any]) -> None:
    """One line a contender on logarithmic axes, and a dotted one that grows linearly."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "optchain", "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(5, 3), layout="constrained")
        for name, curve in curves.items():
            axes.loglog(counts, [1e3 * seconds for seconds in curve["seconds"]], "o-", markersize=3, label=name)
        top = 1e3 * min(curve["seconds"][-1] for curve in curves.values())
        axes.loglog(counts, [top * count / counts[-1] for count in counts], ":", color="gray", label="linear")
        axes.set(xlabel=axis, ylabel=f"{column}, ms")
        axes.legend(frameon=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
