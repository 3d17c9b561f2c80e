"""The report as one HTML page: no script, nothing fetched, light and dark, every table readable by a screen reader.

Whatever stands in a file or a result is text here, and escaped where it enters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from node.experiments.axes import Key, name_axis
from node.experiments.drawing_style import COLOURS, DARK_COLOURS
from node.experiments.tables import Cell, Table


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the page: `body` is HTML."""

    id: str
    title: str
    body: str


def render_page(title: str, description: str, facts: Mapping[str, str], notice: str, parts: Sequence[Part]) -> str:
    """The whole document. `facts` stand below the title, `notice` (empty: none) says what is missing."""
    tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in description.strip().split("\n\n") if text)
    links = "".join(f'<li><a href="#{part.id}">{escape(part.title)}</a></li>' for part in parts)
    sections = "\n".join(map(_render_part, parts))
    alert = f'<p class="notice" role="note">{escape(notice)}</p>' if notice else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{_make_style()}
</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{paragraphs}
<dl class="tiles">{tiles}</dl>
{alert}
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{sections}
</main>
</body>
</html>
"""


def _render_part(part: Part) -> str:
    title = f'<h2 id="{part.id}-title">{escape(part.title)}</h2>'
    return f'<section id="{part.id}" aria-labelledby="{part.id}-title">\n{title}\n{part.body}\n</section>'


# ---- tables


def render_tables(tables: Iterable[Table]) -> str:
    """Tables side by side where there is room."""
    return '<div class="side">' + "\n".join(map(render_table, tables)) + "</div>"


def render_table(table: Table) -> str:
    """A table of results: row heads span the rows they stand for, the best are strong."""
    head = _render_column_heads(table)
    body = []
    previous: Key = ()
    for i, row in enumerate(table.rows):
        heads = []
        for depth, text in enumerate(row):
            if previous[: depth + 1] == row[: depth + 1]:
                continue
            span = _count_run(table.rows[i:], depth)
            scope = "rowgroup" if span > 1 else "row"
            heads.append(f'<th scope="{scope}"{_span("row", span)}>{escape(text)}</th>')
        starts = ' class="group"' if len(row) > 1 and previous[:1] != row[:1] else ""
        cells = "".join(_render_cell(table.cells.get((row, column)), table.finished) for column in table.columns)
        body.append(f"<tr{starts}>{''.join(heads)}{cells}</tr>")
        previous = row
    caption = f"<strong>{escape(table.title)}</strong> {escape(table.note)}"
    return _frame(table.title, f"<caption>{caption}</caption><thead>{head}</thead><tbody>{''.join(body)}</tbody>")


def _render_column_heads(table: Table) -> str:
    corner = "".join(f'<th scope="col">{escape(name_axis(axis))}</th>' for axis in table.row_axes)
    if not table.column_axes:
        return f'<tr>{corner}<th scope="col">{escape(table.value_label)}</th></tr>'
    rows = []
    for depth, axis in enumerate(table.column_axes):
        last = depth == len(table.column_axes) - 1
        cells = []
        for key, same in groupby(table.columns, key=lambda column: column[: depth + 1]):
            span = len(list(same))
            name = name_axis(axis)
            text = key[-1] if axis in ("", "method", "task", "data", "model", "partition") else f"{name} {key[-1]}"
            scope = "colgroup" if span > 1 else "col"
            cells.append(f'<th scope="{scope}"{_span("col", span)}>{escape(text)}</th>')
        lead = corner if last else f'<td colspan="{len(table.row_axes)}"></td>'
        rows.append(f"<tr>{lead}{''.join(cells)}</tr>")
    return "".join(rows)


def _render_cell(cell: Cell | None, finished: int) -> str:
    """`finished` seeds have run elsewhere in the table; a cell with fewer says so."""
    if cell is None:
        return "<td></td>"
    if cell.mean is None:
        return f'<td class="absent">{escape(cell.absent)}</td>'
    mean, _, std = cell.text.partition(" ± ")
    number = escape(mean) + (f'<span class="std"> ± {escape(std)}</span>' if std else "")
    if cell.best:
        number = f"<strong>{number}</strong>"
    if cell.choice is not None:
        number = f"<strong>{escape(cell.choice)}</strong><small>{number}</small>"
    if cell.detail:
        number += f"<small>{escape(cell.detail)}</small>"
    if cell.num < cell.finished:
        number += f"<small>in {cell.num} of {cell.finished} seeds</small>"
    elif cell.finished < finished:
        number += f"<small>{cell.num} of {cell.expected} seeds</small>"
    return f"<td{' class=best' if cell.best else ''}>{number}</td>"


def render_plain_table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, heads: int = 1) -> str:
    """Text in rows, the first `heads` columns being what the others are about."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
    body = "".join(
        "<tr>"
        + "".join(f'<th scope="row">{escape(text)}</th>' for text in row[:heads])
        + "".join(f"<td>{escape(text)}</td>" for text in row[heads:])
        + "</tr>"
        for row in rows
    )
    return _frame(
        caption,
        f"<caption><strong>{escape(caption)}</strong></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>",
        "plain",
    )


