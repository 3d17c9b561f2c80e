"""The operator's control over rounds and the node itself: pause, resume, end, set the log level, reload the
configuration. Each call may be repeated, and returns the state that holds afterwards."""

from __future__ import annotations

import logging

from chain.block import Id
from chain.calendar import Place
from node.admin.changes import ChangeControl
from node.admin.key_control import KeyControl
from node.admin.page_keys import NoPage, PageKeys
from node.admin.reload import Reloading
from node.admin.shutdown import Shutdown
from node.admin.tokens import Role
from node.clock import Clock
from node.consensus.height.participation import Participation
from node.consensus.service import RoundService
from node.errors import InvalidRequest
from node.log import LEVELS
from node.offload import Offload
from node.pb import admin_pb2 as pb

log = logging.getLogger(__name__)

GRACE_S = 30.0  # a shutdown's default; systemd's unit allows as much
LEAST_GRACE_S = 1.0
MOST_GRACE_S = 3600.0


def get_stop(part: Participation) -> int | None:
    """Returns the round after which the node ends, None if there is none."""
    return None if part.last_round is None else part.last_round.round


class Control:
    """Carries out an operator's requests. `name` is what people call this node; `page` has the keys of its page, None
    where it serves none."""

    def __init__(
        self,
        service: RoundService,
        shutdown: Shutdown,
        reloading: Reloading,
        changes: ChangeControl,
        *,
        me: Id,
        name: str,
        disk: Offload,
        clock: Clock,
        page: PageKeys | None = None,
    ) -> None:
        self.changes = changes
        self._page = page
        self._service = service
        self._me = me
        self._disk = disk
        self._clock = clock
        self._part = service.participation
        self._shutdown = shutdown
        self._reloading = reloading
        self._name = name
        self._grace_s = GRACE_S
        self.keys = KeyControl(service, lambda: reloading.config)

    # ---- rounds

    async def pause_training(self) -> pb.TakingPart:
        """Contributes nothing from the next round on. Raises InvalidRequest for an observer."""
        self._check_contributes()
        if not self._part.is_paused:
            await self._disk.run(self._part.save_pause, self._clock.now_ms())
            self._part.is_paused = True
            self._tell(paused=True)
            log.warning("the operator paused training%s", self._describe_current())
        return self.show()

    async def resume_training(self) -> pb.TakingPart:
        """Contributes again, also to the current round unless others have finished it. Raises InvalidRequest for an
        observer."""
        self._check_contributes()
        if self._part.is_paused:
            await self._disk.run(self._part.forget_pause)
            self._part.is_paused = False
            await self._service.resume()
            self._tell(paused=False)
            log.warning("the operator resumed training")
        return self.show()

    async def stop_after_round(self, round: int, withdraw: bool) -> pb.TakingPart:  # noqa: A002
        return await (self.withdraw_stop() if withdraw else self.stop_after(round))

    async def stop_after(self, number: int) -> pb.TakingPart:
        """Ends the daemon once round `number` is final here; 0 is the current one. Raises InvalidRequest."""
        run = self._service.tip.state.run
        last, rounds = self._get_round(), run.num_heights
        number = number or last
        if number < last:
            raise InvalidRequest(f"round {number}: expected one that is not over; round {last} is in hand")
        if rounds and number > rounds:
            raise InvalidRequest(f"round {number}: expected at most {rounds}, the last one of the run")
        if self._part.last_round != Place(run.number, number):
            self._part.last_round = Place(run.number, number)
            log.warning("the operator told the node to end after round %d", number)
        self._tell(stops_after=number)
        return self.show()

    async def withdraw_stop(self) -> pb.TakingPart:
        """Cancels `stop_after`. Raises InvalidRequest when the node is ending already."""
        if self._shutdown.is_under_way:
            raise InvalidRequest("the node is ending already")
        if self._part.last_round is not None:
            self._part.last_round = None
            self._tell(stops_after=None)
            log.warning("the operator told the node to end after no round any more")
        return self.show()

    def show(self) -> pb.TakingPart:
        machine = self._service.machine
        return pb.TakingPart(
            paused=self._part.is_paused,
            height=self._service.tip.height,
            round=self._get_round(),
            contributes=machine is not None and machine.contributes,
            stops_after=get_stop(self._part),
            stopping=self._shutdown.is_under_way,
            name=self._name,
        )

    def _check_contributes(self) -> None:
        if self._service.tip.state.index_of(self._service.signer.id) is None:
            raise InvalidRequest("this node observes: it contributes nothing anyway")

    def _get_round(self) -> int:
        machine, tip = self._service.machine, self._service.tip
        return tip.state.run.get_round(tip.height if machine is None else machine.height)

    def _describe_current(self) -> str:
        shown = self.show()
        return f"; round {shown.round} still gets its contribution" if shown.contributes else ""

    def _tell(self, **data: object) -> None:
        self._service.events.publish("operator", **data)

    # ---- the daemon

    def shutdown(self, grace_s: float | None) -> pb.TakingPart:
        """Announces the shutdown that `end` begins once the answer is sent. Raises InvalidRequest."""
        grace_s = GRACE_S if grace_s is None else grace_s
        if not LEAST_GRACE_S <= grace_s <= MOST_GRACE_S:
            raise InvalidRequest(f"grace_s: expected {LEAST_GRACE_S:g} to {MOST_GRACE_S:g} (got {grace_s:g})")
        self._shutdown.order()
        self._grace_s = grace_s
        return self.show()

    def end(self) -> None:
        log.warning("the operator stopped the node; it ends within %g s", self._grace_s)
        self._shutdown.begin(self._grace_s)

    def set_log_level(self, level: str) -> pb.LogLevel:
        """Sets how much is logged, until the daemon ends. Raises InvalidRequest."""
        if level not in LEVELS:
            raise InvalidRequest(f"level: expected one of {', '.join(LEVELS)} (got {level[:40]!r})")
        root = logging.getLogger()
        before = logging.getLevelName(root.level).lower()
        root.setLevel(level.upper())
        log.warning("the operator set the log level to %s; it was %s", level, before)
        return pb.LogLevel(before=before, level=level)

    async def reload(self) -> pb.ReloadReply:
        return await self._reloading.reload()

    def open_page(self, read_only: bool) -> pb.PageKey:
        """Returns a new key that opens the page. Raises NoPage."""
        if self._page is None:
            raise NoPage(
                "this node serves no page: expected http.listen in its configuration, http.page not false, and beyond "
                "loopback http.tls"
            )
        return self._page.issue(Role.READ if read_only else Role.ADMIN)
