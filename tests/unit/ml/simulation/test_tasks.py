"""Federations of labels and of numbers, simulated: each method that can, learns; digests are the same each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ml.clients.batched import explain_unbatchable, train_batched
from ml.data import open_dataset
from ml.data.checks import compute_stats
from ml.errors import SpecError
from ml.measures.collapse import find_signs
from ml.measures.multilabel import LabelMeasures
from ml.measures.regression import TargetMeasures
from ml.simulation.run import SimulationConfig, begin_simulation, simulate
from ml.specs import METHODS
from ml.tasks import REGRESSION
from support.data.tasks import write_diabetes, write_digits

MODEL = {"name": "mlp", "hidden": [32]}
ABLE = [name for name, spec in METHODS.items() if REGRESSION in spec.tasks]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"format": "npz", "path": str(write_digits(tmp_path_factory.mktemp("digits") / "digits.npz"))}


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path, _ = write_diabetes(tmp_path_factory.mktemp("diabetes"), 1)
    return {"format": "csv", "path": str(path), "columns": {"label": "progression"}}


def make_config(task: str, data: dict[str, Any], **settings: Any) -> SimulationConfig:
    train, _ = open_dataset(data, task=task)
    shape, (mean, std) = list(train.shape), compute_stats(train, train.shape)
    method = {"name": "fedavg", **settings.pop("method", {})}
    given: dict[str, Any] = {"clients": 3, "rounds": 3, "partition": "iid", "model": MODEL} | settings
    return SimulationConfig(
        method=method, data=data, task=task, input={"shape": shape, "resize": None, "mean": mean, "std": std}, **given
    )


@pytest.mark.parametrize("name", [name for name in ABLE if name != "fedbn"])  # of which the model has none
@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_every_method_that_may_takes_rounds(
    task: str, name: str, digits: dict[str, Any], diabetes: dict[str, Any]
) -> None:
    data = digits if task == "multilabel" else diabetes
    config = make_config(task, data, method={"name": name, "local_iterations": 4, "lr": 0.05}, rounds=2)
    first, again = simulate(config), simulate(config)
    assert [row.tal for row in first.rounds] == [row.tal for row in again.rounds]
    assert all(np.isfinite(row.tal) for row in first.rounds)
    assert first.aggregate_digests == again.aggregate_digests


def test_labels_are_learned(digits: dict[str, Any]) -> None:
    result = simulate(make_config("multilabel", digits, rounds=8, method={"local_epochs": 2, "lr": 0.2}))
    assert result.final_taa > 0.75  # all three labels right
    assert result.rounds[-1].tal < 0.25


def test_numbers_are_learned(diabetes: dict[str, Any]) -> None:
    method = {"local_epochs": 3, "lr": 0.02, "weight_decay": 0.01}
    config = make_config("regression", diabetes, rounds=8, method=method)
    assert config.target is not None
    assert config.target["mean"][0] == pytest.approx(150, abs=15)
    result = simulate(config)
    assert result.final_global > 0.3  # R2, of which about 0.45 can be had
    assert result.to_json()["config"]["task"] == "regression"


def test_measures_are_in_the_targets_own_units(diabetes: dict[str, Any]) -> None:
    clients, *_ = begin_simulation(make_config("regression", diabetes))
    found = clients[0].measure()
    assert isinstance(found, TargetMeasures)
    (one,) = found.by_class
    assert 40 < one.rmse < 120
    assert clients[0].evaluate()["r2"] == pytest.approx(one.r2, abs=1e-5)
    assert "accuracy" not in clients[0].evaluate()


def test_an_untrained_model_is_no_better_than_prevalence_or_the_mean(
    digits: dict[str, Any], diabetes: dict[str, Any]
) -> None:
    labels, *_ = begin_simulation(make_config("multilabel", digits))
    found = labels[0].measure()
    assert isinstance(found, LabelMeasures)
    assert labels[0].evaluate()["accuracy"] == pytest.approx(found.exact_match)
    assert "prior" in find_signs(found, {})
    numbers, *_ = begin_simulation(make_config("regression", diabetes))
    assert "mean" in find_signs(numbers[0].measure(), {})


def test_skewed_parts_differ_by_stratum(diabetes: dict[str, Any]) -> None:
    clients, *_ = begin_simulation(make_config("regression", diabetes, partition="shards:1"))
    means = sorted(float(client.state.data.train.y.mean()) for client in clients)
    assert means[0] < -0.5 < 0.5 < means[-1]


def test_many_clients_train_in_one_pass(digits: dict[str, Any]) -> None:
    clients, *_ = begin_simulation(make_config("multilabel", digits))
    assert explain_unbatchable(clients) is None
    alone, *_ = begin_simulation(make_config("multilabel", digits))
    together = train_batched(clients, 1, b"")
    for made, client in zip(together, alone, strict=True):
        assert made.metrics["loss"] == pytest.approx(client.train(1, b"").metrics["loss"], abs=1e-4)


def test_liars_turn_labels_and_targets_around(digits: dict[str, Any], diabetes: dict[str, Any]) -> None:
    for task, data in (("multilabel", digits), ("regression", diabetes)):
        honest = simulate(make_config(task, data, rounds=2, method={"lr": 0.05}))
        lied_to = simulate(
            make_config(task, data, rounds=2, method={"lr": 0.05}, attack={"name": "label_flip", "liars": 1})
        )
        assert lied_to.rounds[-1].tal > honest.rounds[-1].tal


def test_a_map_of_embeddings_needs_classes(diabetes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="expected classification for an embedding map, got regression"):
        simulate(make_config("regression", diabetes, rounds=1), snapshots=[0])
