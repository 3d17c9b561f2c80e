"""The two keys of a node that rotates: the one in force, and the change that puts the other in its place.

A node signs height h with the key that State(h - 1) holds. When the other key comes into force, the node ends all its
parts and starts them again with the new key, as after a restart: rows keep their slots, whatever the key.
"""

from __future__ import annotations

from chain.block import Id
from chain.changes.change import Change
from chain.changes.members import ReplaceKey
from chain.signing import SigningKey, encode_id
from chain.state import State
from chain.tip import Tip
from node.errors import InvalidRequest

ROTATION_OPEN_HEIGHTS = 1000  # it needs no other member's approval


class OtherKeyInForce(Exception):
    """The chain has put this node's other key in force: the node restarts with that one."""

    def __init__(self, key: Id) -> None:
        super().__init__(f"{encode_id(key)} is in force from now on")
        self.key = key


def choose_key(state: State, key: SigningKey, spare: SigningKey | None) -> tuple[SigningKey, SigningKey | None]:
    """Returns the key to use, and the other one. The spare key is used if only that one is a member's."""
    if spare is not None and state.index_of(key.id) is None and state.index_of(spare.id) is not None:
        return spare, key
    return key, spare


def make_rotation(tip: Tip, old: Id, new: Id) -> Change:
    """Returns the change that puts a new key in this member's seat. Raises InvalidRequest if others would have to
    agree."""
    member, height = tip.state.get_member(old), tip.height + 1
    if member is None:
        raise InvalidRequest("expected a member: there is no seat whose key could rotate")
    kind = ReplaceKey(member.seat, new)
    if not kind.may_rotate(tip.state, height):
        raise InvalidRequest(
            f"the key of {member.name} is in force since height {member.key_since}: it rotates once in 1000 heights; "
            "before that it can only be replaced like a lost one, by the others"
        )
    return Change(kind, member.seat, tip.height, height, tip.height + ROTATION_OPEN_HEIGHTS)
