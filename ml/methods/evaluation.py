"""Evaluation: the common model is measured on the client's own test samples, and nothing is trained
(`ml.specs.methods.evaluation`). Figures and intervals are those of `ml.measures.evaluation`: Wilson's for fractions,
the bootstrap's for all else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from ml.measures.evaluation import evaluate
from ml.measures.intervals import NUM_RESAMPLES
from ml.methods.base import Blobs, Round, State
from ml.methods.common.sharing import Classifies
from ml.payload import Array, Arrays
from ml.specs.methods.evaluation import EVALUATION, EvaluationSpec
from ml.specs.told import tell, tell_nothing
from ml.tasks import REGRESSION
from ml.training.metrics import judge

MIN_RESAMPLES = 100
MAX_RESAMPLED = 10_000_000  # samples times classes in all resamples together; more would delay the round


class Evaluation(Classifies[EvaluationSpec]):
    """Measures the model with which the run begins."""

    def finish(self, state: State, round_: Round) -> tuple[int, Mapping[str, Arrays]]:
        return 1, {EVALUATION: self.measure(state, self.spec.hyperparameters.min_samples)}

    def measure(self, state: State, min_samples: int) -> dict[str, Array]:
        """Returns the measures of the model as it is; no figures if there are fewer than `min_samples` test samples, or
        answers are not finite."""
        task, hyper, samples = self.spec.task, self.spec.hyperparameters, state.data.matched
        nothing = tell_nothing(task.kind, task.num_classes)
        if len(samples) < min_samples:
            return nothing
        state.model.eval()
        judged = judge(partial(self.predict, state), samples.x, samples.y, kind=task.kind)
        if not math.isfinite(judged.metrics["loss"]):
            return nothing
        y, (labels, said) = samples.y.cpu().numpy(), judged.to_numpy(task)
        if task.kind == REGRESSION:
            y = task.scale.unscale(y.astype(np.float64))
        measures, intervals = evaluate(
            y,
            labels,
            said,
            tuple(map(str, range(task.num_classes))),
            max(MIN_RESAMPLES, min(NUM_RESAMPLES, MAX_RESAMPLED // (len(samples) * task.num_classes))),
            kind=task.kind,
            scale=task.scale,
        )
        return tell(task.kind, task.num_classes, measures, intervals, hyper.min_count)

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        pass
