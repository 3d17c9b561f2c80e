"""A watch over what this site's model learns: reports signs that something is wrong, once they last.

A young model shows signs that pass by themselves. A sign in several rounds in a row is reported to the operator, once
in the log, and in the status for as long as it lasts. Other signs are in the round's record only. Some signs need
several rounds of a run: the watch keeps their losses.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Self

from chain.calendar import Place
from chain.store.sqlite import SqliteStore
from ml.measures.collapse import NOT_LEARNED, QUIET
from ml.measures.signs import Losses

log = logging.getLogger(__name__)

PATIENCE = 3  # rounds in a row with a sign, for it to last
MAX_LOSSES = 100  # rounds of a run whose losses are kept


class LearningWatch:
    """Watches the model of one node. `lasting` has the signs that last, by name, in the words of the newest round."""

    def __init__(self) -> None:
        self.lasting: Mapping[str, str] = {}
        self._run = 0
        self._counts: dict[str, int] = {}  # rounds in a row that showed a sign
        self._losses: list[Losses] = []  # of the run's rounds

    @classmethod
    def load(cls, store: SqliteStore, height: int) -> Self:
        """Makes a watch from the records of the newest rounds up to a height, without heights that a change took.
        Raises StoreCorrupted."""
        watch = cls()
        for record in store.newest_rounds(height, MAX_LOSSES):
            watch._count(record)
        return watch

    @property
    def not_learned(self) -> list[str]:
        """Returns the lasting signs that the model does not learn."""
        return [text for name, text in self.lasting.items() if name in NOT_LEARNED]

    @property
    def others(self) -> list[str]:
        """Returns the lasting signs of other faults, of a model that learns."""
        return [text for name, text in self.lasting.items() if name not in NOT_LEARNED]

    def list_losses(self, place: Place, train: Mapping[str, Any], applied: Mapping[str, Any]) -> list[Losses]:
        """Returns the losses of a run's rounds up to this one."""
        before = self._losses if place.run == self._run else []
        own = Losses.of(place.round, train, applied)
        return before if own is None else [*(one for one in before if one.round < place.round), own]

    def observe(self, record: Mapping[str, Any]) -> None:
        """Adds the record of a round that has been applied, and logs new lasting signs."""
        before = self.lasting
        self._count(record)
        for name in self.lasting.keys() - before.keys():
            what = "does not learn" if name in NOT_LEARNED else "shows a sign"
            log.warning("the model of this site %s, for %d rounds now: %s", what, PATIENCE, self.lasting[name])
        if before and not self.lasting:
            log.info("the model of this site learns again")

    def _count(self, record: Mapping[str, Any]) -> None:
        place = Place(record.get("run", 0), record.get("round", 0))
        losses = self.list_losses(place, record.get("train", {}), record.get("apply", {}))
        if place.run != self._run:
            self._run, self._counts = place.run, {}
        self._losses = losses[-MAX_LOSSES:]
        signs: Mapping[str, str] = record.get("signs", {})
        self._counts = {name: self._counts.get(name, 0) + 1 for name in signs if name not in QUIET}
        self.lasting = {name: signs[name] for name, count in self._counts.items() if count >= PATIENCE}

    def __repr__(self) -> str:
        return f"<LearningWatch of run {self._run}: {self._counts}>"
