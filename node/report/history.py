"""The history of a run on the chain: who proposed what and who approved it, who trained in which round.

It follows from genesis and the blocks alone: the states are derived from the changes in them, as every member derives
them. What one node measured is shown beside it in the report, and is no part of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chain.audit import ExportedBlock
from chain.block import Answer, Block, Evidence, Id
from chain.calendar import Place as RoundPlace
from chain.calendar import get_next_place
from chain.changes.change import Change, read_change
from chain.changes.execution import compute_next_state
from chain.changes.members import Convict
from chain.codec import decode_block, decode_certificate
from chain.errors import ChainError
from chain.evidence import decode_evidence, read_accusation
from chain.genesis import Genesis
from chain.run import Run
from chain.schema import format_time
from chain.signing import encode_id
from chain.state import State
from ml.errors import PayloadError
from ml.payload import kind_name
from ml.specs.masked.spec import is_empty_input
from node.errors import NotFound, VerificationFailed
from node.federation.diff import compute_differences
from node.federation.difference import Difference
from node.ledger.names import get_name


@dataclass(frozen=True, slots=True)
class Approver:
    """A member that approved a change. `trains` is False if the member declared that it would not train in the run."""

    id: str
    name: str
    trains: bool


@dataclass(frozen=True, slots=True)
class Accusation:
    """The proof in a conviction: two signatures of one member for one slot of a height."""

    id: str
    name: str
    height: int
    slot: str  # contribution, candidate or vote


@dataclass(frozen=True, slots=True)
class ChainChange:
    """A change that became final at `height`. `consent` says whose approval it needed, `quorum` how many members
    decided."""

    height: int
    time: str
    id: str
    kind: str
    proposer: str
    made: int  # the height of the proposer's head
    note: str
    consent: str
    quorum: str
    approvals: tuple[Approver, ...]
    ready: tuple[str, ...]  # the ids of new keys that declared themselves ready
    differences: tuple[Difference, ...]
    accused: Accusation | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One member's contribution to a round: its weight, which in most methods counts samples, and its payloads."""

    id: str
    name: str
    weight: int
    payload_bytes: Mapping[str, int]  # the bytes of each kind of payload


@dataclass(frozen=True, slots=True)
class ChainRound:
    """A round that is final."""

    number: int
    height: int
    time: str
    block: str
    miner: str
    num_members: int
    num_votes: int
    parts: tuple[Part, ...]
    absent: tuple[str, ...]  # the names of members without a contribution


@dataclass(frozen=True, slots=True)
class Head:
    """The newest block of a chain."""

    height: int
    id: str
    time: str


@dataclass(slots=True)
class Participant:
    """A member and the rounds that have its contribution."""

    id: str
    name: str
    rounds: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    payload_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, number: int, part: Part) -> None:
        self.rounds.append(number)
        self.weights.append(part.weight)
        for kind, size in part.payload_bytes.items():
            self.payload_bytes[kind] = self.payload_bytes.get(kind, 0) + size


@dataclass(slots=True)
class RunHistory:
    """One run. `state` is the newest state of the run, `began` the height of the block that started it (0: genesis),
    `last` the newest height that this state judged, `changes` are in order, with the one that started it first."""

    genesis: Genesis
    began: int
    started: str
    state: State
    last: int
    head: Head
    is_over: bool = False
    changes: list[ChainChange] = field(default_factory=list)
    rounds: list[ChainRound] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of all members during the run, by id
    seats: dict[str, int] = field(default_factory=dict)  # of the same members, by id; a new key keeps its seat

    @property
    def run(self) -> Run:
        return self.state.run

    @property
    def phase(self) -> str:
        """Returns the phase, as in `RunView.phase`."""
        if self.is_over:
            return "over"
        if self.run.is_ended:
            return "ended"
        return "running" if self.run.has_round(self.last + 1) else "done"

    @property
    def counts_samples(self) -> bool:
        """Returns whether weights count samples. In a method that does not use them, all weights are 1."""
        return any(part.weight > 1 for each in self.rounds for part in each.parts)

    def get_terms(self) -> dict[str, Any]:
        """Returns the terms that members agreed on, without what follows from them."""
        return {key: value for key, value in self.run.to_terms().items() if key != "schema"}

    def _has_trained(self, each: ChainRound, part: Part) -> bool:
        """Returns whether a contribution comes from training. In a run of masked sums an empty one does not."""
        is_empty = self.run.is_masked and is_empty_input(part.payload_bytes)
        return self._is_trained_for(each) and not is_empty

    def _is_trained_for(self, each: ChainRound) -> bool:
        return not self.run.is_masked or each.number % 2 == 0  # odd ones open the seeds of the masks

    @property
    def num_trained(self) -> int:
        """Returns the number of rounds with training."""
        return sum(map(self._is_trained_for, self.rounds))

    def list_participants(self) -> list[Participant]:
        """Returns all members during the run, those that trained in the most rounds first: one for each seat, by the
        newest of its keys."""
        found = {self.seats[id_]: Participant(id_, name) for id_, name in self.names.items()}
        for each in self.rounds:
            for part in filter(partial(self._has_trained, each), each.parts):
                found[self.seats[part.id]].add(each.number, part)
        return sorted(found.values(), key=lambda one: (-len(one.rounds), one.name))


