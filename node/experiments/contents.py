"""The contents of a report: the file's own tables and figures, or ones that suit its sweep. They are checked before
anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from node.config.yaml_source import Keys, suggest
from node.experiments.axes import Key, get_key, select
from node.experiments.network import NETWORK, at_networks, is_measured
from node.experiments.per_client import CLIENT, is_by_client
from node.experiments.plan import Experiment, Found, show_fact
from node.experiments.sections import (
    AnyFigureSection,
    FigureSection,
    GridSection,
    PairsSection,
    ReportSection,
    SnapshotSection,
    TableSection,
)
from node.experiments.tables import find_baselines
from node.experiments.values import SERIES, VALUES, needs_network

OWN_X = ("round", "bytes", "seconds", "epochs", "network_seconds")  # what a figure's x may be besides an axis


def get_report(experiment: Experiment) -> ReportSection:
    """Returns the file's report, with defaults where it leaves something out."""
    given = experiment.file.report
    tables = list(_default_tables(experiment) if given.tables is None else given.tables)
    figures: Sequence[AnyFigureSection] = _default_figures(experiment) if given.figures is None else given.figures
    shown = {value for table in tables for value in table.value}
    first = tables[0] if tables else TableSection()
    if given.target and not any(VALUES[value].to_reach for value in shown):
        tables.append(
            TableSection(
                value=("rounds_to",),
                **{name: getattr(first, name) for name in ("rows", "columns", "where", "over", "compare", "best_of")},
            )
        )
    if not any(value.startswith("sent_") for value in shown):
        tables.append(_make_traffic_table(experiment))
    return ReportSection(target=given.target, tables=tuple(tables), figures=tuple(figures))


def _default_tables(experiment: Experiment) -> list[TableSection]:
    rows = tuple(axis for axis in experiment.axes if _is_row(axis)) or ("method",)
    columns = tuple(axis for axis in experiment.axes if axis not in rows)
    return [TableSection(value=(value,), rows=rows, columns=columns) for value in ("best_taa", "final_global")]


def _is_row(axis: str) -> bool:
    return axis in ("task", "data", "model", "method") or axis.startswith(("method.", "model."))


def _default_figures(experiment: Experiment) -> list[FigureSection]:
    lines = tuple(axis for axis in experiment.axes if axis == "method" or axis.startswith("method.")) or ("method",)
    if experiment.file.budget is not None:
        amounts = tuple(axis for axis in experiment.axes if axis.startswith("budget."))
        each = _list_others(experiment, (*lines, *amounts, "rounds"))
        return [FigureSection(x="rounds", y="best_taa", lines=(*lines, *amounts), each=each)]
    each = _list_others(experiment, lines)
    return [FigureSection(x=x, y=y, lines=lines, each=each) for x, y in (("round", "taa"), ("bytes", "taa"))]


def _list_others(experiment: Experiment, used: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis in experiment.axes if axis not in (*used, "partition"))


def _make_traffic_table(experiment: Experiment) -> TableSection:
    rows = [axis for axis in experiment.axes if axis in ("task", "data", "model", "clients")]
    rows += ["method", *(axis for axis in experiment.axes if axis.startswith("method."))]
    shares = any(run.sharing_heights for run in experiment.runs.values())
    value = ("sent_params_per_client", "sent_params", "sent_bytes_per_client", "sent_bytes")
    return TableSection(
        title="What is sent in a round" + (", and before the first" if shares else ""),
        value=(*value, "sharing_sent_bytes_per_client") if shares else value,
        rows=tuple(rows),
        over=tuple(axis for axis in experiment.axes if axis not in rows),
        compare=None,
    )


def list_needed_fields(experiment: Experiment) -> frozenset[str]:
    """Lists the fields of rounds that the file's report shows and that results of earlier versions lack."""
    given = experiment.file.report
    figures = [figure for figure in given.figures or () if isinstance(figure, FigureSection)]
    shown = {value for table in given.tables or () for value in table.value} | {figure.y for figure in figures}
    shown |= {figure.grid for figure in given.figures or () if isinstance(figure, GridSection)}
    needed = {field for name in shown if name in VALUES and (field := VALUES[name].newer_field) is not None}
    needed |= {"train_s" for figure in figures if figure.x == "seconds"}
    if _asks_network(given):
        needed |= {"received_bytes", "train_s"} if is_measured(given.network) else {"received_bytes"}
    return frozenset(needed)


