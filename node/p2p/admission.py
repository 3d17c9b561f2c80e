"""Admission: the keys that a node lets in, and as what (FEDERATION §2, Keys).

It follows the state in force, so it changes while the node runs: `Transport.admit` takes the next one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Flag

from chain.block import Id


class Role(Flag):
    """The part that a key has here. One key may be an observer and a guest at once: then it may do what either may."""

    NONE = 0
    GUEST = 1  # stands before its joining, or was a member lately: hears of changes, and asks for blocks
    OBSERVER = 2  # reads everything, and says where it stands
    MEMBER = 4

    @property
    def may_read_blobs(self) -> bool:
        return bool(self & (Role.MEMBER | Role.OBSERVER))

    def describe(self) -> str:
        """In words: `observer and guest`, or `nobody`."""
        return " and ".join(str(role.name).lower() for role in self) or "nobody"

    def includes(self, other: Role) -> bool:
        """Whether whoever has this role may do all that the other may."""
        return bool(self & Role.MEMBER) or not other & ~self


@dataclass(frozen=True, slots=True)
class Admission:
    """Whom a node lets in. A member is nothing else besides."""

    members: Collection[Id] = ()
    observers: Collection[Id] = ()
    guests: Collection[Id] = ()

    def get_roles(self) -> dict[Id, Role]:
        """The role of each key that is let in."""
        roles = dict.fromkeys(self.guests, Role.GUEST)
        for key in self.observers:
            roles[key] = roles.get(key, Role.NONE) | Role.OBSERVER
        return roles | dict.fromkeys(self.members, Role.MEMBER)


NOBODY = Admission()
