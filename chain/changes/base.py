"""The shape that all kinds of change have.

A kind checks neither approvals (`chain.changes.consent`) nor heights (`chain.changes.execution`). `apply` raises
InvalidChange if the state does not allow the change; `State` itself checks what holds of every state.
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
    """The members whose approval a change needs."""

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
    """One kind of change, with the values of its own fields."""

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]  # the fields of a change that are this kind's own
    consent: ClassVar[Consent] = Consent.QUORUM
    __slots__ = ()

    @classmethod
    @abstractmethod
    def read(cls, top: Section) -> Self:
        """Returns the change that the fields describe. Raises GenesisError naming the field."""

    @abstractmethod
    def to_terms(self) -> dict[str, Any]:
        """Returns the fields that `read` takes, JSON-able."""

    @abstractmethod
    def apply(self, state: State, place: Place) -> State:
        """Returns the state after the change. Raises InvalidChange or GenesisError."""

    def get_new_key(self) -> Id | None:
        """Returns the key that this change puts in force, whose readiness is needed; None if there is none."""
        return None
