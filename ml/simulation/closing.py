"""The evaluation that ends a run which selects (`select.evaluate`): each client measures the best round's model on its
own test samples, as members do at the height that evaluates (`ml.specs.closing`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ml.clients.client import Client
from ml.payload import Arrays
from ml.specs.methods.evaluation import MIN_SAMPLES
from ml.specs.run_schema import check_evaluated
from ml.specs.told import tell_nothing


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """The evaluation of the model of a round: for each client the arrays of `ml.specs.told`."""

    round: int
    told: tuple[Arrays, ...]


class EndEvaluation:
    """Keeps the aggregate of the best round, and evaluates it when the run has ended. Raises SpecError for a method
    whose aggregates have no whole model."""

    def __init__(self, clients: Sequence[Client]) -> None:
        check_evaluated(clients[0].spec)
        self._clients = clients
        self._kept: dict[int, Arrays | None] = {}

    def keep(self, number: int, aggregate: Arrays | None, best: int | None) -> None:
        """Keeps the aggregate of round `number`, the newest, and that of the best of the rounds before it."""
        known = {**self._kept, number: aggregate}
        self._kept = {round_: arrays for round_, arrays in known.items() if round_ in (number, best)}

    def make(self, best: int | None) -> Evaluated:
        """Measures the model of the best round on all clients, or that of the newest where there is no best, and leaves
        the clients unchanged."""
        number = max(self._kept) if best is None else best
        aggregate, task = self._kept[number], self._clients[0].spec.task
        nothing = tell_nothing(task.kind, task.num_classes)
        told = (nothing if aggregate is None else client.tell_of(aggregate, MIN_SAMPLES) for client in self._clients)
        return Evaluated(number, tuple(told))
