"""A worker process without torch: a client whose state is one number, and which does what the beacon tells it to.

Run in place of `node.worker_main`, so that every part of a worker but its arithmetic is the real one. Training for
height h makes the state 10 * state + h, or with E iterations 10 * state + E * h; applying an aggregate adds its number.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ml.errors import MlError, Stopped
from ml.payload import Arrays, encode_arrays
from node import worker_main
from node.worker import WorkerConfig

TRAIN, TRAIN_UNTIL_STOPPED, DIE, DIVERGE, BREAK, TALK = (bytes([code]) * 32 for code in range(6))
ENDLESS_S = 60.0


def make_config(checkpoint_dir: Path, **changes: Any) -> WorkerConfig:
    """The configuration of a fake worker."""
    settings: dict[str, Any] = {
        "method": {"name": "fake"},
        "model": {"name": "number"},
        "classes": ("0", "1"),
        "input": {},
        "data": {},
        "seed": 1,
        "initial_model": encode_arrays({"model/w": np.zeros(1)}),
        "checkpoint_dir": checkpoint_dir,
        "arguments": ("-P", "-u", str(Path(__file__))),
    }
    return WorkerConfig(**(settings | changes))


class FakeClient:
    def __init__(self, initial: Arrays) -> None:
        self.spec: Any = SimpleNamespace(task=SimpleNamespace(num_parameters=1), model_bytes=8)
        self.num_train, self.num_test = 2, 1
        self._number = float(initial["model/w"][0])

    def train(
        self,
        height: int,
        beacon: bytes,
        *,
        num_iterations: int | None = None,
        should_stop: Callable[[], bool] | None = None,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Any:
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
        self._number = 10 * self._number + height * (num_iterations or 1)
        arrays = {"model": {"w": np.array([self._number])}}
        return SimpleNamespace(weight=2, payloads=arrays, metrics={"loss": float("nan"), "accuracy": 0.5})

    def apply(self, height: int, aggregate: Arrays | None) -> Mapping[str, float]:
        if aggregate is not None:
            self._number += float(aggregate["model/w"][0])
        return self.evaluate()

    def evaluate(self) -> Mapping[str, float]:
        return {"accuracy": self._number, "loss": 0.0}

    def state_arrays(self) -> Arrays:
        return {"model/w": np.array([self._number])}

    def load_state_arrays(self, arrays: Arrays) -> None:
        if "model/w" not in arrays:
            raise ValueError("expected an array 'model/w'")
        self._number = float(arrays["model/w"][0])


def build_client(config: Mapping[str, Any], initial: Arrays) -> worker_main.Built:
    if config["device"] == "abacus":
        raise MlError("device: expected one of this machine, got 'abacus'")
    return worker_main.Built(FakeClient(initial), "cpu", config["engine"].get("precision", "fp32"))


if __name__ == "__main__":
    worker_main.main(build_client)
