"""Federations that train a part of a model: only that is sent, and the rest is the same everywhere, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.beacon import compute_beacon
from chain.run import Run
from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.data import get_classes, get_default_input
from ml.models import dump_parameters, resolve_model
from ml.payload import Array, decode_arrays, encode_arrays
from ml.plugins import ANY_PLUGIN
from ml.simulation.run import SimulationConfig, simulate
from ml.specs.run_schema import describe_payloads
from node.ledger.audit import run_audit
from node.runs.initial import read_initial
from node.runs.specs import RunSpecs
from node.training.model_file import is_initial_needed
from support.federation.cluster import Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.proposing import change, get_service, get_state, wait_for_state, wait_until_over
from support.federation.runs import MODEL, NODES, RunTrainer, learn, start_run
from support.federation.virtual_time import run_virtual

ROUNDS = 3
DATA = {"format": "digits"}
FROZEN = {**MODEL, "frozen": ["fc1.*"]}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def get_all(client: Any) -> dict[str, Array]:
    return dump_parameters(client.state.model, with_frozen=True)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("make_adapters", {"name": "fedavg", "local_iterations": 5}),
        pytest.param("make_tied", {"name": "fednova", "local_iterations": 5}, marks=pytest.mark.slow),
    ],
)
def test_members_send_what_trains_and_reach_the_simulations_aggregates(
    tmp_path: Path, name: str, method: dict[str, Any]
) -> None:
    named = {"name": f"support.data.adapter_models:{name}"}
    input_, classes = get_default_input(DATA, MODEL), get_classes(DATA)
    model = resolve_model(named, input_["shape"], len(classes))
    initial = make_initial_aggregate(model, input_["shape"], len(classes), 1)
    federation = Federation(
        method=method,
        model=model,
        classes=classes,
        input=input_,
        rounds=ROUNDS,
        num_members=len(NODES),
        plugins=ANY_PLUGIN,
    )
    clients = make_clients(federation, data=DATA, partition="iid", run_seed=1, initial=initial)
    frozen = clients[0].spec.task.layout.frozen

    async def federate() -> None:
        async with cluster(
            tmp_path,
            len(NODES),
            rounds=ROUNDS,
            trainers=[InlineTrainer(client) for client in clients],
            initial_model=encode_arrays(initial),
            method=clients[0].spec.to_mapping(),
            model=model,
            classes=list(classes),
            input=input_,
        ) as net:
            await net.wait_for_height(ROUNDS, timeout_s=600.0)
            await net.wait_for(
                lambda: all(get_service(net, each).learner.applied >= ROUNDS for each in NODES), "all to have applied"
            )
            net.check_agreement()
            check(net)

    def check(net: Cluster) -> None:
        blocks = [net["node0"].get_block(height) for height in range(1, ROUNDS + 1)]
        simulated = simulate(
            SimulationConfig(method=method, model=named, clients=4, rounds=ROUNDS, seed=1, partition="iid"),
            ids=[net.id(each) for each in NODES],
            beacons=lambda height: compute_beacon(net["node0"].get_block(height - 1)),
        )
        assert tuple(block.header.aggregate for block in blocks) == tuple(simulated.aggregate_digests)
        sent = [ref for block in blocks for contribution in block.contributions for ref in contribution.payloads]
        numbers = sum(array.nbytes for array in dump_parameters(clients[0].state.model).values())
        assert len(sent) == ROUNDS * len(NODES)
        assert all(numbers < ref.size < numbers + 2_000 for ref in sent)  # the rest is the names
        whole = len(encode_arrays(initial))
        assert max(ref.size for ref in sent) < (whole if frozen else whole + 500)
        for client in clients:
            now = get_all(client)
            assert all(np.array_equal(now[each], initial[f"model/{each}"]) for each in frozen)
            tied = dict(client.state.model.named_parameters(remove_duplicate=False))
            if name == "make_tied":
                assert tied["second.weight"] is tied["first.weight"]
        store = net["node0"].store
        assert store is not None
        assert run_audit(net.genesis, store, deep=True, require_all=True).ok

    run_virtual(federate())


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(FROZEN, MODEL), (MODEL, FROZEN)], ids=["unfreezes", "freezes"])
def test_a_run_goes_on_with_more_or_less_of_the_model(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """A member that was away meanwhile puts the same model together."""

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await wait_until_over(net)
        before = get_state(net, "node0").run
        reached = get_all(trainers[0].client)
        assert set(before.schema["aggregate"]) == {f"model/{name}" for name in get_sent(first)}
        await net.crash("node3")
        await change(net, start_run(before, model=second, rounds=2, schema=describe(before, second)))
        await wait_for_state(net, "the next run", lambda state: state.run.number == 2, *NODES[:3])
        start = get_state(net, "node0").run.first_height - 1
        net.start("node3")
        await net.wait_for_height(start + 2, timeout_s=600.0)
        await wait_until_over(net)
        for trainer in trainers:
            task = trainer.tasks[-1]
            data = task.initial_model if isinstance(task.initial_model, bytes) else task.initial_model.read_bytes()
            begun = decode_arrays(data, len(data))
            assert {name: array.tobytes() for name, array in begun.items()} == {
                f"model/{name}": array.tobytes() for name, array in reached.items()
            }
        now = get_all(trainers[0].client)
        moved = {name for name in now if not np.array_equal(now[name], reached[name])}
        assert moved == set(get_sent(second))
        node = net["node3"]
        assert node.store is not None
        run = get_state(net, "node3").run
        assert is_initial_needed(run) == ("frozen" in second)
        blobs = [node.store.locate_blob(each.initial_model) for each in RunSpecs.load(node.store).list_origins(2)]
        data = read_initial(run, blobs)
        assert decode_arrays(data, len(data)).keys() == {f"model/{name}" for name in reached}

    method = {"name": "fedavg", "local_iterations": 3}
    run = _Terms(method, first)
    learn(tmp_path, method, story, rounds=2, model=first, schema=describe(run, first))  # type: ignore[arg-type]


class _Terms:
    """A run as far as its schema hangs on it."""

    def __init__(self, method: dict[str, Any], model: dict[str, Any]) -> None:
        self.method, self.model, self.rounds = method, model, 2
        self.classes, self.input = get_classes(DATA), get_default_input(DATA, MODEL)


def describe(run: Run, model: dict[str, Any]) -> dict[str, Any]:
    federation = Federation(
        method=run.method,
        model=model,
        classes=run.classes,
        input=run.input,
        rounds=2,
        num_members=len(NODES),
        plugins=ANY_PLUGIN,
    )
    return describe_payloads(federation.get_spec())


def get_sent(model: dict[str, Any]) -> tuple[str, ...]:
    every = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    return every[2:] if "frozen" in model else every
