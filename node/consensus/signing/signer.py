"""The only place that signs: contributions, candidates and votes, durable before they are sent and never two of a slot
(I4), and approvals of changes.

Nothing else in a round holds the key. The store keeps one object for each slot. If there is one already, from before a
restart, that one is returned and sent again. Before a node signs a lock, the block and the prevotes that justify it are
durable (PROTOCOL §4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from chain import approvals, codec
from chain.beacon import make_reveal
from chain.block import (
    Answer,
    Approval,
    Block,
    Body,
    Contribution,
    Digest,
    Header,
    Id,
    Measure,
    PayloadRef,
    Phase,
    Readiness,
    Vote,
)
from chain.calendar import Place
from chain.checkpoint import Checkpoint
from chain.errors import SlotTaken
from chain.genesis import Genesis
from chain.hints import AddressHint, sign_hint
from chain.published import PublishedMeasures, sign_published
from chain.signing import SigningKey
from chain.state import State
from chain.store.blob_rows import SMALL_BLOB_BYTES
from chain.store.sqlite import SqliteStore
from chain.tip import Tip
from ml import payload
from node.consensus.height.actions import CastVote, Started
from node.consensus.signing.keys import OtherKeyInForce, choose_key
from node.offload import Offload
from node.training.trainer import Trained

ITERATIONS = "iterations"  # the meta value with the number of iterations of the newest contribution signed here


@dataclass(frozen=True, slots=True)
class SignedBefore:
    """Holds what this node signed for a height before a restart, the blocks it was locked on, and all that it has to
    send again. `num_iterations` is the number that its contribution was trained with, if measurements chose it."""

    started: Started = field(default_factory=Started)
    locked: tuple[Block, ...] = ()
    own: tuple[Contribution | Block | Vote, ...] = ()
    num_iterations: int | None = None


class Signer:
    """Signs for one member. `spare` is the other key of a node that rotates. `disk` is the store's thread, on which
    votes wait only for each other; `bulk` stores large files. Nothing is signed up to `checkpoint`."""

    def __init__(
        self,
        key: SigningKey,
        genesis: Genesis,
        store: SqliteStore,
        disk: Offload,
        bulk: Offload,
        *,
        spare: SigningKey | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._key = key
        self._spare = spare
        self._checkpoint = checkpoint
        self._chain_id = genesis.chain_id
        self._store = store
        self._disk = disk
        self._bulk = bulk
        self._signed_height = store.get_signed_height()  # before a restart

    @property
    def id(self) -> Id:
        """Returns the id of the key that signs."""
        return self._key.id

    def may_sign(self, state: State, height: int) -> bool:
        """Says whether this key may sign for `height`, which `state` judges: it is a member's, and the store knows all
        that was signed for that height. If rows were lost it does not, and nothing is signed."""
        is_known = height > self._store.silent_until and self.has_reached_checkpoint(height - 1)
        return state.index_of(self.id) is not None and is_known

    def has_reached_checkpoint(self, height: int) -> bool:
        """Says whether a head of this height has reached the checkpoint of the chain that this node has joined."""
        return self._checkpoint is None or height >= self._checkpoint.height

    def take_spare(self, key: SigningKey) -> None:
        """Sets the spare key, which the operator has made and which is to come into force later."""
        self._spare = key

    def require_in_force(self, state: State) -> None:
        """Raises OtherKeyInForce if the spare key has taken the place of the one that signs here."""
        if self._spare is not None and choose_key(state, self._key, self._spare)[0] is self._spare:
            raise OtherKeyInForce(self._spare.id)

    def holds(self, key: Id) -> bool:
        """Says whether this is one of the node's own keys."""
        return self._find(key) is not None

    def _find(self, key: Id) -> SigningKey | None:
        return next((held for held in (self._key, self._spare) if held is not None and held.id == key), None)

    def sign_hint(self, *, made_ms: int, address: str) -> AddressHint:
        """Returns the signed hint that this node can be dialled at `address`."""
        return sign_hint(self._key, self._chain_id, made_ms=made_ms, address=address)

    def sign_measures(self, place: Place, *, num_samples: int, values: Mapping[str, float]) -> PublishedMeasures:
        """Returns the signed measures of this site's model on its own test samples."""
        return sign_published(self._key, self._chain_id, place, num_samples=num_samples, values=values)

    # ---- what was signed before

    async def load_before(self, height: int) -> SignedBefore:
        """Returns what was signed for this height before a restart."""
        if height > self._signed_height:
            return SignedBefore()
        return await self._disk.run(self._load_before, height)

    def _load_before(self, height: int) -> SignedBefore:
        """Reads it from the store, on the disk's thread; it uses nothing but the store."""
        store = self._store
        contribution, candidate = store.get_contribution(height), store.get_candidate(height)
        votes = store.get_votes(height)
        locked, justification = store.get_justification(height)
        own = [thing for thing in (contribution, candidate, *justification, *votes) if thing is not None]
        trained = store.get_meta(ITERATIONS) if contribution is not None else None
        num_iterations = trained["iterations"] if trained is not None and trained["height"] == height else None
        started = Started(contribution, candidate, votes, justification)
        return SignedBefore(started, locked, tuple(own), num_iterations)

    # ---- contributions

    async def adopt_files(self, trained: Trained) -> tuple[PayloadRef, ...]:
        """Makes blobs of the large files that the trainer has written. Votes wait for the disk's thread, so this runs
        on another. Raises StoreFull."""
        refs: list[PayloadRef] = []
        for kind, path in trained.files.items():
            digest, size = await self._bulk.run(self._store.adopt_blob, path)
            refs.append(PayloadRef(payload.kind_code(kind), digest, size))
        return tuple(refs)

    async def sign_contribution(
        self,
        tip: Tip,
        trained: Trained,
        adopted: tuple[PayloadRef, ...] = (),
        *,
        streamed: Collection[str] = (),
        notes_iterations: bool = False,
        measure: Measure | None = None,
    ) -> Contribution | None:
        """Returns a durable contribution on `tip`, with its blobs durable: this one, or the one signed for this height
        before. Returns None if the height was finalised meanwhile. Payloads of `streamed` kinds become files, whatever
        their size. With `notes_iterations` the number of iterations is stored. `measure` is the measure of the round
        before."""
        return await self._disk.run(self._put_contribution, tip, trained, adopted, streamed, notes_iterations, measure)

    def _put_contribution(
        self,
        tip: Tip,
        trained: Trained,
        adopted: tuple[PayloadRef, ...],
        streamed: Collection[str],
        notes_iterations: bool,
        measure: Measure | None,
    ) -> Contribution | None:
        """Stores and signs the contribution, on the disk's thread."""
        if self._store.head_height > tip.height:
            kept = self._store.referenced_blobs(tip.height + 1)
            for ref in adopted:
                if ref.digest not in kept:
                    self._store.delete_blob(ref.digest)
            return None
        refs = [
            PayloadRef(payload.kind_code(kind), hashlib.sha256(data).digest(), len(data))
            for kind, data in trained.payloads.items()
        ]
        refs += adopted
        small: list[bytes] = []
        for kind, data in trained.payloads.items():
            if len(data) <= SMALL_BLOB_BYTES and kind not in streamed:
                small.append(data)
            else:
                self._store.put_blob(data)
        if notes_iterations:  # before it is signed: a repeated training has to give the same bytes
            iterations = int(trained.metrics["iterations"])
            self._store.put_meta(ITERATIONS, {"height": tip.height + 1, "iterations": iterations})
        return self._sign_contribution(
            tip, trained.weight, tuple(sorted(refs, key=lambda ref: ref.kind)), small, measure
        )

    async def renew_contribution(
        self, tip: Tip, heights: Sequence[int], fits: Callable[[Contribution], bool]
    ) -> Contribution | None:
        """Returns a durable contribution on `tip` with the payloads of one that was signed for one of `heights`, whose
        blobs are here; None if there is none, or it does not fit any more."""
        return await self._disk.run(self._renew_contribution, tip, heights, fits)

    def _renew_contribution(
        self, tip: Tip, heights: Sequence[int], fits: Callable[[Contribution], bool]
    ) -> Contribution | None:
        """Signs it again, on the disk's thread."""
        signed = (self._store.get_contribution(height) for height in heights)
        earlier = next((contribution for contribution in signed if contribution is not None), None)
        if earlier is None or not fits(earlier):
            return None
        if not all(self._store.has_blob(ref.digest) for ref in earlier.payloads):
            return None
        return self._sign_contribution(tip, earlier.weight, earlier.payloads, measure=earlier.measure)

    def _sign_contribution(
        self,
        tip: Tip,
        weight: int,
        payloads: tuple[PayloadRef, ...],
        small: Sequence[bytes] = (),
        measure: Measure | None = None,
    ) -> Contribution:
        """Returns the durable contribution with its `small` blobs: this one, or the one signed for its height before.
        Runs on the disk's thread."""
        contribution = codec.sign_contribution(
            self._key,
            self._chain_id,
            height=tip.height + 1,
            prev=tip.id,
            weight=weight,
            payloads=payloads,
            reveal=make_reveal(self._key, self._chain_id, tip.block, tip.state.protocol),
            measure=measure,
        )
        try:
            self._store.put_contribution(contribution, small)
        except SlotTaken as taken:
            return codec.decode_contribution(taken.stored)
        return contribution

    # ---- changes

    def sign_approval(self, change_id: Digest, answer: Answer) -> Approval:
        """Returns this member's signed answer to a change. Nothing binds it to answer the same again, since an answer
        has no slot."""
        return approvals.sign_approval(self._key, self._chain_id, change_id, answer)

    def sign_readiness(self, change_id: Digest, key: Id, tip: Tip) -> Readiness:
        """Returns the signed statement of one of this node's keys that it has the chain up to this head."""
        held = self._find(key)
        if held is None:
            raise ValueError("expected a key that this node holds")
        return approvals.sign_readiness(held, self._chain_id, change_id, height=tip.height, block_id=tip.id)

    # ---- candidates

    async def sign_candidate(self, header: Header, nonce: int, body: Body) -> Block:
        """Returns the durable candidate of this height: the one with this header, or the one signed before."""
        block = codec.make_block(self._chain_id, header, nonce, body, self._key)
        try:
            await self._disk.run(self._store.put_candidate, block)
        except SlotTaken as taken:
            return codec.decode_block(self._chain_id, taken.stored)
        return block

    # ---- votes

    async def sign_vote(self, height: int, action: CastVote, blobs: Sequence[bytes] = ()) -> Vote:
        """Returns the durable vote of this slot: this one, or the one signed before. With a precommit for a block the
        small `blobs` are made durable."""
        cast = action.cast
        vote = codec.sign_vote(
            self._key, self._chain_id, phase=cast.phase, height=height, view=cast.view, block_id=cast.block_id
        )
        return await self._disk.run(self._put_vote, vote, action, blobs)

    def _put_vote(self, vote: Vote, action: CastVote, blobs: Sequence[bytes]) -> Vote:
        """Stores the vote, on the disk's thread."""
        try:
            if vote.phase is Phase.PRECOMMIT and action.block is not None:
                self._store.put_precommit(vote, action.block, action.cast.justification, blobs)
            else:
                self._store.put_vote(vote)
        except SlotTaken as taken:
            return codec.decode_vote(taken.stored)
        return vote

    def __repr__(self) -> str:
        return f"<Signer {self.id.hex()[:8]}>"
