"""From an experiment's file to the runs it asks for.

A *point* is one combination of the axes' values; its *facts* are everything a table can be laid out by: those values,
and the settings that follow from them. A *run* is one simulation, named by a digest of its whole configuration: points
that come to the same configuration share it, and a finished run is never run again under another file.

Where a setting is given more than once, the later of these counts: `base.method`, a task's `method`, the method's own
entry, a swept `method.KEY`, the budget's local iterations. What stands in `base`, in a task or in an axis reaches the
methods that have such a setting, at least one of which must. A method's own `rounds` count before all others.

Rounds are the method's own. Where it has heights before its first one (FedEDS shares its encrypted sets at one), a run
has those besides.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

from ml.budget import Plan as BudgetPlan
from ml.budget import compute_plan
from ml.data.partition import parse_partition
from ml.errors import BudgetError, DataError, SpecError
from ml.specs import get_spec
from ml.specs.base import MethodSpec
from node.experiments.sections import DataItem, ExperimentFile, MethodItem, NamedItem, TaskItem
from node.settings import make_model
from node.yaml_source import Keys, YamlSource, show_value, suggest

VERSION = version("fednode")
FORMAT = 1  # of runs and their results; raised when the same configuration would no longer mean the same run
MAX_POINTS = 100_000
ID_CHARS = 16

Found = list[tuple[Keys, str]]  # what is wrong, under the keys it was written at

# Any task will do to read a method's settings by: they do not depend on it.
_TASK: tuple[Mapping[str, Any], int, tuple[int, ...]] = ({"name": "mlp", "hidden": [64, 32]}, 10, (1, 8, 8))


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation. `config` has the fields of a SimulationConfig, defaults written out, paths as in the file; of its
    rounds the first `sharing_heights` come before the method's own."""

    id: str
    label: str
    config: Mapping[str, Any]
    sharing_heights: int = 0

    @property
    def num_heights(self) -> int:
        rounds: int = self.config["rounds"]
        return rounds

    @property
    def num_rounds(self) -> int:
        """The method's own."""
        return self.num_heights - self.sharing_heights


@dataclass(frozen=True, slots=True)
class Point:
    """A combination of the axes' values. `run` is None where it does not fit its time budget; `misfit` says why."""

    facts: Mapping[str, Any]
    run: Run | None
    budget: BudgetPlan | None = None
    misfit: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A file that can be run: its sections, its points in the order they are run in, and where each value stood.

    `axes` are the swept ones, without `seed`.
    """

    file: ExperimentFile
    source: YamlSource
    axes: tuple[str, ...]
    points: tuple[Point, ...]

    @cached_property
    def runs(self) -> Mapping[str, Run]:
        """The runs by id, each once."""
        return {point.run.id: point.run for point in self.points if point.run is not None}

    @property
    def title(self) -> str:
        return self.file.title or self.file.name

    @cached_property
    def known_axes(self) -> frozenset[str]:
        """What tables may be laid out by."""
        return frozenset(name for point in self.points for name in point.facts)


def expand(file: ExperimentFile, source: YamlSource) -> tuple[Experiment, Found]:
    """The experiment, and everything that is wrong with it, each under the keys it was written at."""
    found: Found = []
    axes = _list_axes(file, found)
    count = math.prod(map(len, axes.values()))
    if count > MAX_POINTS:
        found.append((("sweep",), f"expected at most {MAX_POINTS} combinations (got {count})"))
    swept = tuple(name for name, values in axes.items() if name != "seed" and len(values) > 1)
    points: list[Point] = []
    if not found:
        unused = _Unused()
        for values in itertools.product(*axes.values()):
            point = _make_point(file, swept, dict(zip(axes, values, strict=True)), unused, found)
            points += [point] if point is not None else []
        found += unused.list_problems()
    return Experiment(file, source, swept, tuple(points)), found


# ---- axes


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of an axis: what it is called, what it sets, and where it stands in the file."""

    fact: Any
    sets: Mapping[str, Any]
    keys: Keys


_Given = tuple[Any, Keys]  # a setting, and where it stands


@dataclass(slots=True)
class _Settings:
    """What a point is made of, gathered from `base` and one value of each axis."""

    values: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    method: dict[str, _Given] = field(default_factory=dict)  # of the method's own entry
    shared: dict[str, _Given] = field(default_factory=dict)  # for whichever method has them
    swept: dict[str, _Given] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


