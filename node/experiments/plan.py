"""The plan of an experiment: turns its file into the runs it asks for.

A *point* is one combination of the axes' values. Its *facts* are everything a table can be laid out by: those values,
and the settings that follow from them. A *run* is one simulation, named by a digest of its whole configuration. Points
that come to the same configuration share a run, and a finished run is never run again under another file.

Where a setting is given more than once, the later of these counts: `base.method`, a task's `method`, the method's own
entry, a swept `method.KEY`, the budget's local iterations. Settings in `base`, in a task or in an axis reach the
methods that have such a setting, at least one of which must. A method's own `rounds` and `max_loss_ratio` count before
all others. The same holds for attacks. A method that an attack does not apply to has no run there, which is no mistake.

Rounds are the method's own. Where it has heights before its first round (FedEDS shares its encrypted sets at one), a
run has those besides.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

from ml.attacks import ATTACKS, Attack, check_fits, read_attack
from ml.budget import Plan as BudgetPlan
from ml.budget import compute_plan
from ml.data.partition import parse_partition
from ml.errors import BudgetError, DataError, SpecError
from ml.specs import get_simulated_spec
from ml.specs.base import MethodSpec
from ml.specs.sections import flatten
from node.config.settings import make_model
from node.config.yaml_source import Keys, YamlSource, show_value, suggest
from node.experiments.given import Part, Settings, Unused, Value
from node.experiments.sections import DataItem, ExperimentFile, MethodItem, NamedItem, TaskItem

VERSION = version("fednode")
FORMAT = 1  # of the ids of runs and of their results; raised when the same configuration no longer means the same run
MAX_POINTS = 100_000
MEASURED = {"eval_every": 1, "test_samples": None, "alone_until": None}  # the usual values of what is measured
NO_ATTACK = "none"  # the name of the absence of an attack on the axis of attacks
ID_CHARS = 16

Found = list[tuple[Keys, str]]  # faults, under the keys they were written at

_SECTIONS = ("method", "model", "attack")  # sections whose single settings can be axes, as in method.lr

# Any task will do to read a method's settings by: they do not depend on it.
_TASK: tuple[Mapping[str, Any], int, tuple[int, ...]] = ({"name": "mlp", "hidden": [64, 32]}, 10, (1, 8, 8))


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation. `config` has the fields of a SimulationConfig, defaults written out, paths as in the file; the
    first `sharing_heights` of its rounds come before the method's own."""

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
        """The number of the method's own rounds."""
        return self.num_heights - self.sharing_heights


