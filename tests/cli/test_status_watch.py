"""The screen of `fednode status --watch`: what stands on it, whatever names hold, and what a node is asked for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from node.cli.node.status_watch import NUM_ROUNDS, Answers, draw, read
from node.pb import admin_pb2 as pb


def make_answers(name: str = "hospital-b", **fields: Any) -> Answers:
    status = pb.NodeStatus(
        name="hospital-a", method="fedavg", round=41, rounds=100, phase="train", head="ab" * 32, pid=1
    )
    status.MergeFrom(pb.NodeStatus(**fields))
    members = pb.ListMembersReply(quorum=3)
    members.members.add(name="hospital-a", me=True)
    members.members.add(name=name, silent_s=18.4, clock_ahead_s=0.25, version="0.6.0")
    rounds = [pb.Round(round=at, num_members=2, measured=True, absent_names=[name]) for at in range(40, 30, -1)]
    for one in rounds:
        one.seconds.update({"train": 1.5, "vote": 0.25})
        one.accuracy = 0.9
    return Answers(status, members, rounds)


def test_facts_rounds_and_members_stand_below_each_other() -> None:
    text = draw(make_answers()).plain
    assert text.index("round") < text.index("LEFT OUT") < text.index("MEMBER")
    row = next(line for line in text.split("\n") if line.split()[:1] == ["40"])
    assert row.split() == ["40", "0/2", "hospital-b", "1.500", "-", "-", "0.250", "-", "0", "B", "-", "0.9000"]
    assert "hospital-b  away" in text
    assert "18.4 s ago  +0.250 s  0.6.0" in text


def test_a_node_that_is_away_says_why_first_and_what_it_said_before_stays() -> None:
    text = draw(replace(make_answers(), away="run/node.sock: no node answers there")).plain
    assert text.startswith("AWAY")
    assert "no node answers there. It is asked again every second" in text
    assert "LEFT OUT" in text


def test_what_strangers_wrote_moves_no_cursor() -> None:
    text = draw(make_answers("\x1b[2J\x1b]0;gone\x07\u202eevil\nnext")).plain
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert not any(line.startswith("next") for line in text.split("\n"))


class Counting:
    """Counts what it is asked; each answer is the same."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[int] = []

    def get_status(self) -> pb.NodeStatus:
        return self.answers.status

    def list_members(self) -> pb.ListMembersReply:
        return self.answers.members

    def list_rounds(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListRoundsReply:
        self.asked.append(limit)
        return pb.ListRoundsReply(rounds=self.answers.rounds[:limit])


def test_rounds_are_asked_for_only_when_there_may_be_others() -> None:
    node: Any = Counting(make_answers())
    answers = read(node)
    assert read(node, answers).rounds == answers.rounds
    assert node.asked == [NUM_ROUNDS]
    for news in ({"head": "ef" * 32}, {"measured_round": 40}, {"pid": 2}):
        node.answers = make_answers(**news)
        read(node, answers)
    assert node.asked == [NUM_ROUNDS] * 4
