"""Many clients in one pass: the same numbers as one after the other, for every method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import ml.clients.batched
from ml.clients.batched import explain_unbatchable, train_batched
from ml.clients.client import Client, Phase
from ml.errors import DataError
from ml.methods.base import Trained
from ml.payload import Arrays, encode_arrays
from ml.simulation.run import SimulationConfig, SimulationResult, simulate
from ml.specs import METHODS
from ml.training.generator import States
from ml.training.loop import Diverged, Engine, Progress
from support.federation.simulated import BEACON, CNN, aggregate_round, get_parent, make_digit_clients

Method = dict[str, Any]

NORM = {"name": "vgg11", "batch_norm": True}
WORK: Method = {"local_iterations": 4, "lr": 0.05}
MORE: dict[str, Method] = {
    "momentum and decay": {"name": "local", "momentum": 0.9, "weight_decay": 0.01, **WORK},
    "epochs": {"name": "local", "local_epochs": 2, "batch_size": 8},
    "squared distance": {"name": "dfpl", "aux": "sq", **WORK},
    "FedProto's distance": {"name": "dfpl", "aux": "mse", **WORK},
    "pulls relative to other prototypes": {"name": "dfpl", "aux": "contrast", "normalize": True, **WORK},
    "all samples": {"name": "dfpl", "aux_protos": "full", **WORK},
    "decay by step": {"name": "fedavg", "momentum": 0.5, "decay": 0.9, "decay_unit": "step", **WORK},
    "class means": {"name": "mpfedcl", "cluster": "mean", **WORK},
    "codebooks with gaps": {"name": "mpfedcl", "num_prototypes": 4, "padding": False, "reduction": "sum", **WORK},
    "fededs": {"name": "fededs", "local_epochs": 3, "warmup_epochs": 1, "encryptor_epochs": 1, "unet_width": 2},
    "a running mean": {"name": "feddbe", "mu": 0.5, **WORK},
    "the layer before": {"name": "mpfedcl", "embed": "encoder", "eval_model": "local", **WORK},
}
UNFIT = ("fedbn",)  # whose models' statistics no pass for many can keep
CASES = {name: {"name": name, **WORK} for name in METHODS if name not in (*MORE, *UNFIT)} | MORE


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that were trained in one pass, as they come."""
    sizes: list[int] = []
    run_together = ml.clients.batched.run_together

    def note(clients: Sequence[Client], phases: Sequence[Phase], states: list[States]) -> list[Progress]:
        sizes.append(len(clients))
        return run_together(clients, phases, states)

    monkeypatch.setattr(ml.clients.batched, "run_together", note)
    return sizes


def run_round(clients: Sequence[Client], height: int, *, batched: bool) -> list[Trained]:
    parent = get_parent(clients)
    if batched:
        trained = train_batched(clients, height, BEACON)
    else:
        trained = [client.train(height, BEACON) for client in clients]
    aggregate = aggregate_round(clients, height, trained, parent)
    for client in clients:
        client.apply(height, aggregate, beacon=BEACON)
    return trained


def assert_close(first: Arrays, second: Arrays, abs_: float) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array == pytest.approx(second[name], abs=abs_), name


def assert_same_rounds(method: Method, *, num_rounds: int = 3, tolerance: float = 1e-5, **settings: Any) -> None:
    apart, together = (make_digit_clients(method, **settings) for _ in range(2))
    for height in range(1, num_rounds + 1):
        ours = run_round(together, height, batched=True)
        theirs = run_round(apart, height, batched=False)
        for own, other in zip(ours, theirs, strict=True):
            assert own.weight == other.weight
            assert own.payloads.keys() == other.payloads.keys()
            for kind in own.payloads:
                assert_close(own.payloads[kind], other.payloads[kind], tolerance)
            assert own.metrics.keys() == other.metrics.keys()
            for name in ("iterations", "steps"):
                assert own.metrics[name] == other.metrics[name]
            for name in ("loss", "test_loss"):
                assert own.metrics[name] == pytest.approx(other.metrics[name], abs=10 * tolerance)
    for one, another in zip(together, apart, strict=True):
        assert_close(one.state_arrays(), another.state_arrays(), tolerance)


@pytest.mark.parametrize("method", CASES.values(), ids=CASES)
def test_batched_clients_learn_what_they_would_have_one_after_the_other(method: Method) -> None:
    assert_same_rounds(method, partition="classes:3,1", shots=20)


@pytest.mark.parametrize(
    "model",
    [pytest.param({"name": "cnn_cifar"}, marks=pytest.mark.outer), {"name": "mlp_mnist"}],
    ids=lambda model: model["name"],
)
@pytest.mark.outer
def test_other_models_without_batch_norm_too(model: dict[str, Any], groups: list[int]) -> None:
    method = {"name": "dfpl", "local_iterations": 2, "batch_size": 4, "lr": 0.05}
    assert_same_rounds(method, num_rounds=2, model=model, shots=5, num_clients=2, tolerance=1e-4)
    assert groups == [2, 2]


