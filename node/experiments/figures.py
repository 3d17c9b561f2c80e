"""Figures of results as numbers: the lines of each panel, with means and spreads over seeds. Nothing is drawn here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ml.training.metrics import compute_mean, compute_std
from node.experiments.axes import capitalise, list_keys, name_axis, name_figure, name_key, select, split
from node.experiments.contents import OWN_X
from node.experiments.local_work import compute_epochs
from node.experiments.network import NETWORK, at_networks, compute_network_seconds
from node.experiments.plan import Experiment, Point
from node.experiments.results import Result
from node.experiments.sections import FigureSection, NetworkSection, PairsSection
from node.experiments.tables import Results, average
from node.experiments.values import (
    SERIES,
    VALUES,
    Kind,
    Limits,
    compute_sent_bytes,
    compute_train_seconds,
    needs_network,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel: x, mean and spread at each; a flat one (nothing sent) has no x of its own. `values` are
    those of single seeds at each x, where boxes are drawn of them."""

    label: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seeds: int
    flat: bool = False
    values: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    label: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels that share their axes. `ticks` are the labels of x = 0, 1, … where x is an axis of the sweep; where it is
    no axis, `log_x` is of bytes and `whole_x` of rounds."""

    title: str
    x_label: str
    y_label: str
    kind: Kind
    panels: tuple[Panel, ...]
    log_x: bool = False
    whole_x: bool = True
    ticks: tuple[str, ...] = ()
    boxes: bool = False


_X_LABELS = {
    "round": "round",
    "bytes": "sent by one client so far",
    "seconds": "seconds of local training so far, mean over clients",
    "epochs": "local epochs so far, mean over clients",
    "network_seconds": "seconds so far, reckoned over the network",
}

_X_NAMES = {
    "round": "round",
    "bytes": "bytes sent",
    "seconds": "training time",
    "epochs": "local epochs",
    "network_seconds": "time over the network",
}


def make_figures(experiment: Experiment, section: FigureSection, results: Results) -> list[Figure]:
    """One figure for each value of `each`, those without a finished run left out."""
    if needs_network((section.x, section.y)):
        experiment = at_networks(experiment)
    points = select(experiment.points, section.where)
    limits = Limits(*experiment.file.report.target[:1])
    figures = []
    for key, own in split(points, section.each):
        panels = tuple(_make_panels(section, own, results, limits))
        if not any(panel.lines for panel in panels):
            continue
        value = SERIES[section.y] if section.x in OWN_X else VALUES[section.y]
        figures.append(
            Figure(
                title=name_figure(section.title or _title_figure(section), section.each, key),
                x_label=_X_LABELS.get(section.x, name_axis(section.x)),
                y_label=value.label,
                kind=value.kind,
                panels=panels,
                log_x=section.x == "bytes",
                whole_x=section.x == "round",
                ticks=() if section.x in OWN_X else tuple(key[0] for key in list_keys(own, (section.x,))),
                boxes=section.draw == "box",
            )
        )
    return figures


def _title_figure(section: FigureSection) -> str:
    label = SERIES[section.y].label if section.x in OWN_X else VALUES[section.y].label
    return f"{capitalise(label)} by {_X_NAMES.get(section.x, name_axis(section.x))}"


def _make_panels(section: FigureSection, points: Sequence[Point], results: Results, limits: Limits) -> Iterator[Panel]:
    ticks = [] if section.x in OWN_X else [key[0] for key in list_keys(points, (section.x,))]
    for key, inside in split(points, section.panels):
        lines = []
        for line_key, own in split(inside, section.lines):
            label = name_key(section.lines, line_key)
            if section.x in OWN_X:
                line = _make_line(section, label, own, results)
            else:
                line = _make_axis_line(section, label, own, results, limits, ticks)
            if line is not None:
                lines.append(line)
        yield Panel(name_key(section.panels, key), tuple(lines))


def _make_line(section: FigureSection, label: str, points: Sequence[Point], results: Results) -> Line | None:
    """A line of per-round values, mean and spread over the seeds, as far as all its runs go."""
    runs = [results[point.run.id] for point in points if point.run is not None and point.run.id in results]
    take, network = SERIES[section.y].compute, points[0].facts.get(NETWORK)  # one for all that are averaged
    across = [_list_x(section.x, run, network) for run in runs]
    length = min(map(len, across), default=0)
    xs, means, stds = [], [], []
    for r in range(length):
        known = [value for run in runs if (value := take(run.rounds[r])) is not None]
        if len(known) < len(runs) and all(run.rounds[r].taa is None for run in runs):
            continue  # a round that was not measured
        if len(known) < len(runs):
            break
        xs.append(compute_mean(x[r] for x in across))
        means.append(compute_mean(known))
        stds.append(compute_std(known))
    if not xs:
        return None
    return Line(label, tuple(xs), tuple(means), tuple(stds), len(runs), flat=section.x == "bytes" and not xs[-1])


def _list_x(x: str, result: Result, network: NetworkSection | None) -> Sequence[float]:
    """Where each round of a run stands across; nothing where that is not known."""
    if x == "network_seconds":
        return () if network is None else compute_network_seconds(result, network)
    if x == "epochs":
        return compute_epochs(result)
    if x == "seconds":
        return compute_train_seconds(result)
    if x == "bytes":
        return compute_sent_bytes(result)
    return [row.round for row in result.rounds]


def _make_axis_line(
    section: FigureSection,
    label: str,
    points: Sequence[Point],
    results: Results,
    limits: Limits,
    ticks: Sequence[str],
) -> Line | None:
    value = VALUES[section.y]
    cells, values = {}, []
    for (tick,), own in split(points, (section.x,)):
        cell = average(value, own, results, limits)
        if cell.mean is None:
            continue
        cells[float(ticks.index(tick))] = cell
        if section.draw == "box":
            by_seed = [average(value, of_seed, results, limits).mean for _, of_seed in split(own, ("seed",))]
            values.append(tuple(mean for mean in by_seed if mean is not None))
    if not cells:
        return None
    return Line(
        label,
        tuple(cells),
        tuple(cell.mean or 0.0 for cell in cells.values()),
        tuple(cell.std for cell in cells.values()),
        max(cell.num for cell in cells.values()),
        values=tuple(values),
    )


# ---- pairs of clients


def make_pair_figures(experiment: Experiment, section: PairsSection, results: Results) -> list[Figure]:
    """One figure for each value of `each`, a line for each pair of clients; those without a finished run left out."""
    points = select(experiment.points, section.where)
    series = SERIES[section.pairs]
    figures = []
    for key, own in split(points, section.each):
        panels = [
            Panel(name_key(section.panels, panel_key), tuple(_make_pair_lines(inside, results)))
            for panel_key, inside in split(own, section.panels)
        ]
        if any(panel.lines for panel in panels):
            by = f"{capitalise(section.pairs)} of each pair by round"
            title = name_figure(section.title or by, section.each, key)
            figures.append(Figure(title, _X_LABELS["round"], section.pairs, series.kind, tuple(panels)))
    return figures


def _make_pair_lines(points: Sequence[Point], results: Results) -> Iterator[Line]:
    """Of runs that all have the same clients, as far as all of them know how far these are apart."""
    runs = [results[point.run.id] for point in points if point.run is not None and point.run.id in results]
    if len({run.num_clients for run in runs}) != 1:
        return
    rounds = [[row.divergences for row in run.rounds] for run in runs]
    length = min(next((r for r, known in enumerate(own) if known is None), len(own)) for own in rounds)
    for one, other in combinations(range(runs[0].num_clients), 2):
        values = [[known[one][other] for own in rounds if (known := own[r]) is not None] for r in range(length)]
        if values:
            means, stds = map(compute_mean, values), map(compute_std, values)
            yield Line(f"{one} and {other}", tuple(range(1, length + 1)), tuple(means), tuple(stds), len(runs))
