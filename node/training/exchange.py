"""The exchange of a finalised block, for a client: its authors' offers besides the aggregate, and the blobs fetched
from them.

Only methods with payloads on demand (PROTOCOL §2), or with sets that later rounds train on, have offers and blobs. In a
frame to the worker ids and digests are hexadecimal, and each blob is an attachment under its digest. A blob too large
for an attachment stays a file, and only its path is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from chain.block import Block, Contribution, Digest, Id
from ml.errors import PayloadError
from ml.payload import Arrays, decode_arrays, kind_name, map_arrays
from ml.specs import Offer
from node.training.frames import FrameError

AGGREGATE = "aggregate"  # the attachment that is no blob


class FileUnusable(Exception):
    """The file of a payload cannot be read or written; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Holds the offers and blobs of a block. `beacon` is the id of the block's parent, `me` this client's; the authors
    in `gone` did not deliver what they offered. `blobs` are encoded arrays, checked by the method's spec, `files` those
    that are not held in memory."""

    beacon: Id = b""
    me: Id = b""
    offers: tuple[Offer, ...] = ()
    gone: frozenset[Id] = frozenset()
    blobs: Mapping[Digest, bytes] = field(default_factory=dict)
    files: Mapping[Digest, Path] = field(default_factory=dict)

    def decode(self) -> dict[str, Any]:
        """Returns what a client receives of it, by name. Raises FileUnusable."""
        return {"me": self.me, "offers": self.offers, "gone": self.gone, "blobs": self.decode_blobs()}

    def decode_blobs(self) -> dict[Digest, Arrays]:
        """Returns the arrays of each blob by its digest; those of `files` as views of the file. Raises FileUnusable."""
        decoded: dict[Digest, Arrays] = {digest: decode_arrays(data, len(data)) for digest, data in self.blobs.items()}
        return decoded | {digest: _map_file(path) for digest, path in self.files.items()}

    # ---- to the worker

    def to_header(self) -> dict[str, Any]:
        """Returns all but the blobs in memory, as JSON values."""
        offers = [
            {
                "author": offer.author.hex(),
                "weight": offer.weight,
                "digests": {kind: digest.hex() for kind, digest in offer.digests.items()},
            }
            for offer in self.offers
        ]
        gone = sorted(author.hex() for author in self.gone)
        files = {digest.hex(): str(path) for digest, path in self.files.items()}
        return {"beacon": self.beacon.hex(), "me": self.me.hex(), "offers": offers, "gone": gone, "files": files}

    def to_attachments(self) -> dict[str, bytes]:
        return {digest.hex(): data for digest, data in self.blobs.items()}

    @classmethod
    def from_frame(cls, header: Mapping[str, Any], attachments: Mapping[str, bytes]) -> Self:
        """Returns the exchange in a frame. Raises FrameError."""
        return cls(
            beacon=_read_id("beacon", header.get("beacon"), may_be_empty=True),
            me=_read_id("me", header.get("me"), may_be_empty=True),
            offers=tuple(_read_offer(offer) for offer in _read_list("offers", header.get("offers"))),
            gone=frozenset(_read_id("gone", author) for author in _read_list("gone", header.get("gone"))),
            blobs={_read_id("attachment", name): data for name, data in attachments.items() if name != AGGREGATE},
            files=_read_files(header.get("files")),
        )


def get_offers(block: Block) -> tuple[Offer, ...]:
    """Returns the commitments of a block's authors, in author order, each kind by its name. Raises PayloadError."""
    return tuple(map(get_offer, block.contributions))


def get_offer(contribution: Contribution) -> Offer:
    """Returns the commitments of one contribution. Raises PayloadError."""
    digests = {kind_name(ref.kind): ref.digest for ref in contribution.payloads}
    return Offer(contribution.author, contribution.weight, digests)


def _map_file(path: Path) -> Arrays:
    try:
        return map_arrays(path, path.stat().st_size)
    except OSError as error:
        raise FileUnusable(f"{path}: cannot be read ({error.strerror or error})") from error
    except PayloadError as error:
        raise FileUnusable(f"{path}: {error}") from error


def _read_files(value: Any) -> dict[Digest, Path]:
    if not isinstance(value, dict):
        raise FrameError(f"files: expected a path for each digest, got {value!r}")
    for path in value.values():
        if not isinstance(path, str) or not path:
            raise FrameError(f"files: expected a path, got {path!r}")
    return {_read_id("file", digest): Path(path) for digest, path in value.items()}


def _read_offer(value: Any) -> Offer:
    if not isinstance(value, dict) or value.keys() != {"author", "weight", "digests"}:
        raise FrameError(f"offer: expected author, weight and digests, got {value!r}")
    weight, digests = value["weight"], value["digests"]
    if type(weight) is not int or weight < 1:
        raise FrameError(f"offer: expected a weight of at least 1, got {weight!r}")
    if not isinstance(digests, dict):
        raise FrameError(f"offer: expected a digest for each kind, got {digests!r}")
    read = {kind: _read_id(f"digest of {kind}", digest) for kind, digest in digests.items()}
    return Offer(_read_id("author", value["author"]), weight, read)


def _read_list(what: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FrameError(f"{what}: expected a list, got {value!r}")
    return value


def _read_id(what: str, value: Any, *, may_be_empty: bool = False) -> bytes:
    """Returns 32 bytes, or none at all where `may_be_empty`. Raises FrameError."""
    try:
        read = bytes.fromhex(value)
    except (TypeError, ValueError):
        read = None
    if read is None or not (len(read) == 32 or (may_be_empty and not read)):
        raise FrameError(f"{what}: expected 64 hexadecimal digits, got {value!r}")
    return read
