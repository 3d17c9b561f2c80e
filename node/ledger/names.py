"""The names of the members and observers at a height. They come from the state that judged it, not from genesis, as
members join, leave and change keys."""

from __future__ import annotations

from chain.block import Id
from chain.signing import encode_id
from chain.state import State


def get_name(state: State, key: Id) -> str:
    """Returns the name of a member or observer, of a member also by an earlier key; the short id of a stranger."""
    member = state.get_member(key)
    if member is None:
        seat = next((old.seat for old in reversed(state.retired) if old.key == key), None)
        member = None if seat is None else state.get_seat(seat)
    if member is not None:
        return member.name
    return next((observer.name for observer in state.observers if observer.key == key), encode_id(key)[:8])
