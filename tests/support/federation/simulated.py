"""Small federations on digits for tests of `ml`: clients, and rounds run by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ml.clients.build import Compute, Federation, make_client, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.methods.base import Trained
from ml.models.base import dump_parameters
from ml.models.user import resolve_model
from ml.payload import Array, Arrays, decode_arrays, encode_arrays
from ml.plugins import ANY_PLUGIN
from ml.specs import AuthorPayloads, add_kind, compute_aggregate

torch.set_num_threads(1)  # as in a simulation and a worker; more only slow down so small a model

MLP = {"name": "mlp", "hidden": [64, 32]}
CNN = {"name": "cnn_mnist"}
NORMED = resolve_model({"name": "support.data.user_models:make_small", "args": {"width": 4}}, (1, 8, 8), 10)
BEACON = bytes(32)


def make_digit_clients(
    method: Mapping[str, Any],
    *,
    num_clients: int = 3,
    seed: int = 1,
    partition: str = "classes:3,1",
    model: Mapping[str, Any] = MLP,
    shots: int | None = None,
    rounds: int = 10,
) -> list[Client]:
    if method["name"] == "fedbn" and model in (MLP, CNN):
        model = NORMED
    federation = Federation(
        method=method,
        model=model,
        classes=get_classes({"format": "digits"}),
        input=get_default_input({"format": "digits"}, model),
        rounds=rounds,
        num_members=num_clients,
        plugins=ANY_PLUGIN,
    )
    return make_clients(federation, data={"format": "digits"}, partition=partition, run_seed=seed, shots=shots)


def make_described_client(described: Mapping[str, Any], initial: Arrays, **own: Any) -> Client:
    """Makes the client that a worker builds from the fields of a `WorkerConfig`, with `own` besides."""
    genesis = {name: described[name] for name in ("method", "model", "classes", "input")}
    data, seed, compute = described["data"], described["seed"], Compute(described["device"])
    return make_client(Federation(**genesis), data=data, seed=seed, initial=initial, compute=compute, **own)


def make_digit_federation(
    method: Mapping[str, Any], *, num_clients: int, rounds: int, model: Mapping[str, Any]
) -> tuple[list[Client], dict[str, Any]]:
    """Makes clients whose data are much alike, and the fields of genesis for them, by `support.federation.cluster`'s
    names."""
    clients = make_digit_clients(method, num_clients=num_clients, partition="dirichlet:5", model=model, rounds=rounds)
    classes, input_ = get_classes({"format": "digits"}), get_default_input({"format": "digits"}, model)
    initial = make_initial_aggregate(model, input_["shape"], len(classes), 1)
    genesis = {
        "method": clients[0].spec.to_mapping(),
        "model": model,
        "classes": list(classes),
        "input": input_,
        "initial_model": encode_arrays(initial),
    }
    return clients, genesis


def get_parent(clients: Sequence[Client]) -> dict[str, Array]:
    """Returns the parent's aggregate before a round, where models are shared: all clients start from it."""
    return add_kind("model", dump_parameters(clients[0].state.model))


def run_round(clients: Sequence[Client], height: int, parent: Arrays | None = None) -> list[Trained]:
    """Trains, aggregates and applies once. Returns what was sent. The parent's aggregate is by default the first
    client's model, as it is in every method that shares one."""
    if parent is None:
        parent = get_parent(clients)
    trained = [client.train(height, BEACON) for client in clients]
    aggregate = aggregate_round(clients, height, trained, parent)
    for client in clients:
        client.apply(height, aggregate, beacon=BEACON)
    return trained


def aggregate_round(
    clients: Sequence[Client], height: int, trained: Sequence[Trained], parent: Arrays | None = None
) -> dict[str, Array] | None:
    contributions = [AuthorPayloads(bytes([i]) * 32, made.weight, made.payloads) for i, made in enumerate(trained)]
    encoded = compute_aggregate(clients[0].spec, height, contributions, parent)
    return None if encoded is None else decode_arrays(encoded, len(encoded))
