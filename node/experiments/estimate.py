"""An estimate of an experiment before it is run: steps, and hours on the devices at hand.

Steps are counted: samples are dealt as each run would deal them. Seconds are measured. Of runs like finished ones in
the directory, made on such a machine, by those; of others by timing plain steps and answers of their model on their
data here, for a moment. What a method does beside plain steps is not in the latter, nor what exchanging costs.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml.tasks import CLASSIFICATION
from node.experiments.local_work import count_all_work
from node.experiments.measured import name_device, read_clock
from node.experiments.plan import Run, forget_device
from node.experiments.results import Result
from node.host.machine import get_machine

if TYPE_CHECKING:
    from ml.clients.client import Client

ENOUGH_S = 0.5  # for which steps are timed, at least
MAX_STEPS = 200
_SEED, _BEACON = 1, bytes(32)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a run: `steps` of all clients, an encryptor's among them, and `answers`, the samples classified for
    measurements."""

    steps: int
    answers: int


@dataclass(frozen=True, slots=True)
class Speed:
    """The seconds that a step and an answer take on a device."""

    step_s: float
    answer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimate of runs that differ only in seed, partition, rounds and settings. `seconds` are those of one process
    on each device; None, with the cause in `reason`, where the data or the device are missing. `measured` are the
    devices that finished runs were made on."""

    label: str
    runs: int
    heights: int
    steps: int | None
    seconds: Mapping[str, float | None]
    measured: frozenset[str]
    reason: str | None = None


def estimate(
    runs: Sequence[Run],
    finished: Iterable[Result],
    devices: Sequence[str],
    data_root: Path,
    report: Callable[[str], None],
) -> list[Estimate]:
    """Returns the estimates of `runs`, in their order, from finished results and from timing."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(_get_kind(run.config), []).append(run)
    known = _measure_finished(finished)
    clock = _Clock(data_root, report)
    found = [_estimate(own, known.get(kind, {}), devices, clock) for kind, own in kinds.items()]
    alike: dict[tuple[str, frozenset[str], str | None], Estimate] = {}
    for own in found:
        key = (own.label, own.measured, own.reason)
        alike[key] = _add(alike[key], own) if key in alike else own
    return list(alike.values())


def _add(one: Estimate, other: Estimate) -> Estimate:
    """Adds two estimates of runs that differ in settings alone, which share a line of the output."""
    pairs = {device: (one.seconds[device], other.seconds[device]) for device in one.seconds}
    return replace(
        one,
        runs=one.runs + other.runs,
        heights=one.heights + other.heights,
        steps=None if one.steps is None or other.steps is None else one.steps + other.steps,
        seconds={name: None if a is None or b is None else a + b for name, (a, b) in pairs.items()},
    )


def _estimate(runs: Sequence[Run], known: Mapping[str, float], devices: Sequence[str], clock: _Clock) -> Estimate:
    from ml.errors import MlError

    heights, first = sum(run.num_heights for run in runs), runs[0]
    label = f"{_describe_data(first)}, {first.config['model']['name']}, {first.config['method']['name']}"
    seconds: dict[str, float | None] = dict.fromkeys(devices)
    measured: set[str] = set()
    steps, reason = None, None
    try:
        works = [clock.count(run) for run in runs]
        steps = sum(work.steps for work in works)
        for device in devices:
            if (name := name_device(device)) in known:
                seconds[device] = heights * known[name]
                measured.add(device)
            else:
                speed = clock.measure(first, device)
                answers = sum(work.answers for work in works)
                seconds[device] = steps * speed.step_s + answers * speed.answer_s
    except MlError as error:
        reason = str(error)
    return Estimate(
        label=label,
        runs=len(runs),
        heights=heights,
        steps=steps,
        seconds=seconds,
        measured=frozenset(measured),
        reason=reason,
    )


def _get_kind(config: Mapping[str, Any]) -> str:
    """Returns the part of a configuration that decides how long a height takes."""
    own = {key: value for key, value in forget_device(config).items() if key not in ("seed", "partition", "rounds")}
    return json.dumps(own, sort_keys=True)


def _describe_data(run: Run) -> str:
    data = run.config["data"]
    return Path(data["path"]).name if data.get("path") else str(data["format"])


def _measure_finished(finished: Iterable[Result]) -> dict[str, dict[str, float]]:
    """Returns the median seconds of a height by kind and device, from results made on a machine like this one."""
    cpu = get_machine()["cpu"]
    found: dict[str, dict[str, list[float]]] = {}
    for result in finished:
        num = len(result.rounds) + len(result.sharing)
        if num and result.machine.get("cpu") == cpu and (device := result.machine.get("device")):
            found.setdefault(_get_kind(result.config), {}).setdefault(device, []).append(result.seconds / num)
    return {kind: {name: statistics.median(own) for name, own in by.items()} for kind, by in found.items()}


