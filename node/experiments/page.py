"""The report of an experiment as one HTML page, which needs nothing else. Whatever stands in a file or a result is text
here, and escaped where it enters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml.training.metrics import compute_mean
from node.experiments.axes import name_axis, name_key
from node.experiments.charts import AnyFigure, make_draw
from node.experiments.figures import Figure
from node.experiments.network import describe_network
from node.experiments.plan import MEASURED, VERSION, Experiment, Point, show_fact
from node.experiments.results import Result
from node.experiments.stock import Stock
from node.experiments.tables import Cell, Table
from node.experiments.values import VALUES, Limits, show_number
from node.report.drawing import render_inline
from node.report.elements import (
    Html,
    join,
    make_details,
    make_facts,
    make_figure,
    make_html_table,
    make_list,
    make_page,
    make_paragraph,
    make_section,
    make_table,
    make_verdict,
    show,
)

_BUDGET_AXES = ("budget.t_sum", "budget.beta", "rounds", "budget.alpha")


def render_page(
    experiment: Experiment,
    stock: Stock,
    tables: Sequence[Table],
    figures: Sequence[AnyFigure],
    numbers: Mapping[str, int],
) -> str:
    """Returns the whole document; `numbers` choose the look of lines."""
    parts = {"tables": ("Tables", join([Html('<div class="side">'), *map(_render_table, tables), Html("</div>")]))}
    if figures:
        drawn = (_render_figure(figure, numbers, f"f{i}") for i, figure in enumerate(figures))
        parts["figures"] = ("Figures", join(drawn))
    if experiment.file.budget is not None:
        parts["budget"] = ("Time budget", _render_budget(experiment))
    parts["configuration"] = ("Configuration", _render_configuration(experiment))
    parts["runs"] = ("Runs", _render_runs(experiment, stock))
    links = "".join(f'<li><a href="#{name}">{show(title)}</a></li>' for name, (title, _) in parts.items())
    is_whole = len(stock.finished) == len(experiment.runs)
    notice = make_verdict(f"{count_runs(experiment, stock)}.", "What follows is from the runs that are there.", "open")
    header = join(
        [
            Html(f"<h1>{show(experiment.title)}</h1>"),
            *(make_paragraph(text) for text in experiment.file.description.strip().split("\n\n") if text),
            make_facts(_list_facts(experiment, stock)),
            Html("") if is_whole else notice,
            Html(f'<nav aria-label="Sections"><ul>{links}</ul></nav>'),
        ]
    )
    main = join(make_section(name, title, body) for name, (title, body) in parts.items())
    return make_page(experiment.title, header, main, kind="wide")


def count_runs(experiment: Experiment, stock: Stock) -> str:
    text = f"{len(stock.finished)} of {len(experiment.runs)} runs are done"
    return f"{text}, {len(stock.failed)} failed" if stock.failed else text


# ---- tables and figures


def _render_table(table: Table) -> Html:
    """Returns a table of results as HTML, the best cells in bold."""
    columns = [name_key(table.column_axes, column) or table.value_label for column in table.columns]
    rows = [
        [*map(show, row), *(_render_cell(table.cells.get((row, column)), table.finished) for column in table.columns)]
        for row in table.rows
    ]
    headings = [*map(name_axis, table.row_axes), *columns]
    return make_html_table(table.title, headings, rows, note=table.note, kind="results", heads=len(table.row_axes))


def _render_cell(cell: Cell | None, finished: int) -> Html:
    """Returns a cell as HTML. The table has `finished` seeds; a cell with fewer says so."""
    if cell is None:
        return Html("")
    if cell.mean is None:
        return Html(f'<span class="absent">{show(cell.absent)}</span>')
    mean, _, std = cell.text.partition(" ± ")
    number = show(mean) + (f'<span class="std"> ± {show(std)}</span>' if std else "")
    if cell.best:
        number = f"<strong>{number}</strong>"
    if cell.choice is not None:
        number = f"<strong>{show(cell.choice)}</strong><small>{number}</small>"
    of = f"in {cell.num} of {cell.finished} seeds" if cell.num < cell.finished else ""
    if not of and cell.finished < finished:
        of = f"{cell.num} of {cell.expected} seeds"
    return Html(number + "".join(f"<small>{show(text)}</small>" for text in (cell.detail, of) if text))


def _render_figure(figure: AnyFigure, numbers: Mapping[str, int], prefix: str) -> Html:
    description = figure.title
    if not isinstance(figure, Figure) or figure.draw == "grid":  # lines have too many numbers to write out
        description += ". " + "; ".join(f"{label}: {text}" for label, text in figure.said)
    svg = Html(render_inline(make_draw(figure, numbers), description, prefix))
    table = make_table(figure.title, ("drawn", "numbers"), figure.said)
    return join([make_figure(svg, f"{figure.title}.", figure.note), make_details("The same in numbers", table)])


# ---- what was run


def _list_facts(experiment: Experiment, stock: Stock) -> list[tuple[str, str]]:
    points = experiment.points
    facts = [("runs", f"{len(stock.finished)} of {len(experiment.runs)}")]
    for name in ("data", "clients", "rounds", "seed"):
        facts.append((f"{name}s" if name == "seed" else name, _list_values(points, name)))
    facts.append(("methods", str(len({show_fact(point.facts["method"]) for point in points}))))
    seconds = [result.seconds for result in stock.finished.values()]
    if seconds:
        facts.append(("computing time", f"{_show_duration(sum(seconds))} in all, {compute_mean(seconds):.1f} s a run"))
        last = max(result.finished for result in stock.finished.values())
        facts.append(("last run", last.replace("T", " ").rstrip("Z")))
    return [*facts, ("fednode", VERSION)]


def _show_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _render_budget(experiment: Experiment) -> Html:
    """Returns a table of Eq. (11) for each budget: the time available and the time used."""
    plans = {tuple(show_fact(point.facts[axis]) for axis in _BUDGET_AXES): point.budget for point in experiment.points}
    alphas = list(dict.fromkeys(key[-1] for key in plans))
    rows = []
    for key in dict.fromkeys(key[:-1] for key in plans):
        spent = [plans[(*key, alpha)] for alpha in alphas]
        available = next((f"{plan.available_s:g}" for plan in spent if plan is not None), "")
        shown = [f"{plan.local_iterations} ({plan.used_s:g})" if plan is not None else "does not fit" for plan in spent]
        rows.append((*key, available, *shown))
    headings = ("t_sum, s", "β, s", "R", "t_sum − R·β, s", *(f"α {alpha} s: E (E·α·R, s)" for alpha in alphas))
    return make_table("Local iterations that fit: E = ⌊(t_sum / R − β) / α⌋", headings, rows)


def _render_configuration(experiment: Experiment) -> Html:
    points = experiment.points
    names = ("data", "model", "partition", "clients", "shots", "rounds", "seed", "device", *MEASURED)
    names = tuple(name for name in names if name in experiment.known_axes)
    swept = [axis for axis in experiment.axes if axis not in (*names, "method")]
    settings = [(name_axis(axis) if axis in swept else axis, _list_values(points, axis)) for axis in (*names, *swept)]
    by_method: dict[str, list[Point]] = {}
    for point in points:
        by_method.setdefault(show_fact(point.facts["method"]), []).append(point)
    keys = dict.fromkeys(key for point in points for key in point.facts if key.startswith("method."))
    rows = [(key.removeprefix("method."), *(_list_values(own, key) for own in by_method.values())) for key in keys]
    networks = [describe_network(network) for network in experiment.file.report.network]
    headings = ("network", "server", "peers", "local work")
    return join(
        [
            make_table("Settings of all runs", ("setting", "values"), settings),
            make_table("Settings of the methods, defaults written out", ("setting", *by_method), rows),
            make_table("Networks that seconds are reckoned by", headings, networks) if networks else Html(""),
        ]
    )


def _list_values(points: Sequence[Point], axis: str) -> str:
    return ", ".join(dict.fromkeys(show_fact(point.facts.get(axis)) for point in points))


def _render_runs(experiment: Experiment, stock: Stock) -> Html:
    runs, known = experiment.runs, {*stock.finished, *stock.failed, *stock.broken}
    halted = {run_id: result.halted_at for run_id, result in stock.finished.items() if result.halted_at is not None}
    lists = {
        "Failed": [
            f"{runs[run_id].label}: {result.error}".replace("\n", " ") for run_id, result in stock.failed.items()
        ],
        "Not the result of their run": list(stock.broken.values()),
        "Do not fit": list(dict.fromkeys(point.misfit for point in experiment.points if point.misfit)),
        "Came to a halt": [f"{runs[run_id].label}: height {at} was never made" for run_id, at in halted.items()],
        "Missing": [run.label for run in runs.values() if run.id not in known],
    }
    machines = [_describe_machine(result) for result in stock.finished.values()]
    counts = [(machine, str(machines.count(machine))) for machine in dict.fromkeys(machines)]
    axes = list_columns(experiment)
    rows = [_describe_point(point, axes, stock) for point in experiment.points]
    headings = (*map(name_axis, axes), "state", "best TAA", "final TAA", "final on all classes", "seconds", "run")
    table = make_table("All combinations", headings, rows)
    return join(
        [
            *(make_details(f"{title}: {len(own)}", make_list(own)) for title, own in lists.items() if own),
            make_table("Machines", ("machine", "runs"), counts),
            make_details(f"All combinations: {len(rows)}", table),
        ]
    )


def list_columns(experiment: Experiment) -> list[str]:
    """Lists the axes that tell the combinations apart."""
    always = ["data", "model", "partition", "clients", "rounds", "method", "seed"]
    return [*always, *(axis for axis in experiment.axes if axis not in always)]


def get_state(point: Point, stock: Stock) -> str:
    if point.run is None:
        return "does not fit"
    if point.run.id in stock.finished:
        return "done"
    return "failed" if point.run.id in stock.failed else "broken" if point.run.id in stock.broken else "missing"


def _describe_point(point: Point, axes: Sequence[str], stock: Stock) -> tuple[str, ...]:
    result = stock.finished.get(point.run.id) if point.run is not None else None
    numbers = ["", "", "", ""]
    if result is not None:
        chosen = [VALUES[name] for name in ("best_taa", "final_taa", "final_global", "seconds")]
        numbers = [show_number(value.kind, value.compute(result, Limits()) or 0.0) for value in chosen]
    facts = [show_fact(point.facts.get(axis)) for axis in axes]
    return (*facts, get_state(point, stock), *numbers, point.run.id if point.run is not None else "")


def _describe_machine(result: Result) -> str:
    machine = result.machine
    device = machine.get("device", "cpu")
    named: list[Any] = [machine.get("cpu"), f"{machine.get('cores')} cores", f"{machine.get('memory_gib')} GiB"]
    named += [machine.get("system"), f"Python {machine.get('python')}", f"torch {machine.get('torch')}"]
    named += [f"fednode {result.fednode}"]
    return ", ".join(map(str, named)) + (f", on {device}" if device != "cpu" else "")
