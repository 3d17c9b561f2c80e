"""The consent of a site to train: its operator's approval of the run, its rounds and its members (FEDERATION §2).

With `join_runs: ask` a site trains in a run only after its operator has approved it, up to the approved rounds, and
only with members whose joining was approved. Starting with a genesis approves what is in it, and joining approves what
was there before. If the method of a run shares samples, only sites train that approved this run before it began,
whatever the configuration says; for the run in genesis the configuration says so. The chain holds most answers, by
seat; answers that came after a change was executed are stored beside it.
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
    """Holds a change in the block at `height` that training depends on, with the answers in that block by seat. `seat`
    is the seat of the member that the change added, if it added one."""

    height: int
    id: Digest
    data: bytes
    kind: Kind
    answers: Mapping[int, Answer]
    seat: int | None = None


@dataclass(slots=True)
class _Seen:
    """Holds what was read of the chain up to `height`, whose state is `state`."""

    height: int = 0
    state: State | None = None
    by_id: dict[Digest, ExecutedChange] = field(default_factory=dict)
    starts: dict[int, ExecutedChange] = field(default_factory=dict)  # by number of the run
    rounds: dict[int, list[ExecutedChange]] = field(default_factory=dict)  # by number of the run, in order
    joins: dict[int, ExecutedChange] = field(default_factory=dict)  # by the seat that was added

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
    """Decides whether one node trains. `asks` says that its operator is asked for each run. Else the node trains in all
    runs but those that share samples and those that were approved without training.

    `approves_genesis` is the operator's consent to share samples in the run of genesis. `reason` says why the node does
    not train on the tip it has seen; None if it may.
    """

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
        self._shares: dict[Digest, bool] = {}  # of the last state

    def __repr__(self) -> str:
        return f"<Consent up to {self._seen.height}: {self.reason or 'trains'}>"

    # ---- answers of its operator

    def note(self, approval: Approval) -> None:
        """Notes an answer of this node's operator, which is in the store."""
        self._own[approval.change_id] = approval.answer
        if self._seen.state is not None:
            self._judge(self._seen.state)

    def find(self, change_id: Digest) -> ExecutedChange | None:
        """Returns a change in a block that training depends on and that can still be approved; None for any other
        change."""
        return self._seen.by_id.get(change_id)

    @property
    def executed(self) -> Mapping[Digest, ExecutedChange]:
        """Returns all changes that `find` finds, by id."""
        return self._seen.by_id

    def get_own_answer(self, change_id: Digest) -> Answer | None:
        """Returns the last answer of this node's operator to a change; None if there is none."""
        return self._own.get(change_id)

    def is_too_late(self, executed: ExecutedChange, state: State) -> bool:
        """Says whether an approval of this change no longer counts, since sites share samples when their run begins."""
        kind = executed.kind
        return isinstance(kind, StartRun) and kind.number == state.run.number and self._shares_samples(state)

    # ---- whether this site trains

    async def on_tip(self, tip: Tip) -> None:
        """Reads the changes of new blocks, and publishes `reason` if it is another."""
        if tip.state != self._seen.state:
            for executed in await self._disk.run(self._read, self._seen.height + 1, tip.height):
                self._seen.add(executed)
            self._seen.state = tip.state
        self._seen.height = max(self._seen.height, tip.height)
        self._judge(tip.state)

    def _judge(self, state: State) -> None:
        """Decides whether this site trains for the next height, and publishes the reason if it is another."""
        height = self._seen.height + 1
        reason = self.describe(state, height)
        if reason != self.reason:
            self.reason = reason
            self._tell(is_idle=not state.has_round(height))

    def describe(self, state: State, height: int) -> str | None:
        """Says why this site does not train for `height`, which `state` judges; None if it trains, or if there is
        nothing to train."""
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
        """Says that this round is beyond those that the operator approved, with the run or later; None if it is not."""
        started, asked = self._seen.starts.get(run.number), None
        changes = self._seen.rounds.get(run.number, [])
        approved = run.rounds
        if started is not None and isinstance(started.kind, StartRun):
            approved = int(started.kind.terms["rounds"])
        elif changes and isinstance(changes[0].kind, SetRounds):
            approved = changes[0].kind.old  # by genesis
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
            if joined is None or member.since <= me.since:  # a founder, or a member before this site
                continue
            if self._get_answer(joined, me) is not Answer.YES:
                return f"the joining of {member.name} is not approved here: {_say_approve(joined)}"
        return None

    def _get_answer(self, executed: ExecutedChange, me: Member) -> Answer | None:
        """Returns the operator's last answer: the one given here, or else this seat's answer in the block."""
        return self._own.get(executed.id) or executed.answers.get(me.seat)

    def _shares_samples(self, state: State) -> bool:
        """Says whether the run in force shares samples, in any form. A method that this release does not know counts as
        if it does."""
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
        """Returns the changes in these blocks that training depends on. Runs on the disk's thread."""
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
