"""The consent of a site to train: what its operator has approved of the run, its rounds and its members
(FEDERATION §2).

With `join_runs: ask` a site trains in a run only after its operator has approved it, up to the rounds that were
approved, and only beside members whose joining was. What stands in genesis is agreed on by starting with that genesis,
what was there before this site joined by joining. A run whose method shares samples is trained in only by sites that
approved that very run before it began, whatever the configuration says; of the run in genesis the configuration says
so. The chain holds most answers, by seat; what came after a change was executed is kept beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from chain.approvals import compute_change_id
from chain.block import Answer, Approval, Digest
from chain.changes.base import Kind
from chain.changes.change import read_change
from chain.changes.members import AddMember
from chain.changes.runs import SetRounds, StartRun
from chain.run import Run
from chain.state import Member, State
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from ml.errors import SpecError
from node.config.genesis_file import make_spec
from node.consensus.signing.signer import Signer
from node.events import Events
from node.offload import Offload

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutedChange:
    """A change in the block at `height` that training depends on, with the answers in that block by seat. `seat` is
    that of the member that came with it, if one did."""

    height: int
    id: Digest
    data: bytes
    kind: Kind
    answers: Mapping[int, Answer]
    seat: int | None = None


@dataclass(slots=True)
class _Seen:
    """What was read of the chain up to `height`, whose state is `state`."""

    height: int = 0
    state: State | None = None
    by_id: dict[Digest, ExecutedChange] = field(default_factory=dict)
    starts: dict[int, ExecutedChange] = field(default_factory=dict)  # by number of the run
    rounds: dict[int, list[ExecutedChange]] = field(default_factory=dict)  # likewise, in order
    joins: dict[int, ExecutedChange] = field(default_factory=dict)  # by the seat that came

    def add(self, executed: ExecutedChange) -> None:
        self.by_id[executed.id] = executed
        match executed.kind:
            case StartRun(number=number):
                self.starts[number] = executed
            case SetRounds(run=number):
                self.rounds.setdefault(number, []).append(executed)
            case _:
                if executed.seat is not None:
                    self.joins[executed.seat] = executed


class Consent:
    """One node's. `asks`: its operator is asked for each run; else it trains in all but those that share samples, and
    those that were approved without training.
    `approves_genesis` is the operator's word on samples that the run in genesis shares. `reason` is why it does not
    train on the tip it has seen; None where it may."""

    def __init__(
        self,
        signer: Signer,
        store: SqliteStore,
        disk: Offload,
        events: Events,
        *,
        asks: bool,
        approves_genesis: bool,
    ) -> None:
        self.reason: str | None = None
        self._signer = signer
        self._store = store
        self._disk = disk
        self._events = events
        self._asks = asks
        self._approves_genesis = approves_genesis
        self._own = dict(store.get_own_answers())
        self._seen = _Seen()
        self._shares: dict[Digest, bool] = {}  # the last state's

    def __repr__(self) -> str:
        return f"<Consent up to {self._seen.height}: {self.reason or 'trains'}>"

    # ---- what its operator says

    def note(self, approval: Approval) -> None:
        """This node's operator has answered, and that is durable."""
        self._own[approval.change_id] = approval.answer
        if self._seen.state is not None:
            self._judge(self._seen.state)

    def find(self, change_id: Digest) -> ExecutedChange | None:
        """A change in a block that training depends on, which can still be approved; None of any other."""
        return self._seen.by_id.get(change_id)

    @property
    def executed(self) -> Mapping[Digest, ExecutedChange]:
        """All that `find` finds."""
        return self._seen.by_id

    def get_own_answer(self, change_id: Digest) -> Answer | None:
        """The last word of this node's operator on a change; None where there is none."""
        return self._own.get(change_id)

    def is_too_late(self, executed: ExecutedChange, state: State) -> bool:
        """Whether an approval of this change would count for nothing: sites share samples as their run begins."""
        kind = executed.kind
        return isinstance(kind, StartRun) and kind.number == state.run.number and self._shares_samples(state)

    # ---- what follows

    async def on_tip(self, tip: Tip) -> None:
        """The tip has moved: what it has of changes is read, and `reason` told where it is another."""
        if tip.state != self._seen.state:
            for executed in await self._disk.run(self._read, self._seen.height + 1, tip.height):
                self._seen.add(executed)
            self._seen.state = tip.state
        self._seen.height = max(self._seen.height, tip.height)
        self._judge(tip.state)

    def _judge(self, state: State) -> None:
        """Finds out whether this site trains for the height after what it has seen, and tells where that is news."""
        height = self._seen.height + 1
        reason = self.describe(state, height)
        if reason != self.reason:
            self.reason = reason
            self._tell(is_idle=not state.has_round(height))

    def describe(self, state: State, height: int) -> str | None:
        """The reason why this site does not train for `height`, which `state` judges; None where it does, or nobody."""
        me = state.get_member(self._signer.id)
        if me is None or not state.has_round(height):
            return None
        shares = self._shares_samples(state)
        reason = self._describe_run(state.run, me, shares=shares)
        if reason is None and self._asks:
            reason = self._describe_rounds(state.run, height, me) or self._describe_members(state, me)
        return reason

    def _describe_run(self, run: Run, me: Member, *, shares: bool) -> str | None:
        what = f"run {run.number}, whose method shares transformed samples," if shares else f"run {run.number}"
        if run.number == 1:
            if not shares or self._approves_genesis:
                return None
            return f"{what} is trained in only with consensus.approves_genesis: true in this site's configuration"
        started = self._seen.starts.get(run.number)
        if started is None:
            return f"{what} was begun by a change that is not here"
        answer = started.answers.get(me.seat) if shares else self._get_answer(started, me)
        if answer is Answer.YES or (answer is None and not self._asks and not shares):
            return None
        if answer is Answer.YES_WITHOUT_TRAINING:
            return f"{what} was approved here without training in it"
        if shares:
            return f"{what} was not approved here before it began"
        return f"{what} is not approved here: {_say_approve(started)}"

    def _describe_rounds(self, run: Run, height: int, me: Member) -> str | None:
        """Rounds beyond those that the operator approved, with the run or since."""
        started, asked = self._seen.starts.get(run.number), None
        changes = self._seen.rounds.get(run.number, [])
        approved = run.rounds
        if started is not None and isinstance(started.kind, StartRun):
            approved = int(started.kind.terms["rounds"])
        elif changes and isinstance(changes[0].kind, SetRounds):
            approved = changes[0].kind.old  # genesis set them
        for change in changes:
            if not isinstance(change.kind, SetRounds):
                continue
            if change.height <= me.since or self._get_answer(change, me) is Answer.YES:
                approved, asked = change.kind.new, None
            elif asked is None:
                asked = change
        if asked is None or approved == 0 or run.get_round(height) <= run.count_heights(approved):
            return None
        return f"run {run.number} is approved here up to round {approved}: {_say_approve(asked)}"

    def _describe_members(self, state: State, me: Member) -> str | None:
        for member in state.members:
            joined = self._seen.joins.get(member.seat)
            if joined is None or member.since <= me.since:  # a founder, or there before this site was
                continue
            if self._get_answer(joined, me) is not Answer.YES:
                return f"the joining of {member.name} is not approved here: {_say_approve(joined)}"
        return None

    def _get_answer(self, executed: ExecutedChange, me: Member) -> Answer | None:
        """The operator's last word: what was said here, or else by this seat in the block."""
        return self._own.get(executed.id) or executed.answers.get(me.seat)

    def _shares_samples(self, state: State) -> bool:
        """Whether the run in force shares samples, in whatever form. One that this release does not know may."""
        if state.digest not in self._shares:
            try:
                self._shares = {state.digest: make_spec(state.run, state.rules, state.n).shares_samples}
            except SpecError:
                self._shares = {state.digest: True}
        return self._shares[state.digest]

    def _tell(self, *, is_idle: bool) -> None:
        if self.reason is not None:
            log.warning("this site votes and does not train: %s", self.reason)
        elif not is_idle:
            log.info("this site trains: its operator has approved it")
        self._events.publish("consent", reason=self.reason)

    # ---- what the chain holds

    def _read(self, first: int, last: int) -> list[ExecutedChange]:
        """Runs on the disk's thread: the changes in these blocks that training depends on."""
        found = []
        for height in self._store.get_change_heights(first, last):
            stored = self._store.get_block(height)
            approved = None if stored is None else stored.block.change
            if approved is None:
                continue
            kind, before = read_change(approved.change).kind, self._store.get_state(height - 1)
            if not isinstance(kind, StartRun | SetRounds | AddMember):
                continue
            answers = {before.members[index].seat: answer for index, answer, _ in approved.answers}
            seat = before.num_seats if isinstance(kind, AddMember) else None
            change_id = compute_change_id(before.chain_id, approved.change)
            found.append(ExecutedChange(height, change_id, approved.change, kind, answers, seat))
        return found


def _say_approve(executed: ExecutedChange) -> str:
    return f"fednode approve {executed.id.hex()}"