def _list_axes(file: ExperimentFile, found: Found) -> dict[str, list[_Value]]:
    """The axes, seed outermost: an interrupted experiment then has a whole table of the first seeds."""
    sweep = file.sweep
    axes: dict[str, list[_Value]] = {}
    for name in ("seed", "task", "data", "model", "clients", "shots", "rounds", "partition", "method"):
        given = getattr(sweep, name)
        if given is not None:
            axes[name] = [_read_value(name, value, ("sweep", name, i)) for i, value in enumerate(given)]
    for i, item in enumerate(sweep.method):
        if item.rounds is not None and sweep.rounds is not None:
            found.append((("sweep", "method", i, "rounds"), "expected it here or in sweep.rounds, not in both"))
    for name, given in sweep.get_settings().items():
        section, dot, key = name.partition(".")
        keys: Keys = ("sweep", name)
        if not dot or section not in ("method", "model") or not key:
            known = [*type(sweep).model_fields, "method.KEY", "model.KEY"]
            hint = suggest(section, ("method", "model")) if dot else suggest(name, known)
            found.append((keys, f"unknown axis.{hint or ' Known: ' + ', '.join(known)}"))
        elif not isinstance(given, list) or not given:
            found.append((keys, f"expected a list of values (got {show_value(given)})"))
        else:
            axes[name] = [_Value(value, {name: value}, keys) for value in given]
    if file.budget is not None:
        for name in ("t_sum", "alpha", "beta"):
            amounts = getattr(file.budget, name)
            axes[f"budget.{name}"] = [_Value(amount, {}, ("budget", name)) for amount in amounts]
    for values in axes.values():
        seen: set[str] = set()
        for value in values:
            text = _encode(value.fact)
            if text in seen:
                found.append((value.keys, f"given twice on one axis: {show_fact(value.fact)} (label it apart)"))
            seen.add(text)
    return axes


def _read_value(axis: str, value: Any, keys: Keys) -> _Value:
    if isinstance(value, TaskItem):
        given = {name: getattr(value, name) for name in value.model_fields_set if name != "label"}
        return _Value(value.label, given, keys)
    if isinstance(value, DataItem | NamedItem):
        own = {"rounds": value.rounds} if isinstance(value, MethodItem) and value.rounds is not None else {}
        return _Value(_label(value), {axis: value, **own}, keys)
    return _Value(value, {axis: value}, keys)


def _label(item: DataItem | NamedItem) -> str:
    if item.label is not None:
        return item.label
    settings = item.get_settings()
    if isinstance(item, DataItem):
        path = settings.get("path")
        return f"{item.format} {PurePath(path).name}" if isinstance(path, str) else item.format
    own = [f"{key} {show_fact(value)}" for key, value in settings.items() if key != "name"]
    return ", ".join([item.name, *own])


# ---- points


def _make_point(
    file: ExperimentFile, swept: Sequence[str], chosen: Mapping[str, _Value], unused: _Unused, found: Found
) -> Point | None:
    """The point; None, and what is wrong with it in `found`, where it cannot be."""
    settings = _gather(file, chosen)
    values = settings.values
    try:
        scheme = parse_partition(values["partition"])
    except DataError as error:
        keys = chosen["partition"].keys if "partition" in chosen else _find(file, chosen, "partition")
        found.append((keys, str(error).removeprefix("partition: ")))
        return None
    plan, misfit = None, None
    if file.budget is not None:
        amounts = [chosen[f"budget.{name}"].fact for name in ("t_sum", "alpha", "beta")]
        try:
            plan = compute_plan(amounts[0], values["rounds"], amounts[1], amounts[2])  # Eq. (11)
        except BudgetError as error:
            misfit = str(error)
    spec = _make_spec(settings, chosen["method"].keys, plan, file.budget is not None, unused, found)
    if spec is None:
        return None
    model = {**make_model(values["model"].name), **values["model"].get_settings(), **settings.model}
    config = {
        "method": spec.to_mapping(),
        "data": values["data"].get_settings(),
        "model": model,
        "input": values["input"],
        "pretrained": values["pretrained"],
        "partition": str(scheme),
        **{name: values[name] for name in ("shots", "clients", "seed", "device", "batched")},
        "rounds": values["rounds"] + spec.sharing_heights,
        "threads": 1,
    }
    facts = _list_facts(config, settings, scheme.to_mapping())
    run = None if misfit else Run(compute_id(config), _describe(facts, swept), config, spec.sharing_heights)
    return Point(facts, run, plan, misfit)


def _gather(file: ExperimentFile, chosen: Mapping[str, _Value]) -> _Settings:
    base = file.base
    settings = _Settings({name: getattr(base, name) for name in type(base).model_fields if name != "method"})
    settings.shared = {key: (value, ("base", "method", key)) for key, value in base.method.items()}
    for axis, value in chosen.items():
        settings.facts[axis] = value.fact
        for name, given in value.sets.items():
            section, dot, key = name.partition(".")
            if dot and section == "method":
                settings.swept[key] = (given, value.keys)
            elif dot:
                settings.model[key] = given
            elif axis == "task" and name == "method":
                shared = {k: (v, (*value.keys, "method", k)) for k, v in given.items()}
                settings.shared = _override(settings.shared, shared)
            elif name == "method":
                settings.method = {k: (v, (*value.keys, k)) for k, v in given.get_settings().items()}
            else:
                settings.values[name] = given
    return settings


