"""Embedding snapshots: the right samples and vectors, and none where nobody asked for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ml.clients.embedding_snapshot import MAX_SAMPLES, Snapshot, choose_samples, take_snapshot
from ml.errors import PayloadError
from ml.simulation.run import SimulationConfig, SimulationResult, begin_simulation, simulate
from ml.training.loop import Diverged

QUICK: dict[str, Any] = {"clients": 3, "rounds": 2, "shots": 10}


def run(method: str, **hyperparameters: Any) -> SimulationResult:
    return simulate(SimulationConfig(method={"name": method, **hyperparameters}, **QUICK), snapshots=[0])


def make_snapshot(**changes: Any) -> Snapshot:
    """Three samples and three prototypes on a line."""
    arrays: dict[str, Any] = {
        "embeddings": np.array([[0.0], [4.0], [9.0]], np.float32),
        "labels": np.array([0, 1, 1]),
        "predicted": np.array([0, 0, 1]),
        "probabilities": np.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]], np.float32),
        "prototypes": np.array([[1.0], [3.5], [10.0]], np.float32),
        "classes": np.array([0, 0, 1]),
        "authors": np.array([0, 1, 1]),
    }
    return Snapshot(**{**arrays, **changes})


# ---- which samples


def test_every_class_gives_an_equal_share_as_far_as_it_goes() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2] * 50)
    chosen = choose_samples(labels, 1, 23)
    assert np.bincount(labels[chosen]).tolist() == [10, 3, 10]
    assert (np.diff(chosen) > 0).all()


def test_the_seed_chooses_the_samples_and_few_are_all_taken() -> None:
    labels = np.arange(100) % 4
    first, again, other = (choose_samples(labels, seed, 40).tolist() for seed in (1, 1, 2))
    assert first == again != other
    assert choose_samples(labels, 1).tolist() == list(range(100))


# ---- which vectors


def test_prototypes_of_dfpl_are_those_that_came_back() -> None:
    snapshot = run("dfpl").snapshots[0]
    assert snapshot is not None
    assert snapshot.prototypes.shape == (len(snapshot.classes), 32)
    assert len(set(snapshot.classes)) == len(snapshot.classes)
    assert snapshot.authors is None
    assert snapshot.embeddings.shape == (len(snapshot.labels), 32)
    assert len(snapshot.labels) <= MAX_SAMPLES


def test_a_model_without_prototypes_has_embeddings_all_the_same() -> None:
    snapshot = run("fedavg").snapshots[0]
    assert snapshot is not None
    assert (snapshot.prototypes.shape, snapshot.authors, snapshot.count_nearest()) == ((0, 32), None, None)


@pytest.mark.parametrize("eval_model", ["global", "local"])
def test_mpfedcl_is_represented_by_the_vectors_that_it_compares(eval_model: str) -> None:
    snapshot = run("mpfedcl", eval_model=eval_model).snapshots[0]
    assert snapshot is not None
    assert np.linalg.norm(snapshot.embeddings, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert snapshot.authors is not None
    assert set(snapshot.authors) == {0, 1, 2}
    right = int((snapshot.predicted == snapshot.labels).sum())
    assert snapshot.count_nearest() == right  # since that is how it predicts


def test_methods_are_shown_on_the_same_samples() -> None:
    one, other = (run(method).snapshots[0] for method in ("fedavg", "fedproto"))
    assert one is not None
    assert other is not None
    assert one.labels.tolist() == other.labels.tolist()


def test_nearest_is_counted_by_hand() -> None:
    assert make_snapshot().count_nearest() == 2  # 4 is nearer to 3.5, of class 0, than to 10
    assert make_snapshot(classes=np.array([1, 1, 1])).count_nearest() == 2


def test_a_model_without_numbers_gives_no_snapshot() -> None:
    clients, *_ = begin_simulation(SimulationConfig(method={"name": "local"}, **QUICK))
    for parameter in clients[0].state.model.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(Diverged, match="expected finite embeddings"):
        take_snapshot(clients[0], 1)


# ---- what it costs those who do not ask


def test_a_run_is_the_same_with_and_without() -> None:
    config = SimulationConfig(method={"name": "dfpl"}, **QUICK)
    without, asked = simulate(config), simulate(config, snapshots=[0])
    assert without.snapshots == {}
    assert without.to_json() == asked.to_json()
    assert without.aggregate_digests == asked.aggregate_digests


def test_training_time_is_measured_and_makes_no_two_rounds_unequal() -> None:
    config = SimulationConfig(method={"name": "local"}, **QUICK)
    first, second = simulate(config), simulate(config)
    assert all(row.train_s > 0 for row in first.rounds)
    assert first.rounds == second.rounds
    assert all("train_s" not in row.to_json() for row in first.rounds)


# ---- bytes


@pytest.mark.parametrize("authors", [None, np.array([0, 1, 1])])
def test_bytes_give_the_snapshot_back(authors: Any) -> None:
    snapshot = make_snapshot(authors=authors)
    again = Snapshot.decode(snapshot.encode())
    assert again.encode() == snapshot.encode()
    assert (again.embeddings == snapshot.embeddings).all()
    assert (again.authors is None) == (authors is None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.array([0, 1])}, "array 'labels': expected shape"),
        ({"labels": np.array([0, 1, -1])}, "array 'labels': expected numbers from 0, got -1"),
        ({"prototypes": np.zeros((3, 2), np.float32)}, "array 'prototypes': expected shape"),
        ({"embeddings": np.array([[0.0], [1.0], [np.nan]], np.float32)}, "expected finite numbers"),
        ({"embeddings": np.zeros((3, 1))}, "expected dtype float32"),
        ({"authors": np.array([0])}, "array 'authors': expected shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        Snapshot.decode(make_snapshot(**change).encode())
