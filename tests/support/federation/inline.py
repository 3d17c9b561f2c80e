"""An offload, a miner and a trainer that need no thread and no process, for federations in one process, most of them
under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from chain.pow import search
from ml.errors import MlError, Spoiled
from ml.guard import OnRefused
from ml.payload import decode_arrays, encode_arrays
from node.consensus.mining.miner import validate_range
from node.training.exchange import Exchange, FileUnusable
from node.training.kept_answers import KeptAnswers
from node.training.progress import OnProgress, ProgressMeter
from node.training.trainer import (
    NOTHING_TAKEN,
    AggregateSpoiled,
    Answer,
    AnswerRefused,
    Measured,
    Metrics,
    OwnAnswers,
    Predicted,
    RunTask,
    Trained,
    TrainerInfo,
    TrainingFailed,
    apply_to,
    get_info,
    score_with,
    tell_with,
    train_with,
)

if TYPE_CHECKING:
    from ml.clients.client import Client

SLICE = 1024  # nonces that are tried before the loop runs on

P = ParamSpec("P")
T = TypeVar("T")


class InlineOffload:
    """Runs work at once, on the caller: under virtual time nothing may take real time."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def close(self) -> None:
        pass


class InlineMiner:
    """Mines on the event loop itself, a slice at a time."""

    def __init__(self) -> None:
        self.hashes = 0

    async def start(self) -> None:
        """Does nothing: it is always ready."""

    async def mine(self, seal: bytes, difficulty: int, start_nonce: int, count: int) -> int | None:
        validate_range(difficulty, start_nonce, count)
        for at in range(start_nonce, start_nonce + count, SLICE):
            size = min(SLICE, start_nonce + count - at)
            nonce = search(seal, difficulty, at, size)
            self.hashes += size if nonce is None else nonce - at + 1
            if nonce is not None:
                return nonce
            await asyncio.sleep(0)
        return None

    async def close(self) -> None:
        """Does nothing: it holds no resources."""


class InlineTrainer:
    """Trains in this process and thread, and blocks the event loop meanwhile."""

    last_death: str | None = None

    def __init__(self, client: Any, answer: Answer | None = None) -> None:
        self._client: Client = client
        self._answer = answer
        self._applied_round = 0
        self._run = 1
        self._answers = KeptAnswers()

    @property
    def client(self) -> Client:
        return self._client

    async def warm_up(self) -> None:
        """Does nothing: it has all it needs."""

    async def start(self, task: RunTask) -> TrainerInfo:
        self._run, self._applied_round = task.run.number, 0
        return get_info(self._client, "cpu")

    async def train(
        self,
        round_number: int,
        beacon: bytes,
        /,
        *,
        num_iterations: int | None = None,
        shared: Exchange = NOTHING_TAKEN,
        on_progress: OnProgress | None = None,
    ) -> Trained:
        on_step = None if on_progress is None else ProgressMeter(on_progress).on_step
        try:
            result = train_with(self._client, round_number, beacon, num_iterations, shared, on_step=on_step)
        except (MlError, FileUnusable) as error:
            raise TrainingFailed(f"round {round_number}: {error}") from error
        self._answers.on_trained(round_number, self._client)
        payloads = {kind: encode_arrays(arrays) for kind, arrays in result.payloads.items()}
        return Trained(result.weight, payloads, dict(result.metrics), went_back=result.went_back)

    def abandon(self) -> bool:
        """Returns false: training here blocks the loop, so nothing can interrupt it."""
        return False

    async def apply(
        self,
        round_number: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Metrics:
        try:
            metrics = apply_to(self._client, round_number, aggregate, exchange, on_refused or (lambda peer, why: None))
        except Spoiled as error:
            raise AggregateSpoiled(f"round {round_number}: {error}") from error
        except (MlError, FileUnusable) as error:
            raise TrainingFailed(f"round {round_number}: {error}") from error
        self._keep(round_number)
        return metrics

    async def pass_over(self, round_number: int) -> Metrics:
        if self._applied_round == round_number:
            self._client.go_back()
        metrics = {**self._client.evaluate(), **self._client.measure_val()}
        self._keep(round_number)
        return metrics

    def _keep(self, round_number: int) -> None:
        self._applied_round = round_number
        self._answers.on_taken_in(round_number, self._client)

    async def measure(self) -> Measured:
        kept = self._answers
        before = kept.measure_before()
        return Measured(kept.measure_after(), curves=kept.draw(), before=before, missing=kept.missing)

    async def list_answers(self) -> OwnAnswers:
        return OwnAnswers(self._run, self._answers.round_number, self._answers.encode().get("answers"))

    async def predict(
        self,
        samples: bytes,
        *,
        alone: bool = False,
        kappa: float | None = None,
        kept: int | None = None,
        calibrated: bool = False,
    ) -> Predicted:
        if self._answer is None:
            raise AnswerRefused("expected a client that can be asked, got one that only trains")
        try:
            said = self._answer(decode_arrays(samples, len(samples))["x"], lambda: False, kappa, calibrated)
        except MlError as error:
            raise AnswerRefused(str(error)) from error
        return Predicted(encode_arrays(said.own), self._applied_round, self._run)

    async def score(self, round_number: int, aggregates: Sequence[bytes]) -> Sequence[float]:
        try:
            return score_with(self._client, round_number, aggregates)
        except MlError as error:
            raise AnswerRefused(f"round {round_number}: {error}") from error

    async def tell_of(self, aggregate: bytes, min_samples: int) -> bytes:
        try:
            return tell_with(self._client, aggregate, min_samples)
        except MlError as error:
            raise AnswerRefused(str(error)) from error

    async def close(self) -> None:
        """Does nothing: it holds no resources."""
