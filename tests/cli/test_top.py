"""The layout of `fednode top`: what stands on a screen of any size, in words and shapes, whatever names hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rich.text import Text

from node.cli.top.layout import Frame, draw, make_table
from node.cli.top.marks import Pen, write
from node.cli.top.screen import PAGE_LINES, Screen
from node.cli.top.snapshot import NUM_ROUNDS, NUM_UNSETTLED, SILENT_S, Answers, Event, Snapshot, read_answers
from node.cli.top.terminal import decode_keys
from node.cli.top.views import VIEWS, describe_in_a_sentence, draw_phases_of, get_pen, show_overview
from node.pb import admin_pb2 as pb

PEN, PLAIN = Pen(), Pen(is_plain=True)
EVIL = "\x1b[2J\x1b]0;gone\x07\u202eevil"


def make_status(**fields: Any) -> pb.NodeStatus:
    status = pb.NodeStatus(
        name="hospital-a",
        method="fedavg",
        round=41,
        rounds=100,
        run=2,
        phase="train",
        height=140,
        head="ab" * 32,
        members=4,
        members_in_sight=3,
        quorum=3,
        contributions=2,
        ready=True,
        accuracy=0.94,
        train_step=120,
        train_steps=400,
    )
    status.MergeFrom(pb.NodeStatus(**fields))
    return status


def make_members(*names: str) -> pb.ListMembersReply:
    reply = pb.ListMembersReply(quorum=3, min_contributions=3)
    states: tuple[dict[str, Any], ...] = ({"me": True}, {"connected": True, "alive": True}, {"connected": True}, {})
    for seat, (name, state) in enumerate(zip(names, states, strict=True)):
        reply.members.add(name=name, id="k5ry2m4a" * 6, seat=seat, **state)
    return reply


def make_round(number: int, **seconds: float) -> pb.Round:
    shown = pb.Round(round=number, run=2, height=number + 99, measured=True, contributor_names=["hospital-a"])
    shown.seconds.update(seconds or {"train": 1.0, "exchange": 0.5, "mine": 0.25, "vote": 0.25})
    shown.accuracy, shown.local_accuracy = 0.5 + number / 100, 0.5
    shown.train["loss"] = 1 / number
    return shown


def make_answers(
    names: Sequence[str] = ("hospital-a", "hospital-b", "hospital-c", "hospital-d"), **fields: Any
) -> Answers:
    blocks = [
        pb.BlockSummary(
            height=140 - i,
            id="cd" * 32,
            time="2026-11-25T12:00:00Z",
            miner_name=names[1],
            num_contributions=3,
            num_members=4,
            num_votes=3,
            bytes=1200,
        )
        for i in range(10)
    ]
    return Answers(make_status(**fields), make_members(*names), [make_round(i) for i in range(40, 0, -1)], blocks)


def render(
    view: str,
    answers: Answers | None,
    width: int = 100,
    height: int = 30,
    *,
    pen: Pen = PEN,
    now_s: float = 0.0,
    **fields: Any,
) -> list[str]:
    lines = draw(Snapshot(answers, **fields), VIEWS, view, Frame(width, height, pen), now_s)
    return [line.plain for line in lines]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (20, 5), (40, 10), (80, 24), (250, 80)])
def test_every_view_fits_every_screen(view: str, width: int, height: int) -> None:
    events = tuple(Event("block", f"2026-11-25 12:00:00  block  height {i}") for i in range(300))
    snapshot = Snapshot(make_answers(stalled=True, stall_reason="waits for hospital-d " * 9), events)
    for pen in (PEN, PLAIN):
        lines = draw(snapshot, VIEWS, view, Frame(width, height, pen), 0.0)
        assert len(lines) <= height
        assert all(line.cell_len <= width for line in lines)
        assert all("\n" not in line.plain for line in lines)


def test_one_sentence_says_how_things_stand() -> None:
    assert describe_in_a_sentence(make_answers()) == (
        "Round 41 of 100 of run 2, fedavg: training, step 120 of 400. 3 of 4 members in sight, 3 needed. "
        "Accuracy 0.9400, +0.100 in 10 rounds."
    )


def test_states_are_words_and_shapes_besides_colours() -> None:
    text = "\n".join(render("members", make_answers()))
    for told in ("● this node", "● up", "◐ silent", "○ away"):
        assert told in text
    plain = "\n".join(render("members", make_answers(), pen=PLAIN))
    assert plain.isascii()
    for told in ("* this node", "* up", "~ silent", "o away"):
        assert told in plain


@pytest.mark.parametrize("view", VIEWS)
def test_a_terminal_of_ascii_gets_ascii(view: str) -> None:
    assert "".join(render(view, make_answers(), pen=get_pen("ascii"))).isascii()
    assert get_pen("utf-8") == PEN


@pytest.mark.parametrize("view", VIEWS)
def test_what_strangers_wrote_moves_no_cursor(view: str) -> None:
    answers = make_answers(
        (EVIL, "b" + EVIL, "c" + EVIL, "d" + EVIL),
        name=EVIL,
        stalled=True,
        stall_reason=EVIL,
        not_awaited=[pb.NotAwaited(name=EVIL, reason=EVIL)],
    )
    answers.rounds[0].rejected["k5ry2m4a"] = EVIL
    answers.rounds[0].contributor_names[:] = [EVIL]
    text = "".join(render(view, answers, events=(Event("rejected", EVIL),)))
    assert text.isprintable()


def test_what_is_wrong_is_said_with_its_reason_and_first() -> None:
    answers = make_answers(
        stalled=True, stall_reason="no quorum in sight", paused=True, open_changes=1, unapproved_changes=1
    )
    lines = [line for line in render("overview", answers) if line[:1] in "✖▲✔" and line]
    assert lines[0] == "✖ STALLED  no quorum in sight"
    assert lines[1].startswith("▲ PAUSED")
    assert lines[-1].startswith("▲ CHANGE  1 change waits for approval, 1 of them not approved here")


def test_members_that_are_away_are_said_to_be_and_nothing_is_wrong_without_them() -> None:
    lines = render("overview", make_answers())
    assert "▲ AWAY  hospital-c is silent, never heard of; hospital-d is away, never heard of" in lines
    answers = make_answers()
    for member in answers.members.members:
        member.connected = member.alive = True
    assert "✔ nothing is wrong" in render("overview", answers)


def test_the_phase_in_hand_is_in_brackets() -> None:
    assert "phase          train exchange [mine] vote apply" in render("round", make_answers(phase="mine"))
    done = render("round", make_answers(done=True))
    assert "phase          [done]" in done
    assert not any(line.startswith("contributions") for line in done)


def test_a_bar_of_a_round_has_a_letter_for_each_phase() -> None:
    record = make_round(1, train=2.0, exchange=1.0, vote=1.0)
    assert draw_phases_of(record, 4.0, 8).plain == "TTTTEEVV"
    assert draw_phases_of(record, 2.0, 8).plain == "TTTTTTT>"


def test_a_node_that_is_away_says_why_and_what_it_said_before_stays() -> None:
    lines = render("overview", make_answers(), away="run/node.sock: no such socket", now_s=42.0)
    assert lines[1] == "○ AWAY  run/node.sock: no such socket. It is asked again every second."
    assert lines[2] == "Below is what it said 42.0 s ago."
    assert any(line.startswith("Round 41") for line in lines)
    assert render("overview", None, away="gone") == [
        " fednode top   1 [overview]  2 round  3 members  4 events   q quit",
        "○ AWAY  gone. It is asked again every second.",
        "",
    ]


def test_a_node_that_gives_no_answer_says_for_how_long() -> None:
    assert "◐ NO ANSWER  for 9.0 s" in render("overview", make_answers(), now_s=9.0)[1]
    assert not any("NO ANSWER" in line for line in render("overview", make_answers(), now_s=SILENT_S))
    assert render("overview", None)[1] == "asking the node ..."


def test_a_table_leaves_columns_out_on_the_right_and_rows_below() -> None:
    rows = [(f"row {i}", "12", "long text") for i in range(9)]
    assert [line.plain for line in make_table(("NAME", ">N", "WHAT"), rows, 12, 3)] == [
        "NAME    N",
        "row 0  12",
        "row 1  12",
        "and 7 more",
    ]
    wide = make_table(("NAME", "X"), [("日本", "x")], 80, 5)
    assert [line.cell_len for line in wide] == [7, 7]


def test_events_scroll_back_from_the_newest() -> None:
    events = tuple(Event("block", f"event {i}") for i in range(100))
    assert render("events", make_answers(), height=12, events=events)[-1] == "event 99"
    frame = Frame(80, 10, PEN, scroll=20)
    lines = [line.plain for line in VIEWS["events"](make_answers(), Snapshot(events=events), frame)]
    assert lines[-2:] == ["event 79", "20 newer below"]
    far = [line.plain for line in VIEWS["events"](make_answers(), Snapshot(events=events), Frame(80, 10, PEN, 9999))]
    assert far[0] == "event 0"


def test_a_chain_without_a_round_has_an_overview() -> None:
    answers = Answers(make_status(phase="starting"), make_members(*"abcd"), [], [])
    text = "\n".join(line.plain for line in show_overview(answers, Snapshot(answers), Frame(80, 24, PEN)))
    assert "starting" in text
    assert "phase          [starting]" in text
    for view in VIEWS:
        assert render(view, answers)


def test_bars_go_from_the_lowest_to_the_highest() -> None:
    assert PEN.draw_bars([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert PEN.draw_bars([0.5, 0.5]) == "▅▅"
    assert PEN.draw_bars([]) == ""
    assert PLAIN.draw_progress(1, 4, 8) == "[==------]"
    assert PLAIN.draw_progress(3, 0, 2) == "[--]"
    assert PEN.draw_progress(9, 4, 4) == "[████]"


def test_keys_and_sequences_are_told_apart() -> None:
    assert decode_keys(b"q2\t") == ["q", "2", "tab"]
    assert decode_keys(b"\x1b[A\x1bOB\x1b[5~\x1b[Z") == ["up", "down", "page up", "back"]
    assert decode_keys(b"\x1b[1;5Qq") == ["q"]  # an unknown one is no key, and takes none with it
    assert decode_keys(b"\x1b") == []
    assert decode_keys(b"\x1b[") == []
    assert decode_keys(b"\xc3\xa4\x00\x7f") == []


def test_keys_change_the_view_and_scroll_it() -> None:
    screen = Screen(tuple(VIEWS))
    assert screen.on_key("3")
    assert screen.view == "members"
    screen.on_key("down")
    assert screen.scroll == 1
    screen.on_key("tab")
    assert (screen.view, screen.scroll) == ("events", 0)
    screen.on_key("page up")
    screen.on_key("down")
    assert screen.scroll == PAGE_LINES - 1
    screen.on_key("end")
    assert screen.scroll == 0
    screen.on_key("tab")
    assert screen.view == "overview"
    for key in ("9", "0", "x", "²", "back"):
        assert screen.on_key(key)
    assert screen.view == "events"
    assert not screen.on_key("q")


class Counting:
    """Counts what it is asked; each answer is the same."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def get_status(self) -> pb.NodeStatus:
        return self.answers.status

    def list_members(self) -> pb.ListMembersReply:
        return self.answers.members

    def list_rounds(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListRoundsReply:
        self.asked.append(f"{limit} rounds")
        return pb.ListRoundsReply(rounds=self.answers.rounds[:limit])

    def list_blocks(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListBlocksReply:
        self.asked.append("blocks")
        return pb.ListBlocksReply(blocks=self.answers.blocks)


def test_rounds_and_blocks_are_asked_for_only_when_there_are_new_ones() -> None:
    node: Any = Counting(make_answers())
    first = read_answers(node)
    assert read_answers(node, first).rounds == first.rounds
    assert node.asked == ["blocks", f"{NUM_ROUNDS} rounds"]
    new = make_answers(head="ef" * 32, height=141)
    node.answers = Answers(new.status, new.members, [make_round(42), *new.rounds], new.blocks)
    second = read_answers(node, first)
    assert node.asked[2:] == ["blocks", f"{141 - first.rounds[0].height + NUM_UNSETTLED} rounds"]
    assert [each.round for each in second.rounds] == [42, *range(40, 0, -1)]


def test_a_node_that_was_started_again_is_asked_for_all() -> None:
    node: Any = Counting(make_answers())
    first = read_answers(node)
    node.answers = make_answers(pid=7)
    read_answers(node, first)
    assert node.asked[-1] == f"{NUM_ROUNDS} rounds"


def test_what_is_written_is_one_line() -> None:
    assert isinstance(write("a\nb"), Text)
    assert write("a\nb").plain == "a\\nb"
