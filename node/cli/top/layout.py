"""The layout of `fednode top`: a snapshot as lines for a terminal of some size. Pure: it reads no clock, no terminal.

Every line is one row of the screen, so that what does not fit can be left out from below, and said.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from node.cli.output import show_seconds
from node.cli.top.marks import Pen, write
from node.cli.top.snapshot import Answers, Snapshot


@dataclass(frozen=True, slots=True)
class Frame:
    """The part of the screen that a view may fill, and how far it is scrolled: lines left out above, or of the log
    below."""

    width: int
    height: int
    pen: Pen
    scroll: int = 0


View = Callable[[Answers, Snapshot, Frame], list[Text]]


def draw(snapshot: Snapshot, views: Mapping[str, View], view: str, frame: Frame, now_s: float) -> list[Text]:
    """The whole screen, at most `frame.height` lines: heading, what stands in the way of answers, the view."""
    lines = [_write_heading(snapshot, list(views), view, frame)]
    lines += _write_absence(snapshot, frame, now_s)
    lines.append(Text(""))
    if snapshot.answers is not None:
        room = max(0, frame.height - len(lines))
        body = views[view](snapshot.answers, snapshot, Frame(frame.width, room, frame.pen, frame.scroll))
        lines += body
    return [cut(line, frame.width) for line in lines[: frame.height]]


def cut(line: Text, width: int) -> Text:
    """At most `width` columns."""
    short = line.copy()
    short.truncate(max(1, width), overflow="ellipsis")
    return short


def _write_heading(snapshot: Snapshot, views: Sequence[str], view: str, frame: Frame) -> Text:
    """Whose screen it is, and the keys."""
    name = "fednode top" if snapshot.answers is None else snapshot.answers.status.name
    line = write(f" {name} ", "bold reverse")
    for i, each in enumerate(views, start=1):
        line.append(f"  {i} ", style="dim")
        line.append(f"[{each}]" if each == view else each, style="bold" if each == view else "")
    line.append("   q quit", style="dim")
    if cell_len(line.plain) <= frame.width:
        return line
    short = write(f" {name} ", "bold reverse")
    short.append(f" [{view}] 1-{len(views)} q", style="bold")
    return short


def _write_absence(snapshot: Snapshot, frame: Frame, now_s: float) -> Iterator[Text]:
    silence_s = snapshot.get_silence_s(now_s)
    if snapshot.away is not None:
        yield from wrap("away", "AWAY", f"{snapshot.away}. It is asked again every second.", frame)
    elif snapshot.answers is None:
        yield write("asking the node ...", "dim")
    elif silence_s is not None:
        yield from wrap(
            "silent", "NO ANSWER", f"for {show_seconds(silence_s)}. The node may be busy, or stopped.", frame
        )
    if snapshot.away is not None and snapshot.answers is not None:
        yield write(f"Below is what it said {show_seconds(max(0.0, now_s - snapshot.read_s))} ago.", "dim")


def wrap(mark: str, word: str, text: str, frame: Frame) -> list[Text]:
    """A mark, a word in capital letters, and a text that goes on below it where it has to."""
    room = max(10, frame.width - len(word) - 4)
    first, *more = textwrap.wrap(write(text).plain, room) or [""]
    line = frame.pen.mark(mark)
    line.append(f" {word}  ", style="bold")
    line.append(first)
    return [line, *(Text(" " * (len(word) + 4) + each) for each in more)]


def write_title(text: str) -> Text:
    return write(text, "bold")


# ---- tables


def make_table(headings: Sequence[str], rows: Sequence[Sequence[Text | str]], width: int, max_rows: int) -> list[Text]:
    """Aligned columns below their headings; a heading that begins with `>` has its column aligned to the right.

    Columns from the right are left out where they have no room; rows from below, which the last line says."""
    shown = rows if len(rows) <= max_rows else rows[: max(0, max_rows - 1)]
    cells = [[cell if isinstance(cell, Text) else write(cell) for cell in row] for row in shown]
    names = [heading.removeprefix(">") for heading in headings]
    widths = [max([cell_len(name), *(cell_len(row[i].plain) for row in cells)]) for i, name in enumerate(names)]
    count = _count_fitting(widths, width)
    rights = [heading.startswith(">") for heading in headings]
    lines = [_align([write(name, "dim") for name in names[:count]], widths, rights)]
    lines += [_align(row[:count], widths, rights) for row in cells]
    if len(shown) < len(rows):
        lines.append(write(f"and {len(rows) - len(shown)} more", "dim"))
    return lines


def _count_fitting(widths: Sequence[int], width: int) -> int:
    total, count = 0, 0
    for each in widths:
        total += each + (2 if count else 0)
        if count and total > width:
            break
        count += 1
    return count


def _align(cells: Sequence[Text], widths: Sequence[int], rights: Sequence[bool]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for i, (cell, width, right) in enumerate(zip(cells, widths, rights, strict=False)):
        gap = " " * (width - cell_len(cell.plain))
        line.append("  " if i else "")
        line.append_text(Text(gap) + cell if right else cell + Text(gap if i + 1 < len(cells) else ""))
    return line
