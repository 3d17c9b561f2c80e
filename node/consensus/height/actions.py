"""Events and actions: all that `RoundMachine` and its service exchange.

Events say what came in, actions what to carry out. Both are plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chain import finality
from chain.block import ApprovedChange, Block, Certificate, Contribution, Evidence, Id, Vote
from node.p2p.refusals import Reason


class RoundPhase(StrEnum):
    """Names the phase of this node's own round. Voting goes on beside every phase."""

    TRAIN = "train"
    COLLECT = "exchange"
    MINE = "mine"
    VOTE = "vote"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Now:
    """Holds the instant at which an event is handled: seconds on a monotonic clock, and the milliseconds of Unix time
    by which candidates are judged (`node.consensus.gossip.member_clocks`)."""

    monotonic_s: float
    wall_ms: int


class Absence(StrEnum):
    """Lists the reasons, as far as this node has seen them, why a final block lacks the contribution of a member."""

    NOT_SENT = "no contribution came"
    NOT_FETCHED = "its payloads did not come"
    SIGNED_TWICE = "it has signed twice"
    NOT_HEARD = "it has not said that it would contribute"
    ABSTAINED = "it said that it would not contribute"
    LATE = "its contribution came late, or was left out by the miner"


@dataclass(frozen=True, slots=True)
class Objection:
    """Says why this node does not accept a candidate in view 0, or at all. `kind` as in `CandidateRefused`."""

    kind: Reason | None
    why: str


@dataclass(frozen=True, slots=True)
class CollectTimer:
    """Fires `collect_s` after enough contributions were verified: a quorum, or fewer where no more are to come."""


@dataclass(frozen=True, slots=True)
class ClockTimer:
    """Fires when it is time to judge again a candidate that was held, for its time or until others could send more."""


@dataclass(frozen=True, slots=True)
class ArrivalTimer:
    """Fires `crossing_s` after the first acceptable candidate, when others that were mined at the same time should have
    arrived."""


Timer = finality.Timer | CollectTimer | ClockTimer | ArrivalTimer


# ---- events


@dataclass(frozen=True, slots=True)
class Started:
    """The height begins, or goes on after a restart with the node's own signed objects that are in the store."""

    contribution: Contribution | None = None
    candidate: Block | None = None
    votes: tuple[Vote, ...] = ()
    justification: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class ContributionSeen:
    """An authentic contribution for this height has arrived. Its payloads are not checked yet."""

    contribution: Contribution


@dataclass(frozen=True, slots=True)
class PayloadsVerified:
    """Every voted blob of this contribution has arrived and fits its schema."""

    contribution: Contribution


@dataclass(frozen=True, slots=True)
class PayloadsRefused:
    """A voted blob of this contribution does not fit its schema. The contribution is dropped; its author still
    votes."""

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
    """A member has sent nothing for some time, though a quorum of members is in reach."""

    member: Id


@dataclass(frozen=True, slots=True)
class Resumed:
    """This node contributes to this height after all."""


@dataclass(frozen=True, slots=True)
class ChangeCompleted:
    """A change has all its approvals: it may be in the block of this height."""

    change: ApprovedChange


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """This node will not contribute to this height. It goes on collecting, mining and voting."""


@dataclass(frozen=True, slots=True)
class AggregateComputed:
    """Carries the digest of the aggregate of the contributions in this node's candidate."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class Mined:
    """Carries this node's own candidate, which is in the store."""

    block: Block


@dataclass(frozen=True, slots=True)
class CandidateSeen:
    """An authentic candidate with valid work has arrived. Its aggregate is not recomputed yet."""

    block: Block


@dataclass(frozen=True, slots=True)
class CandidateValidated:
    """The aggregate that this node recomputed equals the candidate's bit for bit."""

    block: Block


@dataclass(frozen=True, slots=True)
class CandidateRefused:
    """The candidate could not be recomputed: its blobs did not come, or (`wrong`) they give another aggregate. `kind`
    is the reason that is counted against its miner, None where the miner is not at fault."""

    block: Block
    reason: str
    wrong: bool
    kind: Reason | None = None


@dataclass(frozen=True, slots=True)
class VoteSeen:
    """An authentic vote for this height has arrived, or this node's own vote is in the store."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class Accused:
    """Peers have shown evidence that this member signed two objects for one slot."""

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
    """Requests that the voted blobs be fetched and checked. The answer is `PayloadsVerified` or `PayloadsRefused`."""

    contribution: Contribution


@dataclass(frozen=True, slots=True)
class ComputeAggregate:
    """Requests the aggregate of these contributions. The answer is `AggregateComputed`."""

    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class Mine:
    """Requests that a candidate be mined, until it is `Mined` or `StopMining` follows."""

    contributions: tuple[Contribution, ...]
    aggregate: bytes


@dataclass(frozen=True, slots=True)
class MineChange:
    """Requests, as `Mine` does, a candidate that holds this change."""

    change: ApprovedChange


@dataclass(frozen=True, slots=True)
class StopMining:
    pass


@dataclass(frozen=True, slots=True)
class CheckCandidate:
    """Requests that missing blobs be fetched and the aggregate recomputed. The answer is `CandidateValidated` or
    `CandidateRefused`."""

    block: Block


@dataclass(frozen=True, slots=True)
class CastVote:
    """Requests that a vote be signed, stored and sent. The answer is `VoteSeen`. If it locks this node on a block, the
    block and its prevotes are stored first."""

    cast: finality.Cast
    block: Block | None


@dataclass(frozen=True, slots=True)
class FetchBlock:
    """Requests from the peers a block that votes name and this node lacks."""

    block_id: Id


@dataclass(frozen=True, slots=True)
class StartTimer:
    timer: Timer
    after_s: float


@dataclass(frozen=True, slots=True)
class Accuse:
    """Requests that the evidence, two signed objects for one slot, be stored and sent to the peers."""

    evidence: Evidence
    author: Id


@dataclass(frozen=True, slots=True)
class Finalise:
    """Requests that the block be committed. `audited` is false if this node follows the certificate before it could
    recompute the aggregate."""

    block: Block
    certificate: Certificate
    audited: bool


@dataclass(frozen=True, slots=True)
class Halt:
    """Requests that the node stop: a quorum certified a block that this node knows to be wrong, so more members lie
    than the quorum rule allows for."""

    reason: str


Effect = (  # an action that does not end the height
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
    """Returns the id of the member whose bytes an event is about; None for an event about no member."""
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
