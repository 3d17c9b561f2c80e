"""Admission: the keys that a node admits, each in its role (FEDERATION §2, Keys).

It follows the state in force, so it changes while the node runs: `Transport.admit` takes the next one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Flag

from chain.block import Id


class Role(Flag):
    """The role of a key at this node. A key that is both observer and guest may do what either may."""

    NONE = 0
    GUEST = 1  # is about to join, or was a member lately: receives changes, and requests blocks
    OBSERVER = 2  # reads everything, and sends its status
    MEMBER = 4

    @property
    def may_read_blobs(self) -> bool:
        return bool(self & (Role.MEMBER | Role.OBSERVER))

    def describe(self) -> str:
        """Returns the role in words: `observer and guest`, or `nobody`."""
        return " and ".join(str(role.name).lower() for role in self) or "nobody"

    def includes(self, other: Role) -> bool:
        """Says whether this role may do all that the other may."""
        return bool(self & Role.MEMBER) or not other & ~self


@dataclass(frozen=True, slots=True)
class Admission:
    """Lists the keys that a node admits. A member has no other role besides."""

    members: Collection[Id] = ()
    observers: Collection[Id] = ()
    guests: Collection[Id] = ()

    def get_roles(self) -> dict[Id, Role]:
        """Returns the role of each admitted key."""
        roles = dict.fromkeys(self.guests, Role.GUEST)
        for key in self.observers:
            roles[key] = roles.get(key, Role.NONE) | Role.OBSERVER
        return roles | dict.fromkeys(self.members, Role.MEMBER)


NOBODY = Admission()
