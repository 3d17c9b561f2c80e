"""Checkpoints of a client: their bytes, damage that is noticed, and deaths at every step of a save."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ml.payload import Array, decode_arrays, encode_arrays
from node.training.checkpoint import (
    STEPS,
    Checkpoint,
    CheckpointCorrupted,
    Checkpoints,
    Phase,
    decode_checkpoint,
    encode_checkpoint,
    seal_checkpoint,
)

DIED = 42

ARRAYS: dict[str, Array] = {
    "model/w": np.array([[1.5, -2.0]], np.float32),
    "state/classes": np.array([3, 5], np.int64),
    "a": np.zeros((0, 4), np.float32),
}

ENVELOPE: dict[str, Array] = {
    "checkpoint/digest": np.zeros(32, np.uint8),
    "checkpoint/round": np.array([7], np.int64),
}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    made = Checkpoints(tmp_path / "checkpoints")
    yield made
    made.close()


def encode(round_number: int, phase: Phase = Phase.TRAINED) -> bytes:
    data = encode_checkpoint(Checkpoint(round_number, phase, ARRAYS))
    seal_checkpoint(data)
    return bytes(data)


def assert_same(got: Checkpoint | None, round_number: int, phase: Phase) -> None:
    assert got is not None
    assert (got.round_number, got.phase) == (round_number, phase)
    assert got.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert got.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(got.arrays[name], array)


def test_a_file_is_canonical_arrays_and_gives_the_state_back() -> None:
    data = encode(7)
    assert "state/model/w" in decode_arrays(data, len(data))
    assert_same(decode_checkpoint(data, Phase.TRAINED), 7, Phase.TRAINED)


def test_every_flipped_bit_is_noticed() -> None:
    data = encode(7)
    for position in range(len(data)):
        for bit in (0, 5):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(CheckpointCorrupted):
                decode_checkpoint(bytes(flipped), Phase.TRAINED)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_torn_file_is_noticed(kept: int) -> None:
    with pytest.raises(CheckpointCorrupted):
        decode_checkpoint(encode(7)[:kept], Phase.TRAINED)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "expected checkpoint/digest of uint8 .32., got none"),
        ({"checkpoint/digest": np.zeros(4, np.int64)}, "got int64 .4."),
        ({"checkpoint/digest": np.zeros(32, np.uint8)}, "expected checkpoint/round of int64 .1., got none"),
        (ENVELOPE | {"checkpoint/round": np.zeros((2, 2), np.int64)}, "round of int64 .1., got int64 .2, 2."),
        (ENVELOPE | {"checkpoint/round": np.full(1, np.nan)}, "round of int64 .1., got float64 .1."),
        (ENVELOPE | {"checkpoint/round": np.array([-1])}, "round of at least 0, got -1"),
        (ENVELOPE | {"model/w": np.zeros(1, np.float32)}, "arrays below state/, got 'model/w'"),
    ],
)
def test_arrays_that_are_no_checkpoint_are_refused_though_their_digest_is_right(
    arrays: dict[str, Array], message: str
) -> None:
    data = bytearray(encode_arrays(arrays))
    if arrays:
        seal_checkpoint(data)
    with pytest.raises(CheckpointCorrupted, match=message):
        decode_checkpoint(bytes(data), Phase.TRAINED)


def test_the_newest_is_where_to_go_on_from(checkpoints: Checkpoints) -> None:
    assert checkpoints.load_newest() is None
    for round_number, phase in ((0, Phase.APPLIED), (1, Phase.TRAINED), (1, Phase.APPLIED), (2, Phase.TRAINED)):
        checkpoints.save(Checkpoint(round_number, phase, ARRAYS))
        assert_same(checkpoints.load_newest(), round_number, phase)
    assert_same(checkpoints.load(Phase.APPLIED), 1, Phase.APPLIED)
    assert checkpoints.saved == (2, False)


def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path)
    for round_number in range(1, 20):
        first.save(Checkpoint(round_number, Phase.TRAINED, ARRAYS))
        first.save(Checkpoint(round_number, Phase.APPLIED, ARRAYS))
    first.close()
    second = Checkpoints(tmp_path)
    assert_same(second.load_newest(), 19, Phase.APPLIED)
    assert second.saved == (19, True)
    second.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["applied.safetensors", "trained.safetensors"]


def test_saving_waits_until_the_one_before_is_in_its_file(tmp_path: Path) -> None:
    """So whoever remembers the last two steps can repeat what no file has."""
    slow = Checkpoints(tmp_path, lambda step: time.sleep(0.02))
    phases = [(0, Phase.APPLIED), (1, Phase.TRAINED), (1, Phase.APPLIED), (2, Phase.APPLIED), (3, Phase.TRAINED)]
    slow.save(Checkpoint(*phases[0], ARRAYS))
    for before, now in pairwise(phases):
        slow.save(Checkpoint(*now, ARRAYS))
        assert slow.saved is not None
        assert slow.saved >= Checkpoint(*before, {}).position
    slow.close()


def test_a_state_that_changes_after_saving_is_saved_as_it_was(checkpoints: Checkpoints) -> None:
    weights = np.array([1.0])
    checkpoints.save(Checkpoint(1, Phase.TRAINED, {"w": weights}))
    weights[0] = 2.0
    newest = checkpoints.load_newest()
    assert newest is not None
    assert newest.arrays["w"] == [1.0]


def test_a_corrupt_file_is_set_aside_loudly_and_the_other_one_used(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints.save(Checkpoint(1, Phase.APPLIED, ARRAYS))
    checkpoints.save(Checkpoint(2, Phase.TRAINED, ARRAYS))
    checkpoints.wait()
    path = checkpoints.path(Phase.TRAINED)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert_same(checkpoints.load_newest(), 1, Phase.APPLIED)
    assert str(path) in caplog.text
    assert "SHA-256" in caplog.text
    assert not path.exists()
    assert path.with_name(path.name + ".corrupt").read_bytes() == damaged


def test_a_write_that_fails_leaves_the_last_one_and_is_reported(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(Checkpoint(1, Phase.APPLIED, ARRAYS))
    checkpoints.wait()

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("node.training.checkpoint.os.fsync", fail)
        checkpoints.save(Checkpoint(2, Phase.APPLIED, ARRAYS))
        with pytest.raises(OSError, match="No space left"):
            checkpoints.wait()
    assert_same(checkpoints.load_newest(), 1, Phase.APPLIED)


@pytest.mark.parametrize("step", STEPS)
def test_dying_at_any_step_leaves_the_older_checkpoint_or_the_newer(tmp_path: Path, step: str) -> None:
    first = Checkpoints(tmp_path)
    first.save(Checkpoint(1, Phase.APPLIED, ARRAYS))
    first.close()

    def die(reached: str) -> None:
        if reached == f"applied.{step}":
            os._exit(DIED)

    pid = os.fork()
    if pid == 0:
        try:
            dying = Checkpoints(tmp_path, die)
            dying.save(Checkpoint(2, Phase.APPLIED, ARRAYS))
            dying.wait()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == DIED, f"{step} was never reached"
    second = Checkpoints(tmp_path)
    assert_same(second.load_newest(), 2 if step == "renamed" else 1, Phase.APPLIED)
    second.save(Checkpoint(2, Phase.APPLIED, ARRAYS))  # what was half written is no hindrance
    assert_same(second.load_newest(), 2, Phase.APPLIED)
    second.close()
    assert [path.name for path in tmp_path.iterdir()] == ["applied.safetensors"]


def test_applied_height_is_that_of_the_last_aggregate_in_the_state() -> None:
    assert Checkpoint(5, Phase.TRAINED, {}).applied_round == 4
    assert Checkpoint(5, Phase.APPLIED, {}).applied_round == 5
