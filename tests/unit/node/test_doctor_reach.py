"""Findings of `fednode doctor` on who can dial whom."""

from __future__ import annotations

import pytest

from node.cli.doctor.findings import Verdict
from node.cli.doctor.reach import check_reach

MEMBERS = {bytes([i]) * 32: name for i, name in enumerate(("alice", "bob", "carol", "dave"))}
ALICE, BOB, CAROL, DAVE = MEMBERS


def test_by_whom_each_connection_was_dialled_is_told() -> None:
    connections, reach = check_reach(MEMBERS, {ALICE, BOB}, {BOB: "dialled", CAROL: "accepted", DAVE: "accepted"})
    assert connections.found == "dialled from here: bob; dialled from there: carol, dave"
    assert (reach.verdict, reach.found) == (
        Verdict.OK,
        "2 of 4 members accept connections, as far as this node can tell",
    )


@pytest.mark.parametrize(("num_accepting", "verdict"), [(0, Verdict.WARN), (1, Verdict.WARN), (2, Verdict.OK)])
def test_fewer_that_accept_connections_than_carry_the_others_votes_is_a_warning(
    num_accepting: int, verdict: Verdict
) -> None:
    [reach] = check_reach(MEMBERS, list(MEMBERS)[:num_accepting], {})
    assert reach.verdict is verdict


def test_a_member_alone_needs_nobody() -> None:
    assert list(check_reach({ALICE: "alice"}, {ALICE}, {})) == []
