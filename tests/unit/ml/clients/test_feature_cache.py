"""The feature cache: a frozen encoder's features are computed once, held in place of the samples, and the same for all
holders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ml.clients.feature_cache
from ml.clients.batched import train_batched
from ml.clients.build import Compute, Federation, get_client_seed, make_client, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes
from ml.methods.base import Samples
from ml.methods.common.contrast import freeze
from ml.models import build_model
from ml.models.base import Model, copy_model, dump_parameters
from ml.models.resnet import ResNet18Body
from ml.payload import Arrays, encode_arrays
from ml.seeding import get_partition_seed
from ml.specs import METHODS
from ml.training.loop import Engine
from support.federation.simulated import BEACON, run_round

pytestmark = pytest.mark.outer

HEAD = {"name": "head_256"}
DIGITS: dict[str, Any] = {"format": "digits"}
INPUT: dict[str, Any] = {"shape": [1, 16, 16], "resize": [16, 16], "mean": [0.3], "std": [0.4]}
WORK = {"local_iterations": 2, "batch_size": 8, "lr": 0.05}
FEDERATION = Federation(
    method={"name": "fedavg", **WORK}, model=HEAD, classes=get_classes(DIGITS), input=INPUT, num_members=2
)


@cache
def get_initial() -> Arrays:
    return make_initial_aggregate(HEAD, INPUT["shape"], 10, 1)


def make_heads(
    federation: Federation = FEDERATION,
    *,
    data: Mapping[str, Any] = DIGITS,
    shots: int | None = 3,
    engine: Mapping[str, Any] | None = None,
) -> list[Client]:
    """Two clients, with 30 samples each unless `shots` says otherwise."""
    initial = get_initial() if federation.model is HEAD else None
    return make_clients(
        federation,
        data=data,
        partition="iid",
        run_seed=1,
        shots=shots,
        initial=initial,
        compute=Compute(engine=engine),
    )


def make_node(data: dict[str, Any]) -> Client:
    """The second of those clients, on a machine of its own, with what `data` leaves it."""
    return make_client(FEDERATION, data=DIGITS | data, seed=get_client_seed(1, 1), initial=get_initial())


def get_images(client: Client, part: str) -> Tensor:
    """The images that a client of `make_heads` would hold if nothing were precomputed: a plain model's."""
    plain = make_heads(replace(FEDERATION, model={"name": "mlp", "hidden": [2]}))
    samples: Samples = getattr(plain[client.seed != get_client_seed(1, 0)].state.data, part)
    return samples.x


