"""The rounds of a simulation that are measured, and measures beside the methods' own metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ml.clients.client import Client
from ml.errors import DataError
from ml.methods.base import Trained
from ml.simulation.exchange import Size
from ml.specs import METHODS, MethodSpec
from ml.specs.peers import PeerSpec
from ml.training.metrics import get_score, judge

if TYPE_CHECKING:
    from ml.simulation.run import SimulationConfig

PROTOTYPES = "prototypes"  # the kind of payload with prototypes


@dataclass(frozen=True, slots=True)
class Measuring:
    """The schedule of measuring: every `every` rounds of the method, always in the last of `heights`, and in those
    before round 1. With `alone_until` clients take nothing from each other, and each stops training once its model has
    that accuracy on its val samples, or on its test samples where it has no val samples."""

    heights: int
    every: int = 1
    alone_until: float | None = None

    def is_due(self, spec: MethodSpec, height: int) -> bool:
        number = spec.get_round_number(height)
        return number < 1 or number % self.every == 0 or height == self.heights

    def is_done(self, client: Client, local_accuracy: float) -> bool:
        """Says whether a client stops training, given its model's accuracy on its test samples."""
        if self.alone_until is None:
            return False
        val = measure_val_accuracy(client)
        return (local_accuracy if val is None else val) >= self.alone_until


def check_measuring(config: SimulationConfig) -> None:
    """Raises DataError for impossible settings of measuring, and for settings that conflict with others that read the
    measures."""
    for name in ("eval_every", "test_samples"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise DataError(f"{name}: expected at least 1, got {value}")
    readers = ("attack", "max_loss_ratio", "select")
    if config.eval_every > 1 and (found := [name for name in readers if getattr(config, name) is not None]):
        raise DataError(f"eval_every: expected 1 beside {found[0]}, which reads what each round shows")
    if config.alone_until is None:
        return
    if not 0 < config.alone_until <= 1:
        raise DataError(f"alone_until: expected an accuracy in (0, 1], got {config.alone_until}")
    name = config.method.get("name", "")
    if not issubclass(METHODS.get(name, MethodSpec), PeerSpec):
        raise DataError(f"alone_until: expected a peer-to-peer method, got {name!r}")


@contextmanager
def without_test_samples(clients: Sequence[Client]) -> Iterator[None]:
    """Removes test and val samples from the clients within the context: their measures are then NaN, and cost
    nothing."""
    before = [client.state.data for client in clients]
    nothing = before[0].everyone.take(np.empty(0, np.int64))
    try:
        for client, data in zip(clients, before, strict=True):
            client.state.data = replace(data, matched=nothing, everyone=nothing, val=None)
        yield
    finally:
        for client, data in zip(clients, before, strict=True):
            client.state.data = data


def measure_val_accuracy(client: Client) -> float | None:
    """Returns the accuracy on a client's val samples; None where it has none."""
    val = client.state.data.val
    if val is None or not len(val):
        return None
    return get_score(judge(client.predict, val.x, val.y, kind=client.spec.task.kind).metrics)


def count_prototype_numbers(trained: Sequence[Trained | None]) -> int | None:
    """Counts the numbers that all clients sent as prototypes; None where the method has none."""
    sent = [made.payloads[PROTOTYPES] for made in trained if made is not None and PROTOTYPES in made.payloads]
    return sum(Size.of(arrays).params for arrays in sent) if sent else None
