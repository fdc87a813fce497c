"""Medians, ratios and means."""

from __future__ import annotations

import pytest

from benchmarks import measure, report, scaling

PAIRS = [("ours", "theirs"), ("ours", "absent")]


def row(column, ours, theirs):
    return report.summary({column: {"ours": ours, "theirs": theirs}}, PAIRS)[column]


def test_ratios_are_paired_within_a_round():
    # The machine is 10 times slower in the last two rounds, for both: each round says 1/2.
    assert row("step", [1.0, 10.0, 10.0], [2.0, 20.0, 20.0]) == {
        "median": {"ours": 10.0, "theirs": 20.0},
        "ratio": {"ours/theirs": 0.5},
    }


def test_a_ratio_to_nothing_does_not_exist():
    assert row("temporaries", [4.0], [0.0])["ratio"] == {"ours/theirs": None}
    assert row("temporaries", [0.0], [4.0])["ratio"] == {"ours/theirs": 0.0}
    assert row("eager", [1.0], [])["ratio"] == {}


def case(tree, rule, ratio):
    return {"tree": tree, "rule": rule, "columns": {"step": {"ratio": {"optchain/optax": ratio}}}}


def test_geometric_means_go_over_the_cases():
    cases = [case("a", "sgd", 0.25), case("a", "adam", 1.0)]
    assert report.geometric_means(cases) == {"step": {"optchain/optax": pytest.approx(0.5)}}
    assert report.geometric_means([*cases, case("a", "sgd", 0.0)]) == {"step": {"optchain/optax": None}}


def test_means_are_told_for_the_core_rules_and_for_each_tree():
    cases = [case("a", "sgd", 0.25), case("a", "lion", 1.0), case("b", "sgd", 1.0)]
    means = {group: columns["step"]["optchain/optax"] for group, columns in report.all_means(cases).items()}
    assert means == {"all": 0.63, "core rules": 0.5, "a": 0.5, "b": 1.0}
    assert list(report.all_means(cases[:1])) == ["all"]  # the others would say the same


def test_a_table_has_every_column_and_contender():
    samples = {column: {"optchain": [1.0], "optax": [2.0]} for column in measure.COLUMNS}
    facts = dict(leaves=2, parameters=36, steps=3, difference_in_learning_rates=0.0)
    table = report.case_text({"tree": "tiny", "rule": "sgd", **facts, "columns": report.summary(samples)})
    assert all(f"\n{column}" in table for column in measure.COLUMNS)
    assert table.count("0.50") == len(measure.COLUMNS)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("step", 0.0015, "1.50 ms"),
        ("temporaries", 512, "0.5 KiB"),
        ("peak", 3 * 2**20, "3.0 MiB"),
        ("passes", 11.004, "11.00"),
        ("step", None, "-"),
    ],
)
def test_values_have_their_unit(column, value, text):
    assert report.value_text(column, value) == text


def test_the_slope_is_the_exponent_of_the_upper_points():
    counts = [1, 10, 100, 1000]
    assert scaling.slope(counts, [5.0, 10.0, 1e3, 1e5]) == pytest.approx(2.0)


def test_curves_hold_the_points_of_each_contender():
    def point(i, name):
        return {"step": (i + 1.0) * (2 if name == "optax" else 1)}

    found = scaling.curves([1, 2, 3], point)
    assert found["counts"] == [1, 2, 3]
    assert found["columns"]["step"]["optchain"] == {"seconds": [1.0, 2.0, 3.0], "slope": pytest.approx(1.0)}
    assert found["columns"]["step"]["optax"]["seconds"] == [2.0, 4.0, 6.0]
    assert "step by leaves, optax: 1: 2e+03 ms" in scaling.scaling_text({"leaves": found})
