"""Events and actions: the words between `RoundMachine` and its service.

Events say what came in, actions what to carry out; both are data and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chain import finality
from chain.block import ApprovedChange, Block, Certificate, Contribution, Evidence, Id, Vote
from node.p2p.refusals import Reason


class RoundPhase(StrEnum):
    """Where this node stands in its own round. Voting runs beside every phase."""

    TRAIN = "train"
    COLLECT = "exchange"
    MINE = "mine"
    VOTE = "vote"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Now:
    """The instant an event is handled: seconds on a steady clock, and the milliseconds of Unix time that candidates are
    judged by (`node.consensus.gossip.member_clocks`)."""

    monotonic_s: float
    wall_ms: int


class Absence(StrEnum):
    """Why a final block has no contribution of a member, as far as this node has seen it."""

    NOT_SENT = "no contribution came"
    NOT_FETCHED = "its payloads did not come"
    SIGNED_TWICE = "it has signed twice"
    NOT_HEARD = "it has not said that it would contribute"
    ABSTAINED = "it said that it would not contribute"
    LATE = "its contribution came late, or was left out by the miner"


@dataclass(frozen=True, slots=True)
class Objection:
    """What speaks against a candidate here. `kind` as in `CandidateRefused`."""

    kind: Reason | None
    why: str


@dataclass(frozen=True, slots=True)
class CollectTimer:
    """Fires `collect_s` after enough contributions were verified: a quorum, or fewer where no more are to come."""


@dataclass(frozen=True, slots=True)
class ClockTimer:
    """Fires when the time of a candidate that was held may have come."""


@dataclass(frozen=True, slots=True)
class CrossingTimer:
    """Fires when candidates that cross the first one should be here."""


Timer = finality.Timer | CollectTimer | ClockTimer | CrossingTimer


# ---- events


@dataclass(frozen=True, slots=True)
class Started:
    """The height begins, or is taken up again after a restart with what was durable."""

    contribution: Contribution | None = None
    candidate: Block | None = None
    votes: tuple[Vote, ...] = ()
    justification: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class ContributionSeen:
    """An authentic contribution for this height; its payloads are not yet looked at."""

    contribution: Contribution


@dataclass(frozen=True, slots=True)
class PayloadsVerified:
    """Every voted blob of this contribution is here and fits its schema."""

    contribution: Contribution


@dataclass(frozen=True, slots=True)
class PayloadsRefused:
    """A voted blob of this contribution does not fit: the contribution is dropped, its author keeps its votes."""

    contribution: Contribution
    reason: str


@dataclass(frozen=True, slots=True)
class MemberAlive:
    """A member says that it takes part in this height."""

    member: Id


@dataclass(frozen=True, slots=True)
class MemberAbstains:
    """A member says that it will not contribute to this height. It votes, and may mine."""

    member: Id


@dataclass(frozen=True, slots=True)
class MemberSilent:
    """Nothing has come of a member for some time, though a quorum is in sight."""

    member: Id


@dataclass(frozen=True, slots=True)
class Resumed:
    """This node contributes to this height after all."""


@dataclass(frozen=True, slots=True)
class ChangeCompleted:
    """A change lacks nothing any more: it may be in the block of this height."""

    change: ApprovedChange


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """This node will not contribute to this height. It goes on collecting, mining and voting."""


@dataclass(frozen=True, slots=True)
class AggregateComputed:
    """What the contributions at the cutoff give."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class Mined:
    """This node's own candidate, already durable."""

    block: Block


@dataclass(frozen=True, slots=True)
class CandidateSeen:
    """An authentic candidate with good work; its aggregate is not yet recomputed."""

    block: Block


@dataclass(frozen=True, slots=True)
class CandidateValidated:
    """The recomputed aggregate equals the candidate's bit for bit."""

    block: Block


@dataclass(frozen=True, slots=True)
class CandidateRefused:
    """The candidate could not be recomputed: its blobs are not to be had, or (`wrong`) they give something else. `kind`
    is what that counts as against its miner, None for nothing it need have done."""

    block: Block
    reason: str
    wrong: bool
    kind: Reason | None = None


@dataclass(frozen=True, slots=True)
class VoteSeen:
    """An authentic vote for this height, this node's own included once it is durable."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class Accused:
    """Others have shown that this member signed two objects for one slot."""

    member: Id


@dataclass(frozen=True, slots=True)
class TimerFired:
    timer: Timer


Event = (
    Started
    | ContributionSeen
    | PayloadsVerified
    | PayloadsRefused
    | MemberAlive
    | MemberAbstains
    | MemberSilent
    | Resumed
    | TrainingFailed
    | AggregateComputed
    | Mined
    | CandidateSeen
    | CandidateValidated
    | CandidateRefused
    | VoteSeen
    | Accused
    | ChangeCompleted
    | TimerFired
)


# ---- actions


@dataclass(frozen=True, slots=True)
class FetchPayloads:
    """Pull and check the voted blobs; answer with `PayloadsVerified` or `PayloadsRefused`."""

    contribution: Contribution


@dataclass(frozen=True, slots=True)
class ComputeAggregate:
    """Answer with `AggregateComputed`."""

    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class Mine:
    """Seal and search until `Mined` or `StopMining`."""

    contributions: tuple[Contribution, ...]
    aggregate: bytes


@dataclass(frozen=True, slots=True)
class MineChange:
    """As `Mine`, a block that holds this change."""

    change: ApprovedChange


@dataclass(frozen=True, slots=True)
class StopMining:
    pass


@dataclass(frozen=True, slots=True)
class CheckCandidate:
    """Pull missing blobs, recompute; answer with `CandidateValidated` or `CandidateRefused`."""

    block: Block


@dataclass(frozen=True, slots=True)
class CastVote:
    """Sign, make durable, send, then answer with `VoteSeen`. With a lock, its block and prevotes go to disk first."""

    cast: finality.Cast
    block: Block | None


@dataclass(frozen=True, slots=True)
class FetchBlock:
    """Votes name a block that is not here: ask the peers that have it."""

    block_id: Id


@dataclass(frozen=True, slots=True)
class StartTimer:
    timer: Timer
    after_s: float


@dataclass(frozen=True, slots=True)
class Accuse:
    """Two signed objects for one slot: keep them, pass them on."""

    evidence: Evidence
    author: Id


@dataclass(frozen=True, slots=True)
class Finalise:
    """Commit. `audited` is false when the certificate is followed before this node could recompute the aggregate."""

    block: Block
    certificate: Certificate
    audited: bool


@dataclass(frozen=True, slots=True)
class Halt:
    """A quorum certified what this node knows to be wrong: more members lie than the quorum rule allows for."""

    reason: str


Effect = (  # an action that leaves the height in hand
    FetchPayloads
    | ComputeAggregate
    | Mine
    | MineChange
    | StopMining
    | CheckCandidate
    | CastVote
    | FetchBlock
    | StartTimer
    | Accuse
    | Halt
)
Action = Effect | Finalise


def get_source(event: Event) -> Id | None:
    """Whose bytes an event is about; None where it is about nobody's."""
    match event:
        case ContributionSeen(contribution) | PayloadsVerified(contribution) | PayloadsRefused(contribution):
            return contribution.author
        case CandidateSeen(block) | CandidateValidated(block) | CandidateRefused(block):
            return block.header.miner
        case VoteSeen(vote):
            return vote.voter
        case MemberAlive(member) | MemberAbstains(member) | MemberSilent(member) | Accused(member):
            return member
    return None
