"""The benchmark of the rules of aggregation: which are measured against what, and what it says."""

from __future__ import annotations

import json

import pytest

from bench.aggregation import TIMED
from bench.application import main

pytestmark = pytest.mark.outer

SPREAD = {"median", "min", "max"}


def test_every_rule_is_timed_against_the_weighted_mean_of_the_same_models(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["aggregation", "--model", "mlp", "--members", "1,4", "--repeats", "1"]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out)
    assert figures["machine"].keys() >= {"cpu", "cores", "python"}
    assert figures["job"] == {
        "model": {"name": "mlp", "hidden": [64, 32]},
        "elements": 6570,
        "repeats": 1,
        "seed": 1,
    }
    assert list(figures["members"]) == ["1", "4"]
    for rules in figures["members"].values():
        assert list(rules) == list(TIMED)
        for found in rules.values():
            assert found["s"] > 0
            assert found["ratio"].keys() == SPREAD
            assert found["peak_mb"] > 4 * 6570 / 1e6  # the result alone
    assert captured.err.splitlines()[0] == "measuring weighted_mean of 1 members …"
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith("multi")] == ["multi krum"] * 2


@pytest.mark.parametrize("members", ["0", "4,", "four", "101", "-1"])
def test_numbers_of_members_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str], members: str) -> None:
    assert main(["aggregation", "--members", members]) == 78
    assert "--members: expected whole numbers from 1 to 100" in capsys.readouterr().err
