"""Putting clients together, one way for the simulation and for a node's worker.

What a run of seed S fixes, in both: client i has seed derive_seed(S, "client", i), the samples are dealt by
derive_seed(S, "partition") % 2^31, and the initial model is drawn by derive_seed(S, "model"). So client i of a
simulation and node i of a test network with the same seed are the same client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ml.data import load_dataset
from ml.data.base import ArrayDataset
from ml.data.partition import Indices, make_partition, split_from_mapping
from ml.errors import DataError, MlError
from ml.method import Client, ClientData, Samples
from ml.methods import make_method
from ml.models import build_model, initial_parameters
from ml.payload import Array, Arrays
from ml.seeding import derive_seed
from ml.specs import MethodSpec, add_kind, get_spec


def make_client(
    *,
    method: Mapping[str, Any],
    model: Mapping[str, Any],
    classes: Sequence[str],
    input: Mapping[str, Any],  # noqa: A002 - genesis's word
    data: Mapping[str, Any],
    seed: int,
    initial: Arrays,
    device: str = "auto",
    max_weight: int | None = None,
) -> Client:
    """The client of one node: the first four and `initial`, block 0's aggregate, from genesis, the rest its own.

    `data` is `{format: digits, partition: null}`, or with a partition `{scheme: classes, avg: 3, std: 1, index: 0,
    of: 4, seed: 7}` the part of it that this node plays. Raises SpecError, DataError, or MlError for a device that is
    not there.
    """
    train, test = _load(data, input, classes)
    place = get_device(device)
    partition = data.get("partition")
    everyone = _to_samples(test, None, place)
    if partition is None:
        client_data = ClientData(_to_samples(train, None, place), everyone, everyone, len(classes))
    else:
        split = split_from_mapping(partition, train.y, test.y)
        own, matched = _to_samples(train, split.train, place), _to_samples(test, split.test, place)
        client_data = ClientData(own, matched, everyone, len(classes))
    spec = get_spec(method, model, len(classes), input["shape"], max_weight=max_weight)
    return _assemble(spec, client_data, seed, initial)


def make_clients(
    *,
    method: Mapping[str, Any],
    model: Mapping[str, Any],
    classes: Sequence[str],
    input: Mapping[str, Any],  # noqa: A002 - genesis's word
    data: Mapping[str, Any],
    partition: str,
    num_clients: int,
    run_seed: int,
    shots: int | None = None,
    device: str = "cpu",
    initial: Arrays | None = None,
) -> list[Client]:
    """All clients of a run, the data set on the device once. Raises as `make_client`."""
    train, test = _load(data, input, classes)
    place = get_device(device)
    everyone = _to_samples(test, None, place)
    spec = get_spec(method, model, len(classes), input["shape"])
    if initial is None:
        initial = make_initial_aggregate(model, input["shape"], len(classes), run_seed)
    splits = make_partition(partition, train.y, test.y, num_clients, get_partition_seed(run_seed), shots)
    clients = []
    for i, split in enumerate(splits):
        own, matched = _to_samples(train, split.train, place), _to_samples(test, split.test, place)
        client_data = ClientData(own, matched, everyone, len(classes))
        clients.append(_assemble(spec, client_data, get_client_seed(run_seed, i), initial))
    return clients


def make_initial_aggregate(
    model: Mapping[str, Any], input_shape: Sequence[int], num_classes: int, run_seed: int
) -> dict[str, Array]:
    """Block 0's aggregate of a run: the initial parameters under "model/"."""
    return add_kind("model", initial_parameters(model, input_shape, num_classes, derive_seed(run_seed, "model")))


def get_client_seed(run_seed: int, index: int) -> int:
    """The seed of client `index`."""
    return derive_seed(run_seed, "client", index)


def get_partition_seed(run_seed: int) -> int:
    """The seed that samples are dealt by: `data.partition.seed` of a node's configuration."""
    return derive_seed(run_seed, "partition") % (1 << 31)


def get_device(name: str) -> torch.device:
    """`cpu`, `cuda`, `cuda:1`, or `auto` for a GPU where there is one. Raises MlError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise MlError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise MlError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise MlError(f"device: expected one of {torch.cuda.device_count()} CUDA devices, got {name!r}")
    return device


def _load(
    data: Mapping[str, Any],
    input_: Mapping[str, Any],
    classes: Sequence[str],
) -> tuple[ArrayDataset, ArrayDataset]:
    train, test = load_dataset(data, input_)
    if tuple(classes) != train.classes:
        raise DataError(f"classes: expected those of the data, {list(train.classes)}, got {list(classes)}")
    return train, test


def _to_samples(dataset: ArrayDataset, chosen: Indices | None, device: torch.device) -> Samples:
    rows = np.arange(len(dataset)) if chosen is None else chosen
    return Samples(torch.from_numpy(dataset.x[rows]).to(device), torch.from_numpy(dataset.y[rows]).to(device))


def _assemble(spec: MethodSpec, data: ClientData, seed: int, initial: Arrays) -> Client:
    model = build_model(spec.task.model, spec.task.input_shape, spec.task.num_classes)
    return Client(make_method(spec), model, data, seed=seed, initial=initial)
