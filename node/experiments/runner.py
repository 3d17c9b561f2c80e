"""Running an experiment: what is not finished yet, in parallel processes, each result kept as soon as it is there.

A directory belongs to one process at a time. It holds the file as it was run, and a result for each run; whatever stops
the work, the next call goes on with the runs that have none.
"""

from __future__ import annotations

import fcntl
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import ConfigError, NodeError
from node.experiments.plan import Experiment, Run
from node.experiments.pool import Advanced, Died, Finished, Report, work_through
from node.experiments.results import BrokenResult, Result, read_result, remove_leftovers, write_result
from node.machine import get_machine
from node.yaml_source import dump_yaml

if TYPE_CHECKING:
    from ml.simulation import SimulationConfig

EXPERIMENT = "experiment.yaml"
_LOCK = ".lock"
_LAST_FRAMES = 3


# ---- what there is


@dataclass(frozen=True, slots=True)
class Stock:
    """What a directory holds of an experiment: its finished and failed runs by id, and why other files are none."""

    finished: Mapping[str, Result]
    failed: Mapping[str, Result]
    broken: Mapping[str, str]

    def list_pending(self, experiment: Experiment) -> list[Run]:
        """What is still to be run, failed and broken ones included."""
        return [run for run in experiment.runs.values() if run.id not in self.finished]


def take_stock(experiment: Experiment, directory: Path) -> Stock:
    """Read the results there are."""
    finished: dict[str, Result] = {}
    failed: dict[str, Result] = {}
    broken: dict[str, str] = {}
    for run in experiment.runs.values():
        try:
            result = read_result(directory, run)
        except BrokenResult as error:
            broken[run.id] = str(error)
            continue
        if result is not None:
            (finished if result.error is None else failed)[run.id] = result
    return Stock(finished, failed, broken)


# ---- what is to be


@dataclass(frozen=True, slots=True)
class Progress:
    """One more round of `run`; or its end: in `seconds`, well or with an error."""

    run: Run
    done: bool = False
    error: str | None = None
    best_taa: float | None = None
    seconds: float = 0.0


def validate_runs(runs: Sequence[Run], data_root: Path) -> None:
    """Raise ConfigError where data, model, input and method do not fit each other, before anything is started."""
    from ml.data import get_classes
    from ml.errors import DataError, SpecError
    from ml.specs import get_spec

    looked_at: dict[str, tuple[int, Mapping[str, Any]]] = {}  # classes and input: a data set is opened once
    checked: set[str] = set()
    for run in runs:
        place = repr([run.config[key] for key in ("data", "model", "input")])
        whole = repr((place, run.config["method"]))
        if whole in checked:
            continue
        checked.add(whole)
        try:
            config = make_config(run, data_root) if place not in looked_at else None
            if config is not None:
                looked_at[place] = (len(get_classes(config.data)), config.input or {})
            num_classes, input_ = looked_at[place]
            get_spec(run.config["method"], run.config["model"], num_classes, input_["shape"], rounds=run.num_rounds)
        except (DataError, SpecError) as error:
            raise ConfigError(f"{run.label}: {error}") from error


def run_experiment(
    experiment: Experiment,
    directory: Path,
    runs: Sequence[Run],
    *,
    jobs: int,
    data_root: Path,
    should_stop: Callable[[], bool],
) -> Iterator[Progress]:
    """Do `runs`, `jobs` at a time, and keep what comes of each. Paths are relative to `data_root`.

    Raises NodeError where results cannot be kept, or another process is at work in `directory`.
    """
    with _only_one(directory):
        remove_leftovers(directory)
        _keep_file(experiment, directory)
        pieces = [(run, data_root) for run in runs]
        for event in work_through(pieces, simulate_run, jobs, should_stop):
            run = runs[event.index]
            match event:
                case Advanced():
                    yield Progress(run)
                case Finished(_, outcome):
                    write_result(directory, run, outcome)
                    taa = [row["taa"] for row in outcome.get("rounds", ())]
                    error = outcome.get("error")
                    yield Progress(run, True, error, max(taa, default=None), outcome["seconds"])
                case Died(_, why):
                    write_result(directory, run, {"error": why, **_describe_end(0.0)})
                    yield Progress(run, True, why)


def make_config(run: Run, data_root: Path) -> SimulationConfig:
    """What to simulate, its paths made absolute. Raises DataError."""
    from ml.simulation import SimulationConfig

    data, pretrained = dict(run.config["data"]), run.config["pretrained"]
    if isinstance(data.get("path"), str):
        data["path"] = str(data_root / Path(data["path"]).expanduser())
    if pretrained is not None:
        pretrained = str(data_root / Path(pretrained).expanduser())
    return SimulationConfig(**{**run.config, "data": data, "pretrained": pretrained})


def simulate_run(piece: tuple[Run, Path], report: Report) -> dict[str, Any]:
    """One run in a process of its own: the document that is kept of it, whatever happened."""
    from ml.errors import MlError
    from ml.simulation import simulate

    run, data_root = piece
    began_s = time.monotonic()
    try:
        result = simulate(make_config(run, data_root), on_round=lambda row: report(row.round))
    except MlError as error:
        return {"error": str(error), **_describe_end(time.monotonic() - began_s)}
    except Exception as error:  # noqa: BLE001 - a fault in one run is that run's result; the others go on
        frames = traceback.format_tb(error.__traceback__)[-_LAST_FRAMES:]
        said = f"{type(error).__name__}: {error}\n{''.join(frames)}".rstrip()
        return {"error": said, **_describe_end(time.monotonic() - began_s)}
    return {
        "input": result.config.input,
        "rounds": [row.to_json() for row in result.rounds],
        "clients": [asdict(client) for client in result.clients],
        **_describe_end(result.seconds, run.config["device"]),
    }


def _describe_end(seconds: float, device: str | None = None) -> dict[str, Any]:
    machine = get_machine()
    if device is not None:
        import torch

        machine |= {"torch": torch.__version__.partition("+")[0], "device": _name_device(device)}
    return {"seconds": round(seconds, 3), "finished": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "machine": machine}


def _name_device(device: str) -> str:
    import torch

    from ml.clients import get_device

    place = get_device(device)
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("w")
    except OSError as error:
        raise NodeError(f"{directory}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeError(f"{directory}: another process is running an experiment there") from error
        yield


def _keep_file(experiment: Experiment, directory: Path) -> None:
    """The file as it was run, overrides applied, so that a report needs the directory alone."""
    path = directory / EXPERIMENT
    text = f"# {experiment.source.path.name}, as it was run.\n{dump_yaml(experiment.source.value)}"
    path.write_text(text, encoding="utf-8")