def get_encoder(client: Client) -> ResNet18Body:
    encoder = client.state.model.get_submodule("encoder")
    assert isinstance(encoder, ResNet18Body)
    return encoder


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images the encoder saw, pass by pass."""
    seen: list[int] = []
    average = ResNet18Body.average

    def note(self: ResNet18Body, x: Tensor) -> Tensor:
        seen.append(len(x))
        return average(self, x)

    monkeypatch.setattr(ResNet18Body, "average", note)
    return seen


# ---- what is held


def test_clients_hold_features_in_place_of_images() -> None:
    for client in make_heads():
        data = client.state.data
        assert (data.train.x.shape, data.everyone.x.shape) == ((30, 512), (359, 512))
        assert data.matched.x.shape == (len(data.matched), 512)
        for part in ("train", "matched", "everyone"):
            features = client.state.model.precompute(get_images(client, part))
            torch.testing.assert_close(getattr(data, part).x, features, rtol=1e-4, atol=1e-4)


def test_the_test_set_is_computed_once_for_all_and_each_training_set_once(passes: list[int]) -> None:
    clients = make_heads()
    assert clients[0].state.data.everyone is clients[1].state.data.everyone
    assert passes == [128, 128, 103, 30, 30]


def test_a_node_on_its_own_computes_no_test_set_twice(passes: list[int]) -> None:
    client = make_node({"partition": None})
    assert client.state.data.matched is client.state.data.everyone
    assert sum(passes) == 359 + 1438


def test_a_node_comes_to_the_bits_of_the_simulation() -> None:
    dealt = {"scheme": "iid", "index": 1, "of": 2, "seed": get_partition_seed(1)}
    node, client = make_node({"partition": dealt}), make_heads(shots=None)[1]
    for part in ("train", "matched", "everyone"):
        assert torch.equal(getattr(node.state.data, part).x, getattr(client.state.data, part).x)
    ours, theirs = (one.train(1, BEACON).payloads["model"] for one in (node, client))
    assert encode_arrays(ours) == encode_arrays(theirs)


def test_images_that_training_augments_stay_images_and_test_sets_do_not() -> None:
    for client in make_heads(data={**DIGITS, "transform": {"augment": "flip"}}):
        assert client.state.data.train.x.shape == (30, 1, 16, 16)
        assert client.state.data.matched.x.shape == (len(client.state.data.matched), 512)
        assert client.train(1, BEACON).metrics["steps"] == 2


def test_a_layout_for_images_leaves_features_alone() -> None:
    usual, turned = make_heads()[0], make_heads(engine={"channels_last": True})[0]
    assert get_encoder(turned).conv1.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(turned.state.data.train.x, usual.state.data.train.x, rtol=1e-4, atol=1e-4)
    ours, theirs = (client.train(1, BEACON).payloads["model"] for client in (turned, usual))
    for name, array in theirs.items():
        assert ours[name] == pytest.approx(array, abs=1e-5)


def test_features_are_exact_where_steps_are_rounded() -> None:
    exact, rounded = make_heads()[0], make_heads(engine={"precision": "bf16"})[0]
    assert torch.equal(exact.state.data.train.x, rounded.state.data.train.x)


def test_features_are_those_of_all_images_at_once_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(HEAD, (1, 16, 16), 10).eval()
    x = torch.rand(10, 1, 16, 16)
    whole = ml.clients.feature_cache.precompute(model, x, Engine())
    monkeypatch.setattr(ml.clients.feature_cache, "CHUNK", 4)
    torch.testing.assert_close(ml.clients.feature_cache.precompute(model, x, Engine()), whole)
    assert not whole.requires_grad


# ---- what comes of it


def test_training_on_features_is_training_on_images() -> None:
    cached, plain = make_heads()[0], make_heads()[0]
    plain.state.data = replace(plain.state.data, train=Samples(get_images(plain, "train"), plain.state.data.train.y))
    ours, theirs = (client.train(1, BEACON) for client in (cached, plain))
    assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"], rel=1e-4)
    for name, array in theirs.payloads["model"].items():
        assert ours.payloads["model"][name] == pytest.approx(array, abs=1e-5)


def test_images_are_classified_as_their_features_are() -> None:
    client = make_heads()[0]
    client.train(1, BEACON)
    features, images = client.state.data.everyone.x, get_images(client, "everyone")
    assert torch.equal(client.predict(images).labels, client.predict(features).labels)
    torch.testing.assert_close(client.predict(images).logits, client.predict(features).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("fededs", "fedbn")])  # which refuse it
def test_in_no_methods_round_does_the_encoder_see_a_sample(name: str, passes: list[int]) -> None:
    clients = make_heads(replace(FEDERATION, method={"name": name, **WORK}, rounds=4))
    passes.clear()
    made = [trained for height in (1, 2) for trained in run_round(clients, height, get_initial())]
    assert all(np.isfinite(trained.metrics["loss"]) for trained in made)
    assert set(passes) <= {1}  # an image of a method's own, as UA-PDFL's


def test_clients_in_one_pass_train_on_features(passes: list[int]) -> None:
    apart, together = make_heads(), make_heads()
    passes.clear()
    theirs = [client.train(1, BEACON) for client in apart]
    for one, other in zip(train_batched(together, 1, BEACON), theirs, strict=True):
        for name, array in other.payloads["model"].items():
            assert one.payloads["model"][name] == pytest.approx(array, abs=1e-5)
    assert passes == []


# ---- what is shared


def test_all_clients_of_a_simulation_have_one_encoder_and_heads_of_their_own() -> None:
    first, second = make_heads()
    assert get_encoder(first) is get_encoder(second)
    before = dump_parameters(first.state.model, with_frozen=True)
    second.train(1, BEACON)
    assert encode_arrays(dump_parameters(first.state.model, with_frozen=True)) == encode_arrays(before)
    assert not np.array_equal(dump_parameters(second.state.model)["fc1.weight"], before["fc1.weight"])


def test_a_frozen_copy_has_the_same_encoder() -> None:
    model = make_heads()[0].state.model
    earlier = {name: array + 1 for name, array in dump_parameters(model).items()}
    frozen = freeze(model, earlier)
    assert frozen.get_submodule("encoder") is model.get_submodule("encoder")
    assert np.array_equal(dump_parameters(frozen)["fc1.bias"], earlier["fc1.bias"])
    assert not np.array_equal(dump_parameters(model)["fc1.bias"], earlier["fc1.bias"])


def test_a_copy_of_a_model_without_a_frozen_part_shares_nothing() -> None:
    model: Model = build_model({"name": "mlp_mnist"}, (1, 8, 8), 10)
    pairs = zip(model.parameters(), copy_model(model).parameters(), strict=True)
    assert all(torch.equal(own, other) and own.data_ptr() != other.data_ptr() for own, other in pairs)


def test_a_checkpoint_has_no_encoder() -> None:
    client = make_heads(replace(FEDERATION, method={"name": "moon", **WORK}))[0]
    client.train(1, BEACON)
    assert not [name for name in client.state_arrays() if "encoder" in name]
    assert sum(array.size for name, array in client.state_arrays().items() if name.startswith("model/")) == 133_898