@dataclass(frozen=True, slots=True)
class Point:
    """A combination of the axes' values. `run` is None where no round fits its time budget, or its attack does not
    apply to the method; `misfit` says why."""

    facts: Mapping[str, Any]
    run: Run | None
    budget: BudgetPlan | None = None
    misfit: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A file that can be run: its sections, its points in the order they are run in, and where each value stood in the
    file.

    `axes` are the swept axes, without `seed`.
    """

    file: ExperimentFile
    source: YamlSource
    axes: tuple[str, ...]
    points: tuple[Point, ...]

    @cached_property
    def runs(self) -> Mapping[str, Run]:
        """Returns the runs by id, each once."""
        return {point.run.id: point.run for point in self.points if point.run is not None}

    def list_shard(self, shard: tuple[int, int]) -> list[Run]:
        """Lists every n-th run, from the i-th on. The file alone decides which they are."""
        index, count = shard
        return list(self.runs.values())[index - 1 :: count]

    @property
    def title(self) -> str:
        return self.file.title or self.file.name

    @cached_property
    def known_axes(self) -> frozenset[str]:
        """Returns the axes that tables may be laid out by."""
        return frozenset(name for point in self.points for name in point.facts)


def expand(file: ExperimentFile, source: YamlSource) -> tuple[Experiment, Found]:
    """Expands a file into its experiment, and finds everything that is wrong with it, under the keys it was written
    at."""
    found: Found = []
    axes = _list_axes(file, found)
    count = math.prod(map(len, axes.values()))
    if count > MAX_POINTS:
        found.append((("sweep",), f"expected at most {MAX_POINTS} combinations (got {count})"))
    swept = tuple(name for name, values in axes.items() if name != "seed" and len(values) > 1)
    points: list[Point] = []
    if not found:
        unused = {what: Unused(what) for what in ("method", "attack")}
        for values in itertools.product(*axes.values()):
            point = _make_point(file, swept, dict(zip(axes, values, strict=True)), unused, found)
            points += [point] if point is not None else []
        found += [problem for one in unused.values() for problem in one.list_problems()]
        found += [] if found else [*_find_unfit_attacks(axes, points), *_find_lost_devices(points)]
    return Experiment(file, source, swept, tuple(points)), found


# ---- axes


def _list_axes(file: ExperimentFile, found: Found) -> dict[str, list[Value]]:
    """Lists the axes, seed outermost: an interrupted experiment then has whole tables of the first seeds."""
    sweep = file.sweep
    axes: dict[str, list[Value]] = {}
    for name in (
        *("seed", "task", "data", "model", "clients", "shots", "participation", "rounds", "partition"),
        *("method", "attack"),
    ):
        given = getattr(sweep, name)
        if given is not None:
            axes[name] = [_read_value(name, value, ("sweep", name, i)) for i, value in enumerate(given)]
    for i, item in enumerate(sweep.method):
        if item.rounds is not None and sweep.rounds is not None:
            found.append((("sweep", "method", i, "rounds"), "expected it here or in sweep.rounds, not in both"))
    for name, given in sweep.get_settings().items():
        section, dot, key = name.partition(".")
        keys: Keys = ("sweep", name)
        if not dot or section not in _SECTIONS or not key:
            known = [*type(sweep).model_fields, *(f"{section}.KEY" for section in _SECTIONS)]
            hint = suggest(section, _SECTIONS) if dot else suggest(name, known)
            found.append((keys, f"unknown axis.{hint or ' Known: ' + ', '.join(known)}"))
        elif not isinstance(given, list) or not given:
            found.append((keys, f"expected a list of values (got {show_value(given)})"))
        else:
            axes[name] = [Value(value, {name: value}, keys) for value in given]
    if file.budget is not None:
        for name in ("t_sum", "alpha", "beta"):
            amounts = getattr(file.budget, name)
            axes[f"budget.{name}"] = [Value(amount, {}, ("budget", name)) for amount in amounts]
    for values in axes.values():
        seen: set[str] = set()
        for value in values:
            text = _encode(value.fact)
            if text in seen:
                found.append((value.keys, f"given twice on one axis: {show_fact(value.fact)} (label it apart)"))
            seen.add(text)
    return axes


def _read_value(axis: str, value: Any, keys: Keys) -> Value:
    if isinstance(value, TaskItem):
        given = {name: getattr(value, name) for name in value.model_fields_set if name != "label"}
        return Value(value.label, given, keys)
    if isinstance(value, DataItem | NamedItem):
        own = value.get_own() if isinstance(value, MethodItem) else {}
        return Value(_label(value), {axis: value, **own}, keys)
    return Value(value, {axis: value}, keys)


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
    file: ExperimentFile,
    swept: Sequence[str],
    chosen: Mapping[str, Value],
    unused: Mapping[str, Unused],
    found: Found,
) -> Point | None:
    """Makes a point; returns None, with the faults in `found`, where it is not possible."""
    settings = Settings.gather(file, chosen)
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
    num_found = len(found)
    spec = _make_spec(settings, chosen["method"].keys, plan, file.budget is not None, unused["method"], found)
    attack = _make_attack(settings, chosen["attack"].keys if "attack" in chosen else (), unused["attack"], found)
    if spec is None or len(found) > num_found:
        return None
    if attack is not None and misfit is None:
        misfit = _explain_misfit(attack, spec)
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
    config |= {} if attack is None else {"attack": attack.to_mapping()}  # ids of runs without one stay as they were
    config |= {} if values["max_loss_ratio"] is None else {"max_loss_ratio": values["max_loss_ratio"]}
    config |= {} if values["participation"] in (None, 1) else {"participation": values["participation"]}
    config |= {name: values[name] for name, usual in MEASURED.items() if values[name] not in (None, usual)}
    if attack is not None and "participation" in config:
        keys = chosen["attack"].keys if "attack" in chosen else ("base", "participation")
        found.append((keys, "expected no attack beside a participation below 1"))
        return None
    facts = _list_facts(config, settings, scheme.to_mapping())
    run = None if misfit else Run(compute_id(config), _describe(facts, swept), config, spec.sharing_heights)
    return Point(facts, run, plan, misfit)


def _make_spec(
    settings: Settings, keys: Keys, plan: BudgetPlan | None, budgeted: bool, unused: Unused, found: Found
) -> MethodSpec | None:
    """Makes the method with all its settings; returns None, with the faults in `found`, where it is not possible."""
    part = settings.method
    known = _list_settings(part.own["name"][0])
    if known is None:
        known = frozenset()  # an unknown method: making the spec reports it
    unused.note(part, known)
    if _find_given_twice("method", part, found):
        return None
    given = part.choose(known)
    if budgeted:
        timed = [key for key in ("local_iterations", "local_epochs") if key in given]
        found += [(given[key][1], "expected none beside a budget, which local iterations follow from") for key in timed]
        if timed:
            return None
        given["local_iterations"] = (plan.local_iterations if plan else 1, ("budget",))
    try:
        mapping = {key: value for key, (value, _) in given.items()}
        return get_simulated_spec(mapping, *_TASK, rounds=settings.values["rounds"], input_=settings.values["input"])
    except SpecError as error:
        key = error.path.removeprefix("method.")
        place = given[key][1] if key in given else keys
        found.append((place if key != "name" else keys, error.message))
        return None


def _make_attack(settings: Settings, keys: Keys, unused: Unused, found: Found) -> Attack | None:
    """Makes the attack with all its settings; returns None where there is none, or, with the faults in `found`, where
    it is not possible."""
    part = settings.attack
    name = part.own["name"][0] if part.own else NO_ATTACK
    if name == NO_ATTACK:
        unused.note(part, ())
        found += [
            (place, "expected no settings of an attack that is none")
            for key, (_, place) in part.own.items()
            if key != "name"
        ]
        return None
    known = ATTACKS[name].keys() if name in ATTACKS else ()
    unused.note(part, known)
    if _find_given_twice("attack", part, found):
        return None
    given = part.choose(known)
    try:
        attack = read_attack({key: value for key, (value, _) in given.items()})
        attack.check_liars(settings.values["clients"])
    except SpecError as error:
        key = error.path.removeprefix("attack.")
        found.append((given[key][1] if key in given and key != "name" else keys, error.message))
        return None
    return attack


def _find_given_twice(section: str, part: Part, found: Found) -> bool:
    """Says whether any setting is both fixed in its own entry and swept; if so, adds it to `found`."""
    twice = part.list_given_twice()
    found += [(part.own[key][1], f"expected it here or in sweep.{section}.{key}, not in both") for key in twice]
    return bool(twice)


def _explain_misfit(attack: Attack, spec: MethodSpec) -> str | None:
    """Returns why this attack does not apply to this method; in a sweep of both that is no fault."""
    try:
        check_fits(attack, spec)
    except SpecError as error:
        return error.message
    return None


def _find_unfit_attacks(axes: Mapping[str, Sequence[Value]], points: Sequence[Point]) -> Found:
    """Finds attacks that apply to no method of the sweep."""
    unfit: dict[str, str | None] = {}
    for point in points:
        if "attack" in point.facts and not (point.misfit and point.budget is None and "budget.beta" in axes):
            name = show_fact(point.facts["attack"])
            unfit[name] = point.misfit and unfit.get(name, point.misfit)
    values = {show_fact(value.fact): value for value in axes.get("attack", ())}
    return [(values[name].keys, f"fits no method here: {why}") for name, why in unfit.items() if why]


def _find_lost_devices(points: Iterable[Point]) -> Found:
    """Finds tasks that set different devices for the same run, which is made once."""
    devices: dict[str, str] = {}
    for point in points:
        if point.run is not None:
            device = point.run.config["device"]
            if (first := devices.setdefault(point.run.id, device)) != device:
                names = f"{show_fact(point.facts['task'])} on {device}"
                return [(("sweep", "task"), f"{names} is a run that another task has on {first}: expected one device")]
    return []


def read_method(method: Mapping[str, Any], rounds: int) -> MethodSpec:
    """Reads the method of a run's configuration. Raises SpecError."""
    return get_simulated_spec(method, *_TASK, rounds=rounds)


