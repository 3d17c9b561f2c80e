"""Says when no quorum is in sight, or when one is and no block comes all the same, and when that is over: a node never
trains on alone, or waits, in silence (DESIGN §1)."""

from __future__ import annotations

import asyncio
import logging

from node.clock import Clock
from node.consensus.quiet import StallDetector
from node.events import Events
from node.p2p.peers import Peers

log = logging.getLogger(__name__)

GRACE_STATUSES = 4.0  # after a start nobody has been heard of yet


class StallWatch:
    """`reason` says why nothing can be finalised now, or is not in spite of a quorum, and is None while all is well."""

    def __init__(self, peers: Peers, quiet: StallDetector, clock: Clock, events: Events, status_s: float) -> None:
        self.reason: str | None = None
        self._peers = peers
        self._detector = quiet
        self._clock = clock
        self._events = events
        self._status_s = status_s

    async def run(self) -> None:
        quiet_until_s = self._clock.monotonic() + GRACE_STATUSES * self._status_s
        while True:
            await asyncio.sleep(self._status_s / 2)
            slowness = self._detector.describe()
            reason = self._peers.describe_stall() or slowness
            if reason is None or self._clock.monotonic() >= quiet_until_s:
                self._update(reason)

    def _update(self, reason: str | None) -> None:
        before, self.reason = self.reason, reason
        if (reason is None) == (before is None):
            return
        self._events.publish("stall", stalled=reason is not None, reason=reason)
        if reason is None:
            log.info("no longer stalled")
        else:
            log.warning("stalled: %s", reason)
