"""The results of an experiment in a directory, and the runs that are still to be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ml.specs.methods.uapdfl import MAX_PAIRED
from node.experiments.contents import list_needed_fields, needs_divergences
from node.experiments.embeddings import Snapshots, list_snapshot_runs
from node.experiments.plan import Experiment, Run
from node.experiments.results import BrokenResult, Kept, Result, read_result, read_snapshot


@dataclass(frozen=True, slots=True)
class Stock:
    """The results of an experiment in a directory: its finished and failed runs by id, and why other files are not
    results.

    `lacking` are finished runs that lack what the report needs: a snapshot, the time they trained, or the bytes they
    received.
    """

    finished: Mapping[str, Result]
    failed: Mapping[str, Result]
    broken: Mapping[str, str]
    snapshots: Snapshots
    lacking: frozenset[str]

    def list_pending(self, experiment: Experiment, shard: tuple[int, int] = (1, 1)) -> list[Run]:
        """Lists the runs that shard i of n still has to make, failed, broken and lacking ones included."""
        done = self.finished.keys() - self.lacking
        return [run for run in experiment.list_shard(shard) if run.id not in done]


def take_stock(experiment: Experiment, directory: Path) -> Stock:
    """Reads the results there are."""
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