@pytest.mark.outer
def test_what_is_frozen_is_shared(groups: list[int]) -> None:
    method = {"name": "local", "local_iterations": 2, "batch_size": 2, "lr": 0.05}
    assert_same_rounds(method, num_rounds=1, model={"name": "head_256"}, shots=1, num_clients=2, tolerance=1e-4)
    assert groups == [2]


def test_batched_clients_share_one_pass(groups: list[int]) -> None:
    clients = make_digit_clients({"name": "dfpl", **WORK}, num_clients=5)
    before = [client.state_arrays() for client in clients]
    train_batched(clients, 1, BEACON)
    assert groups == [5]
    for client, arrays in zip(clients, before, strict=True):
        assert encode_arrays(client.state_arrays()) != encode_arrays(arrays)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "dfpl", "aux_protos": "full", "local_iterations": 2},
        {"name": "fedprox", "momentum": 0.5, "local_iterations": 2},
        pytest.param({"name": "uapdfl", "local_iterations": 2}, marks=pytest.mark.outer),
        pytest.param(
            {"name": "fededs", "unet_width": 2, "warmup_epochs": 1, "encryptor_epochs": 1, "local_epochs": 1},
            marks=pytest.mark.outer,
        ),
    ],
    ids=lambda method: method["name"],
)
def test_dropout_draws_for_each_client_what_it_draws_alone(method: Method, groups: list[int]) -> None:
    """A batch is all of a client's samples, and they have not as many each."""
    method = {"batch_size": 64, "lr": 0.05, **method}
    assert_same_rounds(method, num_rounds=2, model=CNN, partition="dirichlet:0.3", shots=4, num_clients=3, seed=3)
    assert groups or method["name"] == "fededs"  # whose sets make every client's steps another number


UNEVEN: dict[str, Any] = {"num_clients": 6, "partition": "dirichlet:0.3", "shots": 10, "seed": 3}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "method",
    [
        {"name": "local", "label_smoothing": 0.1},
        {"name": "fedprox"},
        {"name": "dfpl"},
        {"name": "dfpl", "aux": "sq", "normalize": True},
        {"name": "uapdfl"},
        {"name": "feddbe"},
    ],
    ids=str,
)
def test_batches_of_fewer_samples_are_filled_up(
    method: Method, at_once: bool, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_once:
        monkeypatch.setattr(ml.clients.batched, "MAX_GATHERED_BYTES", 0)
    method = {"batch_size": 40, **WORK, **method}
    assert len({min(40, client.num_train) for client in make_digit_clients(method, **UNEVEN)}) > 3
    assert_same_rounds(method, num_rounds=2, **UNEVEN)
    assert groups == [6, 6]


@pytest.mark.parametrize(
    "method", [{"name": "local"}, {"name": "fedprox"}, {"name": "dfpl"}, {"name": "uapdfl"}], ids=str
)
def test_a_loss_of_somebody_elses_is_not_filled_up(method: Method) -> None:
    (client,) = make_digit_clients({**method, **WORK}, num_clients=1)
    known: Any = type(client.method)

    class Other(known):  # type: ignore[misc]  # of a class found as the test runs
        def compute_loss(self, *arguments: Any) -> Any:
            return super().compute_loss(*arguments)

    spec = client.method.spec
    assert (known(spec).takes_padding, Other(spec).takes_padding) == (True, False)


@pytest.mark.parametrize(
    "method", [{"name": "local", "loss": "focal"}, {"name": "fedproto"}, {"name": "dfpl", "aux": "mse"}], ids=str
)
def test_clients_of_other_batch_sizes_form_groups_of_their_own(method: Method, groups: list[int]) -> None:
    method = {"batch_size": 40, **WORK, **method}
    assert_same_rounds(method, num_rounds=1, **UNEVEN)
    sizes = [min(40, client.num_train) for client in make_digit_clients(method, **UNEVEN)]
    expected = [sizes.count(size) for size in dict.fromkeys(sizes) if sizes.count(size) > 1]
    assert 1 in map(sizes.count, sizes)  # one is trained alone
    assert groups == expected != []


def test_samples_that_do_not_fit_at_once_are_gathered_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml.clients.batched, "MAX_GATHERED_BYTES", 0)
    assert_same_rounds({"name": "swim", **WORK}, shots=20)


def test_bfloat16_stays_close_and_leaves_weights_in_float32() -> None:
    apart, together = (make_digit_clients({"name": "dfpl", **WORK}) for _ in range(2))
    for client in (*apart, *together):
        client.engine = Engine(precision="bf16")
    for height in (1, 2):
        run_round(together, height, batched=True)
        run_round(apart, height, batched=False)
    for one, another in zip(together, apart, strict=True):
        assert_close(one.state_arrays(), another.state_arrays(), 2e-2)
        assert {parameter.dtype for parameter in one.state.model.parameters()} == {torch.float32}


# ---- what fails


