"""A corner of the table that decides the defaults: where rows are dealt unevenly, sites are better off together than
alone, and near all rows pooled; and what the command refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.application import main
from bench.defaults.arms import ARMS, play
from bench.defaults.run import run_defaults_bench
from bench.defaults.tables import TABLES


@pytest.mark.slow
def test_sites_of_a_table_are_not_worse_off_together_than_alone(capsys: pytest.CaptureFixture[str]) -> None:
    corner = ["--tables", "cancer-dir", "--arms", "alone,pooled", "--folds", "2", "--repeats", "1", "--json"]
    assert main(["defaults", *corner]) == 0
    table = json.loads(capsys.readouterr().out)["tables"]["cancer-dir"]
    assert table["together"]["alone"]["mean"] >= -0.002
    assert table["together"]["pooled"]["mean"] >= -0.01
    assert table["together"]["logistic, pooled"]["mean"] >= -0.01
    assert table["arms"]["together"]["auc"]["mean"] > 0.98


@pytest.mark.slow
def test_models_are_judged_on_rows_that_are_scaled_as_they_have_learned_them(tmp_path: Path) -> None:
    figures = run_defaults_bench(["cancer-dir"], ["alone", "pooled"], folds=1, repeats=1, rounds=3, report=print)
    told = {arm: one["loss"]["sites"] for arm, one in figures["tables"]["cancer-dir"]["arms"].items()}
    table = TABLES["cancer-dir"]()
    assert table is not None
    fold = next(iter(table.split(0)))
    alone, (pooled,) = (play(table, fold, ARMS[arm], tmp_path, rounds=3) for arm in ("alone", "pooled"))
    assert told["alone"] == pytest.approx([client.evaluate()["loss"] for client in alone], rel=1e-4)
    sizes = [len(client.state.data.matched) for client in alone]
    assert np.average(told["pooled"], weights=sizes) == pytest.approx(pooled.evaluate()["loss"], rel=1e-4)


@pytest.mark.slow
def test_images_dealt_unevenly_are_told_apart_better_together(capsys: pytest.CaptureFixture[str]) -> None:
    corner = ["--data", "digits", "--partitions", "dirichlet:0.5", "--sites", "4", "--seeds", "1", "--rounds", "10"]
    assert main(["defaults-images", *corner, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["arms"]["together"]["own"] >= row["arms"]["alone"]["own"] + 0.01
    assert row["arms"]["together"]["all"] >= row["arms"]["alone"]["all"] + 0.05


@pytest.mark.parametrize(
    ("command", "option"), [("defaults", "--tables"), ("defaults", "--arms"), ("defaults-images", "--data")]
)
def test_what_nobody_knows_is_refused_by_name(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, option, "nope"]) == 2
    assert "(got nope)" in capsys.readouterr().err
