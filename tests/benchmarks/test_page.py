"""The page of the documentation says what the recorded results say."""

from __future__ import annotations

import json

import pytest

from benchmarks import figures, page, report, scaling

MACHINE = dict(
    versions=dict(python="3.11", optchain="0.1"),
    cpu="A processor",
    cores=2,
    system="Linux",
    backend="cpu",
    device="cpu",
)


def case(tree, rule, ours, theirs):
    samples = {
        "step": {"optchain": [ours], "optax": [theirs], "handwritten": [ours]},
        "temporaries": {"optchain": [0], "optax": [400]},
        "passes": {"optchain": [11.0], "optax": [15.0]},
        "roofline": {"optchain": [0.9], "optax": [0.5]},
    }
    facts = dict(leaves=1, parameters=100, bandwidth=50e9)
    return {"tree": tree, "rule": rule, **facts, "columns": report.summary(samples)}


@pytest.fixture
def results():
    cases = [case("large", "sgd", 1e-3, 4e-3), case("small", "sgd", 1e-3, 2e-3), case("large", "adam", 3e-3, 4e-3)]
    growth = scaling.curves([1, 10, 100], lambda i, name: {"step": 0.001 * 10**i})
    return {
        "command": "python -m benchmarks --scaling",
        "machine": MACHINE,
        "import": report.summary({"import": {"optchain": [0.04], "optax": [0.08]}}),
        "cases": cases,
        "geometric_means": report.all_means(cases),
        "scaling": {"parameters": growth},
    }


def test_a_section_names_machine_versions_and_command(results):
    text = page.section("cpu", results)
    assert text.startswith("## CPU: A processor\n")
    assert "python 3.11, optchain 0.1" in text
    assert "Memory bandwidth 50 GB/s" in text
    assert "```bash\npython -m benchmarks --scaling\n```" in text
    assert "Importing, after JAX: optchain 40.00 ms, optax 80.00 ms." in text


def test_tables_have_a_row_a_rule_and_a_column_a_tree(results):
    text = page.section("cpu", results)
    assert "### Step, optchain / Optax\n\n| | large | small |\n|---|---:|---:|\n| sgd | 0.25 | 0.50 |" in text
    assert "| adam | 0.75 | - |" in text  # not measured on small
    assert "| sgd | 1.00 ms / 4.00 ms | 1.00 ms / 2.00 ms |" in text
    assert "### Temporaries, optchain / Optax\n\nIn units of the size of the parameters." in text
    assert "| adam | 0.00 / 1.00 | - |" in text
    assert "optax:\n\n| | large | small |\n|---|---:|---:|\n| sgd | 15.00 | 15.00 |" in text
    assert "Eager" not in text  # nothing was measured


def test_growth_is_shown_with_its_exponent(results):
    text = page.section("cpu", results)
    assert "![step by parameters](figures/cpu-step-by-parameters.svg)" in text
    assert "step by parameters, exponents: optchain 1.00, optax 1.00." in text
    assert "| | 1 | 10 | 100 |" in text


def test_a_gpu_has_a_section_of_its_own(results):
    gpu = {**results, "machine": {**MACHINE, "backend": "gpu", "device": "A graphics processor"}}
    text = page.pages({"cpu": results, "gpu": gpu})
    assert text.index("## CPU: A processor") < text.index("## GPU: A graphics processor")


def test_figures_are_the_same_for_the_same_numbers(results, tmp_path):
    growth = results["scaling"]["parameters"]
    for name in ("a.svg", "b.svg"):
        figures.draw(tmp_path / name, "parameters", "step", growth["counts"], growth["columns"]["step"])
    first = (tmp_path / "a.svg").read_text()
    assert first == (tmp_path / "b.svg").read_text()
    assert "<dc:date>" not in first
    assert "optchain" in first


def test_the_page_is_that_of_the_recorded_results():
    text = (page.DOCS / "performance.md").read_text()
    assert text == page.pages(page.recorded()), "run python -m benchmarks.page"


@pytest.mark.parametrize("file", sorted(page.RESULTS.glob("*.json")), ids=lambda file: file.name)
def test_recorded_results_are_complete(file):
    assert file.stat().st_size < 300_000
    found = json.loads(file.read_text())
    assert not found["failed"]
    assert found["machine"]["backend"] == file.stem
    for axis, growth in found.get("scaling", {}).items():
        for column in growth["columns"]:
            assert (page.DOCS / figures.path(file.stem, axis, column)).exists()
