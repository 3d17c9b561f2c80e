"""The open changes of one database, with the approvals and the readiness that have come for them.

They are durable before they are sent, this node's own and others' alike: what was approved once is never asked for
again (FEDERATION §2).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from chain.approvals import decode_approval, decode_readiness, encode_approval, encode_readiness
from chain.block import Approval, Digest, Readiness
from chain.store.rows import Rows, compute_row_digest, decode_stored

_CHANGE, _APPROVAL, _READINESS = range(3)  # the kinds of rows; a change has no key of its own


@dataclass(frozen=True, slots=True)
class StoredChange:
    """An open change as it is kept. The first approval is its proposer's."""

    change: bytes
    approvals: tuple[Approval, ...]
    readiness: Readiness | None


class ConsentRows:
    """The open changes of one database. Methods that write are durable when they return."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def put_change(self, change_id: Digest, change: bytes, approval: Approval) -> None:
        """Keep a change with its proposer's approval, both or neither."""
        with self._rows.transaction("change", "an open change"):
            self._put(change_id, _CHANGE, b"", change)
            self._put(change_id, _APPROVAL, approval.voter, encode_approval(approval))

    def put_approval(self, approval: Approval) -> None:
        """Keep a member's answer; an earlier one of the same change stays in its place."""
        with self._rows.transaction("approval", "an approval"):
            self._put(approval.change_id, _APPROVAL, approval.voter, encode_approval(approval))

    def put_readiness(self, ready: Readiness) -> None:
        """Keep a new key's word, in the place of an earlier one."""
        with self._rows.transaction("readiness", "a readiness") as connection:
            connection.execute(
                "DELETE FROM consent WHERE change_id = ? AND kind = ? AND key = ?",
                (ready.change_id, _READINESS, ready.key),
            )
            self._put(ready.change_id, _READINESS, ready.key, encode_readiness(ready))

    def _put(self, change_id: Digest, kind: int, key: bytes, data: bytes) -> None:
        digest = compute_row_digest("consent", change_id, kind, key, data)
        self._rows.connection.execute(
            "INSERT OR IGNORE INTO consent VALUES (NULL, ?, ?, ?, ?, ?)", (change_id, kind, key, data, digest)
        )

    def drop_changes(self, change_ids: Collection[Digest]) -> None:
        """Forget changes that are open no more, with all that came for them."""
        if change_ids:
            with self._rows.transaction("close", "changes that are closed") as connection:
                connection.executemany(
                    "DELETE FROM consent WHERE change_id = ?", [(change_id,) for change_id in change_ids]
                )

    def get_changes(self) -> tuple[StoredChange, ...]:
        """All that are open, in the order in which they came; approvals alike."""
        query = "SELECT change_id, kind, key, data, digest FROM consent ORDER BY number"
        changes: dict[Digest, bytes] = {}
        approvals: dict[Digest, list[Approval]] = {}
        readiness: dict[Digest, Readiness] = {}
        for change_id, kind, key, data, digest in self._rows.read("open changes", query):
            self._rows.check("an open change", "consent", (change_id, kind, key, data), digest)
            if kind == _CHANGE:
                changes[change_id] = data
            elif kind == _APPROVAL:
                approvals.setdefault(change_id, []).append(decode_stored("approval", decode_approval, data))
            else:
                readiness[change_id] = decode_stored("readiness", decode_readiness, data)
        return tuple(
            StoredChange(data, tuple(approvals.get(change_id, ())), readiness.get(change_id))
            for change_id, data in changes.items()
        )
