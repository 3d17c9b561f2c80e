"""Answers of a worker by the model trained alone: once a round is done, and never in the way of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.errors import MlError, Stopped
from ml.measures.alone import TrainedAlone
from ml.payload import Arrays
from node.training.beside import Beside


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


def tell(told: TrainedAlone) -> Any:
    return Told(told)


def say() -> Mapping[str, Arrays]:
    return {"alone": {"labels": np.zeros(2, np.int64)}}


def stop() -> Mapping[str, Arrays]:
    raise Stopped("not wanted any more")


def refuse() -> Mapping[str, Arrays]:
    raise MlError("the model gives no numbers")


def test_it_answers_once_a_round_is_done(tmp_path: Path) -> None:
    done = TrainedAlone(2, 3, 0.5)
    told, said = Beside(tell(done), tmp_path, None).answer(say)
    assert told == done
    assert len(said["alone"]["labels"]) == 2
    for nothing in (TrainedAlone(0, 5, 0.5), TrainedAlone(2, 0, 0.5, failure="it diverged")):
        assert Beside(tell(nothing), tmp_path, None).answer(say) == (nothing, {})


def test_a_model_that_gives_no_numbers_is_told_and_spoils_no_answer(tmp_path: Path) -> None:
    told, said = Beside(tell(TrainedAlone(2, 3, 0.5)), tmp_path, None).answer(refuse)
    assert (told.failure, said) == ("the model gives no numbers", {})


def test_it_ends_when_the_answer_is_not_wanted_any_more(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        Beside(tell(TrainedAlone(2, 3, 0.5)), tmp_path, None).answer(stop)
