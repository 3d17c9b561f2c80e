"""Tables of results: grouping by axes, means and spreads; no markup.

A *cell* holds the runs that agree on everything but the seed, and the axes that its table averages over. Its number is
the mean over seeds of each seed's mean, its spread the population standard deviation over seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ml.training.metrics import compute_mean, compute_std
from node.experiments.axes import Key, capitalise, get_key, list_keys, name_axis, select, show_where, split
from node.experiments.network import NETWORK, at_networks
from node.experiments.per_client import INDEX, is_by_client, split_by_client
from node.experiments.plan import Experiment, Point
from node.experiments.results import Result
from node.experiments.sections import TableSection
from node.experiments.values import (
    SERIES,
    VALUES,
    Better,
    Kind,
    Limits,
    Value,
    compute_train_seconds,
    needs_network,
    show_number,
)

Results = Mapping[str, Result]  # finished runs by id
Place = tuple[Key, Key]  # a row and a column


@dataclass(frozen=True, slots=True)
class Cell:
    """Mean and spread over `num` seeds, out of `finished` seeds that have run and `expected` ones; a finished run may
    lack the number. `best` marks the best of the cells it is compared with.

    In a table of bests, or of worsts, `choice` is the value of the axis that was best or worst, and `detail` its
    number. Without a mean, `absent` says why.
    """

    kind: Kind
    mean: float | None
    std: float
    num: int
    finished: int
    expected: int
    best: bool = False
    choice: str | None = None
    detail: str = ""
    absent: str = ""

    @property
    def text(self) -> str:
        """The cell as text: `98.16 ± 0.20`, without the spread where there is none."""
        if self.mean is None:
            return self.absent
        shown = show_number(self.kind, self.mean, spread=self.num > 1)
        if self.num == 1 or (self.kind in ("count", "bytes") and not self.std):
            return shown
        return f"{shown} ± {show_number(self.kind, self.std, spread=True)}"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under `row_axes`, columns under `column_axes`, and a cell or nothing at each crossing."""

    title: str
    note: str
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    rows: tuple[Key, ...]
    columns: tuple[Key, ...]
    cells: Mapping[Place, Cell]
    value_label: str

    @property
    def finished(self) -> int:
        """The number of seeds that have run in the cell where most have."""
        return max((cell.finished for cell in self.cells.values()), default=0)

    def list_numbers(self) -> Iterator[Sequence[object]]:
        """Yields headings, and a row for each cell: its axes' values, then its number unrounded, in the unit of the
        results."""
        columns = [axis or "value" for axis in self.column_axes]
        yield *self.row_axes, *columns, "mean", "std", "seeds", "best", "choice"
        for row in self.rows:
            for column in self.columns:
                if (cell := self.cells.get((row, column))) is not None:
                    numbers = ("", "") if cell.mean is None else (cell.mean, cell.std)
                    yield *row, *column, *numbers, cell.num, int(cell.best), cell.choice or ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, the limit it is read at, and its name: `rounds to 66 %` where there are several targets."""

    label: str
    value: Value
    limits: Limits


def list_readings(names: Sequence[str], targets: Sequence[float], seconds: float | None = None) -> list[Reading]:
    """Lists each value once; where there are several targets, once for each that it is read at."""
    targets = targets or (Limits().target,)
    readings = []
    for name in names:
        value = VALUES[name]
        if value.to_reach is None or len(targets) == 1:
            readings.append(Reading(value.label, value, Limits(targets[0], seconds)))
            continue
        for target in targets:
            shown = f"{100 * target:g} %"
            label = shown if len(names) == 1 else value.label.replace("target", shown)
            readings.append(Reading(label, value, Limits(target, seconds)))
    return readings


def list_runs(points: Sequence[Point], results: Results) -> list[Result]:
    return [results[point.run.id] for point in points if point.run is not None and point.run.id in results]


def make_table(experiment: Experiment, section: TableSection, results: Results) -> Table:
    """Lays out one table."""
    if needs_network(section.value):
        experiment = at_networks(experiment)
    readings = list_readings(section.value, section.target or experiment.file.report.target, section.seconds)
    points = select(experiment.points, section.where)
    baselines = find_baselines(experiment, section.against) if section.against else None
    if baselines is not None:
        points = [point for point in points if not select((point,), section.against)]
    if is_by_client(section.rows, section.columns):
        points = split_by_client(points)
    rows, columns = list_keys(points, section.rows), list_keys(points, section.columns)
    several, num = len(readings) > 1, len(section.rows)
    cells = {
        (key[:num], (*key[num:], reading.label) if several else key[num:]): _make_cell(
            section, reading, group, results, baselines
        )
        for reading in readings
        for key, group in split(points, (*section.rows, *section.columns))
    }
    if several:
        columns = tuple((*column, reading.label) for column in columns for reading in readings)
    table = Table(
        title=section.title or _title_table(section, readings),
        note=_note(section, cells, readings),
        row_axes=section.rows,
        column_axes=(*section.columns, "") if several else section.columns,
        rows=rows,
        columns=columns,
        cells=cells,
        value_label=readings[0].label,
    )
    return replace(table, cells=_mark_best(table, section, {reading.label: reading.value for reading in readings}))


def find_baselines(experiment: Experiment, against: Mapping[str, Any]) -> dict[str, str]:
    """Returns for each run the run it is compared with: the one that is as `against` says and equal on all other
    axes."""
    others = [axis for axis in (*experiment.axes, "seed") if axis not in against]
    keys = {point.run.id: get_key(point, others) for point in experiment.points if point.run is not None}
    beside = {get_key(p, others): p.run.id for p in select(experiment.points, against) if p.run is not None}
    return {run: beside[key] for run, key in keys.items() if key in beside}


def _make_cell(
    section: TableSection,
    reading: Reading,
    points: Sequence[Point],
    results: Results,
    baselines: Mapping[str, str] | None,
) -> Cell:
    value, axis = reading.value, section.best_of or section.worst_of
    if axis is None:
        return average(value, points, results, reading.limits, baselines)
    by_choice = {choice: own for (choice,), own in split(points, (axis,))}
    cells = {choice: average(value, own, results, reading.limits, baselines) for choice, own in by_choice.items()}
    sign = (-1.0 if _get_better(section, value) == "lower" else 1.0) * (1.0 if section.best_of else -1.0)
    known = {choice: sign * cell.mean for choice, cell in cells.items() if cell.mean is not None}
    if not known:
        return max(cells.values(), key=lambda cell: cell.expected)
    choice = max(known, key=lambda name: known[name])
    missing = sum(cell.expected - cell.finished for cell in cells.values())
    detail = f"; {missing} {'run' if missing == 1 else 'runs'} missing" if missing else ""
    plan = by_choice[choice][0].budget
    if plan is None:
        return replace(cells[choice], choice=choice, detail=detail.removeprefix("; "))
    spent = f"E {plan.local_iterations}, {plan.used_s:g} s used"
    return replace(cells[choice], choice=f"({plan.available_s:g}, {choice})", detail=spent + detail)


def average(
    value: Value,
    points: Sequence[Point],
    results: Results,
    limits: Limits,
    baselines: Mapping[str, str] | None = None,
) -> Cell:
    """Returns the mean and the spread over seeds of each seed's mean; a seed counts once all its runs have finished.
    With `baselines` it averages the loss of each run against its baseline.

    For runs that did not train for the seconds asked for, `detail` says how long they trained.
    """
    by_seed: dict[Any, list[tuple[str, int | None]]] = {}  # a run, and a client where the value is one client's
    for point in points:
        if point.run is not None:
            by_seed.setdefault(point.facts["seed"], []).append((point.run.id, point.facts.get(INDEX)))
    limits = replace(limits, network=points[0].facts.get(NETWORK))  # all points of a cell share one network

    def is_there(run: str) -> bool:
        return run in results and (baselines is None or baselines.get(run) in results)

    def read(run: str, client: int | None) -> float | None:
        if baselines is None:
            return value.read(results[run], limits, client)
        return value.read_loss(results[run], results[baselines[run]], limits)

    finished = [runs for runs in by_seed.values() if all(is_there(run) for run, _ in runs)]
    numbers = [[read(run, client) for run, client in runs] for runs in finished]
    means = [compute_mean(known) for own in numbers if len(known := [n for n in own if n is not None]) == len(own)]
    ends = [compute_train_seconds(results[run])[-1:] for runs in finished for run, _ in runs]
    if means:
        early = [end for own in ends for end in own if value.needs_seconds and end < (limits.seconds or 0.0)]
        detail = f"runs end at {show_number('seconds', compute_mean(early))} s" if early else ""
        spread = compute_std(means)
        return Cell(value.kind, compute_mean(means), spread, len(means), len(finished), len(by_seed), detail=detail)
    absent = "not timed" if value.needs_seconds and not all(ends) else value.absent
    absent = "does not fit" if not by_seed else "not run" if not finished else absent
    return Cell(value.kind, None, 0.0, 0, len(finished), len(by_seed), absent=absent)


def _mark_best(table: Table, section: TableSection, values: Mapping[str, Value]) -> dict[Place, Cell]:
    """Returns the cells with `best` set where a cell's number, as shown, is the best of those that differ from it in
    `compare` alone."""
    axis, cells = section.compare, dict(table.cells)
    axes = (*table.row_axes, *table.column_axes)
    if axis not in axes or section.best_of or section.worst_of:
        return cells
    groups: dict[Key, list[Place]] = {}
    for row, column in cells:
        rest = tuple(part for part, name in zip((*row, *column), axes, strict=True) if name != axis)
        groups.setdefault(rest, []).append((row, column))
    for places in groups.values():
        value = values[places[0][1][-1] if len(values) > 1 else table.value_label]
        better = _get_better(section, value)
        if better == "neither" or len(places) < 2 or len({cells[place].finished for place in places}) != 1:
            continue
        means = {p: cells[p].mean or 0.0 for p in places if cells[p].num == cells[p].finished > 0}
        best = (max if better == "higher" else min)(means.values(), default=0.0)
        winners = [p for p, mean in means.items() if show_number(value.kind, mean) == show_number(value.kind, best)]
        if len(winners) < len(places):  # where all are equal none is best
            cells |= {place: replace(cells[place], best=True) for place in winners}
    return cells


def _get_better(section: TableSection, value: Value) -> Better:
    """Returns which direction is better in the cells of a table: a smaller loss, in a table against baselines."""
    return "lower" if section.against and value.better != "neither" else value.better


def _title_table(section: TableSection, readings: Sequence[Reading]) -> str:
    reached = VALUES[section.value[0]].to_reach
    if reached is not None and len(section.value) == 1:
        *others, last = [f"{100 * reading.limits.target:g}" for reading in readings]
        targets = f"{', '.join(others)} or {last}" if others else last
        counted = capitalise(VALUES[section.value[0]].label.partition(" to ")[0])
        return f"{counted} until {SERIES[reached].label} reaches {targets} %"
    title = ", ".join(capitalise(VALUES[name].label) for name in section.value)
    return f"{title}: lost against {_show_wheres(section.against)}" if section.against else title


def _note(section: TableSection, cells: Mapping[Place, Cell], readings: Sequence[Reading]) -> str:
    kinds = {VALUES[name].kind for name in section.value}
    names = [name for kind, name in (("accuracy", "accuracies"), ("share", "shares")) if kind in kinds]
    said = [f"{capitalise(' and '.join(names))} in percent."] if names else []
    said = ["Percent."] if kinds in ({"accuracy"}, {"share"}) else said
    finished = max((cell.finished for cell in cells.values()), default=0)
    expected = max((cell.expected for cell in cells.values()), default=0)
    of = f" of {expected}" if finished < expected else ""
    if finished > 1:
        said.append(f"Mean ± standard deviation over {finished}{of} seeds.")
    elif finished == 1:
        said.append(f"One seed{of}.")
    if section.over:
        said.append(f"Averaged over {', '.join(map(name_axis, section.over))}.")
    targets = {reading.limits.target for reading in readings if reading.value.to_reach is not None}
    least = "what the column says" if len(targets) > 1 else "".join(f"{100 * target:g} %" for target in targets)
    reached = dict.fromkeys(reading.value.to_reach for reading in readings if reading.value.to_reach is not None)
    said += [f"The first round whose {SERIES[series].label} is at least {least}." for series in reached]
    if section.seconds is not None:
        said.append(f"Within {section.seconds:g} s of local training, by the clock of the machine.")
    if needs_network(section.value):
        said.append("Seconds over the network are reckoned, not measured.")
    if section.against:
        said.append(f"How much worse than with {_show_wheres(section.against)}.")
    if section.worst_of is not None:
        said.append(f"The worst of {name_axis(section.worst_of)}.")
    said += [f"Only {name_axis(axis)} {show_where(value)}." for axis, value in section.where.items()]
    return " ".join(said)


def _show_wheres(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{name_axis(axis)} {show_where(value)}" for axis, value in where.items())
