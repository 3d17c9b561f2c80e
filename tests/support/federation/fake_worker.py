"""A worker process without torch: a client whose state is one number, and which does what the beacon tells it to.

Run in place of `node.training.worker_child`, so that every part of a worker but its arithmetic is the real one.
Training for round h makes the state 10 * state + h, or with E iterations 10 * state + E * h; applying an aggregate adds
its number, and a payload pulled from a peer, also one for training, adds its own times its weight. A payload that is no
number is spoiled, on DEADLY the worker dies, and from a state above HIGHEST training diverges. At STREAMED_HEIGHT it
makes a second payload, which is declared too large to pass. Its probability of class 0 for a sample is the state, and
the first pixel commands it. The loss of an aggregate is the sum of the state and its number; on ENDLESS the worker
never finishes.

An argument makes its disk take so many seconds for a checkpoint.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from chain.store.interface import Faults
from ml.accountant import Release
from ml.data.base import Samples
from ml.errors import MlError, Spoiled, Stopped
from ml.guard import OnRefused
from ml.measures.alone import Answered
from ml.measures.classification import Measures
from ml.measures.kinds import Answers
from ml.payload import Arrays, encode_arrays
from ml.specs import Offer
from node.training import worker_child
from node.training.session import Built
from node.training.trainer import RunTask
from node.training.worker_config import WorkerConfig

TRAIN, TRAIN_UNTIL_STOPPED, DIE, DIVERGE, BREAK, TALK, FILL_DISK = (bytes([code]) * 32 for code in range(7))
ANSWER, ANSWER_UNTIL_STOPPED, DIE_OF_IT, REFUSE = range(4)
ENDLESS_S = 60.0
DEADLY = 666.0
ENDLESS = 777.0
HIGHEST = 1e6
STREAMED_HEIGHT = 100
STREAMED_NUMBERS = 100_000
ARGUMENTS = ("-P", "-u", str(Path(__file__)))


def make_config(checkpoint_dir: Path, **changes: Any) -> WorkerConfig:
    """Makes the configuration of a fake worker."""
    settings: dict[str, Any] = {
        "method": {"name": "fake"},
        "model": {"name": "number"},
        "classes": ("0", "1"),
        "input": {},
        "data": {},
        "seed": 1,
        "initial_model": encode_arrays({"model/w": np.zeros(1)}),
        "checkpoint_dir": checkpoint_dir,
        "outgoing_dir": checkpoint_dir / "outgoing",
        "arguments": ARGUMENTS,
    }
    return WorkerConfig(**(settings | changes))


def always(config: WorkerConfig) -> Callable[[RunTask], WorkerConfig]:
    """Returns a function that configures the same worker for every run."""
    return lambda task: config


def get_streamed(round_number: int) -> Mapping[str, str]:
    return {"encrypted_set": "chunk_digests"} if round_number == STREAMED_HEIGHT else {}


def wait_until_stopped(should_stop: Callable[[], bool]) -> None:
    end = time.monotonic() + ENDLESS_S
    while time.monotonic() < end:
        if should_stop():
            raise Stopped


class FakeClient:
    def __init__(self, initial: Arrays) -> None:
        self.spec: Any = SimpleNamespace(
            task=SimpleNamespace(num_parameters=1), model_bytes=8, get_streamed=get_streamed
        )
        self.num_train, self.num_test, self.num_val = 2, 1, 0
        self._number = float(initial["model/w"][0])
        self._before: float | None = None

    def take_own(self, trained: Arrays, /, *, lends: bool) -> None:
        """Does nothing: it has no model of its own."""

    def tell_of(self, aggregate: Arrays, min_samples: int, /) -> Arrays:
        """Returns the number in the aggregate, and the other."""
        if "model/w" not in aggregate:
            raise MlError("expected an array 'model/w'")
        return {"told": aggregate["model/w"] + min_samples}

    def validate_common(self, round_number: int, /) -> None:
        """Accepts any round: nothing depends on a common model."""

    def note_common(self, round_number: int, aggregate: Arrays | None, /) -> None:
        """Keeps no common model."""

    def go_on_from(self, arrays: Arrays, /) -> None:
        self.load_state_arrays(arrays)

    def plan_release(self, round_number: int, num_iterations: int | None = None, /) -> Release | None:
        """Plans no noise."""
        return None

    def train(
        self,
        round_number: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        me: bytes = b"",
        offers: Sequence[Offer] = (),
        blobs: Mapping[bytes, Arrays] | None = None,
        gone: Collection[bytes] = frozenset(),
        should_stop: Callable[[], bool] | None = None,
        on_step: Callable[[int, int], None] | None = None,
        on_back: Callable[[], None] = lambda: None,
    ) -> Any:
        went_back = None
        if self._number > HIGHEST:
            went_back = f"from {self._number:g}"
            if not self.go_back():
                raise MlError(f"training diverges {went_back}")
            on_back()
        if beacon == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if beacon == DIVERGE:
            raise MlError("the loss is nan; expected a finite number")
        if beacon == BREAK:
            raise RuntimeError("something nobody foresaw")
        if beacon == TALK:
            print("a library printed this")
            print("WARNING a library warned of this", file=sys.stderr)
        if beacon == TRAIN_UNTIL_STOPPED:
            print("training began")
            end = time.monotonic() + ENDLESS_S
            while time.monotonic() < end:
                if on_step is not None:
                    on_step(3, 4)
                if should_stop is not None and should_stop():
                    raise Stopped
        self._number = 10 * self._number + round_number * (num_iterations or 1)
        self._take(offers, blobs or {}, gone)
        arrays = {"model": {"w": np.array([self._number])}}
        if round_number == STREAMED_HEIGHT:
            arrays["encrypted_set"] = {"x": np.full(STREAMED_NUMBERS, self._number)}
        if beacon == FILL_DISK:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (STREAMED_NUMBERS, resource.RLIM_INFINITY))
        self._before = None
        metrics = {"loss": float("nan"), "accuracy": 0.5}
        return SimpleNamespace(weight=2, payloads=arrays, metrics=metrics, went_back=went_back)

    def apply(
        self,
        round_number: int,
        aggregate: Arrays | None,
        *,
        beacon: bytes = b"",
        me: bytes = b"",
        offers: Sequence[Offer] = (),
        blobs: Mapping[bytes, Arrays] | None = None,
        gone: Collection[bytes] = frozenset(),
        on_refused: OnRefused = lambda peer, why: None,
    ) -> Mapping[str, float]:
        before, told = self._number, 0.0 if aggregate is None else float(aggregate["model/w"][0])
        if told == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        if not math.isfinite(told):
            raise Spoiled(f"the loss is {told}")
        self._number += told
        self._take(offers, blobs or {}, gone)
        self._before = before
        if beacon == DIE and me == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.evaluate()

    def _take(self, offers: Sequence[Offer], blobs: Mapping[bytes, Arrays], gone: Collection[bytes]) -> None:
        for offer in offers:
            if offer.author not in gone:
                self._number += offer.weight * float(blobs[offer.digests["model"]]["w"][0])

    def answer(
        self, x: Samples, should_stop: Callable[[], bool], kappa: float | None = None, calibrated: bool = False
    ) -> Answered:
        told = int(x.flat[0])
        if told == DIE_OF_IT:
            os.kill(os.getpid(), signal.SIGKILL)
        if told == REFUSE:
            raise MlError("the model gives no numbers")
        if told == ANSWER_UNTIL_STOPPED:
            print("an answer began")
            wait_until_stopped(should_stop)
        probabilities = np.zeros((len(x), 2), np.float32)
        probabilities[:, 0] = self._number
        return Answered({"labels": np.zeros(len(x), np.int64), "probabilities": probabilities}, lambda: {})

    def score(
        self, round_number: int, aggregates: Iterable[Arrays], *, should_stop: Callable[[], bool] = lambda: False
    ) -> Sequence[float]:
        losses = []
        for aggregate in aggregates:
            if "model/w" not in aggregate:
                raise MlError("expected an array 'model/w'")
            told = float(aggregate["model/w"][0])
            if told == DEADLY:
                os.kill(os.getpid(), signal.SIGKILL)
            if told == ENDLESS:
                print("a score began")
                wait_until_stopped(should_stop)
            losses.append(self._number + told)
        return losses

    def go_back(self) -> bool:
        if self._before is None:
            return False
        self._number, self._before = self._before, None
        return True

    def evaluate(self) -> Mapping[str, float]:
        return {"accuracy": self._number, "loss": 0.0}

    @property
    def missing_classes(self) -> list[int]:
        return []

    def keep_answers(self) -> Callable[[], Measures | None]:
        """Returns measures of two samples, one of which is right; the loss shows the client's state."""
        number = self._number
        return lambda: Measures(2, 1, number, 0.25, 0.1, [[1, 1], [0, 0]], [None, None], [None, None])

    def measure_val(self) -> dict[str, float]:
        return {}

    def keep_curves(self) -> Callable[[], dict[str, Any] | None]:
        number = self._number
        return lambda: {"roc": [[[0, 0], [1, 1]]], "reliability": None, "number": number}

    def get_answers(self) -> Answers:
        return Answers(np.array([0, 0]), np.array([0, 1]), np.array([[0.6, 0.4], [0.4, 0.6]]))

    @property
    def arrays_before(self) -> Arrays | None:
        return None

    def state_arrays(self) -> Arrays:
        return {"model/w": np.array([self._number])}

    def load_state_arrays(self, arrays: Arrays, before: Arrays | None = None) -> None:
        if "model/w" not in arrays:
            raise ValueError("expected an array 'model/w'")
        self._number = float(arrays["model/w"][0])
        self._before = None if before is None else float(before["model/w"][0])


def be_on_slow_disk(seconds: float) -> Faults:
    """Returns faults that delay each write of a checkpoint by so many seconds."""

    def reach(step: str) -> None:
        if step.endswith(".begin"):
            time.sleep(seconds)

    return reach


def build_client(config: Mapping[str, Any], initial: Arrays) -> Built:
    if config["device"] == "abacus":
        raise MlError("device: expected one of this machine, got 'abacus'")
    client: Any = FakeClient(initial)
    return Built(client, client.answer, "cpu", config["engine"].get("precision", "fp32"))


if __name__ == "__main__":
    worker_child.main(build_client, be_on_slow_disk(float(sys.argv[1])) if len(sys.argv) > 1 else None)
