"""Training alone: as the local method trains, a step at a time, whatever comes between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from ml.clients.alone import TrainingAlone
from ml.clients.build import Federation, make_clients
from ml.clients.client import Client
from ml.clients.inference import answer
from ml.data import get_classes, get_default_input
from ml.data.base import InputFormat
from ml.measures.alone import TrainedAlone
from ml.measures.classification import measure
from ml.models.base import dump_parameters
from ml.payload import Arrays, decode_arrays
from ml.specs import AuthorPayloads, compute_aggregate
from ml.training.mixture import find_weight

MODEL = {"name": "mlp", "hidden": [16]}
HYPER = {"lr": 0.2, "momentum": 0.5, "decay": 0.9, "local_iterations": 7}


def make_client(
    method: str = "dfpl", hyper: Mapping[str, Any] = HYPER, val: float | None = None, **settings: Any
) -> Client:
    """The first of three on digits, which holds out a share `val` of its samples."""
    federation = Federation(
        method={"name": method, **hyper, **settings},
        model=MODEL,
        classes=tuple(get_classes({"format": "digits"})),
        input=get_default_input({"format": "digits"}, MODEL),
        rounds=0,
        num_members=3,
    )
    data = {"format": "digits", **({} if val is None else {"val": val})}
    return make_clients(federation, data=data, partition="dirichlet:1", run_seed=5)[0]


def work_off(alone: TrainingAlone) -> int:
    count = 0
    while alone.step():
        count += 1
    return count


def check_same(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_it_is_the_local_method_whatever_comes_between_two_steps() -> None:
    client, local = make_client(), make_client("local")
    alone = TrainingAlone(client)
    client.train(1, b"beacon", num_iterations=7)
    alone.owe(1, 7)
    assert alone.describe().owed_steps == 7
    for _ in range(3):
        alone.step()
        client.evaluate()
        torch.rand(3)  # of the generator that all share
    assert alone.describe().owed_steps == 4
    client.train(2, b"beacon", num_iterations=9)
    alone.owe(2, 9)
    alone.owe(2, 9)  # trained again, as after a restart
    assert alone.describe().owed_steps == 13
    work_off(alone)
    told = alone.describe()
    assert (told.rounds, told.owed_steps, told.failure) == (2, 0, None)
    assert told.seconds > 0
    local.train(1, b"", num_iterations=7)
    local.train(2, b"", num_iterations=9)
    check_same(alone.state_arrays(), local.state_arrays())
    assert told.measures == local.measure()


OUTER: dict[str, Any] = {"outer": {"optimizer": "nesterov", "lr": 0.5}}


def test_it_goes_on_by_the_outer_optimiser_of_the_run_as_a_federation_of_one_does() -> None:
    client = make_client("fedavg", **OUTER)
    alone = TrainingAlone(client)
    spec = client.spec
    aggregate: Arrays = {f"model/{name}": of for name, of in dump_parameters(client.state.model).items()}
    again = None
    for number in (1, 2, 3):
        made = client.train(number, b"", num_iterations=7)
        one = AuthorPayloads(bytes(32), made.weight, made.payloads)
        found = compute_aggregate(spec, number, [one], aggregate)
        assert found is not None
        aggregate = decode_arrays(found, len(found))
        client.apply(number, aggregate)
        alone.owe(number, 7)
        if number == 3:  # as after a restart
            again = TrainingAlone(make_client("fedavg", **OUTER))
            again.load_state_arrays(2, alone.state_arrays())
            again.owe(3, 7)
            work_off(again)
        work_off(alone)
        assert alone.describe().failure is None
    assert again is not None
    check_same(again.state_arrays(), alone.state_arrays())
    ours, theirs = (of.state_arrays() for of in (alone, client))
    check_same(*({name: of[name] for name in of if name.startswith("model/")} for of in (ours, theirs)))
    plain = TrainingAlone(make_client("fedavg"))
    plain.owe(3, 7)
    work_off(plain)
    assert not np.array_equal(plain.state_arrays()["model/fc1.weight"], ours["model/fc1.weight"])


def test_the_client_and_torchs_generator_see_nothing_of_it() -> None:
    client, other = make_client(), make_client()
    alone = TrainingAlone(client)
    alone.owe(1, 7)
    torch.manual_seed(1)
    before = torch.default_generator.get_state()
    work_off(alone)
    assert torch.equal(torch.default_generator.get_state(), before)
    assert client.train(1, b"x").metrics["loss"] == other.train(1, b"x").metrics["loss"]
    check_same(client.state_arrays(), other.state_arrays())


def test_it_goes_on_from_what_it_has_left_and_makes_up_for_rounds_it_missed() -> None:
    alone = TrainingAlone(make_client())
    alone.owe(1, 7)
    work_off(alone)
    again = TrainingAlone(make_client())
    again.load_state_arrays(alone.rounds, alone.state_arrays())
    assert again.describe().measures == alone.describe().measures
    for one in (alone, again):
        one.owe(4, 5)  # of 2 and 3 nothing was heard: the method's own number
        assert one.describe().owed_steps == 7 + 7 + 5
        work_off(one)
    check_same(alone.state_arrays(), again.state_arrays())
    assert again.describe().rounds == 4


def test_it_is_compared_with_the_federation_after_as_much_work() -> None:
    client = make_client("local", hyper=HYPER)
    alone = TrainingAlone(client)
    for number in (1, 2):
        client.train(number, b"", num_iterations=7)
        alone.owe(number, 7)
        client.apply(number, None)
        alone.note_together(number)
    assert alone.describe().verdict is None
    for _ in range(7):
        alone.step()
    alone.step()  # which ends the first
    verdict = alone.describe().verdict
    assert verdict is not None
    assert (verdict.rounds, verdict.newest, verdict.difference) == (1, 2, 0)  # alone is what the method does itself
    work_off(alone)
    verdict = alone.describe().verdict
    assert verdict is not None
    assert (verdict.rounds, verdict.low, verdict.high) == (2, 0, 0)
    assert verdict.sentence.startswith("No difference that ")


@pytest.mark.parametrize("val", [0.2, None])
def test_both_models_answers_are_mixed_as_they_last_stood_after_a_round(val: float | None) -> None:
    client = make_client("local", hyper=HYPER, val=val)
    alone = TrainingAlone(client)
    client.train(1, b"", num_iterations=7)
    alone.owe(1, 7)
    work_off(alone)
    assert alone.describe().mixed is None
    client.train(2, b"", num_iterations=20)
    client.apply(2, None)
    alone.note_together(2)
    told, both = alone.describe(), (client, alone.get_client())
    weight, kind = 0.5, client.spec.task.kind
    if (held := client.state.data.val) is not None:
        said = [one.predict(held.x).logits.double() for one in both]
        weight = find_weight(said[0], said[1], held.y, kind)
        assert 0.5 < weight < 1
    matched = client.state.data.matched
    together, other = (one.predict(matched.x).logits.double().softmax(1).numpy() for one in both)
    mixed, y = weight * together + (1 - weight) * other, matched.y.numpy()
    assert (told.weight, told.mixed is not None) == (weight, True)
    assert told.mixed == measure(y, mixed.argmax(1), mixed, float(-np.log(mixed[np.arange(len(y)), y]).mean()))
    assert TrainedAlone.from_mapping(json.loads(json.dumps(told.to_mapping()))) == told
    client.train(3, b"", num_iterations=7)
    assert alone.describe().mixed is told.mixed


def test_epochs_are_counted_in_steps() -> None:
    federated = {name: value for name, value in HYPER.items() if name != "local_iterations"}
    client = make_client("fedavg", hyper=federated | {"local_epochs": 2})
    alone = TrainingAlone(client)
    alone.owe(1, 2)
    owed = alone.describe().owed_steps
    work_off(alone)
    assert owed == 2 * -(-client.num_train // 32)
    assert alone.describe().owed_steps == 0


def test_a_phase_that_diverges_ends_it_and_says_why() -> None:
    alone = TrainingAlone(make_client(lr=1e30))
    alone.owe(1, 7)
    work_off(alone)
    failure = alone.describe().failure
    assert failure is not None
    assert "finite" in failure or "numbers" in failure
    assert not alone.step()


@pytest.mark.parametrize("method", ["fedper", "mpfedcl", "uapdfl", "fedintr", "fedala", "feddbe"])
def test_of_other_methods_too(method: str) -> None:
    alone = TrainingAlone(make_client(method))
    alone.owe(1, 3)
    work_off(alone)
    measures = alone.describe().measures
    assert measures is not None


def test_it_answers_as_it_stands_and_goes_on_as_if_nobody_had_asked() -> None:
    one, other = TrainingAlone(make_client()), TrainingAlone(make_client())
    form = InputFormat.from_mapping(get_default_input({"format": "digits"}, MODEL))
    x = np.zeros((3, 1, 8, 8), np.uint8)
    for alone in (one, other):
        alone.owe(1, 7)
    untrained = answer(one.get_client(), form, x)["probabilities"]
    for _ in range(4):
        one.step()
        half = answer(one.get_client(), form, x)["probabilities"]
    assert not np.array_equal(half, untrained)
    work_off(one)
    work_off(other)
    check_same(one.state_arrays(), other.state_arrays())


@pytest.mark.parametrize("noise", ["dp_noise", "dp_update_noise"])
def test_nothing_hides_what_never_leaves_the_site(noise: str) -> None:
    client, local = make_client("fedavg", {**HYPER, noise: 4.0}), make_client("local")
    alone = TrainingAlone(client)
    for number in (1, 2):
        alone.owe(number, 7)
        work_off(alone)
        local.train(number, b"beacon", num_iterations=7)
    assert alone.describe().failure is None
    assert alone.rounds == 2
    check_same(alone.state_arrays(), local.state_arrays())
