"""An evaluation of a running node's model: what its answers to labelled samples are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ml.measures.alone import FEDERATION
from ml.measures.collapse import find_signs
from ml.measures.evaluation import evaluate
from ml.measures.kinds import Answers
from ml.measures.verdict import compare
from ml.tasks import CLASSIFICATION, REGRESSION
from node.admin.asking import Answered, AtRound, Labelled, Terms, ask, get_labels, get_probabilities, get_values
from node.admin.client import AdminClient
from node.admin.json_view import to_json
from node.errors import NodeError
from node.ledger.measures_view import show_measures, show_verdict
from node.pb import admin_pb2 as pb


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measures of the model that stood after `applied_round`, and the signs that it has not learned, by name.

    `alone` is the model trained without the others, measured on the same samples: None where the node trains none.
    `mixed` are the measures of both mixed, by `weight` of the federation's, None where there is nothing to mix with.
    Probabilities are at `temperature`, where they were to be calibrated; whose answers the node usually gives is
    `answer_by`. `passed_over` are the columns of each file that the run does not name."""

    applied_round: int
    measures: pb.Measures
    signs: dict[str, str]
    alone: pb.TrainedAlone | None = None
    passed_over: Mapping[Path, Sequence[str]] = field(default_factory=dict)
    is_best: bool = False  # of the rounds of its run
    mixed: pb.Measures | None = None
    weight: float | None = None
    temperature: float | None = None
    answer_by: str | None = None

    def to_record(self) -> dict[str, Any]:
        """As `fednode evaluate --json` prints it."""
        return {
            "applied_round": self.applied_round,
            "is_best": self.is_best,
            "measures": to_json(self.measures),
            "signs": self.signs,
            "alone": None if self.alone is None else to_json(self.alone),
            "mixed": None if self.mixed is None else {"weight": self.weight, "measures": to_json(self.mixed)},
            "temperature": self.temperature,
            "answer_by": self.answer_by,
        }


def evaluate_node(
    node: AdminClient,
    inputs: Sequence[Path],
    labelled: Labelled,
    *,
    resamples: int,
    timeout_s: float,
    round_: str = "",
    calibrated: bool = False,
) -> Evaluation:
    """Has a node answer labelled samples in files, and in directories that hold one for each class. Raises NodeError,
    also for samples without a label."""
    terms, asked = Terms.fetch(node), ask_federation(node, round_, calibrated=calibrated)
    answers = list(ask(asked, terms, inputs, len(terms.classes), labelled, timeout_s, alone=True))
    return complete(judge(answers, terms, resamples), asked, node)


def ask_federation(node: AdminClient, round_: str, *, calibrated: bool) -> AtRound:
    """A node that answers first by the federation's model, whatever it does usually."""
    return AtRound(node, round_, calibrated=calibrated, answer_by=FEDERATION)


def complete(found: Evaluation, asked: AtRound, node: AdminClient) -> Evaluation:
    """What was found, with what the node told of its answers."""
    usual: str = node.get_config()["training"]["answer_by"]
    told = asked.told
    return replace(found, is_best=told.is_best, weight=told.weight, temperature=told.temperature, answer_by=usual)


def judge(answers: Sequence[Answered], terms: Terms, resamples: int) -> Evaluation:
    """Of answers that tell of every class. Raises NodeError where labels are missing."""
    if not answers:
        raise NodeError("expected labelled samples, got none")
    for answered in answers:
        if answered.expected is None:
            raise NodeError(f"{answered.file}: expected a label for each sample (fednode predict does without)")
    together = _gather(answers, terms)
    measures, intervals = evaluate(*together, terms.classes, resamples, kind=terms.task, scale=terms.scale)
    signs = {sign.value: text for sign, text in find_signs(measures, {}).items()}
    newest = max(answered.applied_round for answered in answers)
    passed_over = {answered.file: answered.passed_over for answered in answers if answered.passed_over}
    alone, mixed = _judge_alone(answers, together, terms, resamples), _judge_mixed(answers, terms, resamples)
    return Evaluation(newest, show_measures(measures, intervals), signs, alone, passed_over, mixed=mixed)


def _judge_alone(
    answers: Sequence[Answered], together: Answers, terms: Terms, resamples: int
) -> pb.TrainedAlone | None:
    """Without measures and verdict where that model has not answered all samples. It may have trained on between two
    requests: told is what stood at the last."""
    if (last := answers[-1].trained_alone) is None:
        return None
    told = pb.TrainedAlone()
    told.CopyFrom(last)
    said = [answered._replace(prediction=answered.alone) for answered in answers if answered.alone is not None]
    if len(said) == len(answers):
        alone = _gather(said, terms)
        measures, intervals = evaluate(*alone, terms.classes, resamples, kind=terms.task, scale=terms.scale)
        told.measures.CopyFrom(show_measures(measures, intervals))
        verdict = compare(terms.task, together, alone, owed_steps=told.owed_steps)
        if verdict is None:
            told.ClearField("verdict")
        else:
            told.verdict.CopyFrom(show_verdict(verdict))
    return told


def _judge_mixed(answers: Sequence[Answered], terms: Terms, resamples: int) -> pb.Measures | None:
    """None where not all samples have been answered by both models."""
    said = [answered._replace(prediction=answered.mixed) for answered in answers if answered.mixed is not None]
    if len(said) < len(answers):
        return None
    measures, intervals = evaluate(*_gather(said, terms), terms.classes, resamples, kind=terms.task, scale=terms.scale)
    return show_measures(measures, intervals)


def _gather(answers: Sequence[Answered], terms: Terms) -> Answers:
    """What files and node say of N samples, as `evaluate` takes it."""
    classes = terms.classes
    if terms.task == REGRESSION:
        values = get_values(answers, classes)
        return Answers(np.array([answered.expected for answered in answers], np.float64), values, values)
    said = get_probabilities(answers, classes)
    if terms.task == CLASSIFICATION:
        y = np.array([classes.index(str(answered.expected)) for answered in answers])
        return Answers(y, np.array([answered.prediction.label for answered in answers]), said)
    y = np.array([[name in (answered.expected or ()) for name in classes] for answered in answers], np.int64)
    return Answers(y, get_labels(answers, classes), said)
