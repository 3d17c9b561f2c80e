"""Runs an experiment: the missing runs, in parallel processes. Each result is kept as soon as it is there.

A directory belongs to one process at a time, or to the shards of one sweep, of which each has runs of its own. It holds
the file as it was run, a result for each run, and the state of runs under way. After any interruption the next call
goes on with the runs that have no result, each from its last state.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.config.yaml_source import dump_yaml
from node.errors import ConfigError, NodeError
from node.experiments.embeddings import list_snapshot_runs
from node.experiments.piece import Outcome, Piece, Saved, describe_end, make_config, simulate_run
from node.experiments.plan import Experiment, Run
from node.experiments.pool import Advanced, Died, Event, Finished, work_through
from node.experiments.ray_pool import work_through_ray
from node.experiments.results import (
    EXPERIMENT,
    BrokenResult,
    copy_result,
    get_state_path,
    read_result,
    remove_leftovers,
    write_result,
    write_whole,
)
from node.experiments.stock import take_stock

SAVE_EVERY_S = 60.0
_LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of a shared folder that has no locks


@dataclass(frozen=True, slots=True)
class Progress:
    """An event: `run` has made one more round, or it has ended, after `seconds`, with or without an error, or because
    another experiment has its result."""

    run: Run
    done: bool = False
    error: str | None = None
    best_taa: float | None = None
    seconds: float = 0.0
    taken_from: str | None = None


def validate_runs(runs: Sequence[Run], data_root: Path) -> None:
    """Raises ConfigError where data, model, input and method do not fit each other, before any run starts."""
    from ml.data import get_classes
    from ml.errors import DataError, SpecError
    from ml.specs import get_simulated_spec

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
            get_simulated_spec(
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
    """The machines that make runs: this one's processes, on one GPU each where `environments` names them; or the Ray
    cluster at `ray`, where a run has `gpu_share` of a GPU. With `is_shared` other shards work in the same directory.
    Every `save_every_s` a run's state is saved beside the results; on a Ray cluster it is not."""

    environments: Sequence[Mapping[str, str]] = ()
    ray: str | None = None
    gpu_share: float = 0.0
    is_shared: bool = False
    save_every_s: float = SAVE_EVERY_S

    @property
    def device(self) -> str | None:
        """The device in place of the file's; None for the file's own."""
        return "cuda" if self.environments or self.gpu_share else None


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
    """Makes `runs`, `jobs` at a time, and keeps the outcome of each; what the experiments named in `reuse` have
    finished is copied first. Paths are relative to `data_root`.

    Raises NodeError where results cannot be kept, or another process works in `directory`.
    """
    with _locked(directory, is_shared=where.is_shared):
        if not where.is_shared:
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
        yield from _keep_all(directory, runs, _start(pieces, jobs, where, should_stop))


def _start(pieces: Sequence[Piece], jobs: int | None, where: Where, should_stop: Callable[[], bool]) -> Iterator[Event]:
    if where.ray is not None:
        share = where.gpu_share
        return work_through_ray(pieces, simulate_run, where.ray, jobs=jobs, gpu_share=share, should_stop=should_stop)
    jobs = jobs or len(where.environments) or len(os.sched_getaffinity(0))
    return work_through(pieces, simulate_run, jobs, should_stop, where.environments or ({},))


def _keep_all(directory: Path, runs: Sequence[Run], events: Iterable[Event]) -> Iterator[Progress]:
    """Keeps the outcome of each run, then removes its state; yields the progress."""
    furthest: dict[int, int] = {}
    for event in events:
        run = runs[event.index]
        match event:
            case Advanced(index, height):
                if height > furthest.get(index, 0):  # a run that resumes or restarts reports earlier rounds again
                    furthest[index] = height
                    yield Progress(run)
            case Finished(_, Outcome(document, kept)):
                taa = [row["taa"] for row in document.get("rounds", ()) if row["taa"] is not None]
                error = document.get("error")
                if error is None or not _is_finished(directory, run):
                    write_result(directory, run, document, kept)
                get_state_path(directory, run.id).unlink(missing_ok=True)
                yield Progress(run, True, error, max(taa, default=None), document["seconds"])
            case Died(_, why):
                if not _is_finished(directory, run):
                    write_result(directory, run, {"error": why, **describe_end(0.0)})
                yield Progress(run, True, why)


def _take_over(experiment: Experiment, directory: Path, runs: Sequence[Run]) -> Iterator[Progress]:
    """Copies those of `runs` that another experiment has finished, with all that this one's report needs."""
    wanted = {run.id: run for run in runs}
    for name in experiment.file.reuse:
        source = directory.parent / name
        if source.resolve() == directory.resolve():
            continue
        stock = take_stock(experiment, source)
        for run_id in [one for one in wanted if one in stock.finished.keys() - stock.lacking]:
            run, result = wanted.pop(run_id), stock.finished[run_id]
            copy_result(source, directory, run)
            yield Progress(run, True, None, result.best_taa, result.seconds, name)


def _is_finished(directory: Path, run: Run) -> bool:
    """Says whether a run has a result that a failure must not replace: a finished one that merely lacks a field."""
    try:
        result = read_result(directory, run)
    except BrokenResult:
        return False
    return result is not None and result.error is None


@contextmanager
def _locked(directory: Path, *, is_shared: bool) -> Iterator[None]:
    """Locks the directory until the context is left: no other process may work in it, or, shared, only other shards."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("a+")  # NFS gives shared locks only on files that can be read
    except OSError as error:
        raise NodeError(f"{directory}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeError(f"{directory}: another process is running an experiment there") from error
        except OSError as error:
            if not (is_shared and error.errno in _NO_LOCKS):  # a shard needs no lock here: each has runs of its own
                raise NodeError(f"{directory}: cannot be locked ({error.strerror})") from error
        yield


def _keep_file(experiment: Experiment, directory: Path) -> None:
    """Keeps the file as it was run, overrides applied, so that a report needs only the directory."""
    text = f"# {experiment.source.path.name}, as it was run.\n{dump_yaml(experiment.source.value)}"
    write_whole(directory / EXPERIMENT, text.encode("utf-8"))
