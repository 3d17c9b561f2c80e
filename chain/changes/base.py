"""The shape that all kinds of change have.

A kind knows nothing of approvals (`chain.changes.consent`) nor of when it may stand (`chain.changes.execution`).
`apply` raises InvalidChange where the state it meets does not allow it; what the resulting state must be like in
general, `State` itself checks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from chain.block import Digest, Id
from chain.schema import Section
from chain.state import State


class Consent(Enum):
    """Whose yes a change needs."""

    QUORUM = "a quorum"
    BOTH_QUORUMS = "a quorum of the members before it and of those after it"
    TRAINING = "a quorum, of which min_contributions, not suspended, train"
    REPLACEMENT = "the member's old key, or a quorum"
    PROOF = "nobody: it proves itself"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a change on the chain: the height of its block and the aggregate of the parent."""

    height: int
    aggregate: Digest


class Kind(ABC):
    """What is to change."""

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]  # the fields of a change that are this kind's own
    consent: ClassVar[Consent] = Consent.QUORUM
    __slots__ = ()

    @classmethod
    @abstractmethod
    def read(cls, top: Section) -> Self:
        """From the fields of a change. Raises GenesisError naming the field."""

    @abstractmethod
    def to_terms(self) -> dict[str, Any]:
        """The fields again, JSON-able."""

    @abstractmethod
    def apply(self, state: State, place: Place) -> State:
        """The state that follows. Raises InvalidChange or GenesisError."""

    def get_new_key(self) -> Id | None:
        """The key that comes into force with this, whose readiness is needed."""
        return None
