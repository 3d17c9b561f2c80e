"""The elements of a report's page: tables, lists of facts, notes, figures.

Whatever a record holds may have been written by a stranger: it is text here, and escaped where it enters. What is HTML
already is `Html`, so that the two cannot be mistaken for each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NewType

from node.log import escape_control
from node.report.style import STYLE

Html = NewType("Html", str)
Cell = str  # a cell of a table: text, never HTML

SHORT_CHARS = 8
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")


def show(text: str) -> Html:
    """Returns text as HTML. Invisible characters, and those that reverse the text's direction, are written as
    escapes."""
    return Html(escape(escape_control(text)))


def keep_times(text: Html) -> Html:
    """Keeps times in the text from being broken over two lines."""
    return Html(_TIME.sub(r'<span class="time">\g<0></span>', text))


def join(parts: Iterable[Html]) -> Html:
    return Html("\n".join(part for part in parts if part))


def show_time(text: str) -> str:
    """Formats an RFC 3339 time in UTC as `2026-11-20 14:02 UTC`."""
    return f"{text[:16].replace('T', ' ')} UTC"


def show_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def find_spans(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first and the last number of each span of consecutive ones; `numbers` are in order."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def show_spans(numbers: Sequence[int]) -> str:
    """Formats numbers in order as `1-4, 6, 8-20`, with en dashes."""
    return ", ".join(
        f"{first}" if first == last else f"{first}\N{EN DASH}{last}" for first, last in find_spans(numbers)
    )


def count(number: int, noun: str) -> str:
    """Formats `1 round`, `2 rounds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def make_paragraph(text: str, kind: str = "") -> Html:
    named = f' class="{kind}"' if kind else ""
    return Html(f"<p{named}>{keep_times(show(text))}</p>")


def make_verdict(word: str, text: str, kind: str) -> Html:
    """Makes a line of a word that stands out, marked as good (`good`), bad (`bad`) or neither (`open`), and a
    sentence."""
    marks = {"good": "\N{CHECK MARK}", "bad": "\N{BALLOT X}", "open": "\N{WHITE CIRCLE}"}
    return Html(f'<p class="verdict {kind}"><strong>{marks[kind]} {show(word)}</strong> {show(text)}</p>')


def make_facts(facts: Iterable[tuple[str, str]], *, mono: Sequence[str] = ()) -> Html:
    """Makes a list of names and values; those in `mono` are ids and digests."""
    rows = "".join(
        f"<div><dt>{show(name)}</dt><dd{' class=mono' if name in mono else ''}>{show(value)}</dd></div>"
        for name, value in facts
    )
    return Html(f'<dl class="facts">{rows}</dl>')


def make_table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, note: str = "", kind: str = ""
) -> Html:
    """Makes a table of text; the first column labels the rows. A heading that begins with `>` has numbers below it."""
    return make_html_table(caption, headings, (list(map(show, row)) for row in rows), note=note, kind=kind)


def make_html_table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Html]],
    *,
    note: str = "",
    kind: str = "",
    heads: int = 1,
) -> Html:
    """Makes a table as `make_table`, of what is HTML already; the first `heads` columns label the rows."""
    rights = [" class=number" if heading.startswith(">") else "" for heading in headings]
    tags = [("th", ' scope="row"') if i < heads else ("td", "") for i in range(len(headings))]
    head = "".join(
        f'<th scope="col"{right}>{show(heading.removeprefix(">"))}</th>'
        for heading, right in zip(headings, rights, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<{tag}{scope}{right}>{cell}</{tag}>" for (tag, scope), right, cell in zip(tags, rights, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    said = f"<caption><strong>{show(caption)}</strong> {show(note)}</caption>" if caption or note else ""
    return Html(
        f'<div class="{f"scroll {kind}".strip()}" tabindex="0"><table>{said}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def make_details(summary: str, *parts: Html) -> Html:
    """Makes a part of the page that is folded away."""
    return Html(f"<details><summary>{show(summary)}</summary>{join(parts)}</details>")


def make_list(items: Iterable[str]) -> Html:
    rows = "".join(f"<li>{show(item)}</li>" for item in items)
    return Html(f"<ul>{rows}</ul>")


def make_figure(svg: Html, caption: str, note: str = "") -> Html:
    return Html(f"<figure><figcaption><strong>{show(caption)}</strong> {show(note)}</figcaption>{svg}</figure>")


def make_section(name: str, title: str, *parts: Html) -> Html:
    heading = f'<h2 id="{name}-title">{show(title)}</h2>'
    return Html(f'<section id="{name}" aria-labelledby="{name}-title">\n{heading}\n{join(parts)}\n</section>')


def make_page(title: str, header: Html, main: Html, footer: str = "", kind: str = "") -> str:
    """Returns the whole document: no script, nothing fetched, light and dark, fit to be printed."""
    named = f" class={kind}" if kind else ""
    below = f"<footer>{show(footer)}</footer>" if footer else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{show(title)}</title>
<style>
{STYLE}</style>
</head>
<body{named}>
<header>
{header}
</header>
<main>
{main}
</main>
{below}
</body>
</html>
"""
