"""Local: everyone trains alone; no messages (ALGORITHMS §9). What any exchange has to beat."""

from __future__ import annotations

from torch import Tensor

from ml.method import Blobs, Round, State, Trained
from ml.metrics import Prediction
from ml.payload import Arrays
from ml.specs import LocalSpec
from ml.training import ShouldStop, cross_entropy, run_local_phase


class Local:
    """Cross-entropy on the client's own samples."""

    def __init__(self, spec: LocalSpec) -> None:
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
        return Trained(1, {}, metrics)

    def apply(self, state: State, round_: Round, aggregate: Arrays | None, blobs: Blobs) -> None:
        pass

    def predict(self, state: State, x: Tensor) -> Prediction:
        logits = state.model(x)
        return Prediction(logits, logits.argmax(1))
