"""The objects of the ledger, as PROTOCOL §1 lays them out. Data only: `chain.codec` gives them bytes.

Ids, digests and public keys are 32 raw bytes everywhere in `chain`; text forms belong to the edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

Id = bytes  # an Ed25519 public key (a member) or the SHA-256 of a sealed header (a block)
Digest = bytes

ZERO = bytes(32)  # "no block": a nil vote, the parent of block 0, the aggregate of a method that votes on nothing


class Phase(IntEnum):
    """The two phases of a vote (PROTOCOL §4)."""

    PREVOTE = 1
    PRECOMMIT = 2


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """A reference to one payload blob of a contribution. `kind` is the method's code for it; chain does not interpret
    it."""

    kind: int
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Measure:
    """A member's measure of the model of the round before: its number of val samples, and the measure that the run
    selects by, in millionths."""

    samples: int
    value: int


@dataclass(frozen=True, slots=True)
class Contribution:
    """A member's signed statement for one height: the blobs that it offers, and their weight.

    `opened` is the secret that it committed to in the parent block, `ZERO` for none, and `commitment` the hash of the
    next one (`chain.beacon`); both are empty under protocol 2. `measure` is the measure of the round before, if the run
    selects and the author has one.
    """

    height: int
    prev: Id
    author: Id
    weight: int
    payloads: tuple[PayloadRef, ...]
    signature: bytes
    opened: bytes = b""
    commitment: Digest = b""
    measure: Measure | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """The part of a block that proof of work is done on.

    `version` is the protocol in force, `state_next` the digest of the state that judges the next height. `start_ms` is
    when mining began, `time_ms` when the header was last sealed.
    """

    version: int
    height: int
    prev: Id
    body: Digest
    aggregate: Digest
    state_next: Digest
    miner: Id
    start_ms: int
    time_ms: int
    difficulty: int


class Answer(IntEnum):
    """A member's answer to a change (FEDERATION §2). There is no "no": a member that does not want a change does not
    answer."""

    YES = 1
    YES_WITHOUT_TRAINING = 2  # to a run: this site does not train in it


@dataclass(frozen=True, slots=True)
class Approval:
    """A member's signed answer to one change."""

    change_id: Digest
    answer: Answer
    voter: Id
    signature: bytes


@dataclass(frozen=True, slots=True)
class Readiness:
    """The signed statement of a key that a change will put in force: its holder is running and has the chain up to this
    final block."""

    change_id: Digest
    key: Id
    height: int
    block_id: Id
    signature: bytes


@dataclass(frozen=True, slots=True)
class ApprovedChange:
    """The body of a change block: the change's canonical bytes, the answers by member index and the readiness of new
    keys by key."""

    change: bytes
    answers: tuple[tuple[int, Answer, bytes], ...] = ()  # member index, answer, signature
    readiness: tuple[tuple[Id, int, Id, bytes], ...] = ()  # key, height, block id, signature


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a block: a round's contributions in author order, or one change and no contribution."""

    contributions: tuple[Contribution, ...] = ()
    change: ApprovedChange | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A sealed header with its body. `id` is SHA256(seal || nonce) (PROTOCOL §1)."""

    header: Header
    nonce: int
    body: Body
    signature: bytes
    id: Id

    @property
    def height(self) -> int:
        return self.header.height

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """The contributions of a round; a change block has none."""
        return self.body.contributions

    @property
    def change(self) -> ApprovedChange | None:
        return self.body.change


@dataclass(frozen=True, slots=True)
class SealedHeader:
    """A block without its body: what its miner signed. Two of one height prove that the miner signed twice."""

    header: Header
    nonce: int
    signature: bytes
    id: Id


@dataclass(frozen=True, slots=True)
class Vote:
    """One member's vote in one phase of one view. A nil vote names `ZERO`."""

    phase: Phase
    height: int
    view: int
    block_id: Id
    voter: Id
    signature: bytes

    @property
    def slot(self) -> tuple[int, int, Phase, Id]:
        """The slot of a vote, which may be signed only once: (height, view, phase, voter)."""
        return (self.height, self.view, self.phase, self.voter)


@dataclass(frozen=True, slots=True)
class Certificate:
    """At least q precommits for one block in one view: proof that it is final. Indices are into the sorted members."""

    view: int
    signatures: tuple[tuple[int, bytes], ...]


class EvidenceKind(IntEnum):
    CONTRIBUTION = 1
    CANDIDATE = 2
    VOTE = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two different signed objects of one author for one slot, as their canonical bytes, the smaller first.

    For candidates these are the sealed headers without bodies.
    """

    kind: EvidenceKind
    first: bytes
    second: bytes
