"""Runs an experiment: the missing runs, in parallel processes. Each result is kept as soon as it is there.

A directory belongs to one process at a time, or to shards of one sweep. It holds the file as it was run, a result for
each run, and the state of runs under way. After any interruption the next call goes on with the runs that have no
result, each from its last state.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ml.specs.uapdfl import MAX_PAIRED
from node.config.yaml_source import dump_yaml
from node.errors import ConfigError, NodeError
from node.experiments.claims import CLAIMS, Claims, SharedPieces
from node.experiments.contents import list_needed_fields, needs_divergences
from node.experiments.embeddings import Snapshots, list_snapshot_runs
from node.experiments.gpus import Gpus
from node.experiments.plan import Experiment, Run, compute_id
from node.experiments.pool import Advanced, Died, Elsewhere, Event, Finished, Listed, Pieces, Report, work_through
from node.experiments.ray_pool import work_through_ray
from node.experiments.results import (
    BrokenResult,
    Kept,
    Result,
    compute_fingerprint,
    copy_result,
    get_state_path,
    list_numbers,
    read_document,
    read_result,
    read_snapshot,
    remove_leftovers,
    write_result,
    write_whole,
)
from node.host.machine import get_machine

if TYPE_CHECKING:
    from ml.simulation.run import SimulationConfig
    from ml.simulation.saved import StateFile

_log = logging.getLogger(__name__)

EXPERIMENT = "experiment.yaml"
SAVE_EVERY_S = 60.0
OTHER_SHARD = "another shard"
_LOCK = ".lock"
_LAST_FRAMES = 3


# ---- what there is


@dataclass(frozen=True, slots=True)
class Stock:
    """The results of an experiment in a directory: its finished and failed runs by id, and why other files are none.

    `lacking` are finished runs without something that the report asks for: a snapshot, the time they trained, or what
    they received.
    """

    finished: Mapping[str, Result]
    failed: Mapping[str, Result]
    broken: Mapping[str, str]
    snapshots: Snapshots
    lacking: frozenset[str]

    def list_pending(self, experiment: Experiment) -> list[Run]:
        """The runs still to be made, failed, broken and lacking ones included."""
        done = self.finished.keys() - self.lacking
        return [run for run in experiment.runs.values() if run.id not in done]


def take_stock(experiment: Experiment, directory: Path) -> Stock:
    """Read the results there are."""
    finished: dict[str, Result] = {}
    failed: dict[str, Result] = {}
    broken: dict[str, str] = {}
    snapshots: dict[tuple[str, int], Kept] = {}
    shown = list_snapshot_runs(experiment)
    needed, paired = list_needed_fields(experiment), needs_divergences(experiment)
    lacking: set[str] = set()
    for run in experiment.runs.values():
        try:
            result = read_result(directory, run)
            if result is None or result.error is not None:
                failed |= {run.id: result} if result is not None else {}
                continue
            finished[run.id] = result
            if any(getattr(row, field) is None for row in (*result.sharing, *result.rounds) for field in needed):
                lacking.add(run.id)
            if paired and any(row.divergence is not None and row.divergences is None for row in result.rounds):
                lacking |= {run.id} if result.num_clients <= MAX_PAIRED else set()
            for client in shown.get(run.id, ()):
                kept = read_snapshot(directory, run, result, client)
                if kept is not None:
                    snapshots[run.id, client] = kept
                else:
                    lacking.add(run.id)
        except BrokenResult as error:
            broken[run.id] = str(error)
            lacking |= {run.id} & finished.keys()
    return Stock(finished, failed, broken, snapshots, frozenset(lacking))


# ---- what is to be


@dataclass(frozen=True, slots=True)
class Progress:
    """One more round of `run`; or its end: in `seconds`, well or with an error, or by what another experiment has."""

    run: Run
    done: bool = False
    error: str | None = None
    best_taa: float | None = None
    seconds: float = 0.0
    taken_from: str | None = None


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
            get_spec(
                run.config["method"],
                run.config["model"],
                num_classes,
                input_["shape"],
                rounds=run.num_heights,
                input_=input_,
            )
        except (DataError, SpecError) as error:
            raise ConfigError(f"{run.label}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The machines that runs are made on: this one's processes, of which each sees one of `gpus` if there are some; or
    the Ray cluster at `ray`, where a run has `gpu_share` of a GPU. `shard` is i of n that share the directory. Every
    `save_every_s` a run's state is kept beside the results, on this machine."""

    gpus: Gpus | None = None
    ray: str | None = None
    gpu_share: float = 0.0
    shard: tuple[int, int] | None = None
    save_every_s: float = SAVE_EVERY_S

    @property
    def device(self) -> str | None:
        """The device in place of the file's; None for that."""
        return "cuda" if self.gpus is not None or self.gpu_share else None


