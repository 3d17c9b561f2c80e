"""The frames between the daemon and its worker, over a socket; both ends use this code.

    u32 big-endian length of the JSON | JSON object | the attachments' raw bytes, in the order the JSON names them

The JSON's own key `attachments` gives each attachment's size, so the receiver knows what follows and refuses what is
too large before it makes room. Numbers that are not finite pass as `NaN` and `Infinity`: a loss may be either.

The worker reads and writes blocking (`send_frame`, `receive_frame`), the daemon on its event loop (`post_pieces`,
`await_frame`), where a long attachment goes in pieces with other work in between.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_HEADER_BYTES = 1 << 20
MAX_ATTACHMENT_BYTES = 8 << 30  # all attachments of a frame together: a backstop, far above any model here
_PIECE_BYTES = 1 << 20
_SHORT_BYTES = 1 << 16
_LENGTH_BYTES = 4


class FrameError(Exception):
    """The other end sent something that is not a frame, or stopped in the middle of one."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Carries a message: values that JSON can carry, and named bytes beside them."""

    header: Mapping[str, Any]
    attachments: Mapping[str, bytes] = field(default_factory=dict)


def encode_frame(frame: Frame) -> tuple[bytes, ...]:
    """Returns the frame's bytes: in one piece when short, else with the attachments as further, uncopied pieces. Raises
    FrameError."""
    sizes = {name: len(data) for name, data in frame.attachments.items()}
    head = json.dumps({**frame.header, "attachments": sizes}, separators=(",", ":")).encode()
    if len(head) > MAX_HEADER_BYTES:
        raise FrameError(f"header too long: expected at most {MAX_HEADER_BYTES} bytes, got {len(head)}")
    pieces = (len(head).to_bytes(_LENGTH_BYTES, "big") + head, *frame.attachments.values())
    return (b"".join(pieces),) if sum(sizes.values()) <= _SHORT_BYTES else pieces


def decode_length(data: bytes) -> int:
    """Returns the length of the JSON that follows. Raises FrameError."""
    length = int.from_bytes(data, "big")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise FrameError(f"header length: expected 2 to {MAX_HEADER_BYTES} bytes, got {length}")
    return length


def decode_header(data: bytes, max_bytes: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the values and the attachments' sizes, at most `max_bytes` together. Raises FrameError."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"header: expected a JSON object, got {data[:40]!r}") from error
    if not isinstance(header, dict) or not isinstance(sizes := header.pop("attachments", None), dict):
        raise FrameError(f"header: expected an object with the sizes of attachments, got {data[:40]!r}")
    for name, size in sizes.items():
        if type(size) is not int or not 0 <= size <= MAX_ATTACHMENT_BYTES:  # before they are summed
            raise FrameError(f"attachment {name[:40]!r}: expected a size in bytes, got {str(size)[:40]}")
    if (total := sum(sizes.values())) > max_bytes:
        raise FrameError(f"attachments too long: expected at most {max_bytes} bytes, got {total}")
    return header, sizes


# ---- blocking: the worker's end


def send_frame(sock: socket.socket, frame: Frame) -> None:
    """Writes a whole frame. Raises OSError when the other end is gone."""
    for piece in encode_frame(frame):
        sock.sendall(piece)


def receive_frame(sock: socket.socket, max_bytes: int = MAX_ATTACHMENT_BYTES) -> Frame | None:
    """Returns the next frame, or None when the other end has closed. Raises FrameError."""
    first = _receive(sock, _LENGTH_BYTES)
    if not first:
        return None
    length = decode_length(_check_whole(first, _LENGTH_BYTES))
    header, sizes = decode_header(_check_whole(_receive(sock, length), length), max_bytes)
    return Frame(header, {name: _check_whole(_receive(sock, size), size) for name, size in sizes.items()})


def _receive(sock: socket.socket, size: int) -> bytes:
    """Returns `size` bytes, or fewer at the end of the stream."""
    buffer = _Buffer(size)
    while buffer.missing:
        try:
            count = sock.recv_into(buffer.tail)
        except ConnectionError:
            count = 0
        if not count:
            break
        buffer.filled += count
    return buffer.take()


# ---- on the event loop: the daemon's end


async def post_pieces(sock: socket.socket, pieces: Iterable[bytes]) -> None:
    """Writes an encoded frame to a non-blocking socket; not to be cancelled half-way. Raises OSError."""
    loop = asyncio.get_running_loop()
    for piece in pieces:
        await loop.sock_sendall(sock, piece)


async def await_frame(sock: socket.socket, max_bytes: int = MAX_ATTACHMENT_BYTES) -> Frame | None:
    """Returns the next frame from a non-blocking socket, or None when the other end has closed. Raises FrameError."""
    first = await _await(sock, _LENGTH_BYTES)
    if not first:
        return None
    length = decode_length(_check_whole(first, _LENGTH_BYTES))
    header, sizes = decode_header(_check_whole(await _await(sock, length), length), max_bytes)
    return Frame(header, {name: _check_whole(await _await(sock, size), size) for name, size in sizes.items()})


async def _await(sock: socket.socket, size: int) -> bytes:
    """Returns `size` bytes, or fewer at the end of the stream."""
    loop = asyncio.get_running_loop()
    buffer = _Buffer(size)
    since_pause = 0
    while buffer.missing:
        try:
            count = await loop.sock_recv_into(sock, buffer.tail)
        except ConnectionError:
            count = 0
        if not count:
            break
        buffer.filled += count
        since_pause += count
        if since_pause >= _PIECE_BYTES:  # a socket that always has data would never yield to the loop
            since_pause = 0
            await asyncio.sleep(0)
    return buffer.take()


def _check_whole(data: bytes, size: int) -> bytes:
    if len(data) < size:
        raise FrameError(f"the other end closed after {len(data)} of {size} bytes")
    return data


class _Buffer:
    """Holds room for `size` bytes that a socket fills. BytesIO returns its buffer as `bytes` without copying it."""

    def __init__(self, size: int) -> None:
        self.filled = 0
        self._file = io.BytesIO(bytes(size))
        self._view = self._file.getbuffer()

    @property
    def missing(self) -> int:
        return len(self._view) - self.filled

    @property
    def tail(self) -> memoryview:
        return self._view[self.filled : self.filled + _PIECE_BYTES]

    def take(self) -> bytes:
        """Returns the filled part. It may be called once, at the end."""
        self._view.release()
        return self._file.getvalue()[: self.filled]
