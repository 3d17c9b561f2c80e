"""Experiments for tests: small files as text, and results made by hand instead of by training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.clients.embedding_snapshot import Snapshot
from node.experiments.loading import load_experiment
from node.experiments.plan import Experiment, Run
from node.experiments.pool import Report
from node.experiments.results import Kept, write_result

MACHINE = {"cpu": "abacus", "cores": 2, "memory_gib": 1.0, "system": "test", "python": "3", "torch": "2"}


def make_experiment(directory: Path, text: str, *overrides: str) -> Experiment:
    """Makes the experiment that `text` describes."""
    path = directory / "try.yaml"
    path.write_text(text, encoding="utf-8")
    return load_experiment(path, overrides)


def make_document(
    taa: Sequence[float],
    *,
    sent_params: int = 0,
    num_clients: int = 2,
    train_s: Sequence[float] | None = None,
    by_round: Mapping[str, Sequence[float]] | None = None,
    sharing_heights: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """Makes a finished run with this TAA by round; every number weighs four bytes. Without `train_s` it was not timed;
    `by_round` are further fields of its rounds. The first `sharing_heights` come before round 1."""
    rounds = [
        {
            "round": r,
            "taa": value,
            "tal": 1.0 - value,
            "taa_local": value / 2,
            "global": value / 4,
            "tal_global": 2.0,
            "sent_params": sent_params,
            "sent_bytes": 4 * sent_params,
        }
        for r, value in enumerate(taa, start=1 - sharing_heights)
    ]
    series = {**(by_round or {}), **({} if train_s is None else {"train_s": train_s})}
    for name, values in series.items():
        for row, value in zip(rounds, values, strict=True):
            row[name] = value
    client = {"accuracy": taa[-1], "global_accuracy": taa[-1] / 4, "num_train": 9, "num_test": 3}
    clients = [{"id": i, **client} for i in range(num_clients)]
    ending = {"seconds": 1.5, "finished": "2026-11-20T14:00:00Z", "machine": MACHINE}
    before = {"sharing": rows} if (rows := rounds[:sharing_heights]) else {}
    return {**before, "rounds": rounds[sharing_heights:], "clients": clients, **ending, **more}


def write_results(directory: Path, experiment: Experiment, taa: Mapping[str, Sequence[float]], **more: Any) -> None:
    """Writes results of the runs with these labels, by their TAA over rounds."""
    by_label = {run.label: run for run in experiment.runs.values()}
    for label, values in taa.items():
        write_result(directory, by_label[label], make_document(values, **more))


def make_kept(
    num_samples: int = 12, *, authors: Sequence[int] | None = None, names: Sequence[str] = ("a", "b", "c")
) -> Kept:
    """Makes a snapshot of as many classes as names, each around a corner of its own with a prototype; or with one by
    each author for each class."""
    num_authors = 1 if authors is None else len(authors)
    labels, classes = np.arange(num_samples) % len(names), np.repeat(np.arange(len(names)), num_authors)
    corners = 10 * np.eye(len(names), dtype=np.float32)
    noise = np.random.default_rng(1).normal(size=(num_samples, len(names))).astype(np.float32)
    snapshot = Snapshot(
        embeddings=corners[labels] + noise,
        labels=labels,
        predicted=np.zeros_like(labels),
        probabilities=_make_probabilities(noise, labels),
        prototypes=corners[classes],
        classes=classes,
        authors=None if authors is None else np.tile(np.array(authors), len(names)),
    )
    return Kept(snapshot, tuple(names))


def _make_probabilities(noise: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Makes probabilities that are somewhat higher for the true class."""
    odds = np.exp(noise + np.eye(noise.shape[1], dtype=np.float32)[labels])
    scaled: NDArray[np.float32] = (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32)
    return scaled


def get_run(experiment: Experiment, label: str) -> Run:
    return next(run for run in experiment.runs.values() if run.label == label)


# ---- work for processes


def double(piece: int, report: Report) -> int:
    """Reports its progress, and returns twice the piece."""
    report(f"at {piece}")
    return 2 * piece


def double_or_die(piece: int, report: Report) -> int:
    """Kills its own process on a negative piece, and exits on zero."""
    if piece < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if piece == 0:
        os._exit(7)
    return 2 * piece


def tell_pid_and_wait(piece: int, report: Report) -> None:
    """Reports its process id and never returns."""
    report(os.getpid())
    signal.pause()


def tell_variable(piece: str, report: Report) -> str:
    return os.environ[piece]


def meet(piece: tuple[Path, int, str], report: Report) -> str:
    """Returns a variable of the process, once so many processes have met in the directory: so no process does two
    pieces."""
    directory, count, name = piece
    (directory / str(os.getpid())).touch()
    deadline_s = time.monotonic() + 60
    while len(list(directory.iterdir())) < count:
        assert time.monotonic() < deadline_s, f"only {len(list(directory.iterdir()))} of {count} have come"
        time.sleep(0.05)
    return os.environ[name]
