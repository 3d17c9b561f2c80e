"""Participation in rounds, as the operator has ordered it: paused until resumed, or only up to some round.

A pause is kept in `DATA/paused.json`, so that it outlasts a restart. The file's existence counts, not its content. The
last round is an order to this process only. Otherwise a daemon that is always restarted would stop again for ever.
"""

from __future__ import annotations

import json
from pathlib import Path

from chain.calendar import Place
from chain.schema import format_time
from node.host.private_file import read_private, remove_private, write_private

PAUSED = "paused.json"


def is_after(place: Place, last: Place) -> bool:
    """Says whether a round comes after another, also one of an earlier run."""
    return (place.run, place.round) > (last.run, last.round)


class Participation:
    """Holds the operator's orders on this node's part in the rounds."""

    def __init__(self, data_dir: Path) -> None:
        """Raises NodeError if the pause file cannot be read."""
        self._path = data_dir / PAUSED
        self.is_paused = read_private(self._path) is not None
        self.last_round: Place | None = None  # the node ends once this round is final, or its run is over

    def contributes_to(self, place: Place) -> bool:
        return not self.is_paused and not (self.last_round is not None and is_after(place, self.last_round))

    def save_pause(self, now_ms: int) -> None:
        """Writes the pause file. It is durable on return. Raises NodeError."""
        write_private(self._path, json.dumps({"since": format_time(now_ms)}).encode())

    def forget_pause(self) -> None:
        """Deletes the pause file. That is durable on return. Raises NodeError."""
        remove_private(self._path)
