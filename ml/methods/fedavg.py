"""FedAvg: train the common model on one's own samples, average what came of it (ALGORITHMS §9).

McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, 2017:
w_G <- sum_k (n_k / n) w_k. With `weights: uniform` it is BLADE-FL's average. There is no server: every member computes
the same average, and a member that missed the round is left out of it.
"""

from __future__ import annotations

from torch import Tensor

from ml.errors import AggregationError
from ml.method import Blobs, Round, State, Trained
from ml.metrics import Prediction
from ml.models.base import dump_parameters, load_parameters
from ml.payload import Arrays
from ml.specs import FedAvgSpec, get_kind
from ml.training import ShouldStop, cross_entropy, run_local_phase


class FedAvg:
    """Cross-entropy from the common model on; the whole model is sent."""

    def __init__(self, spec: FedAvgSpec) -> None:
        self.spec = spec

    def init(self, state: State) -> None:
        pass

    def local_update(self, state: State, round_: Round, should_stop: ShouldStop | None) -> Trained:
        hyper, samples = self.spec.hyperparameters, state.data.train
        metrics = run_local_phase(
            state.model,
            cross_entropy(state.model, samples.x, samples.y),
            hyper,
            num_train=len(samples),
            height=round_.height,
            rng=round_.rng("batches"),
            device=state.data.device,
            should_stop=should_stop,
        )
        weight = 1 if hyper.weights == "uniform" else min(len(samples), self.spec.task.max_weight)
        return Trained(weight, {"model": dump_parameters(state.model)}, metrics)

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        average = get_kind(aggregate, "model")
        if average is None:
            raise AggregationError(f"round {round_.height}: expected a model in the aggregate, got none")
        load_parameters(state.model, average)

    def predict(self, state: State, x: Tensor) -> Prediction:
        logits = state.model(x)
        return Prediction(logits, logits.argmax(1))
