"""A client that agrees on statistics: what it is before and after it knows them, and that they stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.agreed import AgreedClient
from ml.clients.alone import TrainingAlone
from ml.clients.build import Federation, make_clients
from ml.clients.client import Client
from ml.clients.inference import answer
from ml.data import get_classes
from ml.data.base import InputFormat
from ml.errors import MlError
from ml.payload import Arrays, decode_arrays
from ml.simulation.run import SimulationConfig, simulate
from ml.specs import AuthorPayloads, compute_aggregate
from ml.training.criterion import Criterion

MODEL = {"name": "mlp", "hidden": [16]}
DIGITS = {"format": "digits"}
INPUT: dict[str, Any] = {"shape": [1, 8, 8], "resize": None, "normalize": "agreed", "class_counts": True}
HYPER = {"lr": 0.2, "decay": 0.5, "local_iterations": 7}


def make(method: str = "fedavg", input_: dict[str, Any] = INPUT, **settings: Any) -> list[AgreedClient]:
    federation = Federation(
        method={"name": method, **HYPER, **settings},
        model=MODEL,
        classes=get_classes(DIGITS),
        input=input_,
        num_members=3,
    )
    clients = make_clients(federation, data=DIGITS, partition="dirichlet:1", run_seed=5)
    agreed = [client for client in clients if isinstance(client, AgreedClient)]
    assert len(agreed) == 3
    return agreed


def agree(clients: list[AgreedClient]) -> Arrays:
    """The first round of all."""
    given = [
        AuthorPayloads(bytes([i]) * 32, made.weight, made.payloads)
        for i, client in enumerate(clients)
        for made in [client.train(1, b"")]
    ]
    encoded = compute_aggregate(clients[0].spec, 1, given, {"model/w": np.zeros(1, np.float32)})
    assert encoded is not None
    aggregate = decode_arrays(encoded, len(encoded))
    for client in clients:
        client.apply(1, aggregate)
    return aggregate


def test_before_the_constants_are_known_there_is_nothing_to_train_on_or_to_answer() -> None:
    client = make()[0]
    assert (client.num_train > 0, client.num_test > 0, client.has_samples) == (True, True, False)
    assert client.measure() is None
    x = np.zeros((2, 1, 8, 8), np.float32)
    for ask in (
        lambda: client.train(2, b""),
        lambda: client.apply(2, None),
        lambda: answer(client, InputFormat.from_mapping(INPUT), x),
    ):
        with pytest.raises(MlError, match="what normalises this run's samples is not known yet"):
            ask()
    made = client.train(1, b"")
    assert (made.weight, set(made.payloads), made.metrics["steps"]) == (1, {"statistics"}, 0)


def test_samples_and_those_asked_about_are_normalised_alike() -> None:
    clients = make()
    agree(clients)
    client = clients[0]
    assert client.constants is not None
    train = client.state.data.train.x
    own = InputFormat.from_mapping(INPUT).with_constants(client.constants.mean, client.constants.std)
    assert client.complete_input(InputFormat.from_mapping(INPUT)) == own
    pooled = torch.cat([c.state.data.train.x for c in clients])
    assert float(pooled.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(pooled.double().std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert len(train) == client.num_train
    x = np.random.default_rng(1).random((3, 1, 8, 8), np.float32)
    asked = answer(client, InputFormat.from_mapping(INPUT), x)
    logits = client.predict(torch.from_numpy(own.normalise(x))).logits
    np.testing.assert_array_equal(asked["probabilities"], logits.softmax(1).numpy())


def test_the_constants_come_back_with_a_checkpoint_and_with_any_later_aggregate() -> None:
    clients = make()
    aggregate = agree(clients)
    one, late = make()[0], make()[1]
    one.load_state_arrays(clients[0].state_arrays())
    assert one.constants == clients[0].constants
    np.testing.assert_array_equal(one.state.data.train.x, clients[0].state.data.train.x)
    made = [client.train(2, b"") for client in clients]
    given = [AuthorPayloads(bytes([i]) * 32, m.weight, m.payloads) for i, m in enumerate(made)]
    encoded = compute_aggregate(clients[0].spec, 2, given, aggregate)
    assert encoded is not None
    second = decode_arrays(encoded, len(encoded))
    assert late.apply(2, second)["accuracy"] == clients[1].apply(2, second)["accuracy"]
    with pytest.raises(MlError, match="normalised already"):
        late.train(1, b"")


def test_class_weights_go_by_the_classes_of_all() -> None:
    clients = make(class_weights="agreed")
    before = clients[0].state.model.criterion
    assert isinstance(before, Criterion)
    assert before.weights is None
    agree(clients)
    weights = [client.state.model.criterion for client in clients]
    assert all(isinstance(one, Criterion) and one.weights is not None for one in weights)
    assert clients[0].constants is not None
    assert clients[0].constants.classes is not None
    counts = torch.tensor(clients[0].constants.classes).float()
    for one in weights:
        assert isinstance(one, Criterion)
        torch.testing.assert_close(one.weights, counts.sum() / (10 * counts))


def test_training_alone_begins_after_the_round_of_statistics() -> None:
    """And then does what the local method does, round by round."""
    client, local = make(), make("local")
    alone = TrainingAlone(client[0])
    agree(client)
    agree(local)
    alone.owe(1, 0)
    assert not alone.step()
    for height in (2, 3):
        made = local[0].train(height, b"")
        alone.owe(height, int(made.metrics["iterations"]))
    while alone.step():
        pass
    told = alone.describe()
    assert (told.rounds, told.owed_steps, told.failure) == (3, 0, None)
    for name, array in alone.state_arrays().items():
        np.testing.assert_array_equal(array, local[0].state_arrays()[name])


def test_training_alone_that_is_taken_up_waits_for_samples() -> None:
    clients = make()
    agree(clients)
    first = TrainingAlone(clients[0])
    first.owe(2, 7)
    while first.step():
        pass
    again = make()[0]
    resumed = TrainingAlone(again)
    resumed.load_state_arrays(2, first.state_arrays())
    assert resumed.describe().measures is None
    resumed.owe(3, 7)
    assert not resumed.step()
    again.load_state_arrays(clients[0].state_arrays())
    assert resumed.describe().measures == first.describe().measures
    assert resumed.step()


def test_all_in_one_pass_come_to_the_same_numbers() -> None:
    runs = [
        simulate(
            SimulationConfig(method={"name": "fedavg"}, model=MODEL, clients=3, rounds=3, input=INPUT, batched=how)
        )
        for how in ("on", "off")
    ]
    assert [row.taa for row in runs[0].rounds] == pytest.approx([row.taa for row in runs[1].rounds], abs=0.01)
    assert runs[0].aggregate_digests[0] == runs[1].aggregate_digests[0]


def test_a_site_with_too_few_samples_takes_part_and_tells_nothing() -> None:
    clients: list[AgreedClient] = make(input_={**INPUT, "min_count": 450})
    told = [int(client.train(1, b"").payloads["statistics"]["count"]) for client in clients]
    assert [count > 0 for count in told] == [client.num_train >= 450 for client in clients]
    assert 0 in told
    agree(clients)
    assert len({client.constants for client in clients}) == 1
    assert isinstance(clients[0], Client)


def test_empty_cells_are_filled_by_what_all_sites_agree_on(tmp_path: Path) -> None:
    rows = [f"{40 + i % 9},{'' if i % 3 else 5 + i % 4},{'?' if i % 4 else i % 2},{i % 2 * 3}" for i in range(90)]
    (tmp_path / "a.csv").write_text("\n".join(["age,dose,ca,grade", *rows]) + "\n")
    data = {"format": "csv", "path": str(tmp_path / "a.csv"), "columns": {"label": "grade"}}
    columns = [{"name": name} for name in ("ca", "age", "dose")]
    input_ = {"shape": [6, 1, 1], "resize": None, "normalize": "agreed", "columns": columns, "empty": ["?"]}
    input_ |= {"missing": "mean+flag"}
    meaning = {"mild": ["0", "1"], "severe": ["2", "3"]}
    federation = Federation(
        method={"name": "fedavg", **HYPER},
        model=MODEL,
        classes=list(meaning),
        input=input_,
        num_members=3,
        labels=meaning,
    )
    clients = make_clients(federation, data=data, partition="iid", run_seed=5)
    agreed = [client for client in clients if isinstance(client, AgreedClient)]
    agree(agreed)
    constants = agreed[0].constants
    assert constants is not None
    pooled = torch.cat([client.state.data.train.x.reshape(-1, 6) for client in agreed]).double()
    is_empty = pooled[:, 5] > 0  # the flag of the dose, normalised
    assert 0 < int(is_empty.sum()) < len(pooled)
    assert float(pooled[is_empty, 4].abs().max()) == 0
    assert float(pooled[~is_empty, 4].mean()) == pytest.approx(0, abs=1e-6)
    assert float(pooled[~is_empty, 4].std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert 5 < constants.mean[4] < 9
    wanted = InputFormat.from_mapping(input_)
    assert wanted.table is not None
    asked = wanted.table.encode({"age": ["44"], "dose": [""], "ca": ["?"]}, str)
    filled = wanted.table.encode({"age": ["44"], "dose": [constants.mean[4]], "ca": [constants.mean[0]]}, str)
    filled[0, 1::2] = asked[0, 1::2]
    said, expected = (answer(agreed[0], wanted, x)["probabilities"] for x in (asked, filled))
    np.testing.assert_allclose(said, expected, rtol=1e-6)
    assert agreed[0].train(2, b"").metrics["steps"] > 0
