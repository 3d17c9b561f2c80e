"""The interface of a store, and the smaller one that an audit reads. `chain.store.sqlite` is the store of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from chain.block import Block, Certificate, Digest, Evidence, Id
from chain.state import State

Faults = Callable[[str], None]

# Every durable step is announced to the injected `Faults` collaborator by these names, so that a test can end the
# process at each of them (PROTOCOL §11.5). A transaction begins, has written its rows, is committed.
TRANSACTIONS = (
    "create",
    "contribution",
    "candidate",
    "vote",
    "justification",
    "append",
    "evidence",
    "round",
    "meta",
    "blobs",
    "change",
    "approval",
    "readiness",
    "close",
)
STEPS = (
    *(f"{name}.{step}" for name in TRANSACTIONS for step in ("begin", "written", "committed")),
    *(f"blob.{step}" for step in ("begin", "written", "synced", "renamed", "durable")),
)
# The precommit for a block is written in the transaction "justification".
# The steps of files that were written elsewhere: by the worker, or chunk by chunk as a peer sent them.
FILE_STEPS = tuple(f"{name}.{step.partition('.')[2]}" for name in ("adopt", "fetch") for step in STEPS[-5:])


# The key of a store's `meta` that says that it was restored from a backup: {"until": height}, null as long as that is
# not known; the value is null if it was not restored.
RESTORED = "restored"
# The key of a store's `meta` for when each member was last seen: {"at": ms, "members": {key: ms}}, as of `at`.
SEEN = "seen"
# The key of a store's `meta` for the imported heights that this node has not recomputed yet; null once that is done.
IMPORTED = "imported"


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A finalised block and the proof that it is final. Block 0 has no certificate: genesis is its proof."""

    block: Block
    certificate: Certificate | None


@dataclass(frozen=True, slots=True)
class StoredEvidence:
    """Evidence, with the key that it convicts and the height. `seen_ms` is when it was stored, None if that is not
    known."""

    evidence: Evidence
    author: Id
    height: int
    seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BlockRow:
    """The stored bytes of one height. `damage` says which part no longer matches its own digest."""

    height: int
    block: bytes
    certificate: bytes
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """A stored row that is not what was written. `height` is None for rows that belong to no height."""

    height: int | None
    what: str


class BlockSource(Protocol):
    """The source of blocks that `verify_chain` reads: a data directory, or an exported file held in memory."""

    @property
    def head_height(self) -> int: ...

    def read_rows(self, first: int, last: int) -> Iterator[BlockRow]:
        """Yields the rows of the heights first..last in order. Raises StoreCorrupted naming the place that cannot be
        read."""

    def get_state(self, height: int) -> State:
        """Returns the state after `height`. Raises StoreCorrupted if it cannot be read."""

    def find_damage(self) -> Iterator[Damage]:
        """Yields every damaged row that is not a block."""

    def has_blob(self, digest: Digest) -> bool: ...

    def check_blob(self, digest: Digest) -> None:
        """Raises StoreCorrupted unless the blob's bytes have this digest."""