class _Clock:
    """Counts the work and times the steps of runs, each kind once."""

    def __init__(self, data_root: Path, report: Callable[[str], None]) -> None:
        self._data_root = data_root
        self._report = report
        self._dealt: dict[str, _Dealt] = {}
        self._speeds: dict[str, Speed] = {}

    def count(self, run: Run) -> Work:
        """Counts the work of a run. Raises MlError, also where the data are missing."""
        names = ("data", "input", "partition", "clients", "seed", "shots", "test_samples")
        key = json.dumps({name: run.config.get(name) for name in names}, sort_keys=True)
        if key not in self._dealt:
            self._dealt[key] = _deal(run, self._data_root)
        return _count(run, self._dealt[key])

    def measure(self, run: Run, device: str) -> Speed:
        config = run.config
        work = {name: config[name] for name in ("data", "model", "input", "pretrained")}
        key = json.dumps([work, config["method"]["batch_size"], device], sort_keys=True)
        if key not in self._speeds:
            self._report(f"timing {config['model']['name']} on {_describe_data(run)}, {device}")
            self._speeds[key] = _measure(run, self._data_root, device)
        return self._speeds[key]


@dataclass(frozen=True, slots=True)
class _Dealt:
    """The number of training and of test samples of each client, of all test samples, and of classes."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    everyone: int
    num_classes: int


def _deal(run: Run, data_root: Path) -> _Dealt:
    from ml.data import open_labels
    from ml.data.fewer_tests import keep_test_labels
    from ml.data.partition import make_partition
    from ml.seeding import get_partition_seed
    from node.experiments.piece import make_config

    config = make_config(run, data_root)
    known = open_labels(config.data)
    seed = get_partition_seed(config.seed)
    test_y, domains = keep_test_labels(known.test_y, known.domains, config.test_samples, seed)
    splits = make_partition(config.partition, known.train_y, test_y, config.clients, seed, config.shots, domains)
    train, test = (tuple(len(getattr(split, part)) for split in splits) for part in ("train", "test"))
    return _Dealt(train, test, len(test_y), len(known.classes))


def _count(run: Run, dealt: _Dealt) -> Work:
    from ml.data import get_default_input
    from ml.specs import get_simulated_spec

    config = run.config
    input_ = config["input"] or get_default_input(config["data"], config["model"], CLASSIFICATION)
    spec = get_simulated_spec(
        config["method"],
        config["model"],
        dealt.num_classes,
        input_["shape"],
        rounds=run.num_heights,
        num_members=config["clients"],
        input_=input_,
    )
    works = [count_all_work(spec, height, dealt.train, config) for height in range(1, run.num_heights + 1)]
    steps = sum(work.steps + work.encryptor_steps for height in works for work in height)
    # the client's own test samples before and after the exchange, and everyone's
    answers = -(-run.num_heights // config.get("eval_every", 1)) * (
        2 * sum(dealt.test) + config["clients"] * dealt.everyone
    )
    return Work(steps, answers)


def _measure(run: Run, data_root: Path, device: str) -> Speed:
    """Times a client that has all of the data and trains without any method."""
    from ml.clients.build import Compute, Federation, make_client, make_initial_aggregate
    from ml.data import get_classes
    from ml.simulation.run import use_threads
    from node.experiments.piece import make_config

    config = make_config(run, data_root, device)
    assert config.input is not None  # noqa: S101 - set when the configuration was made
    classes = get_classes(config.data)
    method = {"name": "local", "batch_size": run.config["method"]["batch_size"], "lr": 1e-6}
    pretrained = None if config.pretrained is None else Path(config.pretrained)
    shape = config.input["shape"]
    initial = make_initial_aggregate(config.model, shape, len(classes), _SEED, pretrained=pretrained)
    with use_threads(1):
        client = make_client(
            Federation(method=method, model=config.model, classes=classes, input=config.input),
            data=config.data,
            seed=_SEED,
            initial=initial,
            compute=Compute(device),
        )
        return Speed(_time_step(client), _time_answers(client))


def _time_step(client: Client) -> float:
    """Returns the seconds of one step. It times more and more of them until that takes long enough, as a GPU's first
    steps are the slowest."""
    num, height, step_s = 2, 1, math.inf
    while True:
        start_s = read_clock(client.device)
        client.run(client.begin(height, _BEACON, num))
        seconds = read_clock(client.device) - start_s
        step_s = min(step_s, seconds / num)
        if seconds >= ENOUGH_S or num >= MAX_STEPS:
            return step_s
        num, height = min(4 * num, MAX_STEPS), height + 1


def _time_answers(client: Client) -> float:
    start_s = read_clock(client.device)
    client.evaluate()
    return (read_clock(client.device) - start_s) / max(client.num_test, 1)
