"""The ledger reader: answers questions about a store with the messages of admin.proto.

A daemon and a command that reads the store itself return the same answers. Reading is synchronous and belongs to the
store's thread. Raises NotFound for what is not there, and StoreCorrupted for damaged data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from google.protobuf import json_format

from chain.beacon import compute_beacon
from chain.block import ZERO, Block, Certificate, Contribution, EvidenceKind, PayloadRef
from chain.calendar import Calendar
from chain.codec import decode_block, decode_certificate, decode_sealed_header, decode_vote
from chain.errors import StoreCorrupted
from chain.genesis import Genesis
from chain.layout import MAX_HEIGHT
from chain.schema import format_time, quote
from chain.signing import decode_id, encode_id
from chain.state import State
from chain.store.blob_files import reading_blob
from chain.store.interface import StoredEvidence
from chain.store.sqlite import SqliteStore
from ml.errors import PayloadError
from ml.measures.alone import TrainedAlone
from ml.measures.kinds import read_measures
from ml.payload import Arrays, decode_arrays, kind_name, map_arrays
from node.errors import InvalidRequest, NotFound
from node.ledger.measures_view import show_alone, show_measures, show_published
from node.ledger.metrics_query import RoundPlace
from node.ledger.names import get_name
from node.ledger.series import Picker, flatten
from node.ledger.statistics import describe_agreed
from node.payloads.retention import LARGE_BYTES
from node.pb import admin_pb2 as pb
from node.runs.specs import RunSpecs

DEFAULT_LIMIT = 20
MAX_LIMIT = 500  # of one page
NEWEST_ROUNDS = 64  # how far below the head the newest measurements may be


def show_summary(state: State, block: Block, certificate: Certificate | None, num_bytes: int) -> pb.BlockSummary:
    """Shows one line about a finalised block, which `state` judged, of `num_bytes` with its certificate."""
    header = block.header
    summary = pb.BlockSummary(
        height=block.height,
        id=block.id.hex(),
        prev=header.prev.hex(),
        time=format_time(header.time_ms),
        difficulty=header.difficulty,
        nonce=block.nonce,
        mining_s=(header.time_ms - header.start_ms) / 1000,
        num_contributions=len(block.contributions),
        num_members=state.n,
        bytes=num_bytes,
        payload_bytes=sum(ref.size for contribution in block.contributions for ref in contribution.payloads),
        body=header.body.hex(),
    )
    if header.miner != ZERO:
        summary.miner, summary.miner_name = encode_id(header.miner), get_name(state, header.miner)
    if header.aggregate != ZERO:
        summary.aggregate = header.aggregate.hex()
    if certificate is not None:
        summary.num_votes, summary.view = len(certificate.signatures), certificate.view
    return summary


def _show_stored(state: State, block: bytes, certificate: bytes) -> pb.BlockSummary:
    """Returns `show_summary` of a block in canonical bytes. Raises DecodeError."""
    return show_summary(
        state,
        decode_block(state.chain_id, block),
        decode_certificate(certificate) if certificate else None,
        len(block) + len(certificate),
    )


class Ledger:
    """Reads one store."""

    def __init__(self, genesis: Genesis, store: SqliteStore, calendar: Calendar | None = None) -> None:
        """`calendar` is that of a running node; else it is read from the store when rounds are shown."""
        self.genesis = genesis
        self._store = store
        self._calendar = calendar

    # ---- blocks

    def get_head(self, *, include_payloads: bool = False) -> pb.Block:
        return self.get_block(self._store.head_height, include_payloads=include_payloads)

    def find_block(self, block_id: str, *, include_payloads: bool = False) -> pb.Block:
        """Returns the finalised block with this id, 64 hexadecimal digits. Raises InvalidRequest."""
        if not re.fullmatch("[0-9a-fA-F]{64}", block_id):
            raise InvalidRequest(f"block id: expected 64 hexadecimal digits, got {quote(block_id)}")
        found = self._store.find_block(bytes.fromhex(block_id))
        if found is None:
            raise NotFound(f"block {block_id}: not on this chain, which ends at height {self._store.head_height}")
        return self.get_block(found.block.height, include_payloads=include_payloads)

    def get_block(self, height: int, *, include_payloads: bool = False) -> pb.Block:
        self._check_height(height)
        stored = self._store.get_block_bytes(height)
        if stored is None:
            raise self._describe_missing(height)
        block = decode_block(self.genesis.chain_id, stored[0])
        certificate = decode_certificate(stored[1]) if stored[1] else None
        aggregate, state = block.header.aggregate, self._get_judge(height)
        return pb.Block(
            summary=show_summary(state, block, certificate, len(stored[0]) + len(stored[1])),
            aggregate_held=aggregate != ZERO and self._store.has_blob(aggregate),
            contributions=[
                self._show_contribution(state, contribution, include_payloads) for contribution in block.contributions
            ],
            votes=[_show_voter(state, index) for index, _ in certificate.signatures] if certificate is not None else (),
        )

    def list_blocks(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListBlocksReply:
        """Returns a page of blocks from height `first` on: downwards from the head by default, upwards with
        `reverse`."""
        heights, following = self._choose_heights(first, limit, lowest=0, reverse=reverse)
        shown = {
            row.height: _show_stored(self._get_judge(row.height), row.block, row.certificate)
            for row in self._store.read_rows(min(heights), max(heights))
            if row.damage is None
        }
        for height in sorted(heights):
            if height not in shown:
                self._store.get_block_bytes(height)  # raises if it is damaged
                raise self._describe_missing(height)
        reply = pb.ListBlocksReply(blocks=[shown[height] for height in heights])
        if following is not None:
            reply.next = following
        return reply

    def _show_contribution(
        self, state: State, contribution: Contribution, include_payloads: bool
    ) -> pb.ContributionView:
        return pb.ContributionView(
            author=encode_id(contribution.author),
            name=get_name(state, contribution.author),
            weight=contribution.weight,
            payloads=[self._show_payload(ref, include_payloads) for ref in contribution.payloads],
        )

    def _show_payload(self, ref: PayloadRef, include_arrays: bool) -> pb.Payload:
        try:
            kind = kind_name(ref.kind)
        except PayloadError:
            kind = str(ref.kind)
        held = self._store.has_blob(ref.digest)
        shown = pb.Payload(kind=kind, digest=ref.digest.hex(), bytes=ref.size, held=held)
        if held and include_arrays:
            try:
                arrays = self._open_arrays(ref)
            except PayloadError as error:
                raise StoreCorrupted(f"blob {ref.digest.hex()}: {error}") from error
            for name, array in sorted(arrays.items()):
                shown.arrays.add(name=name, dtype=str(array.dtype), shape=array.shape)
        return shown

    def _open_arrays(self, ref: PayloadRef) -> Arrays:
        """Opens the arrays of a held blob. A large one is read in its file, no further than its header."""
        if ref.size <= LARGE_BYTES:
            return decode_arrays(self._store.get_blob(ref.digest), ref.size)
        path = self._store.blob_path(ref.digest)  # only small ones are rows of the database
        with reading_blob(path):
            return map_arrays(path, ref.size)

    # ---- rounds

    def get_round(self, height: int) -> pb.Round:
        if height == 0:
            raise NotFound("round 0: block 0 is genesis; rounds begin at 1")
        self._check_height(height, what="round")
        for found in self.read_rounds(height, height):
            return found
        raise NotFound(f"block {height} holds a change, or closes a run, and is no round")

    def read_agreed(self, height: int, shared: int | None = None) -> tuple[Block, bytes, bytes | None, Block | None]:
        """Returns a block, the beacon of its height, and its aggregate, None when that is not held or there is none;
        and the block at `shared`."""
        block = self._read_block(height)
        digest = block.header.aggregate
        is_held = digest != ZERO and self._store.has_blob(digest)
        aggregate = self._store.get_blob(digest) if is_held else None
        beacon = compute_beacon(self._read_block(height - 1))
        return block, beacon, aggregate, None if shared is None else self._read_block(shared)

    def _read_block(self, height: int) -> Block:
        stored = self._store.get_block(height)
        if stored is None:
            raise NotFound(f"block {height}: the chain ends at height {self._store.head_height}")
        return stored.block

    def list_rounds(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListRoundsReply:
        """Returns a page of rounds, as `list_blocks` does of blocks, without heights that are no rounds."""
        if self._store.head_height == 0:
            return pb.ListRoundsReply()
        heights, following = self._choose_heights(first, limit, lowest=1, reverse=reverse)
        shown = {entry.height: entry for entry in self.read_rounds(min(heights), max(heights))}
        reply = pb.ListRoundsReply(rounds=[shown[height] for height in heights if height in shown])
        if following is not None:
            reply.next = following
        return reply

    def get_newest_measured(self) -> pb.Round | None:
        """Returns the last round of which this node kept measurements; None if there is none in the last
        `NEWEST_ROUNDS`."""
        head = self._store.head_height
        shown = [show_record(record) for record in self._store.newest_rounds(head, 1)]
        return next((newest for newest in shown if newest.height > head - NEWEST_ROUNDS), None)

    def describe_statistics(self, runs: RunSpecs) -> str | None:
        """Describes the statistics that normalise samples in the run in force, where its members agree on them."""
        return describe_agreed(runs, self._store)

    def read_rounds(self, first: int, last: int) -> list[pb.Round]:
        """Returns the rounds among these heights, all of which must be there. A block with a change is no round, nor is
        one that closes a run."""
        records, calendar = dict(self._store.rounds(first, last)), self._get_calendar()
        shown: list[pb.Round] = []
        height = first
        for stored in self._store.blocks(first, last):
            if stored.block.height != height:
                break
            if stored.block.change is None and not calendar.get_span(height).run.is_closing(height):
                shown.append(self._show_round(stored.block, stored.certificate, records.get(height), calendar))
            height += 1
        if height <= last:
            raise self._describe_missing(height)
        return shown

    def read_series(self, first: int, last: int, picker: Picker) -> list[dict[str, Any]]:
        """Returns for each measured round of these heights its `height` and the values that `picker` reads."""
        rows: list[dict[str, Any]] = []
        for height, record in self._store.rounds(first, last):
            if picker.is_new(record):
                picker.learn(flatten(show_record(record)))
            rows.append({"height": height, **picker.pick(record)})
        return rows

    def read_places(self, heights: Sequence[int]) -> list[RoundPlace]:
        """Returns the run, round and time of finalised heights."""
        places: list[RoundPlace] = []
        calendar = self._get_calendar()
        for height in heights:
            block, place = self._store.get_block(height), calendar.get_place(height)
            if block is None:
                raise self._describe_missing(height)
            run, number = (0, 0) if place is None else (place.run, place.round)
            places.append(RoundPlace(run, number, format_time(block.block.header.time_ms)))
        return places

    def _show_round(
        self, block: Block, certificate: Certificate | None, record: Mapping[str, Any] | None, calendar: Calendar
    ) -> pb.Round:
        """Shows a round as the chain has it, and what this node measured in it, if it took part."""
        shown = pb.Round() if record is None else show_record(record)
        authors, state = [contribution.author for contribution in block.contributions], self._get_judge(block.height)
        shown.height, shown.block, shown.time = block.height, block.id.hex(), format_time(block.header.time_ms)
        place = calendar.get_place(block.height)
        if place is not None:
            shown.run, shown.round = place.run, place.round
        shown.miner = encode_id(block.header.miner)
        shown.miner_name = get_name(state, block.header.miner)
        shown.payload_bytes = sum(ref.size for contribution in block.contributions for ref in contribution.payloads)
        del shown.contributors[:]
        shown.contributors.extend(encode_id(author) for author in authors)
        shown.contributor_names.extend(get_name(state, author) for author in authors)
        shown.num_members = state.n
        shown.absent_names.extend(member.name for member in state.members if member.key not in authors)
        if certificate is not None:
            shown.votes, shown.view = len(certificate.signatures), certificate.view
        shown.measured = record is not None
        for candidate in shown.candidates:
            candidate.miner_name = get_name(state, decode_id(candidate.miner))
        for score in shown.scores:
            score.name = get_name(state, decode_id(score.author))
        for published in self._store.get_published(block.height):
            if published.place == place:  # else a change took the height for which it was published
                name = get_name(state, published.key)
                shown.published.append(show_published(published, name))
        for refused in shown.not_taken:
            refused.name = get_name(state, decode_id(refused.peer))
        return shown

    # ---- evidence

    def list_evidence(self) -> pb.ListEvidenceReply:
        """Lists the evidence that this node holds of members that signed twice."""
        return pb.ListEvidenceReply(evidence=[self._show_evidence(stored) for stored in self._store.get_evidence()])

    def _show_evidence(self, stored: StoredEvidence) -> pb.EvidenceView:
        evidence = stored.evidence
        state = self._get_judge(min(stored.height, self._store.head_height + 1))
        shown = pb.EvidenceView(
            author=encode_id(stored.author),
            name=get_name(state, stored.author),
            height=stored.height,
            slot=evidence.kind.name.lower(),
            seen=None if stored.seen_ms is None else format_time(stored.seen_ms),
        )
        if evidence.kind is EvidenceKind.VOTE:
            votes = decode_vote(evidence.first), decode_vote(evidence.second)
            shown.view, shown.phase = votes[0].view, votes[0].phase.name.lower()
            shown.first, shown.second = (vote.block_id.hex() for vote in votes)
        elif evidence.kind is EvidenceKind.CANDIDATE:
            blocks = (decode_sealed_header(self.genesis.chain_id, data) for data in (evidence.first, evidence.second))
            shown.first, shown.second = (block.id.hex() for block in blocks)
        else:
            shown.first, shown.second = (sha256(data).hexdigest() for data in (evidence.first, evidence.second))
        return shown

    # ---- heights

    def _get_calendar(self) -> Calendar:
        return self._calendar or Calendar(self._store.read_states(0, MAX_HEIGHT))

    def _describe_missing(self, height: int) -> StoreCorrupted:
        """Returns the error to raise for a block that must be there."""
        return StoreCorrupted(f"{self._store.path}: block {height}: missing from the store")

    def _get_judge(self, height: int) -> State:
        """Returns the state that judged the block at `height`: the one after the height before it."""
        return self._store.get_state(max(0, height - 1))

    def _check_height(self, height: int, what: str = "block") -> None:
        head = self._store.head_height
        if not 0 <= height <= head:
            raise NotFound(f"{what} {height}: the chain ends at height {head}")

    def _choose_heights(
        self, first: int | None, limit: int, *, lowest: int, reverse: bool
    ) -> tuple[Sequence[int], int | None]:
        """Returns the heights of one page, at least one, and where the next page begins, if there is one."""
        head = self._store.head_height
        if first is None:
            first = lowest if reverse else head
        first = max(first, lowest)
        self._check_height(first)
        count = min(limit or DEFAULT_LIMIT, MAX_LIMIT)
        if reverse:
            heights = range(first, min(first + count, head + 1))
            return heights, heights[-1] + 1 if heights[-1] < head else None
        heights = range(first, max(first - count, lowest - 1), -1)
        return heights, heights[-1] - 1 if heights[-1] > lowest else None


def _show_voter(state: State, index: int) -> pb.Voter:
    member = state.members[index]
    return pb.Voter(id=encode_id(member.key), name=member.name)


def show_record(record: Mapping[str, Any]) -> pb.Round:
    """Returns a stored record as a message. Keys that this version does not know are left out, so that a newer node's
    record can be read, and so are nulls among numbers by name."""
    known = {
        key: {name: one for name, one in value.items() if one is not None} if isinstance(value, Mapping) else value
        for key, value in record.items()
        if key not in ("measures", "alone")
    }
    shown = json_format.ParseDict(known, pb.Round(), ignore_unknown_fields=True)
    if (measures := record.get("measures")) is not None:
        shown.measures.CopyFrom(show_measures(read_measures(measures)))
    if (alone := record.get("alone")) is not None:
        shown.alone.CopyFrom(show_alone(TrainedAlone.from_mapping(alone)))
    return shown
