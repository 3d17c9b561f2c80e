"""A client's answers as they are asked for: calibrated, and mixed with those of the model trained alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ml.clients.alone import TrainingAlone
from ml.clients.answering import Answering
from ml.clients.build import Federation, make_clients
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.data.base import InputFormat
from ml.data.readers.digits import load_digits
from ml.errors import DataError
from ml.training.metrics import compute_loss
from ml.training.mixture import find_weight

DATA: dict[str, Any] = {"format": "digits", "val": 0.2}
MODEL = {"name": "mlp", "hidden": [16]}
INPUT = get_default_input(DATA, MODEL)


def go_on() -> bool:
    return False


def make(data: dict[str, Any] = DATA) -> tuple[Client, TrainingAlone, Answering]:
    """A client after a round, and training alone, which has done as much from another learning rate's model."""
    federation = Federation(
        method={"name": "fedavg", "lr": 0.3, "local_iterations": 15},
        model=MODEL,
        classes=tuple(get_classes(DATA)),
        input=INPUT,
        rounds=0,
        num_members=2,
    )
    client = make_clients(federation, data=data, partition="dirichlet:1", run_seed=3)[0]
    alone = TrainingAlone(client)
    client.train(1, b"beacon", num_iterations=15)
    alone.owe(1, 5)
    while alone.step():
        pass
    return client, alone, Answering(client, InputFormat.from_mapping(INPUT), alone=alone)


def get_digits() -> Any:
    return load_digits()[1].x[:200]


def test_calibrated_answers_are_the_same_and_less_lossy_by_val_samples() -> None:
    client, _, answering = make()
    plain, told = answering.answer(get_digits(), go_on).own, answering.answer(get_digits(), go_on, None, True).own
    (temperature,) = told["temperature"]
    assert np.array_equal(told["labels"], plain["labels"])
    raised = plain["probabilities"].astype(np.float64) ** (1 / temperature)
    assert told["probabilities"] == pytest.approx(raised / raised.sum(1, keepdims=True), abs=1e-5)
    val = client.state.data.val
    assert val is not None
    logits = client.predict(val.x).logits.double()
    kind = client.spec.task.kind
    assert compute_loss(logits / temperature, val.y, kind) < compute_loss(logits, val.y, kind)


def test_mixed_answers_are_both_models_by_the_weight_of_val_samples() -> None:
    client, alone, answering = make()
    own, ask_beside = answering.answer(get_digits(), go_on)
    beside = ask_beside()
    val, mixed = client.state.data.val, beside["mixed"]
    assert val is not None
    logits = [one.predict(val.x).logits.double() for one in (client, alone.get_client())]
    weight = find_weight(logits[0], logits[1], val.y, client.spec.task.kind)
    assert mixed["weight"].tolist() == [weight]
    assert 0 < weight < 1
    expected = weight * own["probabilities"] + (1 - weight) * beside["alone"]["probabilities"]
    assert mixed["probabilities"] == pytest.approx(expected, abs=1e-6)
    assert np.array_equal(mixed["labels"], expected.argmax(1))
    both = answering.answer(get_digits(), go_on, None, True).ask_beside()
    assert {name: told["temperature"].shape for name, told in both.items()} == {"alone": (1,), "mixed": (1,)}
    assert np.array_equal(both["mixed"]["labels"], mixed["labels"])


def test_the_weight_follows_the_models() -> None:
    client, alone, answering = make()
    first = answering.answer(get_digits(), go_on).ask_beside()["mixed"]["weight"].item()
    assert answering.answer(get_digits(), go_on).ask_beside()["mixed"]["weight"].item() == first
    client.train(2, b"beacon", num_iterations=15)
    second = answering.answer(get_digits(), go_on).ask_beside()["mixed"]["weight"].item()
    alone.owe(2, 15)
    while alone.step():
        pass
    third = answering.answer(get_digits(), go_on).ask_beside()["mixed"]["weight"].item()
    assert len({first, second, third}) == 3


def test_without_val_samples_nothing_is_calibrated_and_both_models_count_alike() -> None:
    _, _, answering = make({"format": "digits"})
    assert answering.answer(get_digits(), go_on).ask_beside()["mixed"]["weight"].tolist() == [0.5]
    with pytest.raises(DataError, match=r"expected val samples at this site \(data.val\) to find a temperature by"):
        answering.answer(get_digits(), go_on, None, True)


def test_asking_changes_nothing() -> None:
    client, alone, answering = make()
    before = client.state_arrays(), alone.state_arrays()
    answering.answer(get_digits(), go_on, None, True).ask_beside()
    for now, arrays in zip((client.state_arrays(), alone.state_arrays()), before, strict=True):
        assert all(np.array_equal(now[name], arrays[name]) for name in arrays)


def test_both_models_answer_each_sample_once_and_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client, alone, answering = make()
    clients = {"own": client, "alone": alone.get_client()}
    asked = dict.fromkeys(clients, 0)
    looked_at = dict.fromkeys(clients, 0)
    for name, one in clients.items():

        def predict(x: Any, name: str = name, predict: Any = one.predict) -> Any:
            asked[name] += len(x)
            return predict(x)

        def dump(name: str = name, dump: Any = one.state_arrays) -> Any:
            looked_at[name] += 1
            return dump()

        monkeypatch.setattr(one, "predict", predict)
        monkeypatch.setattr(one, "state_arrays", dump)
    answering.answer(get_digits(), go_on, None, True).ask_beside()
    assert set(asked.values()) == {200 + client.num_val}
    assert set(looked_at.values()) == {1}
    answering.answer(get_digits(), go_on, None, True).ask_beside()
    assert set(asked.values()) == {400 + client.num_val}
