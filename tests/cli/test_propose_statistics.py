"""Runs of statistics as `fednode propose statistics` makes them of a file of columns, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ml.specs import MaskedStatisticsSpec, StatisticsSpec, get_spec
from node.cli.federation.statistics_terms import draft_statistics, read_columns
from node.errors import NodeError

FILE = Path("columns.yaml")
AGE = {"name": "age", "edges": [40, 60]}
SEX = {"name": "sex", "values": ["f", "m"]}
BOUND = {**AGE, "low": 0, "high": 120}


def draft(*columns: dict[str, Any], task: str = "classification", **asked: Any) -> dict[str, Any]:
    terms = draft_statistics(FILE, read_columns(FILE, {"columns": [*columns]}), task=task, min_count=5, **asked)
    run: dict[str, Any] = terms["run"]
    return run


def make_spec(run: dict[str, Any], kind: str = "classification") -> Any:
    terms: Any = {"rounds": 1, "num_members": 4, "input_": run["input"], "kind": kind}
    return get_spec(run["method"], run["model"], 2, run["input"]["shape"], **terms)


def test_what_is_not_asked_for_is_not_in_the_run() -> None:
    run = draft(AGE, SEX)
    assert run["method"] == {"name": "local"}
    assert run["input"]["shape"] == [4, 1, 1]
    assert not {"correlations", "low", "high"} & run["input"].keys()
    assert isinstance(make_spec(run), StatisticsSpec)


def test_noise_needs_what_numbers_lie_between_and_a_category_has_0_and_1() -> None:
    run = draft(BOUND, SEX, noise=3.0, correlations=True)
    assert run["input"]["columns"] == [AGE, SEX]
    assert (run["input"]["low"], run["input"]["high"]) == ([0, 0.0, 0.0, 0.0], [120, 1.0, 1.0, 1.0])
    spec = make_spec(run)
    assert spec.hyperparameters.dp.statistics_noise == 3.0
    assert spec.agreement.correlations
    with pytest.raises(NodeError, match=r"columns.yaml: column age: expected low and high with --noise"):
        draft(AGE, noise=3.0)
    with pytest.raises(NodeError, match=r"columns.yaml: column age: expected no low without --noise"):
        draft(BOUND)


def test_masked_sums_go_with_noise_and_correlations() -> None:
    assert isinstance(make_spec(draft(AGE, masked=True)), MaskedStatisticsSpec)
    assert isinstance(make_spec(draft(BOUND, masked=True, noise=3.0, correlations=True)), MaskedStatisticsSpec)


def test_classes_are_counted_where_there_are_classes() -> None:
    run = draft(AGE, task="regression")
    assert "class_counts" not in run["input"]
    assert isinstance(make_spec(run, "regression"), StatisticsSpec)
