"""A watch over what this site's model learns: signs that it does not, once they last.

A young model shows signs that go by themselves. One that has shown in several rounds in a row is told to the operator,
in the log once and in the status for as long as it lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Self

from chain.store.sqlite import SqliteStore

log = logging.getLogger(__name__)

PATIENCE = 3  # rounds in a row


class LearningWatch:
    """One node's. `lasting` has the signs that last, by name, in the words of the newest round."""

    def __init__(self) -> None:
        self.lasting: Mapping[str, str] = {}
        self._run = 0
        self._counts: dict[str, int] = {}  # rounds in a row that showed a sign

    @classmethod
    def load(cls, store: SqliteStore, height: int) -> Self:
        """Of what the newest rounds up to a height have shown; heights that a change took are none. Raises
        StoreCorrupted."""
        watch = cls()
        for record in store.newest_rounds(height, PATIENCE):
            watch._count(record)
        return watch

    def observe(self, record: Mapping[str, Any]) -> None:
        """A round has been applied; its record."""
        before = self.lasting
        self._count(record)
        for name in self.lasting.keys() - before.keys():
            log.warning("the model of this site does not learn, for %d rounds now: %s", PATIENCE, self.lasting[name])
        if before and not self.lasting:
            log.info("the model of this site learns again")

    def _count(self, record: Mapping[str, Any]) -> None:
        if (run := record.get("run", 0)) != self._run:
            self._run, self._counts = run, {}
        signs: Mapping[str, str] = record.get("signs", {})
        self._counts = {name: self._counts.get(name, 0) + 1 for name in signs}
        self.lasting = {name: text for name, text in signs.items() if self._counts[name] >= PATIENCE}

    def __repr__(self) -> str:
        return f"<LearningWatch of run {self._run}: {self._counts}>"