def read_history(genesis: Genesis, blocks: Iterable[ExportedBlock], number: int = 0) -> RunHistory:
    """Returns the history of the run of this number, 0 for the newest, from all blocks of a chain in order.

    Raises NotFound where there was no such run, and VerificationFailed where the blocks are no chain of this genesis.
    """
    try:
        return _read(genesis, blocks, number)
    except ChainError as error:
        raise VerificationFailed(f"the chain cannot be followed: {error}") from error


def _read(genesis: Genesis, blocks: Iterable[ExportedBlock], number: int) -> RunHistory:
    state = genesis.state
    aggregate = genesis.block0.header.aggregate
    head = Head(0, genesis.block0.id.hex(), format_time(genesis.block0.header.time_ms))
    found: RunHistory | None = None
    if number in (0, state.run.number):
        found = RunHistory(genesis, 0, head.time, state, 0, head)
        _add_names(found, state)
    for height, data, certificate in blocks:
        if height == 0:
            continue
        block = decode_block(genesis.chain_id, data)
        after = compute_next_state(state, block, aggregate)
        time = format_time(block.header.time_ms)
        head = Head(height, block.id.hex(), time)
        begins = after.run.number != state.run.number
        if begins and found is not None:
            found.is_over = True
        if begins and number in (0, after.run.number):
            found = RunHistory(genesis, height, time, after, height, head)
        if found is not None and not found.is_over:
            _add(found, state, after, block, certificate)
        state, aggregate = after, block.header.aggregate
    if found is None:
        raise NotFound(f"run {number}: there were runs 1 to {state.run.number}")
    found.head = head
    return found


def _add(found: RunHistory, before: State, after: State, block: Block, certificate: bytes) -> None:
    """Adds a block to its run, or to the run that begins with it."""
    found.state, found.last = after, block.height
    _add_names(found, after)
    if block.change is not None:
        found.changes.append(_show_change(before, after, block))
        return
    if before.run.is_closing(block.height):
        return
    place = get_next_place(before, block.height - 1)
    found.rounds.append(_show_round(before, place, block, len(decode_certificate(certificate).signatures)))


def _add_names(found: RunHistory, state: State) -> None:
    found.names |= {encode_id(member.key): member.name for member in state.members}
    found.seats |= {encode_id(member.key): member.seat for member in state.members}


def _show_change(before: State, after: State, block: Block) -> ChainChange:
    assert block.change is not None  # noqa: S101 (the caller has checked)
    change = read_change(block.change.change)
    member = before.get_seat(change.by)
    return ChainChange(
        height=block.height,
        time=format_time(block.header.time_ms),
        id=change.compute_id(before.chain_id).hex(),
        kind=change.kind.name,
        proposer=f"seat {change.by}" if member is None else member.name,
        made=change.made,
        note=change.note,
        consent=change.kind.consent.value.replace("min_contributions", f"at least {before.min_contributions}"),
        quorum=f"{before.q} of {before.n}",
        approvals=tuple(
            Approver(encode_id(before.members[index].key), before.members[index].name, answer is Answer.YES)
            for index, answer, _ in block.change.answers
        ),
        ready=tuple(encode_id(key) for key, *_ in block.change.readiness),
        differences=tuple(compute_differences(before, after)),
        accused=_show_accusation(before, change),
    )


def _show_accusation(state: State, change: Change) -> Accusation | None:
    if not isinstance(change.kind, Convict):
        return None
    evidence: Evidence = decode_evidence(change.kind.evidence)
    author, height = read_accusation(evidence)
    return Accusation(encode_id(author), _find_name(state, author, height), height, evidence.kind.name.lower())


def _find_name(state: State, key: Id, height: int) -> str:
    """Returns the name of the member that held the key when the height was judged."""
    seat = state.find_holder(key, height)
    member = None if seat is None else state.get_seat(seat)
    return get_name(state, key) if member is None else member.name


def _show_round(state: State, place: RoundPlace, block: Block, num_votes: int) -> ChainRound:
    authors = {each.author for each in block.contributions}
    return ChainRound(
        number=place.round,
        height=block.height,
        time=format_time(block.header.time_ms),
        block=block.id.hex(),
        miner=get_name(state, block.header.miner),
        num_members=state.n,
        num_votes=num_votes,
        parts=tuple(
            Part(
                encode_id(each.author),
                get_name(state, each.author),
                each.weight,
                {_name_kind(ref.kind): ref.size for ref in each.payloads},
            )
            for each in block.contributions
        ),
        absent=tuple(member.name for member in state.members if member.key not in authors),
    )


def _name_kind(code: int) -> str:
    try:
        return kind_name(code)
    except PayloadError:  # a kind of a newer release
        return f"kind {code}"
