"""Silence after a backup was restored: the heights for which nothing is signed then (PROTOCOL §4, and one height more).

The backup does not know what was signed after it was made. But a quorum stands at the federation's head, and this node
had come at most one height beyond that, and had signed at most for the next one. So once it has caught up with all
members in reach, two heights must pass without it before it signs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chain.block import Id
from chain.state import State
from chain.store.interface import RESTORED as RESTORED

STANDSTILL = (
    "But all members have to vote here, so that none passes without it: put back the data directory it had, or begin a "
    "new chain with fednode genesis fork"
)
UNKNOWN_HEIGHTS = 2  # above the others' head: one this node may have finalised, one it may have signed for


class Restored:
    """Holds the silence as the store's meta value describes it."""

    def __init__(self, noted: Mapping[str, Any] | None) -> None:
        self._is_silent = noted is not None
        self._until: int | None = None if noted is None else noted["until"]

    def to_meta(self) -> Mapping[str, Any] | None:
        return {"until": self._until} if self._is_silent else None

    def is_silent_at(self, height: int) -> bool:
        """Says whether nothing may be signed for this height."""
        return self._is_silent and (self._until is None or height <= self._until)

    def on_tip(self, height: int, *, is_caught_up: bool) -> bool:
        """Notes that the chain ends at `height` now. Returns whether `to_meta` has changed."""
        before = self.to_meta()
        if self._is_silent and self._until is None and is_caught_up:
            self._until = height + UNKNOWN_HEIGHTS
        if self._until is not None and height >= self._until:
            self._is_silent = False
        return self.to_meta() != before

    def describe(self, *, is_needed: bool = False) -> str | None:
        """Says why nothing is signed now; None if signing is allowed. `is_needed` says that no height can pass without
        this node's vote."""
        if not self._is_silent:
            return None
        said = "put back from a backup: it signs nothing "
        said += (
            "until it has caught up, and two heights have passed"
            if self._until is None
            else f"up to height {self._until}"
        )
        return f"{said}. {STANDSTILL}" if is_needed else said


def is_needed(state: State, me: Id) -> bool:
    """Says whether no height can pass without the vote of this member."""
    return state.index_of(me) is not None and state.q == state.n