def test_divergence_of_one_is_raised_and_changes_none() -> None:
    clients = make_digit_clients({"name": "local", **WORK})
    clients[1].state.data.train.x[:] = torch.nan
    before = [encode_arrays(client.state_arrays()) for client in clients]
    with pytest.raises(Diverged, match=r"loss not finite at step 1 of 4, lr 0.05") as batched:
        train_batched(clients, 1, BEACON)
    assert [encode_arrays(client.state_arrays()) for client in clients] == before
    with pytest.raises(Diverged) as alone:
        clients[1].train(1, BEACON)
    assert str(batched.value) == str(alone.value)


def test_failure_after_the_last_step_changes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = make_digit_clients({"name": "fedavg", **WORK})
    before = [encode_arrays(client.state_arrays()) for client in clients]

    def fail(*_: Any) -> None:
        raise ValueError("no payload")

    monkeypatch.setattr(clients[2].method, "finish", fail)
    with pytest.raises(ValueError, match="no payload"):
        train_batched(clients, 1, BEACON)
    assert [encode_arrays(client.state_arrays()) for client in clients] == before


def test_torchs_generator_is_left_alone() -> None:
    clients = make_digit_clients({"name": "local", **WORK})
    before = torch.get_rng_state()
    train_batched(clients, 1, BEACON)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("model", "engine", "reason"),
    [
        (NORM, Engine(), "model vgg11: expected one without batch norm, and not a user's own"),
        ({"name": "mlp"}, Engine(augment="flip"), "augment: expected none, got flip"),
        ({"name": "mlp"}, Engine(compiled=True), "compile: expected false, got true"),
    ],
)
def test_what_keeps_clients_apart_is_said(model: dict[str, Any], engine: Engine, reason: str) -> None:
    clients = make_digit_clients({"name": "local"}, num_clients=2, model=model, shots=1)
    clients[1].engine = engine
    assert (explain_unbatchable(clients) or "").startswith(reason)


# ---- in a simulation


def run(batched: str, **settings: Any) -> SimulationResult:
    config: dict[str, Any] = {"method": {"name": "dfpl", **WORK}, "clients": 3, "rounds": 3, "shots": 20} | settings
    return simulate(SimulationConfig(batched=batched, **config))


@pytest.mark.parametrize("method", [{"name": "dfpl", **WORK}, {"name": "uapdfl", "num_peers": 1, "th": 0.003, **WORK}])
def test_batched_simulation_comes_to_what_the_other_does(method: Method) -> None:
    ours, theirs = run("on", method=method), run("off", method=method)
    for own, other in zip(ours.rounds, theirs.rounds, strict=True):
        assert (own.sent_params, own.sent_bytes) == (other.sent_params, other.sent_bytes)
        assert (own.received_bytes, own.peers, own.dropout) == (other.received_bytes, other.peers, other.dropout)
        assert own.tal == pytest.approx(other.tal, abs=1e-4)
        assert own.taa == pytest.approx(other.taa, abs=0.05)


def test_a_cpu_is_not_batched_unless_asked(groups: list[int]) -> None:
    assert run("auto").aggregate_digests == run("off").aggregate_digests
    assert groups == []
    run("on")
    assert groups == [3, 3, 3]


def test_batching_what_cannot_be_batched_is_refused_when_asked_for() -> None:
    settings: dict[str, Any] = {"method": {"name": "local", "local_iterations": 1}, "model": NORM, "clients": 1}
    with pytest.raises(DataError, match=r"batched: model vgg11: expected one without batch norm"):
        run("on", **settings)
    with pytest.raises(DataError, match=r"batched: expected auto, on, off, got 'yes'"):
        run("yes")


def test_a_pass_for_all_is_what_plain_arithmetic_gives() -> None:
    """Two clients of the smallest network by hand: w <- w - lr * dCE/dw for each, from the same w."""
    clients = make_digit_clients(
        {"name": "local", "local_iterations": 1, "lr": 0.5}, num_clients=2, model={"name": "mlp", "hidden": [1]}
    )
    starts = [client.state_arrays() for client in clients]
    phases = [client.begin(1, BEACON) for client in clients]
    train_batched(clients, 1, BEACON)
    for client, start, phase in zip(clients, starts, phases, strict=True):
        (rows,) = phase.schedule.batches
        x_BD, y_B = client.state.data.train.x[rows].flatten(1).numpy(), client.state.data.train.y[rows].numpy()
        z_B1 = np.maximum(x_BD @ start["model/fc1.weight"].T + start["model/fc1.bias"], 0)
        logits_BC = z_B1 @ start["model/fc2.weight"].T + start["model/fc2.bias"]
        p_BC = np.exp(logits_BC) / np.exp(logits_BC).sum(1, keepdims=True)
        p_BC[np.arange(len(y_B)), y_B] -= 1
        after = client.state_arrays()
        assert after["model/fc2.bias"] == pytest.approx(start["model/fc2.bias"] - 0.5 * p_BC.mean(0), abs=1e-6)
        assert after["model/fc2.weight"] == pytest.approx(
            start["model/fc2.weight"] - 0.5 * p_BC.T @ z_B1 / len(y_B), abs=1e-6
        )