def _make_spec(
    settings: _Settings, keys: Keys, plan: BudgetPlan | None, budgeted: bool, unused: _Unused, found: Found
) -> MethodSpec | None:
    """The method with all that is set for it; None, and what is wrong with it in `found`."""
    known = _list_settings(settings.method["name"][0])
    if known is None:
        known = frozenset()  # an unknown method: the spec says so below
    for key, (_, place) in {**settings.shared, **settings.swept}.items():
        unused.note(key, place, used=key in known, known=known)
    given = {key: value for key, value in settings.shared.items() if key in known}
    given = _override(given, settings.method)
    given = _override(given, {key: value for key, value in settings.swept.items() if key in known})
    twice = [key for key in settings.swept if key in settings.method]
    if twice:
        found += [(settings.method[key][1], f"expected it here or in sweep.method.{key}, not in both") for key in twice]
        return None
    if budgeted:
        timed = [key for key in ("local_iterations", "local_epochs") if key in given]
        found += [(given[key][1], "expected none beside a budget, which local iterations follow from") for key in timed]
        if timed:
            return None
        given["local_iterations"] = (plan.local_iterations if plan else 1, ("budget",))
    try:
        mapping = {key: value for key, (value, _) in given.items()}
        return get_spec(mapping, *_TASK, rounds=settings.values["rounds"])
    except SpecError as error:
        key = error.path.removeprefix("method.")
        place = given[key][1] if key in given else keys
        found.append((place if key != "name" else keys, error.message))
        return None


def _override(given: dict[str, _Given], stronger: Mapping[str, _Given]) -> dict[str, _Given]:
    """Both, the second before the first; local work in iterations takes the place of local work in epochs."""
    for key, other in (("local_iterations", "local_epochs"), ("local_epochs", "local_iterations")):
        if key in stronger and other not in stronger:
            given = {name: value for name, value in given.items() if name != other}
    return {**given, **stronger}


class _Unused:
    """Settings meant for whichever method has them, so that one which no method has is noticed."""

    def __init__(self) -> None:
        self._places: dict[Keys, str] = {}
        self._used: set[Keys] = set()
        self._known: set[str] = set()

    def note(self, key: str, place: Keys, *, used: bool, known: Iterable[str]) -> None:
        self._places[place] = key
        self._known |= set(known)
        if used:
            self._used.add(place)

    def list_problems(self) -> Found:
        return [
            (place, f"no method here has such a setting.{suggest(key, self._known)}")
            for place, key in self._places.items()
            if place not in self._used
        ]


@cache
def _list_settings(method: str) -> frozenset[str] | None:
    """The keys of a method's settings; None for a method that is not one."""
    try:
        return frozenset(get_spec({"name": method}, *_TASK, rounds=1).hyperparameters.keys())
    except SpecError:
        return None


def _find(file: ExperimentFile, chosen: Mapping[str, _Value], name: str) -> Keys:
    """Where a key of `base` was given: in the task, or in `base` itself."""
    task = chosen.get("task")
    return (*task.keys, name) if task is not None and name in task.sets else ("base", name)


def _list_facts(config: Mapping[str, Any], settings: _Settings, partition: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "data": _label(settings.values["data"]),
        "model": _label(settings.values["model"]),
        **{name: config[name] for name in ("partition", "clients", "shots", "seed", "device")},
        "rounds": settings.values["rounds"],
    }
    for section, mapping in (("method", config["method"]), ("model", config["model"]), ("data", config["data"])):
        facts |= {f"{section}.{key}": value for key, value in mapping.items()}
    facts |= {f"partition.{key}": value for key, value in partition.items()}
    facts |= settings.facts
    return facts | {"partition": config["partition"], "shots": "all" if config["shots"] is None else config["shots"]}


def _describe(facts: Mapping[str, Any], axes: Iterable[str]) -> str:
    """A run in a few words: its method first, then where it stands on the other axes."""
    named = {"seed": "seed {}", "rounds": "R {}", "clients": "{} clients", "shots": "{} shots"}
    parts = [show_fact(facts["method"])]
    for axis in (*(axis for axis in axes if axis not in ("method", "seed")), "seed"):
        text = show_fact(facts[axis])
        section, _, key = axis.rpartition(".")
        parts.append(named[axis].format(text) if axis in named else f"{key} {text}" if section else text)
    return ", ".join(parts)


# ---- names


def compute_id(config: Mapping[str, Any]) -> str:
    """The name of a run: a digest of everything that its numbers follow from, this version of the package included."""
    whole = {"format": FORMAT, "fednode": VERSION, "config": config}
    return hashlib.sha256(_encode(whole).encode("utf-8")).hexdigest()[:ID_CHARS]


def _encode(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def show_fact(value: Any) -> str:
    """A value of an axis as tables and labels show it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "-".join(show_fact(item) for item in value) if value else "none"
    return str(value)
