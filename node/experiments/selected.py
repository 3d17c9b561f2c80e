"""The best round of a simulation, by the rules of a federation (`chain.selection`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chain.rules import compute_quorum
from chain.select import Select
from chain.selection import Selection
from node.consensus.learning.round_measure import make_measure


class SelectedRounds:
    """Follows the rounds of a simulation with so many clients, and selects as members would under `bft`."""

    def __init__(self, select: Select, num_clients: int, max_weight: int) -> None:
        self._select = select
        self._num_clients = num_clients
        self._max_weight = max_weight
        self.selection = Selection()

    @property
    def best(self) -> int | None:
        """The best round; None where no quorum has measured one."""
        return self.selection.best or None

    def add(self, number: int, measured: Sequence[Mapping[str, float] | None]) -> bool:
        """Adds the measurements of a round by each client, None for those that sat out the next. Returns whether
        patience ran out."""
        before, n = self.selection, self._num_clients
        found = {
            i: measure
            for i, metrics in enumerate(measured)
            if metrics is not None and (measure := make_measure(self._select, metrics, self._max_weight)) is not None
        }
        self.selection = before.add(self._select, number, found, n, compute_quorum("bft", n))
        return self.selection.exhausts(self._select, before)
