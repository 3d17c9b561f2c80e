"""Measures of a client's answers to labelled samples, and the curves that are drawn of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from ml.measures.curves import describe_curves
from ml.measures.kinds import Answers, AnyMeasures, measure_answers
from ml.measures.val import ValMeasures
from ml.methods.base import Metrics, Samples
from ml.specs.task import Task
from ml.tasks import REGRESSION
from ml.training.metrics import Judged, Prediction, judge


def list_answers(judged: Judged, y: Tensor, task: Task) -> Answers | None:
    """Returns the true labels or targets, the given labels and the answers, targets in their units; None if there are
    no answers, or they are not finite."""
    if not judged.logits:
        return None
    labels, said = judged.to_numpy(task)
    true = y.cpu().numpy()
    if task.kind == REGRESSION:
        true = task.scale.unscale(true.astype(np.float64))
    return Answers(true, labels, said) if np.isfinite(said).all() else None


def measure_judged(judged: Judged, y: Tensor, task: Task) -> AnyMeasures | None:
    """Measures answers to samples of labels, or targets, `y`; None if there are no answers, or they are not finite."""
    answers = list_answers(judged, y, task)
    return None if answers is None else measure_answers(task.kind, *answers, judged.metrics["loss"])


def draw_judged(judged: Judged, y: Tensor, task: Task) -> dict[str, Any] | None:
    """Returns the curves of answers (`describe_curves`); None if there are no answers, or they are not finite."""
    answers = list_answers(judged, y, task)
    return None if answers is None else describe_curves(task.kind, answers.y, answers.said)


def judge_val(samples: Samples | None, predict: Callable[[Tensor], Prediction], task: Task) -> Judged | None:
    """Returns the answers to val samples; None if there are none."""
    return None if samples is None else judge(predict, samples.x, samples.y, kind=task.kind)


def measure_val(judged: Judged | None, samples: Samples | None, task: Task) -> Metrics:
    """Measures answers to val samples, by `ValMeasures`. Returns {} if there are none, or they are not finite."""
    if judged is None or samples is None:
        return {}
    measured = ValMeasures.of(measure_judged(judged, samples.y, task))
    return {} if measured is None else measured.to_metrics()
