"""A change as bytes: canonical ASCII JSON with what it does, who proposes it, and when it may stand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

from chain.approvals import MAX_CHANGE_BYTES, compute_change_id
from chain.block import Digest
from chain.changes.base import Kind
from chain.changes.members import AddMember, AddObserver, Convict, Pardon, RemoveMember, RemoveObserver, ReplaceKey
from chain.changes.rules import SetRules, Upgrade
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.errors import ChainError, GenesisError, InvalidChange
from chain.layout import MAX_HEIGHT, MAX_U32
from chain.run import encode_canonical
from chain.schema import Section, check_range, copy_tree, describe, quote, suggest

MAX_OPEN_HEIGHTS = 1000  # from the height a change was made at to the last whose block may hold it
MAX_NOTE_CHARS = 500

KINDS: Mapping[str, type[Kind]] = {
    kind.name: kind
    for kind in (
        AddMember,
        RemoveMember,
        ReplaceKey,
        Convict,
        Pardon,
        AddObserver,
        RemoveObserver,
        StartRun,
        SetRounds,
        EndRun,
        SetRules,
        Upgrade,
    )
}

_ENVELOPE = ("change", "by", "made", "from", "expires", "note")


@dataclass(frozen=True)
class Change:
    """A proposed change. Valid once built: raises GenesisError naming the field. It is not slotted, because it caches
    its bytes.

    `by` is the proposer's seat, `made` the height of the proposer's head; a block from `first` to `expires` may hold
    the change.
    """

    kind: Kind
    by: int
    made: int
    first: int
    expires: int
    note: str = ""

    def __post_init__(self) -> None:
        check_range("by", self.by, 0, MAX_U32)
        check_range("made", self.made, 0, MAX_HEIGHT - MAX_OPEN_HEIGHTS)
        check_range("from", self.first, self.made + 1, self.made + MAX_OPEN_HEIGHTS)
        check_range("expires", self.expires, self.first, self.made + MAX_OPEN_HEIGHTS)
        if len(self.note) > MAX_NOTE_CHARS or not (self.note.isprintable() or not self.note):
            raise GenesisError("note", f"expected up to {MAX_NOTE_CHARS} printable characters, got {quote(self.note)}")
        check_range("size", len(self.data), 2, MAX_CHANGE_BYTES, path="change")

    @cached_property
    def data(self) -> bytes:
        """The canonical bytes, from which its id is hashed."""
        return encode_canonical(self.to_mapping())

    def compute_id(self, chain_id: Digest) -> Digest:
        return compute_change_id(chain_id, self.data)

    def to_mapping(self) -> dict[str, Any]:
        terms: dict[str, Any] = copy_tree("change", self.kind.to_terms())
        return {
            "change": self.kind.name,
            "by": self.by,
            "made": self.made,
            "from": self.first,
            "expires": self.expires,
            "note": self.note,
            **terms,
        }

    @classmethod
    def from_mapping(cls, obj: object) -> Self:
        """Returns the change that `to_mapping` has written. Raises GenesisError, or InvalidKey for a key that is
        none."""
        name = obj.get("change") if isinstance(obj, Mapping) else None
        if not isinstance(name, str) or name not in KINDS:
            hint = suggest(name, tuple(KINDS)) if isinstance(name, str) else ""
            raise GenesisError("change", f"expected one of {', '.join(KINDS)}, got {quote(name)}{hint}")
        kind = KINDS[name]
        top = Section("", obj, (*_ENVELOPE, *kind.keys))
        return cls(
            kind=kind.read(top),
            by=top.integer("by"),
            made=top.integer("made"),
            first=top.integer("from"),
            expires=top.integer("expires"),
            note=top.text("note"),
        )


@lru_cache(maxsize=64)
def read_change(data: bytes) -> Change:
    """Returns the change that has these canonical bytes. Raises InvalidChange, whatever is wrong with them."""
    if len(data) > MAX_CHANGE_BYTES:
        raise InvalidChange.differs("size of the change", f"at most {MAX_CHANGE_BYTES} bytes", len(data))
    try:
        change = Change.from_mapping(json.loads(data.decode("ascii")))
    except (ValueError, RecursionError) as error:
        raise InvalidChange(f"change: expected ASCII JSON, got {quote(data[:40])}") from error
    except ChainError as error:
        raise InvalidChange(f"change: {describe(error)}") from error
    if change.data != data:
        raise InvalidChange("change: expected canonical bytes, got another spelling of them")
    return change
