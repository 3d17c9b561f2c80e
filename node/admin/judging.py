"""An evaluation of a running node's model: what its answers to labelled samples are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ml.measures.collapse import find_signs
from ml.measures.evaluation import evaluate
from node.admin.asking import Answered, Labelled, Terms, ask, get_probabilities
from node.admin.client import AdminClient
from node.admin.json_view import to_json
from node.errors import NodeError
from node.ledger.measures_view import show_measures
from node.pb import admin_pb2 as pb


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measures of the model that stood after `applied_round`, and the signs that it has not learned, by name."""

    applied_round: int
    measures: pb.Measures
    signs: dict[str, str]

    def to_record(self) -> dict[str, Any]:
        """As `fednode evaluate --json` prints it."""
        return {"applied_round": self.applied_round, "measures": to_json(self.measures), "signs": self.signs}


def evaluate_node(
    node: AdminClient, inputs: Sequence[Path], labelled: Labelled, *, resamples: int, timeout_s: float
) -> Evaluation:
    """Has a node answer labelled samples in files, and in directories that hold one for each class. Raises NodeError,
    also for samples without a label."""
    terms = Terms.fetch(node)
    answers = list(ask(node, terms, inputs, len(terms.classes), labelled, timeout_s))
    return judge(answers, terms.classes, resamples)


def judge(answers: Sequence[Answered], classes: tuple[str, ...], resamples: int) -> Evaluation:
    """Of answers that tell of every class. Raises NodeError where labels are missing."""
    if not answers:
        raise NodeError("expected labelled samples, got none")
    for answered in answers:
        if answered.expected is None:
            raise NodeError(f"{answered.file}: expected a label for each sample (fednode predict does without)")
    expected = np.array([classes.index(str(answered.expected)) for answered in answers])
    given = np.array([answered.prediction.label for answered in answers])
    measures, intervals = evaluate(expected, given, get_probabilities(answers, classes), classes, resamples)
    signs = {sign.value: text for sign, text in find_signs(measures, {}).items()}
    newest = max(answered.applied_round for answered in answers)
    return Evaluation(newest, show_measures(measures, intervals), signs)
