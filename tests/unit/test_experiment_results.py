"""Results on disk: whole or not at all, and taken for nothing they are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.experiments.plan import Experiment
from node.experiments.results import (
    BrokenResult,
    get_result_path,
    read_result,
    remove_leftovers,
    write_result,
)
from node.experiments.runner import take_stock
from support.experiments import make_document, make_experiment

TEXT = "name: x\nbase: {clients: 2, rounds: 2}\nsweep: {method: [local, fedavg, dfpl]}\n"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return make_experiment(tmp_path, TEXT)


def test_what_is_written_is_read_back(experiment: Experiment, tmp_path: Path) -> None:
    run = next(iter(experiment.runs.values()))
    assert read_result(tmp_path, run) is None
    write_result(tmp_path, run, make_document([0.25, 0.5], sent_params=10))
    result = read_result(tmp_path, run)
    assert result is not None
    assert [row.taa for row in result.rounds] == [0.25, 0.5]
    assert (result.rounds[0].global_, result.rounds[0].sent_bytes, result.num_clients) == (0.0625, 40, 2)
    assert result.config == run.config
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"{run.id}.json"]


def test_a_loss_that_is_no_number_is_none_and_the_file_stays_json(experiment: Experiment, tmp_path: Path) -> None:
    run = next(iter(experiment.runs.values()))
    document = make_document([0.25, 0.5])
    document["rounds"][1]["tal"] = float("inf")
    write_result(tmp_path, run, document)
    json.loads(get_result_path(tmp_path, run.id).read_text(), parse_constant=pytest.fail)
    result = read_result(tmp_path, run)
    assert result is not None
    assert [row.tal for row in result.rounds] == [0.75, None]


def _truncate(text: str) -> str:
    return text[: len(text) // 2]


def _edit(**change: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **change})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "not a result: Invalid JSON"),
        (lambda _: "", "not a result: Invalid JSON"),
        (lambda _: "[]", "not a result: Input should be an object"),
        (_edit(rounds=[{"round": 1}]), "not a result: rounds.0.taa: Field required"),
        (_edit(rounds=[]), "expected rounds 1 to 2, got 0 of them"),
        (_edit(id="0" * 16), "got run 0000000000000000 in format 1"),
        (_edit(format=0), "in format 0"),
        (_edit(config={"seed": 2}), "another configuration than the one its name is a digest of"),
    ],
)
def test_a_broken_or_foreign_file_is_named_and_counts_as_not_run(
    experiment: Experiment, tmp_path: Path, damage: Callable[[str], str], message: str
) -> None:
    run, *others = experiment.runs.values()
    for one in (run, *others):
        write_result(tmp_path, one, make_document([0.25, 0.5]))
    path = get_result_path(tmp_path, run.id)
    path.write_text(damage(path.read_text()))
    with pytest.raises(BrokenResult) as caught:
        read_result(tmp_path, run)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    stock = take_stock(experiment, tmp_path)
    assert set(stock.finished) == {one.id for one in others}
    assert list(stock.broken) == [run.id]
    assert stock.list_pending(experiment) == [run]


def test_a_failed_run_is_kept_with_its_error_and_is_to_be_run_again(experiment: Experiment, tmp_path: Path) -> None:
    first, second, third = experiment.runs.values()
    write_result(tmp_path, first, make_document([0.25, 0.5]))
    ending = {key: value for key, value in make_document([0.5]).items() if key not in ("rounds", "clients")}
    write_result(tmp_path, second, {"error": "Diverged: at round 1", **ending})
    stock = take_stock(experiment, tmp_path)
    assert list(stock.finished) == [first.id]
    assert stock.failed[second.id].error == "Diverged: at round 1"
    assert stock.list_pending(experiment) == [second, third]


def test_what_a_write_that_was_cut_short_left_is_removed(experiment: Experiment, tmp_path: Path) -> None:
    run = next(iter(experiment.runs.values()))
    write_result(tmp_path, run, make_document([0.25, 0.5]))
    leftover = get_result_path(tmp_path, run.id).with_suffix(".part")
    leftover.write_text("{")
    assert list(take_stock(experiment, tmp_path).finished) == [run.id]
    remove_leftovers(tmp_path)
    assert not leftover.exists()
    assert get_result_path(tmp_path, run.id).exists()
