"""Roles: what a key may do here, and what is less than before."""

from __future__ import annotations

import pytest

from node.p2p.admission import Admission, Role
from node.p2p.transport.base import GUEST_KINDS, MessageKind, takes

BOTH = Role.OBSERVER | Role.GUEST


def test_a_key_has_every_role_that_it_is_named_for_and_a_member_no_other() -> None:
    roles = Admission([b"a"], [b"a", b"b", b"c"], [b"a", b"c", b"d"]).get_roles()
    assert roles == {b"a": Role.MEMBER, b"b": Role.OBSERVER, b"c": BOTH, b"d": Role.GUEST}


@pytest.mark.parametrize(
    ("role", "kinds"),
    [
        (Role.MEMBER, set(MessageKind)),
        (Role.GUEST, GUEST_KINDS),
        (BOTH, GUEST_KINDS),
        (Role.OBSERVER, {MessageKind.STATUS, MessageKind.HINT}),
        (Role.NONE, set()),
    ],
)
def test_what_is_taken_of_a_role(role: Role, kinds: set[MessageKind]) -> None:
    assert {kind for kind in MessageKind if takes(role, kind)} == kinds


def test_blobs_are_for_members_and_observers() -> None:
    readers = [role for role in (Role.MEMBER, Role.OBSERVER, BOTH, Role.GUEST, Role.NONE) if role.may_read_blobs]
    assert readers == [Role.MEMBER, Role.OBSERVER, BOTH]


@pytest.mark.parametrize(
    ("new", "old", "is_as_much"),
    [
        (Role.MEMBER, BOTH, True),
        (BOTH, Role.GUEST, True),
        (BOTH, Role.OBSERVER, True),
        (Role.OBSERVER, Role.OBSERVER, True),
        (Role.OBSERVER, Role.GUEST, False),
        (Role.GUEST, BOTH, False),
        (Role.GUEST, Role.MEMBER, False),
    ],
)
def test_who_may_do_as_much_as_before(new: Role, old: Role, *, is_as_much: bool) -> None:
    assert new.includes(old) == is_as_much


def test_roles_have_names() -> None:
    assert [role.describe() for role in (Role.MEMBER, BOTH, Role.NONE)] == ["member", "guest and observer", "nobody"]
