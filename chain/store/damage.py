"""The search for damage in a database: every row but the blocks' held to its digest, then SQLite's own pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chain.errors import StoreCorrupted
from chain.store.interface import Damage
from chain.store.rows import Rows, is_intact
from chain.store.signed_slots import describe_signed

# The columns read of each table but `blocks`: those of its key, then its bytes; and whether the first
# column is a height.
_COLUMNS: Mapping[str, tuple[str, bool]] = {
    "meta": ("key, value", False),
    "states": ("height, state", True),
    "signed": ("height, kind, view, phase, data", True),
    "locked": ("height, block_id, block", True),
    "prevotes": ("height, view, voter, vote", True),
    "evidence": ("height, author, kind, evidence", True),
    "consent": ("change_id, kind, key, data", False),
    "rounds": ("height, record", True),
}


def find_damaged_rows(rows: Rows) -> Iterator[Damage]:
    """Yields all damage outside the blocks: in rows of every other table, then in SQLite's own pages."""
    for table, (columns, has_height) in _COLUMNS.items():
        try:
            # table and columns are ours, from `_COLUMNS`
            found = rows.read(table, f"SELECT {columns}, digest FROM {table}")  # noqa: S608
        except StoreCorrupted as error:
            yield Damage(None, str(error))
            continue
        for *values, digest in found:
            if not is_intact(table, values, digest):
                what = _describe_row(table, values)
                height = values[0] if has_height and isinstance(values[0], int) else None
                yield Damage(height, rows.where(f"{what}: stored bytes do not match their digest"))
    try:
        (report,) = rows.read("pages", "PRAGMA integrity_check(1)")[0]
    except StoreCorrupted as error:
        yield Damage(None, str(error))
    else:
        if report != b"ok":
            yield Damage(None, rows.where(describe_pages(report)))


def describe_pages(report: bytes) -> str:
    """Returns SQLite's report on its pages as one line."""
    return " ".join(report.decode(errors="replace").split())


def _describe_row(table: str, values: Sequence[object]) -> str:
    if table == "signed":
        return describe_signed(*values[:4])
    if table == "meta":
        return values[0].decode(errors="replace") if isinstance(values[0], bytes) else "meta"
    if table in ("locked", "prevotes"):
        return f"justification of height {values[0]}"
    if table == "states":
        return f"state after block {values[0]}"
    if table == "consent":
        return "an open change, or what came for it"
    return f"round {values[0]}" if table == "rounds" else f"evidence of height {values[0]}"