def needs_divergences(experiment: Experiment) -> bool:
    """Says whether the file's report shows how far pairs of clients are apart, which results of earlier versions
    lack."""
    return any(isinstance(figure, PairsSection) for figure in experiment.file.report.figures or ())


def _asks_network(given: ReportSection) -> bool:
    """Says whether a table or a figure shows seconds that are computed for a network."""
    lines = [figure for figure in given.figures or () if isinstance(figure, FigureSection)]
    named = [table.value for table in given.tables or ()] + [(figure.x, figure.y) for figure in lines]
    return any(map(needs_network, named))


def find_report_problems(experiment: Experiment) -> Found:
    """Finds what cannot be laid out in a file's report, under the keys it was written at."""
    given = experiment.file.report
    found: Found = []
    for i, table in enumerate(given.tables or ()):
        found += _check_table(experiment, table, ("report", "tables", i))
    for i, figure in enumerate(given.figures or ()):
        found += _check_figure(experiment, figure, ("report", "figures", i))
    return found


def _check_table(experiment: Experiment, table: TableSection, keys: Keys) -> Found:
    found = [((*keys, "value"), text) for text in _name_unknown(table.value, VALUES)]
    found += _check_seconds(table, keys)
    found += _check_clients(table, keys)
    chosen = {name: axis for name in ("best_of", "worst_of") if (axis := getattr(table, name))}
    axes = {name: tuple(axis for axis in getattr(table, name) if axis != CLIENT) for name in ("rows", "columns")}
    axes |= {"over": table.over, "where": tuple(table.where), "against": tuple(table.against)}
    axes |= {name: (axis,) for name, axis in chosen.items()}
    free = {*table.over, *chosen.values()}
    there = at_networks(experiment) if needs_network(table.value) else experiment
    found += _check_network(experiment, table.value, (*keys, "value"), {*free, *table.against})
    if len(chosen) > 1:
        found.append(((*keys, "worst_of"), "expected it or best_of, not both"))
    found += _check_axes(there, keys, axes, table.where, (*table.rows, *table.columns), free)
    return found + _check_against(there, table, keys)


def _check_figure(experiment: Experiment, figure: AnyFigureSection, keys: Keys) -> Found:
    found: Found = []
    used: list[str] = []
    named: dict[str, Iterable[str]] = {}  # the allowed values of each key
    there = experiment
    if isinstance(figure, GridSection):
        used = [figure.x, figure.y]
        known = [name for name, value in VALUES.items() if not (value.needs_seconds or value.needs_network)]
        named = {"x": experiment.known_axes, "y": experiment.known_axes, "grid": known}
        if figure.x == figure.y:
            found.append(((*keys, "y"), f"expected another axis than x (got {figure.y})"))
    elif isinstance(figure, SnapshotSection):
        fewest = min((point.facts["clients"] for point in experiment.points), default=1)
        if (last := max(figure.clients)) >= fewest:
            found.append(((*keys, "clients"), f"expected clients from 0 to {fewest - 1} (got {last})"))
    elif isinstance(figure, FigureSection):
        there = at_networks(experiment) if needs_network((figure.x, figure.y)) else experiment
        found += _check_network(experiment, (figure.x, figure.y), keys, set(figure.over))
        is_axis = figure.x not in OWN_X
        used = [figure.x] if is_axis else []
        if figure.draw == "box" and not is_axis:
            found.append(((*keys, "draw"), f"expected line over {figure.x}, or an axis as x"))
        values = [name for name, value in VALUES.items() if not value.needs_seconds]
        named = {"x": (*OWN_X, *there.known_axes)}
        named |= {"y": values if is_axis else SERIES} if figure.x in named["x"] else {}
    found += [
        ((*keys, name), text)
        for name, known in named.items()
        for text in _name_unknown((getattr(figure, name),), known)
    ]
    if isinstance(figure, FigureSection) and "y" not in named:  # nothing more can be checked for an unknown x
        return found
    laid_out = [name for name in ("lines", "panels", "each", "over") if hasattr(figure, name)]
    axes = {name: getattr(figure, name) for name in laid_out} | {"where": tuple(figure.where)}
    used += [axis for name in laid_out if name != "over" for axis in axes[name]]
    return found + _check_axes(there, keys, axes, figure.where, used, set(getattr(figure, "over", ())))


