"""The open changes of one database, with the approvals and the readiness that have come for them.

They are durable before they are sent, this node's own and others' alike: a member need not approve a change twice
(FEDERATION §2). This node's own answers are kept for good, also through a reset: they decide whether its site trains.
Of closed changes it keeps the id and the outcome, which an operator may want to read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from sqlite3 import Connection

from chain.approvals import decode_approval, decode_readiness, encode_approval, encode_readiness
from chain.block import Answer, Approval, Digest, Readiness
from chain.store.rows import Rows, compute_row_digest, decode_stored

# The kinds of rows. The rows of a change and of this node's own last answer to it have an empty key.
_CHANGE, _APPROVAL, _READINESS, _OWN_ANSWER = range(4)

MAX_ENDED = 10_000  # changes whose end is kept, the newest
_ENDED_META = "ended/"
_ENDED_RANGE = (_ENDED_META.encode(), b"ended0")  # the keys with this prefix: from the first up to the second


@dataclass(frozen=True, slots=True)
class StoredChange:
    """An open change as it is stored. The first approval is its proposer's."""

    change: bytes
    approvals: tuple[Approval, ...]
    readiness: Readiness | None


def read_own_answers(rows: Rows) -> list[Approval]:
    """Returns this node's last answer to each change that it ever answered, each checked."""
    query = "SELECT change_id, kind, key, data, digest FROM consent WHERE kind = ? ORDER BY number"
    answers = []
    for *row, digest in rows.read("own answers", query, _OWN_ANSWER):
        rows.check("an own answer", "consent", tuple(row), digest)
        answers.append(decode_stored("own answer", decode_approval, row[3]))
    return answers


def write_own_answer(rows: Rows, approval: Approval) -> None:
    """Writes this node's answer in place of an earlier one. Runs inside a transaction."""
    rows.connection.execute("DELETE FROM consent WHERE change_id = ? AND kind = ?", (approval.change_id, _OWN_ANSWER))
    _write(rows, approval.change_id, _OWN_ANSWER, b"", encode_approval(approval))


def _write(rows: Rows, change_id: Digest, kind: int, key: bytes, data: bytes) -> None:
    """Inserts a row unless there is one with its key. Runs inside a transaction."""
    digest = compute_row_digest("consent", change_id, kind, key, data)
    rows.connection.execute(
        "INSERT OR IGNORE INTO consent VALUES (NULL, ?, ?, ?, ?, ?)", (change_id, kind, key, data, digest)
    )


def _drop(connection: Connection, change_ids: Collection[Digest]) -> None:
    """Deletes changes with all rows of theirs but this node's own answers. Runs inside a transaction."""
    connection.executemany(
        "DELETE FROM consent WHERE change_id = ? AND kind <> ?", [(change_id, _OWN_ANSWER) for change_id in change_ids]
    )


class ConsentRows:
    """The open changes of one database. Methods that write are durable when they return."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def put_change(self, change_id: Digest, change: bytes, approval: Approval, *, is_own: bool = False) -> None:
        """Stores a change with its proposer's approval in one transaction. `is_own`: this node proposes it."""
        with self._rows.transaction("change", "an open change"):
            self._put(change_id, _CHANGE, b"", change)
            self._put(change_id, _APPROVAL, approval.voter, encode_approval(approval))
            if is_own:
                write_own_answer(self._rows, approval)

    def put_approval(self, approval: Approval, *, is_own: bool = False) -> None:
        """Stores a member's answer, unless an earlier one to the same change is stored. `is_own`: the answer is this
        node's."""
        with self._rows.transaction("approval", "an approval"):
            self._put(approval.change_id, _APPROVAL, approval.voter, encode_approval(approval))
            if is_own:
                write_own_answer(self._rows, approval)

    def put_own_answer(self, approval: Approval) -> None:
        """Stores this node's answer to a change that is no longer open."""
        with self._rows.transaction("approval", "an own answer"):
            write_own_answer(self._rows, approval)

    def get_own_answers(self) -> dict[Digest, Answer]:
        """Returns the last answer of this node to each change that it ever answered."""
        return {approval.change_id: approval.answer for approval in read_own_answers(self._rows)}

    def put_readiness(self, ready: Readiness) -> None:
        """Stores a new key's readiness in place of an earlier one."""
        with self._rows.transaction("readiness", "a readiness") as connection:
            connection.execute(
                "DELETE FROM consent WHERE change_id = ? AND kind = ? AND key = ?",
                (ready.change_id, _READINESS, ready.key),
            )
            self._put(ready.change_id, _READINESS, ready.key, encode_readiness(ready))

    def _put(self, change_id: Digest, kind: int, key: bytes, data: bytes) -> None:
        _write(self._rows, change_id, kind, key, data)

    def drop_changes(self, change_ids: Collection[Digest]) -> None:
        """Deletes changes that are no longer open, with all rows of theirs but this node's own answers."""
        if change_ids:
            with self._rows.transaction("close", "changes that are closed") as connection:
                _drop(connection, change_ids)

    def end_changes(self, height: int, ends: Mapping[Digest, str]) -> None:
        """Deletes changes as `drop_changes` does, and stores how each of them ended with the block at `height`."""
        if ends:
            with self._rows.transaction("close", "changes that are closed") as connection:
                _drop(connection, ends)
                for change_id, end in ends.items():
                    self._rows.set_meta(f"{_ENDED_META}{height:020d}/{change_id.hex()}".encode(), end.encode())
                connection.execute(
                    "DELETE FROM meta WHERE key >= ?1 AND key < "
                    "(SELECT key FROM meta WHERE key >= ?1 AND key < ?2 ORDER BY key DESC LIMIT 1 OFFSET ?3)",
                    (*_ENDED_RANGE, MAX_ENDED - 1),
                )

    def get_ended_changes(self) -> dict[Digest, str]:
        """Returns how each change ended that was open here, in the order in which they ended."""
        query = "SELECT key, value, digest FROM meta WHERE key >= ? AND key < ? ORDER BY key"
        ends = {}
        for key, value, digest in self._rows.read("ended changes", query, *_ENDED_RANGE):
            self._rows.check("an ended change", "meta", (key, value), digest)
            ends[bytes.fromhex(key.decode().rpartition("/")[2])] = value.decode()
        return ends

    def get_changes(self) -> tuple[StoredChange, ...]:
        """Returns all open changes, in the order in which they were stored, and so their approvals."""
        query = "SELECT change_id, kind, key, data, digest FROM consent WHERE kind <> ? ORDER BY number"
        changes: dict[Digest, bytes] = {}
        approvals: dict[Digest, list[Approval]] = {}
        readiness: dict[Digest, Readiness] = {}
        for change_id, kind, key, data, digest in self._rows.read("open changes", query, _OWN_ANSWER):
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
