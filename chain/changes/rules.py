"""The changes of the rules themselves, and of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from chain.changes.base import Consent, Kind, Place
from chain.errors import GenesisError, InvalidChange
from chain.layout import MAX_U16
from chain.rules import Rules
from chain.schema import MAX_NAME_CHARS, Section, check_range, quote
from chain.state import State

MAX_FACTOR = 64  # the most by which one change may multiply or divide a number


@dataclass(frozen=True, slots=True)
class SetRules(Kind):
    """Sets rules, by dotted path, each with its old and its new value."""

    values: Mapping[str, tuple[Any, Any]]
    name: ClassVar[str] = "set_rules"
    keys: ClassVar[tuple[str, ...]] = ("rules",)
    consent: ClassVar[Consent] = Consent.BOTH_QUORUMS  # the same members, by the quorum rule before and after

    @classmethod
    def read(cls, top: Section) -> Self:
        given = top.value("rules")
        if not isinstance(given, Mapping) or not given:
            raise GenesisError("rules", f"expected old and new values by path, got {quote(given)}")
        values: dict[str, tuple[Any, Any]] = {}
        for path, pair in given.items():
            if not isinstance(path, str) or len(path) > MAX_NAME_CHARS:
                raise GenesisError("rules", f"expected paths of rules, got {quote(path)}")
            if not isinstance(pair, list) or len(pair) != 2:
                raise GenesisError(f"rules.{path}", f"expected the old and the new value, got {quote(pair)}")
            for value in pair:
                if not isinstance(value, str | int | float | None):
                    raise GenesisError(f"rules.{path}", f"expected text or a number, got {quote(value)}")
            values[path] = (pair[0], pair[1])
        return cls(values)

    def to_terms(self) -> dict[str, Any]:
        return {"rules": {path: [old, new] for path, (old, new) in self.values.items()}}

    def apply(self, state: State, place: Place) -> State:
        mapping = state.rules.to_mapping()
        for path, (old, new) in self.values.items():
            section, dot, name = path.rpartition(".")
            target = mapping.get(section) if dot else mapping  # so that each rule has one path
            if not isinstance(target, dict) or name not in target or isinstance(target[name], dict):
                raise InvalidChange(f"rules.{path}: there is no such rule")
            if target[name] != old or isinstance(target[name], bool) != isinstance(old, bool):
                raise InvalidChange.differs(f"rules.{path} in force", quote(old), quote(target[name]))
            _check_move(f"rules.{path}", old, new)
            target[name] = new
        rules = Rules.from_mapping(mapping)
        if rules == state.rules:
            raise InvalidChange("rules: nothing changes")
        return replace(state, rules=rules)


def _check_move(path: str, old: Any, new: Any) -> None:
    """Raises InvalidChange if a number changes more than 64-fold; 0 counts as 1."""
    if isinstance(old, int | float) and isinstance(new, int | float):
        before, after = abs(old) or 1, abs(new) or 1
        if after > MAX_FACTOR * before or before > MAX_FACTOR * after:
            raise InvalidChange.differs(path, f"at most {MAX_FACTOR} times more or less than {old}", new)


@dataclass(frozen=True, slots=True)
class Upgrade(Kind):
    """Moves to another protocol, from the height that the change names."""

    protocol: int
    name: ClassVar[str] = "upgrade"
    keys: ClassVar[tuple[str, ...]] = ("protocol",)

    @classmethod
    def read(cls, top: Section) -> Self:
        check_range("protocol", top.integer("protocol"), 1, MAX_U16)
        return cls(top.integer("protocol"))

    def to_terms(self) -> dict[str, Any]:
        return {"protocol": self.protocol}

    def apply(self, state: State, place: Place) -> State:
        if self.protocol <= state.protocol:
            raise InvalidChange.differs("protocol", f"more than {state.protocol}", self.protocol)
        return replace(state, protocol=self.protocol)