def _check_network(experiment: Experiment, names: Sequence[str], keys: Keys, averaged: set[str]) -> Found:
    """Checks that seconds over a network have a network to compute them for, and that a table or figure shows one
    network."""
    if not needs_network(names):
        return []
    if not experiment.file.report.network:
        return [(keys, "expected a network in report.network: what the seconds are reckoned by")]
    return [(keys, f"expected {NETWORK} laid out, or in `where`")] if NETWORK in averaged else []


def _check_seconds(table: TableSection, keys: Keys) -> Found:
    """Checks that values at equal training time come with the seconds to read them at, and the reverse."""
    timed = [name for name in table.value if name in VALUES and VALUES[name].needs_seconds]
    if timed and table.seconds is None:
        return [((*keys, "value"), f"expected `seconds` beside {timed[0]}: the training time to compare at")]
    if table.seconds is not None and not timed:
        names = ", ".join(name for name, value in VALUES.items() if value.needs_seconds)
        return [((*keys, "seconds"), f"expected one of {names} as the value")]
    return []


def _check_clients(table: TableSection, keys: Keys) -> Found:
    """Checks that a table by client shows values that are kept for each client."""
    unkept = [name for name in table.value if name in VALUES and VALUES[name].of_client is None]
    if unkept and is_by_client(table.rows, table.columns):
        names = ", ".join(name for name, value in VALUES.items() if value.of_client is not None)
        return [((*keys, "value"), f"expected {names} in a table by client (got {unkept[0]})")]
    return []


def _check_against(experiment: Experiment, table: TableSection, keys: Keys) -> Found:
    """Checks that the sweep has the runs that a table compares with."""
    if not table.against or not table.against.keys() <= experiment.known_axes:
        return []
    if is_by_client(table.rows, table.columns):
        return [((*keys, "against"), "expected none in a table by client")]
    if not table.against.keys() <= {*experiment.axes}:
        return [((*keys, "against"), f"expected axes of the sweep: {', '.join(experiment.axes)}")]
    baselines = find_baselines(experiment, table.against)
    if not any(point.run.id in baselines for point in select(experiment.points, table.where) if point.run is not None):
        return [((*keys, "against"), "expected values that some run has")]
    return []


def _name_unknown(names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    names_known = sorted(known)
    for name in names:
        if name not in names_known:
            yield f"unknown name {name!r}.{suggest(name, names_known) or ' Known: ' + ', '.join(names_known)}"


def _check_axes(
    experiment: Experiment,
    keys: Keys,
    axes: Mapping[str, Sequence[str]],
    where: Mapping[str, Any],
    used: Sequence[str],
    free: set[str],
) -> Found:
    found: Found = []
    for name, given in axes.items():
        found += [((*keys, name), text) for text in _name_unknown(given, experiment.known_axes)]
    if found:
        return found
    chosen = select(experiment.points, where)
    if not chosen:
        return [((*keys, "where"), "expected values that some run has")]
    places: dict[Key, dict[str, str]] = {}
    for point in chosen:
        rest = {axis: show_fact(point.facts.get(axis)) for axis in experiment.axes if axis not in free}
        first = places.setdefault(get_key(point, used), rest)
        mixed = [axis for axis in rest if rest[axis] != first[axis]]
        if mixed:
            names = ", ".join(mixed)
            return [
                (keys, f"runs that differ in {names} fall together: expected {names} laid out, or in `where` or `over`")
            ]
    return found
