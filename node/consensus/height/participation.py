"""Participation in rounds, as the operator has ordered it: paused until resumed, and for how long at all.

A pause is kept in `DATA/paused.json`, so that a restart does not resume in silence; it is the file that counts, not
what is in it. After which round the node stops is an order to this process and ends with it: a daemon that is always
started again would else stop again for ever.
"""

from __future__ import annotations

import json
from pathlib import Path

from chain.calendar import Place
from chain.schema import format_time
from node.host.private_file import read_private, remove_private, write_private

PAUSED = "paused.json"


def is_after(place: Place, last: Place) -> bool:
    """Whether a round comes after another, be it in a later run."""
    return (place.run, place.round) > (last.run, last.round)


class Participation:
    """What an operator has said of one node's part in the rounds."""

    def __init__(self, data_dir: Path) -> None:
        """Raises NodeError when it cannot be read whether the node was paused."""
        self._path = data_dir / PAUSED
        self.is_paused = read_private(self._path) is not None
        self.last_round: Place | None = None  # the node ends once this round is final, or its run is over

    def contributes_to(self, place: Place) -> bool:
        return not self.is_paused and not (self.last_round is not None and is_after(place, self.last_round))

    def save_pause(self, now_ms: int) -> None:
        """Durable when it returns. Raises NodeError."""
        write_private(self._path, json.dumps({"since": format_time(now_ms)}).encode())

    def forget_pause(self) -> None:
        """As `save_pause`."""
        remove_private(self._path)
