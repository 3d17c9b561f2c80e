"""A directory and its runs: which results are kept, what shards leave each other, and who may be at work there."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ml.simulation.saved import StateFile, Tree
from node.cli.app import run as run_command
from node.errors import NodeError
from node.experiments import runner
from node.experiments.claims import CLAIMS, Claims
from node.experiments.piece import Outcome, Piece, Saved, simulate_run
from node.experiments.plan import Experiment, Run
from node.experiments.pool import Died, Elsewhere, Event, Finished, Pieces
from node.experiments.results import get_result_path, get_state_path, list_numbers, read_result, write_result
from node.experiments.runner import Progress, Where, run_experiment
from node.experiments.stock import take_stock
from support.data.experiments import make_document, make_experiment

TEXT = "name: x\nbase: {clients: 2, rounds: 2}\nsweep: {method: [local, fedavg]}\n"
FAILURE = {"error": "it fell", "seconds": 0.0, "finished": "2026-11-20T14:00:00Z", "machine": {}}


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return make_experiment(tmp_path, TEXT)


def work(patch: pytest.MonkeyPatch, do: Callable[[int], Event]) -> list[int]:
    """Pieces are done by `do` in place of a pool; the numbers of those that were taken."""
    done: list[int] = []

    def work_through(pieces: Pieces, *_: Any) -> Iterator[Event]:
        while (taken := pieces.take()) is not None:
            done.append(taken[0])
            yield do(taken[0])
        yield from pieces.list_news()

    patch.setattr(runner, "work_through", work_through)
    return done


def run_shard(experiment: Experiment, directory: Path, runs: list[Run], **options: Any) -> list[Progress]:
    default: dict[str, Any] = {"jobs": 1, "data_root": directory, "should_stop": lambda: False}
    options = default | {"where": Where(shard=(1, 2))} | options
    return list(run_experiment(experiment, directory, runs, **options))


def get_taa(directory: Path, run: Run) -> list[float | None]:
    result = read_result(directory, run)
    assert result is not None
    assert result.error is None
    return [row.taa for row in result.rounds]


# ---- which result is kept


@pytest.mark.parametrize("broken", [False, True])
def test_a_failure_of_another_shard_gives_way_to_a_result(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    run = next(iter(experiment.runs.values()))

    def finish(index: int) -> Event:
        write_result(tmp_path, run, FAILURE)  # the heir, meanwhile
        if broken:
            get_result_path(tmp_path, run.id).write_text("{")
        return Finished(index, Outcome(make_document([0.25, 0.5])))

    work(monkeypatch, finish)
    (news,) = run_shard(experiment, tmp_path, [run])
    assert (news.done, news.error) == (True, None)
    assert get_taa(tmp_path, run) == [0.25, 0.5]


@pytest.mark.parametrize("outcome", [make_document([0.5, 1.0]), FAILURE])
def test_the_first_result_of_two_shards_stays(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any]
) -> None:
    run = next(iter(experiment.runs.values()))

    def finish(index: int) -> Event:
        write_result(tmp_path, run, make_document([0.25, 0.5]))
        return Died(index, "it fell") if outcome is FAILURE else Finished(index, Outcome(outcome))

    work(monkeypatch, finish)
    run_shard(experiment, tmp_path, [run])
    assert get_taa(tmp_path, run) == [0.25, 0.5]


def test_answers_at_priors_are_among_what_two_runs_agree_in(experiment: Experiment, tmp_path: Path) -> None:
    run = next(iter(experiment.runs.values()))
    numbers = []
    for taa in (0.5, 0.25):
        write_result(tmp_path, run, make_document([0.25, 0.5], priors=[{"kappa": 1.0, "taa": taa, "global": 0.5}]))
        result = read_result(tmp_path, run)
        assert result is not None
        numbers.append(list_numbers(result))
    assert numbers[0] != numbers[1]


# ---- runs that others have done


def test_what_another_shard_finishes_while_this_one_starts_is_not_run_again(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = take_stock(experiment, tmp_path)
    pending = stock.list_pending(experiment)
    write_result(tmp_path, pending[0], make_document([0.25, 0.5]))
    done = work(monkeypatch, lambda index: Finished(index, Outcome(make_document([0.5, 1.0]))))
    news = run_shard(experiment, tmp_path, pending, before=stock.fingerprints)
    assert done == [1]
    assert [(one.run, one.best_taa, one.taken_from) for one in news] == [
        (pending[1], 1.0, None),
        (pending[0], 0.5, "another shard"),
    ]
    assert get_taa(tmp_path, pending[0]) == [0.25, 0.5]


def test_what_a_shard_has_finished_is_not_taken_over_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = make_experiment(tmp_path, TEXT.replace("name: x\n", "name: x\nreuse: y\n"))
    stock = take_stock(experiment, tmp_path / "x")
    run = stock.list_pending(experiment)[0]
    write_result(tmp_path / "x", run, make_document([0.25, 0.5]))
    write_result(tmp_path / "y", run, make_document([0.5, 1.0]))
    assert not work(monkeypatch, lambda index: Elsewhere(index))
    (news,) = run_shard(experiment, tmp_path / "x", [run], before=stock.fingerprints)
    assert (news.best_taa, news.taken_from) == (0.5, "another shard")
    assert get_taa(tmp_path / "x", run) == [0.25, 0.5]


def test_the_command_leaves_what_another_shard_finishes_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def validate(runs: list[Run], _: Path) -> None:
        write_result(tmp_path / "out", runs[0], make_document([0.25, 0.5]))

    monkeypatch.setattr(runner, "validate_runs", validate)
    done = work(monkeypatch, lambda index: Finished(index, Outcome(make_document([0.5, 1.0]))))
    (tmp_path / "x.yaml").write_text(TEXT)
    arguments = ["experiment", "run", str(tmp_path / "x.yaml"), "-o", str(tmp_path / "out"), "--shard", "1/2"]
    assert run_command(arguments) == 0
    assert done == [1]
    assert "local, seed 1  best TAA 0.5000  1.5 s, taken from another shard" in capsys.readouterr().out


def test_a_run_that_halts_before_its_first_round_is_shown_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = "sweep: {method: [fedavg], attack: [{name: silent, liars: 3}], seed: [1, 2]}"
    halted = {**make_document([0.5], num_clients=4), "rounds": [], "liars": [0, 1, 2], "halted_at": 1}
    done = work(monkeypatch, lambda index: Finished(index, Outcome(halted)))
    (tmp_path / "x.yaml").write_text(f"name: x\nbase: {{clients: 4, rounds: 2}}\n{sweep}\n")
    assert run_command(["experiment", "run", str(tmp_path / "x.yaml"), "-o", str(tmp_path / "out")]) == 0
    assert done == [0, 1]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("seed ")[2] for line in lines[:2]] == ["1  no round  1.5 s", "2  no round  1.5 s"]


# ---- the state of a run under way


def test_a_run_does_not_go_on_from_another_device(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = next(iter(experiment.runs.values()))
    found = []
    load = StateFile.load

    def look(self: StateFile) -> Tree | None:
        found.append(load(self) is not None)
        return load(self)

    monkeypatch.setattr(StateFile, "load", look)
    piece = Piece(run, tmp_path, (), saved=Saved(tmp_path, 0.0))
    for device in ("cpu", "cpu", "NVIDIA H100"):
        monkeypatch.setattr("node.experiments.piece.name_device", lambda _, name=device: name)
        assert "error" not in simulate_run(piece, lambda _: None).document
        assert get_state_path(tmp_path, run.id).exists()
    assert found == [False, True, False]


def test_a_run_on_a_cluster_keeps_no_state_and_so_has_no_say_how_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(TEXT)
    arguments = ["experiment", "run", str(tmp_path / "x.yaml"), "-o", str(tmp_path / "out")]
    assert run_command([*arguments, "--on", "ray", "--save-every", "5"]) == 78
    assert "--save-every: expected it or --on" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---- the directory

_flock = fcntl.flock


def flock_as_nfs(file: Any, how: int) -> None:
    """By byte-range locks: a shared one needs a file that can be read."""
    if how & fcntl.LOCK_SH and not file.readable():
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _flock(file, how)


def test_shards_lock_a_directory_on_nfs_too(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock_as_nfs)

    def look(index: int) -> Event:
        assert run_shard(experiment, tmp_path, []) == []
        with pytest.raises(NodeError, match="another process is running an experiment there"):
            run_shard(experiment, tmp_path, [], where=Where())
        return Died(index, "it fell")

    assert work(monkeypatch, look) == []
    assert len(run_shard(experiment, tmp_path, [next(iter(experiment.runs.values()))])) == 1


@pytest.mark.parametrize(
    ("number", "shard", "is_refused"),
    [
        (errno.ENOLCK, (1, 2), False),
        (errno.EOPNOTSUPP, (1, 2), False),
        (errno.ENOSYS, (1, 2), False),
        (errno.ENOLCK, None, True),
        (errno.EIO, (1, 2), True),
        (errno.EBADF, (1, 2), True),
    ],
)
def test_a_folder_without_locks_is_for_shards_and_one_that_fails_for_nobody(
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    shard: tuple[int, int] | None,
    is_refused: bool,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    if is_refused:
        with pytest.raises(NodeError, match=f"cannot be locked .{os.strerror(number)}"):
            run_shard(experiment, tmp_path, [], where=Where(shard=shard))
    else:
        assert run_shard(experiment, tmp_path, [], where=Where(shard=shard)) == []


def test_what_dead_processes_have_left_is_removed_by_one_that_has_the_directory_to_itself(
    experiment: Experiment, tmp_path: Path
) -> None:
    assert Claims(tmp_path / CLAIMS).take("run", None)
    leftover = tmp_path / "experiment.yaml.0011aabb.part"
    leftover.write_text("name")
    run_shard(experiment, tmp_path, [])
    assert (leftover.exists(), len(list((tmp_path / CLAIMS).iterdir()))) == (True, 1)
    run_shard(experiment, tmp_path, [], where=Where())
    assert (leftover.exists(), len(list((tmp_path / CLAIMS).iterdir()))) == (False, 0)
    assert (tmp_path / "experiment.yaml").exists()
