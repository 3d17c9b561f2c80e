"""Pairs of answers at equal work, however training alone lags."""

from __future__ import annotations

from typing import Any

import numpy as np

from ml.measures import pairing
from ml.measures.kinds import Answers
from ml.measures.pairing import Pairing
from ml.tasks import CLASSIFICATION

Y = np.arange(40) % 2


def say(quality: float, y: Any = Y) -> Answers:
    """So good: 1 is right always, 0 is wrong."""
    said = quality * np.stack([1.0 - y, 1.0 * y], 1) + (1 - quality) * np.stack([1.0 * y, 1.0 - y], 1)
    return Answers(y, said.argmax(1), said)


def tell(pairs: Pairing) -> tuple[float, float, int | None] | None:
    verdict = pairs.get_verdict()
    return None if verdict is None else (verdict.together, verdict.alone, verdict.rounds)


def test_training_alone_is_compared_once_it_has_done_as_much() -> None:
    pairs = Pairing(CLASSIFICATION)
    pairs.add_alone(1, say(0))
    assert tell(pairs) is None
    pairs.add_together(1, say(1))
    assert tell(pairs) == (1, 0, 1)
    pairs.add_together(2, say(0))
    pairs.add_together(3, say(1))
    assert tell(pairs) == (1, 0, 1)
    verdict = pairs.get_verdict()
    assert verdict is not None
    assert verdict.sentence.startswith("At round 1 of 3, as far as training alone has come: federating helps")
    pairs.add_alone(2, say(1))
    assert tell(pairs) == (0, 1, 2)
    pairs.add_alone(3, say(1))
    assert tell(pairs) == (1, 1, 3)


def test_rounds_that_it_has_passed_wait_no_more() -> None:
    pairs = Pairing(CLASSIFICATION)
    pairs.add_together(1, say(1))
    pairs.add_alone(4, say(0))  # as after a restart
    pairs.add_together(3, say(1))
    assert tell(pairs) is None
    pairs.add_together(4, say(1))
    assert tell(pairs) == (1, 0, 4)


def test_answers_to_other_samples_are_no_pair() -> None:
    pairs = Pairing(CLASSIFICATION)
    pairs.add_together(1, say(1, np.zeros(40, np.int64)))
    pairs.add_alone(1, say(0))
    assert tell(pairs) is None


def test_those_that_find_no_room_are_passed_over(monkeypatch: Any) -> None:
    one = say(1)
    size = one.y.nbytes + one.labels.nbytes + one.said.nbytes
    monkeypatch.setattr(pairing, "MAX_BYTES", 2 * size)
    pairs = Pairing(CLASSIFICATION)
    for number in (1, 2, 3):
        pairs.add_together(number, one)
    for rounds in (1, 2, 3):
        pairs.add_alone(rounds, say(0))
    assert tell(pairs) == (1, 0, 2)
    pairs.add_together(4, one)
    pairs.add_alone(4, say(0))
    assert tell(pairs) == (1, 0, 4)
