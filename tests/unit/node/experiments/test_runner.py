"""A directory and its runs: which of them a shard makes, and who may be at work there."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ml.simulation.saved import StateFile, Tree
from node.cli.app import run as run_command
from node.errors import NodeError
from node.experiments import runner
from node.experiments.piece import Outcome, Piece, Saved, simulate_run
from node.experiments.plan import Experiment, Run
from node.experiments.pool import Died, Event, Finished
from node.experiments.results import get_state_path
from node.experiments.runner import Progress, Where, run_experiment
from support.data.experiments import make_document, make_experiment

TEXT = "name: x\nbase: {clients: 2, rounds: 2}\nsweep: {method: [local, fedavg]}\n"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return make_experiment(tmp_path, TEXT)


def work(patch: pytest.MonkeyPatch, do: Callable[[int], Event]) -> list[int]:
    """Pieces are done by `do` in place of a pool; the numbers of those that were."""
    done: list[int] = []

    def work_through(pieces: Sequence[Piece], *_: Any) -> Iterator[Event]:
        for index in range(len(pieces)):
            done.append(index)
            yield do(index)

    patch.setattr(runner, "work_through", work_through)
    return done


def run_shard(experiment: Experiment, directory: Path, runs: list[Run], **options: Any) -> list[Progress]:
    default: dict[str, Any] = {"jobs": 1, "data_root": directory, "should_stop": lambda: False}
    options = default | {"where": Where(is_shared=True)} | options
    return list(run_experiment(experiment, directory, runs, **options))


# ---- shares of the runs


def test_the_command_makes_every_nth_run_whatever_the_others_have_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.yaml").write_text(TEXT.replace("[local, fedavg]", "[local, fedavg, dfpl]"))
    arguments = ["experiment", "run", str(tmp_path / "x.yaml"), "-o", str(tmp_path / "out"), "--shard"]
    work(monkeypatch, lambda index: Finished(index, Outcome(make_document([0.5, 1.0]))))
    said = []
    for shard in ("1/2", "2/2", "1/2"):
        assert run_command([*arguments, shard]) == 0
        said.append(capsys.readouterr().out.splitlines())
    assert [[line.split("  ")[1] for line in lines if "best TAA" in line] for lines in said] == [
        ["local, seed 1", "dfpl, seed 1"],
        ["fedavg, seed 1"],
        [],
    ]
    assert said[2][0] == "2 runs, 2 of them done before; now 0 more done, 0 failed"


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
    ("number", "is_shared", "is_refused"),
    [
        (errno.ENOLCK, True, False),
        (errno.EOPNOTSUPP, True, False),
        (errno.ENOSYS, True, False),
        (errno.ENOLCK, False, True),
        (errno.EIO, True, True),
        (errno.EBADF, True, True),
    ],
)
def test_a_folder_without_locks_is_for_shards_and_one_that_fails_for_nobody(
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    is_shared: bool,
    is_refused: bool,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    if is_refused:
        with pytest.raises(NodeError, match=f"cannot be locked .{os.strerror(number)}"):
            run_shard(experiment, tmp_path, [], where=Where(is_shared=is_shared))
    else:
        assert run_shard(experiment, tmp_path, [], where=Where(is_shared=is_shared)) == []


def test_what_dead_processes_have_left_is_removed_by_one_that_has_the_directory_to_itself(
    experiment: Experiment, tmp_path: Path
) -> None:
    leftover = tmp_path / "experiment.yaml.0011aabb.part"
    leftover.write_text("name")
    run_shard(experiment, tmp_path, [])
    assert leftover.exists()
    run_shard(experiment, tmp_path, [], where=Where())
    assert not leftover.exists()
    assert (tmp_path / "experiment.yaml").exists()
