"""``python -m benchmarks.page``: writes ``docs/performance.md`` and its figures from the files in ``results``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.report import ratio_text, value_text
from benchmarks.scaling import RULE as SCALED_RULE

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"

INTRODUCTION = """\
# Performance

How fast optchain is beside Optax, beside PyTorch, and beside a step that was written by hand for speed alone. The
numbers of this page come from `python -m benchmarks`, and `python -m benchmarks.page` writes it from the recorded
results in `benchmarks/results`. To measure on your own machine:

```bash
python -m pip install '.[bench]' && python -m benchmarks
```

PyTorch takes part once `python -m pip install '.[bench-torch]'` has installed it.

## How it is measured

- A **rule** is an optimizer with its default arguments, alone or behind `clip_by_global_norm(1.0)` (`clip+`). Every
  optimizer that optchain and Optax publish under the same name can be measured.
- A **tree** is a set of float32 parameters: `large` is 8 leaves of 2048 x 2048; `gpt2` a language model of 148 leaves
  and 12 million parameters; `small` 1,000 leaves of at most 256 numbers; `resnet50` the 161 leaves of that network;
  `moe` a mixture of experts with stacked layers.
- Each contender has, for each rule on each tree, processes of its own: one that compiles once and then only steps, one
  for eager steps, one for cold starts. In a shared process the one that is prepared first can be the faster one,
  whoever it is. The contenders take turns, and a ratio is the median of the ratios within the turns, so that what slows
  the machine down for a while slows down both sides.
- The machine should be idle otherwise. A thread pool that waits for a core which somebody else has, as that of PyTorch
  does in each kernel, takes many times as long.
- Contenders whose parameters differ after equal steps are refused.
- A **step** is `update` and `apply_updates` in one `jax.jit`, with the parameters and the state donated, until the
  result is there. **Eager** is `update` called without `jax.jit`, warm; of PyTorch it is the whole step. **Trace**,
  **lower** and **compile** start with all of JAX's caches empty. **Import** is the processor time that the library adds
  once JAX is imported.
- **Temporaries** and **peak** (arguments, results and temporaries) are what XLA says of the compiled step.
- **Passes** is the memory traffic of the compiled step, counted from its text, in units of the size of the parameters.
  Each kernel reads its operands once and writes its results once; of a condition the cheaper branch counts.
- **Roofline** is the time that this traffic takes at the bandwidth of the memory, as a fraction of the time of the
  step. The bandwidth is the best of several runs of `a * x + y` in the same processes. Where the parameters fit into
  the caches of the processor the fraction can exceed 1. Where leaves are small, calls are the cost and not bytes, and
  it says nothing.
- The **hand-written** step is `benchmarks/handwritten.py`: one function over the leaves, no checks, no options.
- **packed** is optchain with the optimizer inside `packed`. It is measured where most leaves are small.

A ratio below 1 means that optchain is the faster or the smaller one.
"""

PASSES = """\
AdamW moves at least 7 times the size of the parameters: it reads gradient, parameter and both moments, and writes all
but the gradient. PyTorch's fused kernel does exactly this, in one loop. XLA makes one kernel for each result on a CPU.
The first moment costs 3 passes (read it, read the gradient, write it), and so does the second. The parameter costs 4
(read both moments and it, write it). That is 10 in all, for any program in JAX.

