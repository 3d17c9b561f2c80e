"""An aggregate that leaves a node without a finite loss: real clients, real services, and a member that means harm."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.signing import encode_id
from ml.clients import make_clients, make_initial_aggregate
from ml.data import get_classes, get_default_input
from ml.payload import encode_arrays
from node.trainer import InlineTrainer
from support.cluster import Cluster, cluster
from support.liar import Liar, lying
from support.virtual_time import run_virtual

HONEST = ("node0", "node1", "node2")
MODEL = {"name": "mlp", "hidden": [16]}
AT = 3  # the height that the liar spoils
SLOW = {"difficulty": 2000, "min": 1, "max": 2**32, "target_ms": 200}  # 0.2 s at the cluster's hash rate


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def fill(liar: Liar, value: float) -> dict[int, bytes]:
    """A payload of each kind of this height, every float of which is `value`, and classes as they have to be."""
    spec, made = liar.spec, {}
    for kind, schema in spec.schemas(liar.height).items():
        arrays = {}
        for name, array in schema.arrays.items():
            shape = [size if isinstance(size, int) else 2 for size in array.shape]
            arrays[name] = np.arange(2) if name == "classes" else np.full(shape, value, array.dtype)
        made[kind] = encode_arrays(arrays)
    return made


def federate(
    path: Path, method: dict[str, Any], story: Callable[[Cluster, Liar], Awaitable[None]], **genesis: Any
) -> None:
    """`story` of three honest members on digits, and node3, which lies."""
    classes, input_ = get_classes({"format": "digits"}), get_default_input({"format": "digits"}, MODEL)
    initial = make_initial_aggregate(MODEL, input_["shape"], len(classes), 1)
    clients = make_clients(
        method=method,
        model=MODEL,
        classes=classes,
        input=input_,
        data={"format": "digits"},
        partition="dirichlet:0.5",
        num_clients=4,
        run_seed=1,
        initial=initial,
    )

    async def run() -> None:
        async with (
            cluster(
                path,
                4,
                start=HONEST,
                trainers=[InlineTrainer(client) for client in clients],
                initial_model=encode_arrays(initial),
                method=clients[0].spec.to_mapping(),
                model=MODEL,
                classes=list(classes),
                input=input_,
                pow=SLOW,
                **genesis,
            ) as net,
            lying(net, "node3") as liar,
        ):
            await story(net, liar)

    run_virtual(run())


def read_record(net: Cluster, name: str, height: int) -> dict[str, Any] | None:
    store = net[name].store
    assert store is not None
    return store.get_round(height)


async def spoil(net: Cluster, liar: Liar, value: float) -> None:
    """The liar contributes to height AT, and all have taken it in or refused it."""
    await net.wait_for_height(AT - 1, *HONEST)
    await net.wait_for(lambda: len({net[name].height for name in HONEST}) == 1, "the honest to be level")
    liar.send(liar.make_status())
    liar.send(liar.offer(fill(liar, value)))
    print("sent at", liar.height, net["node0"].clock.monotonic())
    await net.wait_for(lambda: all(read_record(net, name, AT) for name in HONEST), f"records of round {AT}")
    print(
        [len(net["node0"].get_block(h).contributions) for h in range(1, AT + 1)],
        read_record(net, "node0", AT)["left_out"],
        read_record(net, "node0", AT)["rejected"],
    )


@pytest.mark.parametrize("method", ["fedavg", "dfpl", "mpfedcl"])
def test_one_absurd_contribution_ends_nobody(tmp_path: Path, method: str) -> None:
    settings = {"normalize": False} if method == "mpfedcl" else {}

    async def story(net: Cluster, liar: Liar) -> None:
        await spoil(net, liar, 1e38)
        await net.wait_for_height(AT + 3, *HONEST)
        for name in HONEST:
            assert net[name].failure is None

    federate(tmp_path, {"name": method, **settings}, story)
