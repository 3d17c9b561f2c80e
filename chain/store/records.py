"""The evidence, the rounds' records and the small values of one database: what a node notes beside its chain."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chain.block import Evidence, Id
from chain.evidence import decode_evidence, encode_evidence
from chain.layout import MAX_HEIGHT
from chain.published import PublishedMeasures, decode_many, encode_many
from chain.store.interface import StoredEvidence
from chain.store.rows import Rows, compute_row_digest, decode_stored

PUBLISHED_HEIGHTS = 2000  # whose published measures are kept

_USER_META = b"user/"
_PUBLISHED_META = "published/"


class RecordRows:
    """The evidence, round records and small values of one database. Methods that write are durable when they return."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def put_evidence(self, evidence: Evidence, author: Id, height: int, seen_ms: int | None = None) -> bool:
        """Stores validated evidence, one per author, height and kind, and when it was seen. Returns whether it was
        new."""
        what = f"evidence of height {height}"
        key = (height, author, int(evidence.kind))
        if self._rows.read(what, "SELECT 1 FROM evidence WHERE height = ? AND author = ? AND kind = ?", *key):
            return False
        data = encode_evidence(evidence)
        with self._rows.transaction("evidence", what) as connection:
            digest = compute_row_digest("evidence", *key, data)
            connection.execute("INSERT INTO evidence VALUES (?, ?, ?, ?, ?)", (*key, data, digest))
            if seen_ms is not None:
                self._rows.set_meta(_make_seen_key(*key), seen_ms.to_bytes(8, "big"))
        return True

    def get_evidence(self, first: int = 0) -> tuple[StoredEvidence, ...]:
        """Returns all evidence from a height on, by height and author."""
        rows = self._rows.read(
            "evidence", "SELECT * FROM evidence WHERE height >= ? ORDER BY height, author, kind", first
        )
        found = []
        for height, author, kind, data, digest in rows:
            what = f"evidence of height {height}"
            self._rows.check(what, "evidence", (height, author, kind, data), digest)
            seen = self._rows.get_meta(_make_seen_key(height, author, kind))
            seen_ms = None if seen is None else int.from_bytes(seen, "big")
            found.append(StoredEvidence(decode_stored(what, decode_evidence, data), author, height, seen_ms))
        return tuple(found)

    def put_round(self, height: int, record: Mapping[str, Any]) -> None:
        """Stores a round's metrics, JSON-able, in place of an earlier record of the height."""
        with self._rows.transaction("round", f"round {height}"):
            self._write_round(height, record)

    def get_round(self, height: int) -> dict[str, Any] | None:
        return next((record for _, record in self.rounds(height, height)), None)

    def rounds(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (height, record) of the rounds first..last that have one, in order."""
        yield from self._read_rounds(
            "SELECT * FROM rounds WHERE height BETWEEN ? AND ? ORDER BY height", first, min(last, MAX_HEIGHT)
        )

    def newest_rounds(self, last: int, count: int) -> list[dict[str, Any]]:
        """Returns the newest records up to a height, the oldest of these first. The block of a change has none."""
        newest_first = "SELECT * FROM rounds WHERE height <= ? ORDER BY height DESC LIMIT ?"
        return [record for _, record in self._read_rounds(newest_first, last, count)][::-1]

    def _read_rounds(self, query: str, *values: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for height, record, digest in self._rows.read("rounds", query, *values):
            self._rows.check(f"round {height}", "rounds", (height, record), digest)
            yield height, json.loads(record)

    def _write_round(self, height: int, record: Mapping[str, Any]) -> None:
        data = _dump(record)
        self._rows.connection.execute(
            "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", (height, data, compute_row_digest("rounds", height, data))
        )

    def put_published(self, height: int, published: Iterable[PublishedMeasures]) -> None:
        """Stores all measures that members have published of the round at a height, in place of those stored for it.
        Deletes those of heights far below."""
        with self._rows.transaction("meta", f"published measures of height {height}") as connection:
            self._rows.set_meta(_make_published_key(height), encode_many(published))
            connection.execute(
                "DELETE FROM meta WHERE key >= ? AND key < ?",
                (_PUBLISHED_META.encode(), _make_published_key(max(0, height - PUBLISHED_HEIGHTS + 1))),
            )

    def get_published(self, height: int) -> list[PublishedMeasures]:
        """Returns the measures stored here that members have published of the round at a height."""
        data = self._rows.get_meta(_make_published_key(height))
        what = f"published measures of height {height}"
        return [] if data is None else decode_stored(what, lambda data: [*decode_many(data)], data)

    def put_meta(self, key: str, value: Any) -> None:
        """Stores a small JSON value under a name."""
        with self._rows.transaction("meta", key):
            self._rows.set_meta(_USER_META + key.encode(), _dump(value))

    def get_meta(self, key: str) -> Any:
        """Returns the value under a name, None if there is none."""
        value = self._rows.get_meta(_USER_META + key.encode())
        return None if value is None else json.loads(value)


def _make_seen_key(height: int, author: Id, kind: int) -> bytes:
    """Returns the meta key for the time at which evidence was seen."""
    return f"evidence/{height}/{author.hex()}/{kind}".encode()


def _make_published_key(height: int) -> bytes:
    """Returns the meta key for the published measures of a height. Keys sort as heights do."""
    return f"{_PUBLISHED_META}{height:020d}".encode()


def _dump(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
