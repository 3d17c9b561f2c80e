"""Answers of a worker by the model trained alone: once a round is done, and never in the way of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from ml.data.base import Samples
from ml.errors import MlError, Stopped
from ml.measures.alone import TrainedAlone
from ml.payload import Arrays
from node.training.beside import Beside

X = np.zeros((2, 1, 1, 1), np.uint8)


class Told:
    """Training alone that is as far as it says."""

    def __init__(self, told: TrainedAlone) -> None:
        self.told = told
        self.rounds, self.is_between_rounds = told.rounds, True

    def owe(self, round_number: int, num_iterations: int) -> None: ...

    def note_together(self, round_number: int) -> None: ...

    def step(self) -> bool:
        return False

    def describe(self) -> TrainedAlone:
        return self.told

    def state_arrays(self) -> Arrays:
        return {}

    def load_state_arrays(self, rounds: int, arrays: Arrays) -> None: ...


def say(
    x: Samples, should_stop: Callable[[], bool], kappa: float | None = None, calibrated: bool = False
) -> Mapping[str, Arrays]:
    if should_stop():
        raise Stopped("not wanted any more")
    return {"alone": {"labels": np.zeros(len(x), np.int64)}}


def refuse(
    x: Samples, should_stop: Callable[[], bool], kappa: float | None = None, calibrated: bool = False
) -> Mapping[str, Arrays]:
    raise MlError("the model gives no numbers")


def test_it_answers_once_a_round_is_done(tmp_path: Path) -> None:
    done = TrainedAlone(2, 3, 0.5)
    told, said = Beside(Told(done), tmp_path, None, say).answer(X, lambda: False)
    assert told == done
    assert len(said["alone"]["labels"]) == 2
    for nothing in (TrainedAlone(0, 5, 0.5), TrainedAlone(2, 0, 0.5, failure="it diverged")):
        assert Beside(Told(nothing), tmp_path, None, say).answer(X, lambda: False) == (nothing, {})


def test_a_model_that_gives_no_numbers_is_told_and_spoils_no_answer(tmp_path: Path) -> None:
    told, said = Beside(Told(TrainedAlone(2, 3, 0.5)), tmp_path, None, refuse).answer(X, lambda: False)
    assert (told.failure, said) == ("the model gives no numbers", {})


def test_it_ends_when_the_answer_is_not_wanted_any_more(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        Beside(Told(TrainedAlone(2, 3, 0.5)), tmp_path, None, say).answer(X, lambda: True)
