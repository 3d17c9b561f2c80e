"""Results on disk: whole or not at all, and taken for nothing they are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from node.experiments.piece import Piece, simulate_run
from node.experiments.plan import Experiment, Run
from node.experiments.results import (
    BrokenResult,
    get_result_path,
    read_result,
    remove_leftovers,
    write_result,
)
from node.experiments.runner import Progress, run_experiment
from node.experiments.stock import take_stock
from support.data.experiments import get_run, make_document, make_experiment

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


# ---- heights before round 1

SHARING = """\
name: x
base: {clients: 2, rounds: 2, shots: 3, method: {unet_width: 2, encryptor_epochs: 1, warmup_epochs: 1}}
sweep: {method: [{name: fededs, local_epochs: 1}]}
"""


def test_the_height_at_which_sets_are_shared_is_told_apart_from_the_rounds(tmp_path: Path) -> None:
    (run,) = make_experiment(tmp_path, SHARING).runs.values()
    heights: list[int] = []
    outcome = simulate_run(Piece(run, tmp_path, ()), heights.append)
    write_result(tmp_path, run, outcome.document)
    result = read_result(tmp_path, run)
    assert result is not None
    assert result.error is None
    assert len(heights) == 3
    assert ([row.round for row in result.sharing], [row.round for row in result.rounds]) == ([0], [1, 2])
    assert result.sharing[0].sent_bytes > 0
    assert result.sharing[0].sent_bytes != result.rounds[0].sent_bytes == result.rounds[1].sent_bytes


@pytest.mark.parametrize(("method", "heights"), [("fedavg", 1), ("fededs", 0), ("fededs", 2)])
def test_other_heights_before_round_1_than_the_method_has_are_refused(
    tmp_path: Path, method: str, heights: int
) -> None:
    (run,) = make_experiment(tmp_path, f"name: x\nbase: {{rounds: 2}}\nsweep: {{method: [{method}]}}\n").runs.values()
    write_result(tmp_path, run, make_document([0.1] * heights + [0.25, 0.5], sharing_heights=heights))
    with pytest.raises(BrokenResult, match=f"expected {run.sharing_heights} heights before round 1, got {heights}"):
        read_result(tmp_path, run)


# ---- runs that another experiment has

OTHER = TEXT.replace("name: x\n", "name: y\nreuse: [z, x, y]\n")


def go_on(experiment: Experiment, directory: Path, runs: Sequence[Run]) -> list[Progress]:
    """What is taken over; nothing is run."""
    done = run_experiment(experiment, directory, runs, jobs=1, data_root=directory, should_stop=lambda: True)
    return list(done)


def test_what_another_experiment_has_finished_is_taken_over(experiment: Experiment, tmp_path: Path) -> None:
    there, here = tmp_path / "x", tmp_path / "y"
    local, fedavg, dfpl = (get_run(experiment, f"{name}, seed 1") for name in ("local", "fedavg", "dfpl"))
    ending = {key: value for key, value in make_document([0.5]).items() if key not in ("rounds", "clients")}
    write_result(there, local, make_document([0.25, 0.5]))
    write_result(there, fedavg, {"error": "Diverged: at round 1", **ending})
    write_result(there, dfpl, make_document([0.25, 0.5]))
    write_result(here, dfpl, make_document([0.5, 1.0]))
    other = make_experiment(tmp_path, OTHER)
    pending = take_stock(other, here).list_pending(other)
    news = go_on(other, here, pending)
    assert [(one.run.id, one.done, one.best_taa, one.taken_from) for one in news] == [(local.id, True, 0.5, "x")]
    assert get_result_path(here, local.id).read_bytes() == get_result_path(there, local.id).read_bytes()
    stock = take_stock(other, here)
    assert stock.list_pending(other) == [fedavg]
    assert stock.finished[dfpl.id].rounds[-1].taa == 1.0  # its own, which was finished


def test_what_lacks_something_that_is_shown_here_is_not_taken_over(experiment: Experiment, tmp_path: Path) -> None:
    local, fedavg, _ = experiment.runs.values()
    write_result(tmp_path / "x", local, make_document([0.25, 0.5]))
    write_result(tmp_path / "x", fedavg, make_document([0.25, 0.5], train_s=[1.0, 1.0]))
    other = make_experiment(tmp_path, OTHER + "report: {tables: [{value: train_seconds}]}\n")
    news = go_on(other, tmp_path / "y", take_stock(other, tmp_path / "y").list_pending(other))
    assert [one.run for one in news] == [fedavg]