def run_experiment(
    experiment: Experiment,
    directory: Path,
    runs: Sequence[Run],
    *,
    jobs: int | None,
    data_root: Path,
    should_stop: Callable[[], bool],
    where: Where = Where(),
) -> Iterator[Progress]:
    """Do `runs`, `jobs` at a time, and keep what comes of each; what the experiments named in `reuse` have finished is
    taken over first. Paths are relative to `data_root`.

    Raises NodeError where results cannot be kept, or another process is at work in `directory`.
    """
    with _locked(directory, is_shared=where.shard is not None):
        if where.shard is None:
            remove_leftovers(directory)
        _keep_file(experiment, directory)
        taken = set()
        for news in _take_over(experiment, directory, runs):
            taken.add(news.run.id)
            yield news
        runs = [run for run in runs if run.id not in taken]
        shown = list_snapshot_runs(experiment)
        saved = None if where.ray else Saved(directory, where.save_every_s)
        pieces = [Piece(run, data_root, shown.get(run.id, ()), where.device, saved) for run in runs]
        if where.shard is None:
            yield from _keep_all(directory, runs, _start(Listed(pieces), jobs, where, should_stop))
        else:
            yield from _share(directory, runs, pieces, jobs, where, should_stop)


def _start(pieces: Pieces, jobs: int | None, where: Where, should_stop: Callable[[], bool]) -> Iterator[Event]:
    if where.ray is not None:
        share = where.gpu_share
        return work_through_ray(pieces, simulate_run, where.ray, jobs=jobs, gpu_share=share, should_stop=should_stop)
    if where.gpus is None:
        return work_through(pieces, simulate_run, jobs or len(os.sched_getaffinity(0)), should_stop)
    jobs, variables = jobs or where.gpus.jobs, where.gpus.list_variables()
    return work_through(pieces, simulate_run, jobs, should_stop, variables)