A clip adds one pass, which reads the gradient for its norm. optchain folds the factor of the clip into the kernels of
the moments, so that nothing else is added: 11. PyTorch then reads and writes the gradient once more, which makes 10.
Optax writes the clipped gradient to a temporary, and each moment reads that and the gradient, which makes 15.
"""


def pages(results: dict[str, dict[str, Any]]) -> str:
    """The page for results by the name of their file."""
    return "\n".join([INTRODUCTION, *(section(name, found) for name, found in results.items())])


def section(name: str, results: dict[str, Any]) -> str:
    machine, cases = results["machine"], results["cases"]
    versions = ", ".join(f"{library} {version}" for library, version in machine["versions"].items())
    bandwidths = sorted(case["bandwidth"] for case in cases if "bandwidth" in case)
    lines = [
        f"## {machine['backend'].upper()}: {machine['cpu'] if machine['backend'] == 'cpu' else machine['device']}",
        "",
        f"{machine['cpu']}, {machine['cores']} cores; {machine['system']}; device {machine['device']}. {versions}.",
    ]
    if bandwidths:
        middle = bandwidths[len(bandwidths) // 2]
        lines[-1] += f" Memory bandwidth {middle / 1e9:.0f} GB/s (median over the cases)."
    lines += ["", "```bash", results["command"], "```", ""]
    lines += ["### Geometric means", "", *means_table(results["geometric_means"])]
    if "import" in results:
        found = results["import"]["import"]
        seconds = ", ".join(f"{library} {value_text('import', value)}" for library, value in found["median"].items())
        lines += [f"Importing, after JAX: {seconds}.", ""]
    for title, column, pair in TABLES:
        lines += ratio_table(title, cases, column, pair)
    lines += temporaries_table(cases)
    lines += [*passes_tables(cases), *(scaling_text(name, results["scaling"]) if "scaling" in results else [])]
    return "\n".join(lines)


TABLES = (
    ("Step, optchain / Optax", "step", "optchain/optax"),
    ("Step, packed / Optax", "step", "packed/optax"),
    ("Step, optchain / hand-written", "step", "optchain/handwritten"),
    ("Step, optchain / PyTorch", "step", "optchain/torch"),
    ("Eager step, optchain / Optax", "eager", "optchain/optax"),
    ("Trace and lower, optchain / Optax", "trace+lower", "optchain/optax"),
    ("Trace, optchain / Optax", "trace", "optchain/optax"),
    ("Lower, optchain / Optax", "lower", "optchain/optax"),
    ("Compile, optchain / Optax", "compile", "optchain/optax"),
    ("Compile, packed / Optax", "compile", "packed/optax"),
    ("Peak memory, optchain / Optax", "peak", "optchain/optax"),
)


def means_table(means: dict[str, Any]) -> list[str]:
    """The means over the core rules, or over all cases if there are no others."""
    group = "core rules" if "core rules" in means else "all"
    rows = {column: row for column, row in means[group].items() if any(row.values())}
    pairs = list(dict.fromkeys(pair for row in rows.values() for pair in row))
    cells = {column: [ratio_text(row.get(pair)) for pair in pairs] for column, row in rows.items()}
    return [
        f"Over the {'core rules' if group != 'all' else 'rules'} and trees of the tables below.",
        "",
        *table(pairs, cells),
    ]


def ratio_table(title: str, cases: list[dict[str, Any]], column: str, pair: str) -> list[str]:
    """Rules by trees, followed by the medians; nothing if no case has the ratio."""
    cases = [case for case in cases if pair in case["columns"].get(column, {}).get("ratio", {})]
    if not cases:
        return []
    ours, theirs = pair.split("/")

    def both(case: dict[str, Any]) -> str:
        median = case["columns"][column]["median"]
        return f"{value_text(column, median[ours])} / {value_text(column, median[theirs])}"

    ratios = rules_by_trees(cases, lambda case: ratio_text(case["columns"][column]["ratio"][pair]))
    return [f"### {title}", "", *ratios, *folded(f"Medians, {pair}", rules_by_trees(cases, both))]


def temporaries_table(cases: list[dict[str, Any]]) -> list[str]:
    """Sizes instead of a ratio, which does not exist where a program needs nothing."""
    cases = [case for case in cases if len(case["columns"].get("temporaries", {}).get("median", {})) > 1]
    if not cases:
        return []

    def cell(case: dict[str, Any]) -> str:
        median = case["columns"]["temporaries"]["median"]
        return " / ".join(ratio_text(median[name] / (4 * case["parameters"])) for name in ("optchain", "optax"))

    title = "### Temporaries, optchain / Optax"
    return [title, "", "In units of the size of the parameters.", "", *rules_by_trees(cases, cell)]


def passes_tables(cases: list[dict[str, Any]]) -> list[str]:
    lines = []
    for column, title in (("passes", "Passes over memory"), ("roofline", "Roofline")):
        names = dict.fromkeys(name for case in cases for name in case["columns"].get(column, {}).get("median", {}))
        if names:
            lines += [f"### {title}", "", *([PASSES] if column == "passes" else [])]
        for name in names:
            found = [case for case in cases if name in case["columns"].get(column, {}).get("median", {})]
            cell = value_cell(column, name)
            lines += [f"{name}:", "", *rules_by_trees(found, cell)]
    return lines


def value_cell(column: str, name: str) -> Callable[[dict[str, Any]], str]:
    return lambda case: value_text(column, case["columns"][column]["median"][name])


def scaling_text(name: str, scaling: dict[str, Any]) -> list[str]:
    lines = [
        "### Growth",
        "",
        f"`{SCALED_RULE}`. The exponent is the slope of the three largest points on logarithmic axes: 1 is linear.",
        "",
    ]
    for axis, found in scaling.items():
        for column, curves in found["columns"].items():
            path = figures.path(name, axis, column)
            exponents = ", ".join(f"{library} {curve['slope']:.2f}" for library, curve in curves.items())
            lines += [f"![{column} by {axis}]({path})", "", f"{column} by {axis}, exponents: {exponents}.", ""]
            rows = {
                library: [value_text(column, seconds) for seconds in curve["seconds"]]
                for library, curve in curves.items()
            }
            lines += folded("Medians", table([f"{count:,}" for count in found["counts"]], rows))
    return lines


def rules_by_trees(cases: list[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> list[str]:
    trees = list(dict.fromkeys(case["tree"] for case in cases))
    rows: dict[str, list[str]] = {case["rule"]: ["-"] * len(trees) for case in cases}
    for case in cases:
        rows[case["rule"]][trees.index(case["tree"])] = cell(case)
    return table(trees, rows)


def table(head: Iterable[str], rows: dict[str, list[str]]) -> list[str]:
    head = list(head)
    lines = [f"| | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}"]
    return [*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()), ""]


def folded(title: str, lines: list[str]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "</details>", ""]


def recorded() -> dict[str, dict[str, Any]]:
    """The results in the repository, by name; CPU first."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def main() -> None:
    results = recorded()
    (DOCS / "performance.md").write_text(pages(results))
    for name, found in results.items():
        for axis, growth in found.get("scaling", {}).items():
            for column, curves in growth["columns"].items():
                figures.draw(DOCS / figures.path(name, axis, column), axis, column, growth["counts"], curves)


if __name__ == "__main__":
    main()
