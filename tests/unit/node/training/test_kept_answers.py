"""Answers that are kept as a round left them: of which round, and before or after the exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ml.measures.classification import Measures
from node.training.kept_answers import KeptAnswers


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
    kept.on_taken_in(3, told)  # for which it has not trained
    assert kept.describe()["before"] is None
