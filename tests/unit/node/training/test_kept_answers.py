"""Answers that are kept as a round left them: of which round, and before or after the exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from ml.measures.classification import Measures
from ml.measures.kinds import Answers
from node.training import kept_answers
from node.training.kept_answers import KeptAnswers, decode_answers


class Standing:
    """The part of a client that is asked: `right` of ten answers are right, as it stands."""

    def __init__(self) -> None:
        self.right = 0
        self.missing_classes = [2]

    def keep_answers(self) -> Callable[[], Measures]:
        right = self.right
        return lambda: Measures(10, right, 0.5, 0.1, 0.1)

    def keep_curves(self) -> Callable[[], dict[str, Any]]:
        right = self.right
        return lambda: {"roc": [right]}

    def get_answers(self) -> Answers:
        y = np.zeros(10, np.int64)
        return Answers(y, (np.arange(10) >= self.right).astype(np.int64), np.full((10, 2), 0.5))


def test_what_is_before_the_exchange_is_of_the_training_for_that_round() -> None:
    kept, client = KeptAnswers(), Standing()
    told: Any = client
    assert kept.describe() == {"measures": None, "before": None, "curves": None, "missing": ()}
    for right, note in ((7, kept.on_trained), (4, kept.on_taken_in)):
        client.right = right
        note(1, told)
    client.right = 9  # it has trained on
    kept.on_trained(2, told)
    described = kept.describe()
    assert (described["before"]["num_correct"], described["measures"]["num_correct"]) == (7, 4)
    assert described["curves"] == {"roc": [4]}
    assert described["missing"] == [2]
    assert decode_answers(kept.encode()["answers"]).labels.tolist() == [0] * 4 + [1] * 6
    kept.on_taken_in(3, told)  # for which it has not trained
    assert kept.describe()["before"] is None


def test_very_many_answers_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, told = KeptAnswers(), cast(Any, Standing())
    assert kept.encode() == {}
    kept.on_taken_in(1, told)
    assert kept.encode()
    monkeypatch.setattr(kept_answers, "MAX_BYTES", 100)
    assert kept.encode() == {}