def _share(
    directory: Path,
    runs: Sequence[Run],
    pieces: Sequence[Piece],
    jobs: int | None,
    where: Where,
    should_stop: Callable[[], bool],
) -> Iterator[Progress]:
    """As one of several processes that claim runs from each other, and are done when all are."""
    assert where.shard is not None  # noqa: S101 - asked before
    before = {run.id: compute_fingerprint(directory, run.id) for run in runs}

    def is_done(name: str) -> bool:
        return compute_fingerprint(directory, name) != before[name]

    def renew() -> bool:
        claims.renew()
        return should_stop()

    claims = Claims(directory / CLAIMS)
    index, count = where.shard
    shared = SharedPieces(pieces, [run.id for run in runs], claims, is_done, len(runs) * (index - 1) // count)
    try:
        for news in _keep_all(directory, runs, _start(shared, jobs, where, renew), is_done):
            if news.done and news.taken_from is None:
                claims.release(news.run.id)
            yield news
    finally:
        claims.release_all()


def _keep_all(
    directory: Path, runs: Sequence[Run], events: Iterable[Event], is_done: Callable[[str], bool] = lambda name: False
) -> Iterator[Progress]:
    """The progress of the runs, each of which is kept, and then its state no longer; unless somebody else has done it
    meanwhile."""
    furthest: dict[int, int] = {}
    for event in events:
        run = runs[event.index]
        match event:
            case Advanced(index, height):
                if height > furthest.get(index, 0):  # a run that goes on, or begins anew elsewhere, tells all again
                    furthest[index] = height
                    yield Progress(run)
            case Finished(_, Outcome(document, kept)):
                taa = [row["taa"] for row in document.get("rounds", ())]
                error = document.get("error")
                if is_done(run.id):
                    _compare(directory, run, document)
                elif error is None or not _is_finished(directory, run):
                    write_result(directory, run, document, kept)
                get_state_path(directory, run.id).unlink(missing_ok=True)
                yield Progress(run, True, error, max(taa, default=None), document["seconds"])
            case Died(_, why):
                if not is_done(run.id) and not _is_finished(directory, run):
                    write_result(directory, run, {"error": why, **_describe_end(0.0)})
                yield Progress(run, True, why)
            case Elsewhere():
                yield _read_progress(directory, run)


def _compare(directory: Path, run: Run, document: Mapping[str, Any]) -> None:
    """Two have done a run: the first result stands, and both should say the same."""
    try:
        first = read_result(directory, run)
    except BrokenResult:
        return
    if first is None or first.error is not None or "error" in document:
        return
    if list_numbers(first) != list_numbers(read_document(run, document)):
        _log.warning("%s: came to other numbers in another process, whose are kept", run.label)


def _read_progress(directory: Path, run: Run) -> Progress:
    """The end of a run that somebody else has made."""
    try:
        result = read_result(directory, run)
    except BrokenResult as error:
        return Progress(run, True, str(error), taken_from=OTHER_SHARD)
    if result is None:
        return Progress(run, True, taken_from=OTHER_SHARD)
    best_taa = max((row.taa for row in result.rounds), default=None)
    return Progress(run, True, result.error, best_taa, result.seconds, OTHER_SHARD)


def _take_over(experiment: Experiment, directory: Path, runs: Sequence[Run]) -> Iterator[Progress]:
    """Those of `runs` that another experiment has finished, with all that this one's report asks for."""
    wanted = {run.id: run for run in runs}
    for name in experiment.file.reuse:
        source = directory.parent / name
        if source.resolve() == directory.resolve():
            continue
        stock = take_stock(experiment, source)
        found = [run for run in wanted.values() if run.id in stock.finished.keys() - stock.lacking]
        for run in found:
            del wanted[run.id]
            copy_result(source, directory, run)
            result = stock.finished[run.id]
            best_taa = max((row.taa for row in result.rounds), default=None)
            yield Progress(run, True, best_taa=best_taa, seconds=result.seconds, taken_from=name)


def _is_finished(directory: Path, run: Run) -> bool:
    """Whether there is a result already, which lacks something: a failure does not take its place."""
    try:
        result = read_result(directory, run)
    except BrokenResult:
        return False
    return result is not None and result.error is None


def make_config(run: Run, data_root: Path, device: str | None = None) -> SimulationConfig:
    """The configuration of a simulation, its paths made absolute, perhaps on another device. Raises DataError."""
    from ml.simulation.run import SimulationConfig

    data, pretrained = dict(run.config["data"]), run.config["pretrained"]
    if isinstance(data.get("path"), str):
        data["path"] = str(data_root / Path(data["path"]).expanduser())
    if pretrained is not None:
        pretrained = str(data_root / Path(pretrained).expanduser())
    device = device or run.config["device"]
    return SimulationConfig(**{**run.config, "data": data, "pretrained": pretrained, "device": device})


class Saved(NamedTuple):
    """The directory that the states of runs under way are kept in, and how often they are."""

    directory: Path
    every_s: float

    def get_file(self, run: Run) -> StateFile:
        from ml.simulation.saved import StateFile

        return StateFile(get_state_path(self.directory, run.id), run.id, self.every_s)


class Piece(NamedTuple):
    """One run to be done, the directory its paths begin at, of which clients to take snapshots, the device if not the
    file's, and where its state is kept, if it is."""

    run: Run
    data_root: Path
    snapshots: tuple[int, ...]
    device: str | None = None
    saved: Saved | None = None


class Outcome(NamedTuple):
    """The part of a run that is kept."""

    document: Mapping[str, Any]
    kept: Mapping[int, Kept] | None = None


def simulate_run(piece: Piece, report: Report) -> Outcome:
    """One run in a process of its own: what is kept of it, whatever happened."""
    from ml.data import get_classes
    from ml.errors import MlError
    from ml.simulation.run import simulate

    run = piece.run
    began_s = time.monotonic()
    try:
        if compute_id(run.config) != run.id:
            raise MlError(f"another fednode than the one that asks has got run {run.id}: they expect the same version")
        config = make_config(run, piece.data_root, piece.device)
        saved = None if piece.saved is None else piece.saved.get_file(run)
        result = simulate(config, on_round=lambda row: report(row.round), snapshots=piece.snapshots, saved=saved)
        names = get_classes(config.data) if result.snapshots else ()
        kept = {client: Kept(snapshot, names) for client, snapshot in result.snapshots.items()}
    except MlError as error:
        return Outcome({"error": str(error), **_describe_end(time.monotonic() - began_s)})
    except Exception as error:  # noqa: BLE001 - a fault in one run is that run's result; the others go on
        frames = traceback.format_tb(error.__traceback__)[-_LAST_FRAMES:]
        said = f"{type(error).__name__}: {error}\n{''.join(frames)}".rstrip()
        return Outcome({"error": said, **_describe_end(time.monotonic() - began_s)})
    rows = [
        {
            **row.to_json(),
            "round": number,
            "train_s": round(row.train_s, 6),
            "aggregate_s": round(row.aggregate_s, 6),
        }
        for number, row in enumerate(result.rounds, start=1 - run.sharing_heights)
    ]
    document = {
        "input": result.config.input,
        **({"sharing": rows[: run.sharing_heights]} if run.sharing_heights else {}),
        "rounds": rows[run.sharing_heights :],
        "clients": [asdict(client) for client in result.clients],
        **({"priors": [row.to_json() for row in result.priors]} if result.priors else {}),
        **({} if config.attack is None else {"liars": result.liars, "halted_at": result.halted_at}),
        **_describe_end(result.seconds, config.device),
    }
    return Outcome(document, kept)


def _describe_end(seconds: float, device: str | None = None) -> dict[str, Any]:
    machine = get_machine()
    if device is not None:
        import torch

        machine |= {"torch": torch.__version__.partition("+")[0], "device": _name_device(device)}
    return {"seconds": round(seconds, 3), "finished": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "machine": machine}


def _name_device(device: str) -> str:
    import torch

    from ml.clients.build import get_device

    place = get_device(device)
    return torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"


@contextmanager
def _locked(directory: Path, *, is_shared: bool) -> Iterator[None]:
    """Meanwhile no other process is at work in the directory; or, shared, none but those that share it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("w")
    except OSError as error:
        raise NodeError(f"{directory}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeError(f"{directory}: another process is running an experiment there") from error
        except OSError:  # a shared folder that has no locks: shards do without, since they have claims
            if not is_shared:
                raise
        yield


def _keep_file(experiment: Experiment, directory: Path) -> None:
    """The file as it was run, overrides applied, so that a report needs the directory alone."""
    text = f"# {experiment.source.path.name}, as it was run.\n{dump_yaml(experiment.source.value)}"
    write_whole(directory / EXPERIMENT, text.encode("utf-8"))
