"""The rounds of a run whose models are kept, and those that are let go of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.select import Select
from ml.errors import DataError
from node.errors import NotFound, VerificationFailed
from node.training import own_best
from node.training.checkpoint import Checkpoint, Checkpoints, Phase, get_run_dir
from node.training.kept_rounds import (
    KeptRounds,
    choose_kept,
    count_kept,
    get_kept_path,
    list_kept,
    read_kept,
    standing_after,
)
from node.training.own_best import OwnBest
from support.data.chains import make_genesis, make_keys
from support.federation.fake_worker import FakeClient


def write_rounds(directory: Path, count: int) -> Path:
    """The run directory of a worker that has applied so many rounds, and trained for each."""
    run_dir = get_run_dir(directory, 1)
    checkpoints = Checkpoints(run_dir, keep_as=lambda number: get_kept_path(run_dir, number))
    for number in range(1, count + 1):
        for phase in (Phase.TRAINED, Phase.APPLIED):
            checkpoints.save(Checkpoint(number, phase, {"model/w": np.array([float(number)])}))
    checkpoints.close()
    return run_dir


def test_each_applied_state_is_kept_under_its_round_and_written_once(tmp_path: Path) -> None:
    run_dir = write_rounds(tmp_path, 3)
    assert list_kept(run_dir) == [1, 2, 3]
    kept = read_kept(run_dir, 2)
    assert (kept.round_number, kept.phase, kept.arrays["model/w"].tolist()) == (2, Phase.APPLIED, [2.0])
    assert get_kept_path(run_dir, 3).samefile(run_dir / "applied.safetensors")
    with pytest.raises(NotFound, match=r"round 4: its model is not kept here .*kept: 1, 2, 3"):
        read_kept(run_dir, 4)


def test_a_damaged_one_is_named(tmp_path: Path) -> None:
    run_dir = write_rounds(tmp_path, 2)
    path = get_kept_path(run_dir, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(VerificationFailed, match=r"round-1\.safetensors"):
        read_kept(run_dir, 1)


@pytest.mark.parametrize(
    ("keep_models", "best", "kept"),
    [
        ("best", 0, {8, 9}),
        ("best", 3, {3, 8, 9}),
        ("newest 1", 3, {3, 8, 9}),
        ("newest 4", 3, {3, 6, 7, 8, 9}),
        ("all", 3, set(range(1, 10))),
    ],
)
def test_the_newest_two_are_kept_as_nobody_has_judged_them_yet(keep_models: str, best: int, kept: set[int]) -> None:
    assert choose_kept(keep_models, range(1, 10), best) & set(range(1, 10)) == kept


def test_a_run_keeps_so_many_at_most() -> None:
    run = make_genesis(make_keys(4)).run
    selecting = replace(run, select=Select())
    assert [count_kept(asked, run) for asked in ("best", "newest 5", "all")] == [0, 10, 10]
    assert count_kept("best", selecting) == 5
    assert count_kept("all", replace(run, rounds=0)) == 1000


def test_what_is_not_kept_is_deleted(tmp_path: Path) -> None:
    run_dir = write_rounds(tmp_path, 5)
    assert KeptRounds(tmp_path, "best").prune(1, 2) == 2
    assert list_kept(run_dir) == [2, 4, 5]
    assert KeptRounds(tmp_path, "best").prune(2, 0) == 0  # a run that has none yet
    assert (run_dir / "applied.safetensors").exists()


def test_the_sites_own_best_round_is_kept_beside_the_best_of_all(tmp_path: Path) -> None:
    run_dir, kept = write_rounds(tmp_path, 6), KeptRounds(tmp_path, "best")
    run = replace(make_genesis(make_keys(4)).run, select=Select(by="auc"))
    for number, auc in enumerate((0.7, 0.9, 0.8, 0.9), start=1):
        kept.note(run, number, {"val_samples": 20, "val_loss": 0.1 * number, "val_auc": auc})
    kept.note(run, 5, {"loss": 0.1})  # without val samples
    assert OwnBest.read(run_dir) == OwnBest(2, "auc", 0.9)
    assert kept.prune(1, 3) == 2
    assert list_kept(run_dir) == [2, 3, 5, 6]
    kept.note(replace(run, select=Select()), 6, {"val_samples": 20, "val_loss": 0.6})  # by another measure from now on
    assert OwnBest.read(run_dir) == OwnBest(6, "loss", 0.6)


def test_a_run_that_keeps_no_rounds_has_no_own_best_and_a_damaged_note_is_none(tmp_path: Path) -> None:
    run_dir, run = write_rounds(tmp_path, 1), make_genesis(make_keys(4)).run
    told = {"val_samples": 20, "val_loss": 0.5}
    KeptRounds(tmp_path, "best").note(run, 1, told)
    assert OwnBest.read(run_dir) is None
    KeptRounds(tmp_path, "all").note(run, 1, told)
    assert OwnBest.read(run_dir) == OwnBest(1, "loss", 0.5)
    for damaged in (b"", b"[]", b'{"round": "x"}', b"[" * 100_000):
        (run_dir / own_best.FILE).write_bytes(damaged)
        assert OwnBest.read(run_dir) is None
    KeptRounds(tmp_path, "all").note(run, 2, told)
    assert OwnBest.read(run_dir) == OwnBest(2, "loss", 0.5)


def test_a_client_stands_where_it_stood_and_then_as_before(tmp_path: Path) -> None:
    run_dir = write_rounds(tmp_path, 2)
    client: Any = FakeClient({"model/w": np.array([9.0])})
    now = client.state_arrays()
    with standing_after(client, run_dir, 1):
        assert client.state_arrays()["model/w"].tolist() == [1.0]
    assert client.state_arrays()["model/w"].tolist() == now["model/w"].tolist()
    with standing_after(client, run_dir, None):
        assert client.state_arrays()["model/w"].tolist() == now["model/w"].tolist()
    with pytest.raises(DataError, match="round 7: its model is not kept here"), standing_after(client, run_dir, 7):
        raise AssertionError
    with pytest.raises(KeyError), standing_after(client, run_dir, 1):
        raise KeyError
    assert client.state_arrays()["model/w"].tolist() == now["model/w"].tolist()
