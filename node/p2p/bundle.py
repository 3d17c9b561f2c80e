"""The bundle codec: small signed objects that become new together travel as one message (PROTOCOL §5).

A payload follows directly after the contribution that names it. The bundle itself is not signed: each part is, by its
author.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from node.p2p.transport.base import MAX_MESSAGE_BYTES, Message, MessageKind

MAX_PARTS = 256
PART_KINDS = frozenset({MessageKind.CONTRIBUTION, MessageKind.VOTE, MessageKind.PAYLOAD})
_COUNT = struct.Struct(">H")
_PART = struct.Struct(">BI")
PART_BYTES = _PART.size


class BundleError(Exception):
    """These bytes are not a bundle that a correct node sends: its sender is at fault."""


def encode_bundle(parts: Iterable[Message]) -> bytes:
    encoded = [_PART.pack(part.kind, len(part.data)) + part.data for part in parts]
    return _COUNT.pack(len(encoded)) + b"".join(encoded)


def decode_bundle(data: bytes) -> Iterator[tuple[MessageKind, bytes]]:
    """Yields the parts, one after the other. Raises BundleError at the first bad part, after it has yielded those
    before it."""
    offset, end = _COUNT.size, len(data)
    count = count_parts(data)
    if not 0 < count <= MAX_PARTS:
        raise BundleError(f"number of parts: expected 1 to {MAX_PARTS}, got {count}")
    for _ in range(count):
        if end - offset < PART_BYTES:
            raise BundleError(f"expected {PART_BYTES} bytes before a part, got {end - offset}")
        code, size = _PART.unpack_from(data, offset)
        offset += PART_BYTES
        kind = _KINDS.get(code)
        if kind is None:
            raise BundleError(f"kind of a part: expected a contribution, a vote or a payload, got {code}")
        if not 0 < size <= min(MAX_MESSAGE_BYTES[kind], end - offset):
            raise BundleError(f"a {kind.name.lower()} of {size} bytes is over its limit, or over what is left")
        yield kind, data[offset : offset + size]
        offset += size
    if offset != end:
        raise BundleError(f"expected the end after the last part, got {end - offset} bytes more")


def count_parts(data: bytes) -> int:
    """Returns how many parts these bytes claim to hold, without checking anything else."""
    return int(_COUNT.unpack_from(data)[0]) if len(data) >= _COUNT.size else 0


_KINDS = {int(kind): kind for kind in PART_KINDS}
