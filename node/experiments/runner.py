"""Runs an experiment: the missing runs, in parallel processes. Each result is kept as soon as it is there.

A directory belongs to one process at a time, or to shards of one sweep. It holds the file as it was run, a result for
each run, and the state of runs under way. After any interruption the next call goes on with the runs that have no
result, each from its last state.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from node.config.yaml_source import dump_yaml
from node.errors import ConfigError, NodeError
from node.experiments.claims import CLAIMS, Claims, SharedPieces, remove_claims
from node.experiments.embeddings import list_snapshot_runs
from node.experiments.gpus import Gpus
from node.experiments.piece import Outcome, Piece, Saved, describe_end, make_config, simulate_run
from node.experiments.plan import Experiment, Run
from node.experiments.pool import Advanced, Died, Elsewhere, Event, Finished, Listed, Pieces, work_through
from node.experiments.ray_pool import work_through_ray
from node.experiments.results import (
    EXPERIMENT,
    BrokenResult,
    Result,
    compute_fingerprint,
    copy_result,
    get_state_path,
    list_numbers,
    read_document,
    read_result,
    remove_leftovers,
    write_result,
    write_whole,
)
from node.experiments.stock import take_stock

_log = logging.getLogger(__name__)

SAVE_EVERY_S = 60.0
OTHER_SHARD = "another shard"
_LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of a shared folder that has none


@dataclass(frozen=True, slots=True)
class Progress:
    """One more round of `run`; or its end: in `seconds`, well or with an error, or by what another experiment has."""

    run: Run
    done: bool = False
    error: str | None = None
    best_taa: float | None = None
    seconds: float = 0.0
    taken_from: str | None = None

    @classmethod
    def from_result(cls, run: Run, result: Result, taken_from: str) -> Self:
        """The end of a run that somebody else has made."""
        return cls(run, True, result.error, result.best_taa, result.seconds, taken_from)


def validate_runs(runs: Sequence[Run], data_root: Path) -> None:
    """Raise ConfigError where data, model, input and method do not fit each other, before anything is started."""
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
    """The machines that runs are made on: this one's processes, of which each sees one of `gpus` if there are some; or
    the Ray cluster at `ray`, where a run has `gpu_share` of a GPU. `shard` is i of n that share the directory. Every
    `save_every_s` a run's state is kept beside the results; of one on a Ray cluster none is."""

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
    before: Mapping[str, str | None] | None = None,
) -> Iterator[Progress]:
    """Do `runs`, `jobs` at a time, and keep what comes of each; what the experiments named in `reuse` have finished is
    taken over first. Paths are relative to `data_root`. `before` are the fingerprints of the runs' files when `runs`
    were chosen: what another shard has written since is not done again. By default they are taken now.

    Raises NodeError where results cannot be kept, or another process is at work in `directory`.
    """
    with _locked(directory, is_shared=where.shard is not None):
        if where.shard is None:
            remove_leftovers(directory)
            remove_claims(directory / CLAIMS)
        _keep_file(experiment, directory)
        known = before if before is not None else {run.id: compute_fingerprint(directory, run.id) for run in runs}

        def is_done(name: str) -> bool:
            found = compute_fingerprint(directory, name)
            return found is not None and found != known[name]

        taken = set()
        for news in _take_over(experiment, directory, [run for run in runs if not is_done(run.id)]):
            taken.add(news.run.id)
            yield news
        runs = [run for run in runs if run.id not in taken]
        shown = list_snapshot_runs(experiment)
        saved = None if where.ray else Saved(directory, where.save_every_s)
        pieces = [Piece(run, data_root, shown.get(run.id, ()), where.device, saved) for run in runs]
        if where.shard is None:
            yield from _keep_all(directory, runs, _start(Listed(pieces), jobs, where, should_stop))
        else:
            yield from _share(directory, runs, pieces, jobs, where, should_stop, is_done)


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
    is_done: Callable[[str], bool],
) -> Iterator[Progress]:
    """As one of several processes that claim runs from each other, and are done when all are."""
    assert where.shard is not None  # noqa: S101 - asked before

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
                taa = [row["taa"] for row in document.get("rounds", ()) if row["taa"] is not None]
                error = document.get("error")
                first = _read_finished(directory, run)
                if first is not None and is_done(run.id):
                    _compare(run, first, document)
                elif first is None or error is None:
                    write_result(directory, run, document, kept)
                get_state_path(directory, run.id).unlink(missing_ok=True)
                yield Progress(run, True, error, max(taa, default=None), document["seconds"])
            case Died(_, why):
                if _read_finished(directory, run) is None:
                    write_result(directory, run, {"error": why, **describe_end(0.0)})
                yield Progress(run, True, why)
            case Elsewhere():
                yield _read_progress(directory, run)


def _compare(run: Run, first: Result, document: Mapping[str, Any]) -> None:
    """Two have done a run: the first result stands, and both should say the same."""
    if "error" not in document and list_numbers(first) != list_numbers(read_document(run, document)):
        _log.warning("%s: came to other numbers in another process, whose are kept", run.label)


def _read_progress(directory: Path, run: Run) -> Progress:
    """The end of a run that somebody else has made."""
    try:
        result = read_result(directory, run)
    except BrokenResult as error:
        return Progress(run, True, str(error), taken_from=OTHER_SHARD)
    if result is None:
        return Progress(run, True, taken_from=OTHER_SHARD)
    return Progress.from_result(run, result, OTHER_SHARD)


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
            yield Progress.from_result(run, stock.finished[run.id], name)


def _read_finished(directory: Path, run: Run) -> Result | None:
    """The result there is already, whose place no failure takes: one that lacks something, or of somebody else."""
    try:
        result = read_result(directory, run)
    except BrokenResult:
        return None
    return result if result is not None and result.error is None else None


@contextmanager
def _locked(directory: Path, *, is_shared: bool) -> Iterator[None]:
    """Meanwhile no other process is at work in the directory; or, shared, none but those that share it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("a+")  # NFS gives shared locks on files that can be read alone
    except OSError as error:
        raise NodeError(f"{directory}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeError(f"{directory}: another process is running an experiment there") from error
        except OSError as error:
            if not (is_shared and error.errno in _NO_LOCKS):  # shards do without, since they have claims
                raise NodeError(f"{directory}: cannot be locked ({error.strerror})") from error
        yield


def _keep_file(experiment: Experiment, directory: Path) -> None:
    """The file as it was run, overrides applied, so that a report needs the directory alone."""
    text = f"# {experiment.source.path.name}, as it was run.\n{dump_yaml(experiment.source.value)}"
    write_whole(directory / EXPERIMENT, text.encode("utf-8"))
