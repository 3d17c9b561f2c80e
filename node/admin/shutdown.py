"""The orderly end of a daemon: at an operator's request, or once a given round is final here.

The votes that made a block final here may still be on their way to others; if a node left at once, they might never
arrive. So it stays until the peers in sight have the block too and its own worker has applied the aggregate. Meanwhile
it contributes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import aclosing, suppress

from chain.calendar import Place, get_next_place
from node.consensus.height.participation import is_after
from node.consensus.service import RoundService

log = logging.getLogger(__name__)

LINGER_S = 10.0
LOOK_S = 0.05


class Deadline:
    """Calls a function on a thread of its own, unless it is closed in time. It must be closed last, after all that it
    limits."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float, call: Callable[[], None]) -> None:
        """Sets the deadline in place of any earlier one."""
        self.close()
        self._timer = threading.Timer(seconds, call)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Shutdown:
    """Ends the daemon by setting `stopped`. `deadline` calls `cut_off` when the end takes too long."""

    def __init__(
        self, service: RoundService, stopped: asyncio.Event, deadline: Deadline, cut_off: Callable[[], None]
    ) -> None:
        self._service = service
        self._stopped = stopped
        self._deadline = deadline
        self._cut_off = cut_off
        self._is_ordered = False

    def __repr__(self) -> str:
        return f"Shutdown(ordered={self._is_ordered}, stopped={self._stopped.is_set()})"

    @property
    def is_under_way(self) -> bool:
        return self._is_ordered or self._stopped.is_set()

    def order(self) -> None:
        """Marks the node as ending; `begin` follows."""
        self._is_ordered = True

    def begin(self, grace_s: float) -> None:
        """Ends the daemon now, and cuts off what has not ended after `grace_s`."""
        self.order()
        self._deadline.set(grace_s, self._cut_off)
        self._stopped.set()

    async def run(self) -> None:
        """Waits until the last round is final here and then ends the daemon. Runs until cancelled."""
        async with aclosing(self._service.events.follow(0)) as events:  # type: ignore[type-var]  # a generator
            async for event in events:
                last, tip = self._service.participation.last_round, self._service.tip
                if event.kind not in ("block", "operator") or last is None:
                    continue
                if is_after(get_next_place(tip.state, tip.height), last):
                    await self._end_after(last, tip.height)

    async def _end_after(self, last: Place, height: int) -> None:
        self.order()
        log.info("round %d became final; the node ends, as it was told", last.round)
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self._is_settled(height):  # noqa: ASYNC110 (several conditions are checked)
                    await asyncio.sleep(LOOK_S)
        self._stopped.set()

    def _is_settled(self, height: int) -> bool:
        learner, peers = self._service.learner, self._service.peers
        is_applied = learner.applied >= height or learner.info is None or learner.failure is not None
        return is_applied and all(
            peer.status is None or peer.status.head_height >= height
            for peer in peers
            if peer.is_member and peer.connected and peers.is_alive(peer.id)
        )