@cache
def _list_settings(method: str) -> frozenset[str] | None:
    """Lists the keys of a method's settings; None for an unknown method."""
    try:
        return frozenset(get_simulated_spec({"name": method}, *_TASK, rounds=1).hyperparameters.keys())
    except SpecError:
        return None


def _find(file: ExperimentFile, chosen: Mapping[str, Value], name: str) -> Keys:
    """Returns where a key of `base` was written: in the task, or in `base` itself."""
    task = chosen.get("task")
    return (*task.keys, name) if task is not None and name in task.sets else ("base", name)


def _list_facts(config: Mapping[str, Any], settings: Settings, partition: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "data": _label(settings.values["data"]),
        "model": _label(settings.values["model"]),
        **{name: config[name] for name in ("partition", "clients", "shots", "seed", "device")},
        "rounds": settings.values["rounds"],
        **{name: config[name] for name in MEASURED if name in config},
        "participation": 1.0 if settings.values["participation"] is None else settings.values["participation"],
    }
    for section in ("method", "model", "data", "attack"):
        facts |= {f"{section}.{key}": value for key, value in flatten(config.get(section, {})).items()}
    facts |= {f"partition.{key}": value for key, value in partition.items()}
    facts |= settings.facts
    return facts | {"partition": config["partition"], "shots": "all" if config["shots"] is None else config["shots"]}


