"""A client's measures on its val samples: on them alone, after each round, and without a trace in what it trains."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.clients.agreed import AgreedClient
from ml.clients.build import Federation, make_client, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.measures.kinds import measure_answers
from ml.measures.val import ValMeasures
from ml.seeding import get_partition_seed
from ml.simulation.results import RoundResult
from ml.simulation.run import SimulationConfig, simulate
from ml.simulation.saved import StateFile

MODEL = {"name": "mlp", "hidden": [16]}
DIGITS: dict[str, Any] = {"format": "digits"}
HYPER = {"lr": 0.2, "local_iterations": 3}


def make_federation(method: str = "fedavg", **input_: Any) -> Federation:
    wanted = get_default_input(DIGITS, MODEL)
    if input_:
        wanted = {"shape": wanted["shape"], "resize": None, **input_}
    return Federation(
        method={"name": method, **HYPER},
        model=MODEL,
        classes=get_classes(DIGITS),
        input=wanted,
        num_members=3,
    )


def make(method: str = "fedavg", val: float | None = 0.1, **input_: Any) -> list[Client]:
    data = DIGITS if val is None else {**DIGITS, "val": val}
    return make_clients(make_federation(method, **input_), data=data, partition="dirichlet:1", run_seed=5)


def test_val_samples_are_of_those_that_would_train_and_nothing_else_is_another() -> None:
    for one, without in zip(make(), make(val=None), strict=True):
        assert one.num_val >= 10
        assert one.num_train + one.num_val == without.num_train
        assert without.num_val == 0
        assert without.measure_val() == {}
        np.testing.assert_array_equal(one.state.data.matched.x, without.state.data.matched.x)
        assert one.state.data.val is not None
        everything = np.concatenate([one.state.data.train.x, one.state.data.val.x])
        np.testing.assert_array_equal(_sort(everything), _sort(without.state.data.train.x.numpy()))


def _sort(x: np.ndarray) -> np.ndarray:
    rows = x.reshape(len(x), -1)
    return rows[np.lexsort(rows.T)]


def test_a_part_of_a_data_set_has_the_same_val_samples_on_its_node() -> None:
    part = {"scheme": "dirichlet", "alpha": 1.0, "index": 1, "of": 3, "seed": get_partition_seed(5)}
    federation = make_federation()
    clients = make_clients(federation, data={**DIGITS, "val": 0.1}, partition="dirichlet:1", run_seed=5)
    initial = make_initial_aggregate(MODEL, federation.input["shape"], 10, 5)
    node = make_client(federation, data={**DIGITS, "val": 0.1, "partition": part}, seed=1, initial=initial)
    assert node.state.data.val is not None
    assert clients[1].state.data.val is not None
    np.testing.assert_array_equal(node.state.data.val.x, clients[1].state.data.val.x)


def test_a_round_that_is_taken_in_is_measured_by_them() -> None:
    client = make("local")[0]
    client.train(1, b"")
    metrics = client.apply(1, None)
    samples = client.state.data.val
    assert samples is not None
    said = client.predict(samples.x).logits.double().softmax(1).detach().numpy()
    y = samples.y.numpy()
    loss = float(-np.log(said[np.arange(len(y)), y]).mean())
    expected = ValMeasures.of(measure_answers("classification", y, said.argmax(1), said, loss))
    told = ValMeasures.from_metrics(metrics)
    assert told is not None
    assert expected is not None
    assert (told.num_samples, told.auc) == (len(y), expected.auc)
    assert math.isclose(told.loss, expected.loss, rel_tol=1e-5)
    assert metrics["loss"] != told.loss  # which is of the test samples


def test_measuring_changes_nothing() -> None:
    one, other = make("local")[0], make("local")[0]
    other.state.data = replace(other.state.data, val=None)
    losses = []
    for client in (one, other):
        client.train(1, b"")
        client.apply(1, None)
        losses.append(client.train(2, b"").metrics["loss"])
    assert losses[0] == losses[1]


def test_where_members_agree_on_what_normalises_samples_val_samples_tell_nothing_of_themselves_in_it() -> None:
    clients = make(normalize="agreed")
    client = clients[0]
    assert isinstance(client, AgreedClient)
    assert client.num_val >= 10  # also before there are samples
    told = client.train(1, b"").payloads["statistics"]
    assert told["count"] == client.num_train == len(client.state.data.train)


def test_no_numbers_are_no_measure() -> None:
    y = np.zeros((12, 1))
    assert ValMeasures.of(None) is None
    assert ValMeasures.of(measure_answers("regression", y, y, y, math.inf)) is None
    assert ValMeasures.of(measure_answers("regression", y, y, y, 0.5)) == ValMeasures(12, 0.5)
    assert ValMeasures.from_metrics({"loss": 0.5}) is None


@pytest.mark.parametrize("measured", [ValMeasures(12, 0.5, 0.75), ValMeasures(12, 0.5)])
def test_measures_are_read_back_from_metrics(measured: ValMeasures) -> None:
    assert ValMeasures.from_metrics({"loss": 0.1, **measured.to_metrics()}) == measured


def test_a_simulation_tells_each_clients_and_goes_on_to_the_same(tmp_path: Path) -> None:
    work = {"name": "fedavg", "local_iterations": 2}
    more: dict[str, Any] = {"method": work, "clients": 3, "rounds": 3, "partition": "dirichlet:1"}
    plain = simulate(SimulationConfig(**more))
    assert all(row.val is None and "val" not in row.to_json() for row in plain.rounds)
    config = SimulationConfig(data={**DIGITS, "val": 0.1}, **more)
    result = simulate(config)
    for row in result.rounds:
        assert row.val is not None
        assert all(one is not None and one.num_samples >= 10 for one in row.val)
    assert result.rounds[0].to_json()["val"][0].keys() == {"num_samples", "loss", "auc"}
    file = StateFile(tmp_path / "state", "run", 0)

    def stop(row: RoundResult) -> None:
        if row.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(config, on_round=stop, saved=file)
    assert simulate(config, saved=file).rounds == result.rounds
