"""A GPU's numbers are the CPU's, but for the order of sums: models, methods, k-means, cached features, many clients.

Tolerances. Weights after two steps differ by at most 1e-4, where a model has batch norm by 2e-3, since that divides by
small deviations, and where it pools by the maximum by as much: which of two equal neighbours is taken, in the blank of
an image, is the last bit's choice. Losses of whole simulations differ by at most 1e-3 and accuracies by 0.03: few test
samples stand on the border between two classes. On a CPU nothing differs at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpu.quick import MLP, make_quick
from ml.clients.batched import train_batched
from ml.clients.build import Compute, Federation, make_clients
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.gaussian import GRID_BITS, add_noise
from ml.methods.common.clustering import cluster_by_kmeans
from ml.payload import Arrays
from ml.secret_stream import SecretStream
from ml.seeding import numpy_rng
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.specs import METHODS
from ml.specs.architectures import ARCHITECTURES
from ml.training.loop import Engine
from support.data.normed import fit_model

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("exact")]

BEACON = bytes(32)
DATA = {"format": "digits"}
IS_COARSE = ("resnet18", "resnet18_cifar", "cnn_mnist", "cnn_cifar")
QUICK: dict[str, Any] = {"name": "local", "local_iterations": 2, "batch_size": 8, "lr": 0.01}


def make(
    device: str,
    model: Mapping[str, Any] = MLP,
    *,
    method: Mapping[str, Any] = QUICK,
    num_clients: int = 1,
    shots: int | None = 2,
    engine: Mapping[str, Any] | None = None,
) -> list[Client]:
    """Clients whose modules of dropout drop nothing, since they draw other numbers on each device."""
    federation = Federation(
        method=method,
        model=model,
        classes=get_classes(DATA),
        input=get_default_input(DATA, model),
        rounds=10,
        num_members=num_clients,
    )
    compute = Compute(device, engine)
    clients = make_clients(federation, data=DATA, partition="iid", run_seed=1, shots=shots, compute=compute)
    for client in clients:
        for module in client.state.model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
    return clients


def assert_close(device: str, one: Arrays, other: Arrays, tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        allowed = 0 if device == "cpu" else tolerance
        np.testing.assert_allclose(array, other[name], rtol=0, atol=allowed, err_msg=name)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_model_learns_the_same(device: str, name: str) -> None:
    model: dict[str, Any] = MLP if name == "mlp" else {"name": name}
    tolerance = 2e-3 if name in IS_COARSE or model.get("batch_norm") else 1e-4
    states = []
    for place in ("cpu", device):
        (client,) = make(place, model)
        client.train(1, BEACON)
        states.append(client.state_arrays())
    assert_close(device, states[0], states[1], tolerance)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_comes_to_the_same(device: str, name: str) -> None:
    method, model = make_quick(name, local_iterations=4), fit_model(name, MLP)

    def run(place: str) -> SimulationResult:
        return simulate(
            SimulationConfig(method=method, clients=3, rounds=3, shots=20, device=place, batched="off", model=model)
        )

    here, there = run("cpu"), run(device)
    if device == "cpu":
        assert (here.rounds, here.aggregate_digests) == (there.rounds, there.aggregate_digests)
    for one, other in zip(here.rounds, there.rounds, strict=True):
        assert one.taa == pytest.approx(other.taa, abs=0.03)
        assert one.global_ == pytest.approx(other.global_, abs=0.03)
        assert one.tal == pytest.approx(other.tal, abs=1e-3, rel=1e-3)


def test_k_means_finds_the_same_centres(device: str) -> None:
    rng = np.random.default_rng(1)
    corners = 4 * rng.normal(size=(6, 32))
    z_ND = torch.tensor(corners[np.arange(600) % 6] + 0.1 * rng.normal(size=(600, 32)), dtype=torch.float32)
    y_N = torch.arange(600) % 6 // 2  # two corners to a class
    here, there = (
        cluster_by_kmeans(z_ND.to(place), y_N.to(place), 2, lambda c: numpy_rng(1, "kmeans", c))
        for place in ("cpu", device)
    )
    np.testing.assert_array_equal(here.classes, there.classes)
    np.testing.assert_allclose(here.prototypes, there.prototypes, rtol=0, atol=0 if device == "cpu" else 1e-4)


def test_steps_that_hide_samples_are_the_same_but_for_the_noise(device: str) -> None:
    method = {"name": "dfpl", "dp_noise": 1e-9, "dp_prototype_noise": 1e-9, "local_iterations": 12}
    made = [make(place, method=method, shots=20)[0].train(1, BEACON) for place in ("cpu", device)]
    here, there = (trained.payloads["prototypes"] for trained in made)
    assert made[0].release == made[1].release is not None
    assert_close("cuda", here, there, 1e-4)


def test_cached_features_are_the_same_and_what_is_learned_of_them(device: str) -> None:
    clients = [make(place, {"name": "head_256"})[0] for place in ("cpu", device)]
    here, there = (client.state.data.train.x.cpu().numpy() for client in clients)
    np.testing.assert_allclose(here, there, rtol=0, atol=0 if device == "cpu" else 2e-3 * np.abs(here).max())
    for client in clients:
        client.train(1, BEACON)
    assert_close(device, clients[0].state_arrays(), clients[1].state_arrays(), 1e-3)


@pytest.mark.parametrize("num_clients", [10, 50, 200])
def test_one_pass_for_many_clients_is_as_one_after_the_other(device: str, num_clients: int) -> None:
    method = {"name": "dfpl", "local_iterations": 3, "batch_size": 4, "lr": 0.05}
    apart, together = (make(device, method=method, num_clients=num_clients, shots=1) for _ in range(2))
    alone = [client.train(1, BEACON) for client in apart]
    for trained, made in zip(alone, train_batched(together, 1, BEACON), strict=True):
        assert made.metrics["test_loss"] == pytest.approx(trained.metrics["test_loss"], abs=1e-3)
        for name, array in trained.payloads["prototypes"].items():
            np.testing.assert_allclose(array, made.payloads["prototypes"][name], rtol=0, atol=1e-4, err_msg=name)
    for one, other in zip(apart, together, strict=True):
        theirs = other.state_arrays()
        for name, array in one.state_arrays().items():
            np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-4, err_msg=name)


def test_one_pass_draws_each_clients_dropout(device: str) -> None:
    method = {"name": "dfpl", "local_iterations": 8, "batch_size": 4, "lr": 0.05}  # so many that a step is replayed
    model = {"name": "cnn_mnist"}
    apart, together = (make(device, model, method=method, num_clients=10, shots=1) for _ in range(2))
    for client in apart:
        client.train(1, BEACON)
    train_batched(together, 1, BEACON)
    for one, other in zip(apart, together, strict=True):
        theirs = other.state_arrays()
        for name, array in one.state_arrays().items():
            np.testing.assert_allclose(array, theirs[name], rtol=0, atol=2e-3, err_msg=name)


# ---- what a site may choose


@pytest.mark.parametrize("name", ["cnn_mnist", "resnet18_cifar"])
def test_channels_last_is_a_layout_and_nothing_else(device: str, name: str) -> None:
    states = []
    for engine in ({}, {"channels_last": True}):
        (client,) = make(device, {"name": name}, engine=engine)
        client.train(1, BEACON)
        states.append(client.state_arrays())
    for key, array in states[0].items():
        np.testing.assert_allclose(array, states[1][key], rtol=0, atol=2e-3, err_msg=key)


@pytest.mark.parametrize("name", ["mlp", "cnn_mnist"])
def test_bf16_learns_as_float32_does(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the loss after some steps a twentieth may be the coarser numbers'; weights stay float32."""
    model = MLP if name == "mlp" else {"name": name}
    losses = []
    for precision in ("fp32", "bf16"):
        monkeypatch.setattr(Engine, "get_precision", lambda self, place, model, chosen=precision: chosen)
        (client,) = make(device, model, shots=20, method={**QUICK, "local_iterations": 20, "batch_size": 32})
        client.train(1, BEACON)
        assert {str(array.dtype) for array in client.state_arrays().values() if array.dtype.kind == "f"} == {"float32"}
        losses.append(client.evaluate()["loss"])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


