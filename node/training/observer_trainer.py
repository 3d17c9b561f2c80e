"""The observer trainer: stands in for a worker on an observer. Everything that the members agreed on is still fetched
for it, and it learns nothing of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from node.training.trainer import (
    Measured,
    Metrics,
    OwnAnswers,
    Predicted,
    RunTask,
    Trained,
    TrainerInfo,
    TrainingFailed,
    WorkerFailed,
)


class ObserverTrainer:
    """Implements `Trainer` without data, a model or a process."""

    last_death: str | None = None

    async def warm_up(self) -> None:
        pass

    async def start(self, task: RunTask) -> TrainerInfo:
        return TrainerInfo(num_train=0, num_test=0, device="none", parameters=0, model_bytes=0)

    async def train(self, round_number: int, beacon: bytes, **options: Any) -> Trained:
        raise TrainingFailed("an observer does not train")

    def abandon(self) -> bool:
        return False

    async def apply(self, round_number: int, aggregate: bytes | None, *exchanged: Any, **options: Any) -> Metrics:
        return {}

    async def pass_over(self, round_number: int) -> Metrics:
        return {}

    async def measure(self) -> Measured:
        return Measured()

    async def list_answers(self) -> OwnAnswers:
        raise WorkerFailed("an observer has no model")

    async def predict(self, samples: bytes, **options: Any) -> Predicted:
        raise WorkerFailed("an observer has no model")

    async def score(self, round_number: int, aggregates: Sequence[bytes]) -> Sequence[float]:
        raise WorkerFailed("an observer has no model")

    async def tell_of(self, aggregate: bytes, min_samples: int) -> bytes:
        raise WorkerFailed("an observer has no model")

    async def close(self) -> None:
        pass
