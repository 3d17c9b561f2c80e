"""The views of `fednode top`: the node as a whole, the round in hand, the members, and what has happened."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from rich.text import Text

from node.cli.members import describe_state
from node.cli.output import show_bytes, show_id, show_number, show_seconds, show_time
from node.cli.status import describe_changes, describe_end, describe_score, describe_transfer, list_troubles
from node.cli.top.layout import Frame, View, make_table, wrap, write_title
from node.cli.top.marks import PHASES, Pen, write
from node.cli.top.snapshot import Answers, Snapshot

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

DOING = {
    "starting": "starting",
    "train": "training",
    "exchange": "exchanging what was learned",
    "mine": "mining a block",
    "vote": "voting on a block",
    "apply": "taking the aggregate in",
}
# Asked for by an operator, or to be answered by one, or no harm to the rounds by itself.
NOTES = ("PAUSED", "ENDS", "NOT APPROVED", "UPGRADE", "CHANGE", "AWAY")
LOST = ("away", "silent")
BACK_ROUNDS = 10  # over which a score is said to have moved
BAR_COLUMNS = 40


def show_overview(answers: Answers, snapshot: Snapshot, frame: Frame) -> list[Text]:
    """One sentence, what is wrong, who is here, how it learns, the newest blocks."""
    lines = wrap_plain(describe_in_a_sentence(answers), frame)
    lines += [Text(""), *_list_wrong(answers, frame), Text("")]
    lines += [_draw_phases(answers.status), *_draw_members(answers, frame)]
    lines += _draw_learning(answers, frame)
    lines.append(Text(""))
    room = frame.height - len(lines)
    return lines + _draw_blocks(answers, frame, room) if room > 2 else lines


def show_round(answers: Answers, snapshot: Snapshot, frame: Frame) -> list[Text]:
    """How far the round in hand is, and where the time of those before it went."""
    status = answers.status
    lines = [write_title(_name_round(status)), _draw_phases(status)]
    if status.HasField("train_step"):
        bar = frame.pen.draw_progress(status.train_step, status.train_steps, min(BAR_COLUMNS, frame.width // 3))
        lines.append(write(f"training       {bar} step {status.train_step} of {status.train_steps}"))
    if not status.done:
        bar = frame.pen.draw_progress(status.contributions, status.members, min(status.members, BAR_COLUMNS))
        told = f"{status.contributions} of {status.members}, {answers.members.min_contributions} needed"
        lines.append(write(f"contributions  {bar} {told}"))
        lines.append(write(f"candidates     {status.candidates} in view {status.view}, {status.quorum} votes needed"))
    lines += [write(f"not awaited    {one.name}: {one.reason}") for one in status.not_awaited]
    lines += [write(f"transfer       {describe_transfer(one)}") for one in status.transfers]
    if answers.rounds:
        lines += [Text(""), *_draw_newest(answers.rounds[0]), Text("")]
        lines += _draw_seconds(answers, frame, frame.height - len(lines))
    return lines


def show_members(answers: Answers, snapshot: Snapshot, frame: Frame) -> list[Text]:
    """Who decides, and who reads."""
    reply = answers.members
    head = f"{reply.quorum} of {len(reply.members)} decide; {reply.min_contributions} contribute to a round at least"
    rows = []
    for member in reply.members:
        state = frame.pen.mark(_get_state(member)) + write(f" {describe_state(member)}")
        rows.append(
            (
                write(member.name, "bold" if member.me else ""),
                state,
                str(member.height) if member.HasField("height") else "-",
                show_id(member.id),
                str(member.seat),
                f"{show_seconds(member.silent_s)} ago" if member.HasField("silent_s") else "-",
                f"{member.clock_ahead_s:+.3f} s" if member.HasField("clock_ahead_s") else "-",
                member.version or "-",
                member.address or "-",
            )
        )
    headings = ("NAME", "STATE", ">HEIGHT", "ID", ">SEAT", "HEARD OF", ">CLOCK", "RELEASE", "ADDRESS")
    first = min(frame.scroll, max(0, len(rows) - 1))
    lines = [write_title(head)]
    lines += make_table(headings, rows[first:], frame.width, max(1, frame.height - 2))
    for one in reply.observers:
        line = frame.pen.mark("up" if one.alive else "away")
        lines.append(line + write(f" observer {one.name} {show_id(one.id)} {'up' if one.alive else 'away'}"))
    return lines


def show_events(answers: Answers, snapshot: Snapshot, frame: Frame) -> list[Text]:
    """What happened, the newest at the bottom."""
    if not snapshot.events:
        return [write("nothing has happened yet", "dim")]
    last = max(1, len(snapshot.events) - frame.scroll)
    shown = snapshot.events[max(0, last - max(1, frame.height - 1)) : last]
    below = len(snapshot.events) - last
    lines = [write(event.text, _STYLES.get(event.kind, "")) for event in shown]
    return [*lines, write(f"{below} newer below", "dim")] if below else lines


VIEWS: Mapping[str, View] = {
    "overview": show_overview,
    "round": show_round,
    "members": show_members,
    "events": show_events,
}
_STYLES = {
    "block": "green",
    "rejected": "yellow",
    "evidence": "bold red",
    "stall": "bold red",
    "divergence": "bold red",
    "spoiled": "red",
    "round": "dim",
}


# ---- in words


def wrap_plain(text: str, frame: Frame) -> list[Text]:
    """On as many lines as it takes."""
    return [write(line) for line in textwrap.wrap(text, max(10, frame.width))]


def describe_in_a_sentence(answers: Answers) -> str:
    """Round, what is done in it, who is in sight, and how good the model is."""
    status = answers.status
    sight = f"{status.members_in_sight} of {status.members} members in sight, {status.quorum} needed."
    return " ".join(filter(None, (f"{_describe_work(status)}.", sight, _describe_learning(answers))))


def _describe_work(status: pb.NodeStatus) -> str:
    if status.done:
        return f"{_name_round(status)}: {describe_end(status)}"
    doing = DOING.get(status.phase, status.phase)
    steps = f", step {status.train_step} of {status.train_steps}" if status.HasField("train_step") else ""
    return f"{_name_round(status)}: {doing}{steps}"


def _name_round(status: pb.NodeStatus) -> str:
    of = f" of {status.rounds}" if status.rounds else ""
    return f"Round {status.round}{of} of run {status.run}, {status.method}"


def _describe_learning(answers: Answers) -> str:
    """The score, and by how much it has moved over the last rounds."""
    run = answers.status.run
    scores = [score for each in answers.rounds if each.run == run and (score := get_score(each)) is not None]
    if not scores:
        return ""
    told = describe_score(answers.status)
    back = min(BACK_ROUNDS, len(scores) - 1)
    moved = f", {scores[0] - scores[back]:+.3f} in {back} rounds" if back > 1 else ""
    return f"{told[0].upper()}{told[1:]}{moved}."


def get_score(record: pb.Round) -> float | None:
    """What a round is judged by: the accuracy after it, or R2 of a regression."""
    if record.HasField("accuracy"):
        return record.accuracy
    return record.apply.get("r2")


def _describe_lost(member: pb.MemberView) -> str:
    heard = f"heard of {show_seconds(member.silent_s)} ago" if member.HasField("silent_s") else "never heard of"
    return f"{member.name} is {describe_state(member)}, {heard}"


def _list_wrong(answers: Answers, frame: Frame) -> Iterator[Text]:
    status = answers.status
    found = list_troubles(status)
    if not status.ready and not status.stalled:
        found.append(("NOT READY", status.unready_reason))
    if lost := [_describe_lost(member) for member in answers.members.members if _get_state(member) in LOST]:
        found.append(("AWAY", "; ".join(lost)))
    if status.unapproved_changes:
        found.append(("CHANGE", describe_changes(status)))
    if not found:
        line = frame.pen.mark("good")
        line.append(" nothing is wrong", style="")
        yield line
    word = ""
    for name, text in found:
        word = name or word  # an empty one goes on with what is above
        yield from wrap("note" if word in NOTES else "bad", word, text, frame)


# ---- drawn


def _draw_phases(status: pb.NodeStatus) -> Text:
    """All phases in order, the one in hand in brackets."""
    line = write("phase          ")
    if status.done or status.phase not in PHASES:
        line.append("[done]" if status.done else f"[{status.phase}]", style="bold")
        return line
    for i, (name, (_, colour)) in enumerate(PHASES.items()):
        line.append(" " if i else "")
        now = name == status.phase
        line.append(f"[{name}]" if now else name, style=f"bold {colour}" if now else "dim")
    return line


def _get_state(member: pb.MemberView) -> str:
    if member.suspended:
        return "suspended"
    if member.me:
        return "up"
    if not member.connected:
        return "through" if member.through else "away"
    return "up" if member.alive else "silent"


def _draw_members(answers: Answers, frame: Frame) -> Iterator[Text]:
    """One after the other, on as many lines as it takes, up to four."""
    begin = "members        "
    line = write(begin)
    count = 1
    for member in answers.members.members:
        state = _get_state(member)
        word = "here" if member.me else "" if state == "up" else state
        told = frame.pen.mark(state) + write(f" {member.name}{f' ({word})' if word else ''}   ")
        if line.cell_len + told.cell_len > frame.width and line.cell_len > len(begin):
            yield line
            line, count = write(" " * len(begin)), count + 1
            if count > 4:
                yield write(f"{' ' * len(begin)}and more: see members", "dim")
                return
        line += told
    yield line


def _draw_learning(answers: Answers, frame: Frame) -> Iterator[Text]:
    """The scores and losses of the newest rounds, the oldest at the left."""
    run = answers.status.run
    rounds = [record for record in reversed(answers.rounds) if record.run == run]
    room = max(5, frame.width - 40)
    name = "R2" if any("r2" in record.apply for record in rounds) else "accuracy"
    for title, values in (
        (name, [score for score in map(get_score, rounds) if score is not None][-room:]),
        ("loss", [record.train["loss"] for record in rounds if "loss" in record.train][-room:]),
    ):
        if len(values) > 1:
            bars = frame.pen.draw_bars(values)
            yield write(f"{title:<15}{values[0]:.3f} {bars} {values[-1]:.3f}  {len(values)} rounds")


def _draw_blocks(answers: Answers, frame: Frame, room: int) -> list[Text]:
    rows = [
        (
            str(block.height),
            show_time(block.time),
            show_id(block.id),
            block.miner_name or "(genesis)",
            f"{block.num_contributions}/{block.num_members}" if block.num_contributions else "change",
            f"{block.num_votes}/{block.num_members}",
            show_bytes(block.bytes),
        )
        for block in answers.blocks
    ]
    headings = (">BLOCK", "TIME (UTC)", "ID", "MINER", ">CONTRIB", ">VOTES", ">SIZE")
    return make_table(headings, rows, frame.width, room - 1)


def _draw_newest(newest: pb.Round) -> Iterator[Text]:
    """Who was in the newest round that is final, and who was not, and why."""
    yield write_title(f"Round {newest.round} is final, block {newest.height}")
    yield write(f"contributed    {', '.join(newest.contributor_names)}")
    if newest.absent_names:
        whys = "; ".join(sorted({*newest.left_out.values()}))
        yield write(f"left out       {', '.join(newest.absent_names)}{f': {whys}' if whys else ''}", "yellow")
    for author, why in sorted(newest.rejected.items()):
        yield write(f"refused        {show_id(author)}: {why}", "yellow")
    before = show_number(newest.local_accuracy if newest.HasField("local_accuracy") else None, 3)
    if (score := get_score(newest)) is not None:
        yield write(f"score          {before} before the exchange, {show_number(score, 3)} after")


def _draw_seconds(answers: Answers, frame: Frame, room: int) -> list[Text]:
    """A bar for each of the newest rounds, as long as it took, a letter for each phase."""
    run = answers.rounds[0].run
    measured = [record for record in answers.rounds if record.measured and record.run == run][: max(0, room - 1)]
    longest = _choose_scale([_sum_phases(record) for record in measured])
    if longest <= 0:
        return []
    legend = "   ".join(f"{letter} {name}" for name, (letter, _) in PHASES.items())
    lines = [write_title("Where the time went") + write(f"   {legend}", "dim")]
    width = max(10, frame.width - 22)
    for record in measured:
        line = write(f"{record.round:>6}  ")
        line.append_text(draw_phases_of(record, longest, width))
        line.append(f"  {show_seconds(_sum_phases(record))}", style="dim")
        lines.append(line)
    return lines


def _choose_scale(seconds: Sequence[float]) -> float:
    """The seconds that fill a line: those of the longest round, unless most others would then be too short to see."""
    return min(max(seconds), 4 * median(seconds)) if seconds else 0.0


def _sum_phases(record: pb.Round) -> float:
    return sum(max(0.0, record.seconds[name]) for name in PHASES if name in record.seconds)


def draw_phases_of(record: pb.Round, longest_s: float, width: int) -> Text:
    """The phases of a round in letters, where `longest_s` is `width` columns; what goes beyond ends in >."""
    bar = Text()
    done_s = 0.0
    for name, (letter, colour) in PHASES.items():
        begin = min(width, round(done_s / longest_s * width))
        done_s += max(0.0, record.seconds[name]) if name in record.seconds else 0.0
        bar.append(letter * (min(width, round(done_s / longest_s * width)) - begin), style=colour)
    if done_s > longest_s * 1.01:
        bar = bar[: max(0, width - 1)] + Text(">", style="bold")
    return bar


def get_pen(encoding: str) -> Pen:
    """For a terminal that reads this encoding."""
    return Pen(is_plain=not encoding.lower().startswith("utf"))