def render_details(summary: str, body: str) -> str:
    """Something that is folded away."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def render_figure(svg: str, caption: str, note: str, more: str = "") -> str:
    """A drawing with what it shows; `more` is HTML below it."""
    said = f"<figcaption><strong>{escape(caption)}</strong> {escape(note)}</figcaption>"
    return f"<figure>{said}{svg}{more}</figure>"


def render_list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _frame(label: str, content: str, kind: str = "results") -> str:
    """Wide tables scroll by themselves, also by keyboard."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f'<table class="{kind}">{content}</table></div>'
    )


def _span(direction: str, count: int) -> str:
    return f' {direction}span="{count}"' if count > 1 else ""


def _count_run(rows: Sequence[Key], depth: int) -> int:
    """How many of the first rows agree up to `depth`."""
    first = rows[0][: depth + 1]
    return next((i for i, row in enumerate(rows) if row[: depth + 1] != first), len(rows))


# ---- style


def _make_style() -> str:
    light = "".join(f"--line-{i}:{colour};" for i, colour in enumerate(COLOURS))
    dark = "".join(f"--line-{i}:{colour};" for i, colour in enumerate(DARK_COLOURS))
    return _STYLE.replace("/*light lines*/", light).replace("/*dark lines*/", dark)


_STYLE = """\
:root{--ink:#1b1f24;--soft:#59636e;--paper:#fff;--panel:#f6f8fa;--rule:#d1d9e0;--grid:#e3e7eb;--accent:#0b62c4;
--best:#e4effc;--warn:#fff4d6;--warn-rule:#d9a514;/*light lines*/}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--paper:#101418;--panel:#181d23;--rule:#343c46;
--grid:#2a313a;--accent:#6cb2ff;--best:#17304d;--warn:#33290d;--warn-rule:#a37d14;/*dark lines*/}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:2.5rem clamp(1rem,4vw,3rem) 4rem;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .6rem;letter-spacing:-.01em;text-wrap:balance}
h2{font-size:1.3rem;margin:3rem 0 1rem;padding-top:1rem;border-top:1px solid var(--rule)}
p{max-width:46rem;margin:.5rem 0}
a{color:var(--accent)}
.tiles{display:flex;flex-wrap:wrap;gap:.5rem;margin:1.5rem 0;padding:0}
.tiles div{background:var(--panel);border:1px solid var(--rule);border-radius:.4rem;padding:.5rem .9rem}
.tiles dt{color:var(--soft);font-size:.78rem}
.tiles dd{margin:0;font-weight:600;overflow-wrap:anywhere}
.notice{max-width:none;padding:.6rem .9rem;background:var(--warn);border-left:4px solid var(--warn-rule)}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1.4rem;padding:0;margin:1rem 0 0;list-style:none}
.side{display:flex;flex-wrap:wrap;gap:0 3.5rem;align-items:flex-start}
.scroll{overflow-x:auto;margin:0 0 2rem;max-width:100%}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:3px}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption,figcaption{text-align:left;padding:0 0 .6rem;color:var(--soft);font-size:.92rem}
caption strong,figcaption strong{color:var(--ink)}
th,td{padding:.32rem .8rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid);white-space:nowrap}
thead th,thead td{border-bottom:1px solid var(--rule);color:var(--soft);font-weight:600;vertical-align:bottom}
thead th[colspan]{text-align:center}
tbody th{font-weight:600}
tbody tr.group th,tbody tr.group td{border-top:1px solid var(--rule)}
.results td,.results thead th:not([colspan]){text-align:right}
.results thead tr:last-child th{text-align:left}
.results tbody td{text-align:left}
td.best{background:var(--best)}
.std,td small,td.absent{color:var(--soft)}
td small{display:block;font-size:.8rem}
td.absent{font-style:italic}
.plain td{white-space:normal;max-width:34rem}
figure{margin:0 0 2.5rem}
figure svg{display:block;width:100%;height:auto;color:var(--ink)}
figure svg text{font-family:inherit}
details{margin:.5rem 0 1.5rem}
summary{cursor:pointer;color:var(--accent);width:fit-content}
details[open] summary{margin-bottom:.8rem}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.85em}
@media print{.scroll{overflow:visible}nav,summary{display:none}}"""
