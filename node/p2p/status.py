"""The status codec: turns `Status` into protobuf and back. A status from a peer is checked and refused, never trusted.

Only `Status` needs it: everything else travels as canonical chain bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from google.protobuf.message import DecodeError

from chain.block import Id, Phase
from chain.codec import MAX_MEMBERS
from chain.layout import MAX_HEIGHT, MAX_TIME_MS, MAX_U16, MAX_U32
from node.p2p.transport.base import MAX_MESSAGE_BYTES, MessageKind
from node.pb import peer_pb2 as pb

MAX_STATUS_BYTES = MAX_MESSAGE_BYTES[MessageKind.STATUS]
MAX_VERSION_CHARS = 32
MAX_OPEN_TOLD = 64  # open changes in one status; further ones follow once these are closed
FULL_VIEWS = 2 * 8 + 1  # the window in which every vote is kept (PROTOCOL §5); outside, the latest of each member


class StatusError(Exception):
    """These bytes are not a status that a correct node sends: its sender is at fault."""


@dataclass(frozen=True, slots=True)
class VoteBitmap:
    """Says whose votes of one view and phase a node holds: bit i of `members` is the member of index i."""

    view: int
    phase: Phase
    members: int


@dataclass(frozen=True, slots=True)
class OpenChange:
    """Says what a node holds of an open change: its approvals (bit i: the member of index i) and the height in the
    readiness of its new key; None where no readiness is held."""

    id: Id
    approvals: int = 0
    ready_height: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """Describes the position of a node, and what it holds at the height it works on (0: none, all rounds are done). A
    node that neither `contributes` nor `abstains` is not ready yet."""

    chain_id: bytes
    head_height: int
    head_id: Id
    height: int = 0
    view: int = 0
    contributes: bool = False
    contributions: int = 0  # bit i: the contribution of the member of index i
    candidates: tuple[Id, ...] = ()
    votes: tuple[VoteBitmap, ...] = ()
    abstains: bool = False
    open: tuple[OpenChange, ...] = ()  # sorted by id
    time_ms: int = 0  # of its sender's wall clock; 0: not given
    version: str = ""  # of its sender's release, unproved
    protocol: int = 0  # the newest version that its sender supports
    reaches: int = 0  # bit i: its sender is connected with the member of index i, which sent something lately
    contributing: int = 0  # of those, the ones that report that they contribute at this height
    abstaining: int = 0  # of those, the ones that report that they do not
    ages: bytes = b""  # with many members: the age of each one's newest sign of life, in `status_s`; 255: none


def status_to_bytes(status: Status) -> bytes:
    return pb.Status(
        chain_id=status.chain_id,
        head_height=status.head_height,
        head_id=status.head_id,
        height=status.height,
        view=status.view,
        contributes=status.contributes,
        contributions=_bitmap_to_bytes(status.contributions),
        candidates=sorted(status.candidates),
        votes=[
            pb.VoteBitmap(view=votes.view, phase=votes.phase, members=_bitmap_to_bytes(votes.members))
            for votes in sorted(status.votes, key=lambda votes: (votes.view, votes.phase))
        ],
        abstains=status.abstains,
        time_ms=status.time_ms,
        version=status.version,
        protocol=status.protocol,
        reaches=_bitmap_to_bytes(status.reaches),
        contributing=_bitmap_to_bytes(status.contributing),
        abstaining=_bitmap_to_bytes(status.abstaining),
        ages=status.ages,
        open=[
            pb.OpenChange(
                id=change.id,
                approvals=_bitmap_to_bytes(change.approvals),
                ready=0 if change.ready_height is None else change.ready_height + 1,
            )
            for change in sorted(status.open, key=lambda change: change.id)
        ],
    ).SerializeToString(deterministic=True)


def status_from_bytes(data: bytes, num_members: int = MAX_MEMBERS) -> Status:
    """Returns the decoded status. Raises StatusError unless the bytes are a status, in range, of a federation of at
    most `num_members`."""
    if len(data) > MAX_STATUS_BYTES:
        raise StatusError(f"expected at most {MAX_STATUS_BYTES} bytes, got {len(data)}")
    try:
        message = pb.Status.FromString(data)
    except DecodeError as error:
        raise StatusError(f"expected a status, got {len(data)} bytes of something else") from error
    _check("head height", message.head_height, MAX_HEIGHT)
    _check("height", message.height, MAX_HEIGHT)
    _check("time", message.time_ms, MAX_TIME_MS)
    _check("protocol", message.protocol, MAX_U16)
    _check("number of candidates", len(message.candidates), 2 * num_members)
    _check("number of vote bitmaps", len(message.votes), 2 * (FULL_VIEWS + num_members))
    _check("number of ages", len(message.ages), num_members)
    candidates = tuple(_hash_from_bytes("candidate", candidate) for candidate in message.candidates)
    if any(first >= second for first, second in pairwise(candidates)):
        raise StatusError("candidates: expected sorted ids, each once")
    return Status(
        chain_id=_hash_from_bytes("chain id", message.chain_id),
        head_height=message.head_height,
        head_id=_hash_from_bytes("head id", message.head_id),
        height=message.height,
        view=message.view,
        contributes=message.contributes,
        contributions=_bitmap_from_bytes("contributions", message.contributions, num_members),
        candidates=candidates,
        votes=_votes_from_pb(message, num_members),
        abstains=message.abstains,
        open=_open_from_pb(message, num_members),
        time_ms=message.time_ms,
        version=_version_from_pb(message),
        protocol=message.protocol,
        reaches=_bitmap_from_bytes("reaches", message.reaches, num_members),
        contributing=_bitmap_from_bytes("contributing", message.contributing, num_members),
        abstaining=_bitmap_from_bytes("abstaining", message.abstaining, num_members),
        ages=message.ages,
    )


def check_bounds(status: Status, num_members: int) -> None:
    """Raises StatusError where a status of this height exceeds what a federation of `num_members` allows."""
    _check("number of candidates", len(status.candidates), 2 * num_members)
    _check("number of vote bitmaps", len(status.votes), 2 * (FULL_VIEWS + num_members))
    _check("bits of the bitmap of contributions", status.contributions.bit_length(), num_members)
    _check("bits of the bitmap of reaches", status.reaches.bit_length(), num_members)
    _check("bits of the bitmap of contributing", status.contributing.bit_length(), num_members)
    _check("bits of the bitmap of abstaining", status.abstaining.bit_length(), num_members)
    _check("number of ages", len(status.ages), num_members)
    for votes in status.votes:
        _check("bits of the bitmap of votes", votes.members.bit_length(), num_members)
    for change in status.open:
        _check("bits of the bitmap of approvals", change.approvals.bit_length(), num_members)


def list_bits(bitmap: int) -> Iterator[int]:
    """Yields the indices of the members in a bitmap, in order."""
    while bitmap:
        lowest = bitmap & -bitmap
        yield lowest.bit_length() - 1
        bitmap ^= lowest


def _votes_from_pb(message: pb.Status, num_members: int) -> tuple[VoteBitmap, ...]:
    votes = []
    last = (-1, 0)
    for held in message.votes:
        _check("view", held.view, MAX_U32)
        if held.phase not in (Phase.PREVOTE, Phase.PRECOMMIT):
            raise StatusError(f"phase: expected 1 or 2, got {held.phase}")
        if (held.view, held.phase) <= last:
            raise StatusError("votes: expected views and phases sorted, each once")
        last = (held.view, held.phase)
        votes.append(VoteBitmap(held.view, Phase(held.phase), _bitmap_from_bytes("votes", held.members, num_members)))
    return tuple(votes)


def _open_from_pb(message: pb.Status, num_members: int) -> tuple[OpenChange, ...]:
    _check("number of open changes", len(message.open), MAX_OPEN_TOLD)
    changes = []
    for held in message.open:
        _check("height of readiness", held.ready, MAX_HEIGHT)
        approvals = _bitmap_from_bytes("approvals", held.approvals, num_members)
        changes.append(
            OpenChange(_hash_from_bytes("open change", held.id), approvals, held.ready - 1 if held.ready else None)
        )
    if any(first.id >= second.id for first, second in pairwise(changes)):
        raise StatusError("open changes: expected sorted ids, each once")
    return tuple(changes)


def _version_from_pb(message: pb.Status) -> str:
    _check("characters of the version", len(message.version), MAX_VERSION_CHARS)
    if not (message.version.isascii() and (message.version.isprintable() or not message.version)):
        raise StatusError("version: expected printable ASCII")
    return message.version


def _bitmap_to_bytes(bitmap: int) -> bytes:
    return bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little")


def _bitmap_from_bytes(name: str, data: bytes, num_members: int) -> int:
    _check(f"bytes of the bitmap of {name}", len(data), (num_members + 7) // 8)
    if data and data[-1] == 0:
        raise StatusError(f"bitmap of {name}: expected no zero byte at the end")
    bitmap = int.from_bytes(data, "little")
    _check(f"bits of the bitmap of {name}", bitmap.bit_length(), num_members)
    return bitmap


def _hash_from_bytes(name: str, data: bytes) -> bytes:
    if len(data) != 32:
        raise StatusError(f"{name}: expected 32 bytes, got {len(data)}")
    return data


def _check(name: str, value: int, maximum: int) -> None:
    if value > maximum:
        raise StatusError(f"{name}: expected at most {maximum}, got {value}")
