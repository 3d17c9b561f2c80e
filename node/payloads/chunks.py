"""The chunks of a large blob, each with a digest of its own. A wrong chunk is found when it comes, and the chunks
before it stay good (PROTOCOL §7).

The blob's author signed these digests beside the blob. They can be wrong like any bytes: a blob is only what its author
signed if it has its own digest and all its chunks have theirs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from chain.block import Digest
from chain.errors import BlobCorrupted
from chain.store.blob_files import reading_blob
from ml.payload import CHUNK_BYTES, Arrays, count_chunks

DIGEST_BYTES = 32


class ChunksMisfit(Exception):
    """The digests of chunks cannot be those of the blob they are signed with; the text says why."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a blob of `size` bytes: `digests` is the SHA-256 of each, one after the other. Raises
    ChunksMisfit."""

    size: int
    digests: bytes

    def __post_init__(self) -> None:
        expected, got = count_chunks(self.size), len(self.digests) / DIGEST_BYTES
        if self.size < 1 or got != expected:
            raise ChunksMisfit(f"expected {expected} digests of chunks for {self.size} bytes, got {got:g}")

    @classmethod
    def from_payload(cls, size: int, arrays: Arrays) -> Chunks:
        """Returns the chunks that a payload lists in its one array, uint8[m, 32]."""
        (digests,) = arrays.values()
        return cls(size, digests.tobytes())

    @property
    def count(self) -> int:
        return count_chunks(self.size)

    @property
    def tag(self) -> str:
        """A short text that differs between two lists of digests for one blob."""
        return hashlib.sha256(self.size.to_bytes(8, "big") + self.digests).hexdigest()[:16]

    def get_offset(self, index: int) -> int:
        """Returns the offset of a chunk in bytes, or for `count` the end of the blob."""
        return min(index * CHUNK_BYTES, self.size)

    def get_length(self, index: int) -> int:
        return self.get_offset(index + 1) - self.get_offset(index)

    def is_right(self, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Says whether `data` is the chunk at an index."""
        expected = self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        return len(data) == self.get_length(index) and hashlib.sha256(data).digest() == expected

    def count_right(self, path: Path, most: int) -> int:
        """Returns how many right chunks a file begins with, of the first `most`."""
        with path.open("rb") as file:
            for index in range(most):
                if not self.is_right(index, file.read(self.get_length(index))):
                    return index
        return most

    def check_blob(self, path: Path, digest: Digest) -> None:
        """Checks a held blob, reading it once, a chunk at a time. Raises ChunksMisfit if its size or a chunk is not as
        signed, StoreCorrupted if its bytes do not have its digest, and BlobMissing."""
        whole, wrong = hashlib.sha256(), None
        with reading_blob(path), path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            for index in range(count_chunks(size)):
                data = file.read(CHUNK_BYTES)
                whole.update(data)
                if wrong is None and (index >= self.count or not self.is_right(index, data)):
                    wrong = index
        if whole.digest() != digest:
            raise BlobCorrupted.differs(f"{path}: sha256 of the bytes", digest, whole.digest())
        if size != self.size:
            raise ChunksMisfit(f"declared {self.size} bytes, has {size}")
        if wrong is not None:
            raise ChunksMisfit(f"chunk {wrong} of {self.count} has another digest than its author signed")