# ---- what hides samples


def test_a_device_makes_the_same_normal_numbers_of_secret_words_and_never_the_same_again(device: str) -> None:
    count, key = 1_000_001, bytes(range(32))
    here, there = (SecretStream(key).draw_normals(count, torch.device(place)).cpu() for place in ("cpu", device))
    torch.testing.assert_close(here, there, rtol=0, atol=0 if device == "cpu" else 1e-12)
    drawn = [SecretStream.fresh().draw_normals(count, torch.device(device)) for _ in range(2)]
    assert not torch.isin(drawn[0], drawn[1]).any()
    for z in drawn:
        for power, moment, variance in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
            assert abs((z**power).mean().item() - moment) < 5 * math.sqrt(variance / count)
    assert abs((drawn[0] * drawn[1]).mean().item()) < 5 / math.sqrt(count)


def test_noise_on_a_device_lies_on_the_grid_of_a_cpus(device: str) -> None:
    sums, key = torch.linspace(-3, 3, 100_000, dtype=torch.float64), bytes(range(32))
    here, there = (add_noise(sums.to(place), 2.0, 0.7, SecretStream(key)).cpu() for place in ("cpu", device))
    grid = 2.0 ** (1 - GRID_BITS)
    assert torch.equal(there, grid * (there / grid).round())
    assert (here - there).abs().max().item() <= grid
