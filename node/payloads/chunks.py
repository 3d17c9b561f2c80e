"""The chunks of a large blob, each with a digest of its own. A wrong chunk is found when it comes, and the chunks
before it stay good (PROTOCOL §7).

The blob's author signed these digests beside the blob. They can be wrong like any bytes: a blob is what its author
says only if it has its own digest and all its chunks have theirs.
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
    """A blob of `size` bytes and the SHA-256 of each of its chunks, one behind the other. Raises ChunksMisfit."""

    size: int
    digests: bytes

    def __post_init__(self) -> None:
        expected, got = count_chunks(self.size), len(self.digests) / DIGEST_BYTES
        if self.size < 1 or got != expected:
            raise ChunksMisfit(f"expected {expected} digests of chunks for {self.size} bytes, got {got:g}")

    @classmethod
    def from_payload(cls, size: int, arrays: Arrays) -> Chunks:
        """Of a payload whose one array they are, uint8[m, 32]."""
        (digests,) = arrays.values()
        return cls(size, digests.tobytes())

    @property
    def count(self) -> int:
        return count_chunks(self.size)

    @property
    def tag(self) -> str:
        """Tells two lists of digests for one blob apart."""
        return hashlib.sha256(self.size.to_bytes(8, "big") + self.digests).hexdigest()[:16]

    def get_offset(self, index: int) -> int:
        """The offset of a chunk, or for `count` the end of the blob."""
        return min(index * CHUNK_BYTES, self.size)

    def get_length(self, index: int) -> int:
        return self.get_offset(index + 1) - self.get_offset(index)

    def is_right(self, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Whether `data` is the chunk at a place."""
        expected = self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        return len(data) == self.get_length(index) and hashlib.sha256(data).digest() == expected

    def count_right(self, path: Path, most: int) -> int:
        """The number of right chunks, of the first `most`, that a file begins with."""
        with path.open("rb") as file:
            for index in range(most):
                if not self.is_right(index, file.read(self.get_length(index))):
                    return index
        return most

    def check_blob(self, path: Path, digest: Digest) -> None:
        """Reads a held blob once, a chunk at a time. Raises ChunksMisfit where it is not of this size or another chunk
        than signed, StoreCorrupted where it is not the blob its name says, and BlobMissing."""
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