def _describe(facts: Mapping[str, Any], axes: Iterable[str]) -> str:
    """Returns a run in a few words: its method first, then its values on the other axes."""
    named = {"seed": "seed {}", "rounds": "R {}", "clients": "{} clients", "shots": "{} shots"}
    named |= {"participation": "{} present"}
    parts = [show_fact(facts["method"])]
    for axis in (*(axis for axis in axes if axis not in ("method", "seed")), "seed"):
        text = show_fact(facts[axis])
        section, _, key = axis.rpartition(".")
        parts.append(named[axis].format(text) if axis in named else f"{key} {text}" if section else text)
    return ", ".join(parts)


# ---- names


def compute_id(config: Mapping[str, Any]) -> str:
    """Computes the id of a run: a digest of everything that its numbers depend on, including this version of the
    package. The device is left out: a run has the same id wherever it is made, the one it has on a CPU."""
    whole = {"format": FORMAT, "fednode": VERSION, "config": forget_device(config)}
    return hashlib.sha256(_encode(whole).encode("utf-8")).hexdigest()[:ID_CHARS]


def forget_device(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with the device that ids are computed for."""
    return {**config, "device": "cpu"}


def _encode(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def show_fact(value: Any) -> str:
    """Returns a value of an axis as tables and labels show it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "-".join(show_fact(item) for item in value) if value else "none"
    return str(value)
