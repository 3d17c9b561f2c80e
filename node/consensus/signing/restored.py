"""Silence after a backup was put back: the heights for which nothing is signed then (PROTOCOL §4, and one height more).

A backup does not know what was signed after it was made, and nothing on this disk does. The others do: a quorum stands
where the federation is, and this node had come no further than one height beyond it, and had signed one more. So from
when it has caught up with all that are in sight, two heights have to pass without it before it signs again.
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
UNKNOWN_HEIGHTS = 2  # above the head of those in sight: what this node may have finalised, and signed on top of that


class Restored:
    """Made of the meta value as it stands."""

    def __init__(self, noted: Mapping[str, Any] | None) -> None:
        self._is_silent = noted is not None
        self._until: int | None = None if noted is None else noted["until"]

    def to_meta(self) -> Mapping[str, Any] | None:
        return {"until": self._until} if self._is_silent else None

    def is_silent_at(self, height: int) -> bool:
        """Whether nothing may be signed for this height."""
        return self._is_silent and (self._until is None or height <= self._until)

    def on_tip(self, height: int, *, is_caught_up: bool) -> bool:
        """The chain ends at `height` now; whether that changes what `to_meta` says."""
        before = self.to_meta()
        if self._is_silent and self._until is None and is_caught_up:
            self._until = height + UNKNOWN_HEIGHTS
        if self._until is not None and height >= self._until:
            self._is_silent = False
        return self.to_meta() != before

    def describe(self, *, is_needed: bool = False) -> str | None:
        """Why nothing is signed now; None where nothing stands against it. `is_needed`: no height can pass without this
        node's vote."""
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
    """Whether no height can pass without the vote of this member."""
    return state.index_of(me) is not None and state.q == state.n
