"""An aggregate that leaves a node without a finite loss: real clients, real services, and a member that means harm."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.signing import encode_id
from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.clients.client import Client
from ml.data import get_classes, get_default_input
from ml.payload import Array, decode_arrays, encode_arrays
from node.admin.json_view import to_json
from node.admin.wiring import make_view
from node.cli.federation.rounds import describe_round
from node.cli.node.status import describe, describe_in_a_line
from node.consensus.service import RoundService
from node.ledger.reader import Ledger
from node.p2p.refusals import Reason
from node.telemetry.metrics import CallTimes, NodeMetrics
from node.telemetry.monitor import make_metrics
from node.telemetry.sinks.point import list_scalars, make_point
from node.training.trainer import Trained
from support.federation.asked import make_book, make_config
from support.federation.cluster import Cluster, cluster
from support.federation.inline import InlineTrainer
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

HONEST = ("node0", "node1", "node2")
LIAR = "node3"
MODEL = {"name": "mlp", "hidden": [16]}
AT = 4  # the height that is spoiled
ANYTHING = {"max_weight": 1_000_000, "payload_mib": 16, "max_abs": 3.4e38}  # as if nobody had set a limit
MPFEDCL = {"name": "mpfedcl", "normalize": False}


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


Lie = Callable[[Array], Array]


def fill(value: float) -> Lie:
    return lambda x: np.full_like(x, value)


def scale(factor: float) -> Lie:
    return lambda x: x * np.float32(factor)


class Unhurried(InlineTrainer):
    """Takes its time to train, and at the heights in `lies` says something else than what came of it: that is what it
    makes of each array of floats."""

    def __init__(self, client: Client, lies: Mapping[int, Lie] | None = None, weight: int | None = None) -> None:
        super().__init__(client)
        self.train_s = 0.2
        self.lies = dict(lies or {})
        self.weight = weight

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        await asyncio.sleep(self.train_s)
        trained = await super().train(height, beacon, **options)
        lie = self.lies.get(height)
        if lie is None:
            return trained
        payloads = {kind: distort(data, lie) for kind, data in trained.payloads.items()}
        return replace(trained, payloads=payloads, weight=self.weight or trained.weight)


def distort(data: bytes, lie: Lie) -> bytes:
    arrays = decode_arrays(data, len(data))
    return encode_arrays({name: lie(x) if x.dtype.kind == "f" else x for name, x in arrays.items()})


def federate(
    path: Path,
    method: Mapping[str, Any],
    story: Callable[[Cluster], Awaitable[None]],
    *,
    lies: Mapping[int, Lie] | None = None,
    weight: int | None = None,
    start: Sequence[str] = (*HONEST, LIAR),
    prepare: Callable[[list[Client]], None] = lambda clients: None,
    model: Mapping[str, Any] = MODEL,
    **genesis: Any,
) -> None:
    """`story` of three honest members on digits, and of one that lies."""
    classes, input_ = get_classes({"format": "digits"}), get_default_input({"format": "digits"}, model)
    initial = make_initial_aggregate(model, input_["shape"], len(classes), 1)
    federation = Federation(method=method, model=model, classes=classes, input=input_, num_members=4)
    clients = make_clients(
        federation, data={"format": "digits"}, partition="dirichlet:0.5", run_seed=1, initial=initial
    )
    prepare(clients)

    async def run() -> None:
        async with cluster(
            path,
            4,
            start=start,
            trainers=[*map(Unhurried, clients[:3]), Unhurried(clients[3], lies, weight)],
            initial_model=encode_arrays(initial),
            method=clients[0].spec.to_mapping(),
            model=dict(model),
            classes=list(classes),
            input=input_,
            **genesis,
        ) as net:
            await story(net)

    run_virtual(run())


def get_service(net: Cluster, name: str) -> RoundService:
    service = net[name].service
    assert service is not None
    return service


def get_record(net: Cluster, name: str, height: int) -> dict[str, Any]:
    store = net[name].store
    assert store is not None
    record = store.get_round(height)
    assert record is not None
    return record


def get_aggregate(net: Cluster, height: int) -> dict[str, Array]:
    store = net["node0"].store
    assert store is not None
    data = store.get_blob(net["node0"].get_block(height).header.aggregate)
    return decode_arrays(data, len(data))


async def wait_for_records(net: Cluster, height: int, *names: str) -> None:
    """The round is over for these, the honest unless told, and written down."""
    await net.wait_for_height(height, *(names or HONEST))
    stores = [net[name].store for name in names or HONEST]
    await net.wait_for(
        lambda: all(store is not None and store.get_round(height) for store in stores), f"records of round {height}"
    )


def get_authors(net: Cluster, height: int) -> set[bytes]:
    return {contribution.author for contribution in net["node0"].get_block(height).contributions}


# ---- refused


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "dfpl"}, MPFEDCL, {"name": "mpfedcl"}])
@pytest.mark.parametrize("value", [1e38, -1.1e6])
def test_an_absurd_contribution_is_refused_and_the_round_goes_on(
    tmp_path: Path, method: dict[str, Any], value: float
) -> None:
    async def story(net: Cluster) -> None:
        await wait_for_records(net, AT + 2)
        await net.wait_for_height(AT + 2)  # the liar's node, too
        assert net.check_agreement() >= AT + 2
        liar = net.id(LIAR)
        assert get_authors(net, AT) == {net.id(name) for name in HONEST}
        for name in HONEST:
            record = get_record(net, name, AT)
            assert f"expected numbers from -1e+06 to 1e+06, got {value:g}" in record["rejected"][encode_id(liar)]
            assert record["spoiled"] is None
            assert get_service(net, name).get_refusals()[liar][Reason.PAYLOAD] == 1
        assert liar in get_authors(net, AT + 1)  # its contribution was refused, and not itself

    federate(tmp_path, method, story, lies={AT: fill(value)})


# ---- taken into the block, and not over


async def check_min_samples(net: Cluster, name: str, height: int) -> None:
    """The node says what has happened, wherever it says anything, in numbers that are finite or not there."""
    service, store = get_service(net, name), net[name].store
    assert store is not None
    record = get_record(net, name, height)
    assert re.match(rf"round {height}: .*(not finite|samples is (nan|inf))", record["spoiled"]), record["spoiled"]
    json.dumps(record, allow_nan=False)
    assert [event.data["height"] for event in service.events.kept if event.kind == "spoiled"] == [height]
    shown = Ledger(net.genesis, store).get_round(height)
    assert shown.spoiled == record["spoiled"]
    assert ("aggregate not taken over", record["spoiled"]) in describe_round(shown, "step")
    assert all(np.isfinite(value) for value in (*shown.train.values(), *shown.apply.values()))
    json.dumps(to_json(shown), allow_nan=False)
    for place, value in list_scalars(make_point(record, name, 0)):
        assert np.isfinite(value), place


def read_metrics(metrics: NodeMetrics) -> dict[str, float]:
    """What Prometheus reads, without labels."""
    lines = metrics.encode("")[0].decode().splitlines()
    return {key: float(value) for key, _, value in (line.partition(" ") for line in lines if line[:1] != "#")}


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "dfpl"}, MPFEDCL])
def test_an_aggregate_that_spoils_everybody_is_taken_over_by_nobody_and_the_next_is_sound(
    tmp_path: Path, method: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    last = AT + 4

    async def story(net: Cluster) -> None:
        await wait_for_records(net, last)
        assert net.check_agreement() >= last
        assert len(get_authors(net, AT)) == 4
        for name in HONEST:
            await check_min_samples(net, name, AT)
            record = get_record(net, name, AT)
            if method["name"] == "fedavg":  # others answer by what came of the round before, too
                assert record["accuracy"] == record["local_accuracy"]
        assert caplog.text.count(f"round {AT}: its aggregate is spoiled, and this node goes on from its own") == 4
        for at in range(AT + 1, last + 1):
            assert len(get_authors(net, at)) == 4
            assert all(np.abs(x).max() < 1e3 for x in get_aggregate(net, at).values() if x.dtype.kind == "f")
        for name in HONEST:
            told = [get_record(net, name, at) for at in range(AT + 1, last + 1)]
            assert [(one["spoiled"], one["went_back"], one["failure"]) for one in told] == [(None, None, None)] * 4
            if method != MPFEDCL:  # which learns little without unit vectors, lied to or not
                before = max(get_record(net, name, at)["accuracy"] for at in range(1, AT))
                assert max(one["accuracy"] for one in told) > before - 0.05
            assert get_service(net, name).learner.spoiled is None

    federate(tmp_path, method, story, lies={AT: fill(1e38)}, limits=ANYTHING)


def test_while_a_node_goes_on_from_its_own_model_its_status_and_its_metrics_say_so(tmp_path: Path) -> None:
    async def story(net: Cluster) -> None:
        service = get_service(net, "node0")
        metrics = make_metrics(CallTimes(), service, net["node0"].get_context(), "node0")
        view = make_view(service, net["node0"].get_context(), make_config(tmp_path), make_book())
        told = read_metrics(metrics)
        assert (told["fednode_spoiled_aggregates_total"], told["fednode_on_own_model"]) == (0, 0)
        await wait_for_records(net, AT, "node0")
        status = await view.get_status()
        assert status.spoiled_round == AT
        assert dict(describe(status))["SPOILED"].startswith(f"the aggregate of round {AT}, so this node goes on")
        assert f"SPOILED by round {AT}" in describe_in_a_line(status)
        assert 0 < status.accuracy <= 1
        for event in service.events.kept:
            metrics.on_event(event)
        told = read_metrics(metrics)
        assert (told["fednode_spoiled_aggregates_total"], told["fednode_on_own_model"]) == (1, 1)
        assert np.isfinite(list(told.values())).all()
        await wait_for_records(net, AT + 1, "node0")
        status = await view.get_status()
        assert not status.HasField("spoiled_round")
        assert "SPOILED" not in dict(describe(status))
        assert read_metrics(metrics)["fednode_on_own_model"] == 0

    federate(tmp_path, {"name": "fedavg"}, story, lies={AT: fill(1e38)}, limits=ANYTHING)


def test_what_still_gives_a_loss_and_cannot_be_trained_from_is_undone(tmp_path: Path) -> None:
    """At a weight of a million the lie is nearly all of the aggregate. Three layers make its gradients too long."""
    last = AT + 3

    async def story(net: Cluster) -> None:
        await wait_for_records(net, last)
        assert len(get_authors(net, AT)) == 4
        for name in HONEST:
            assert get_record(net, name, AT)["spoiled"] is None
            record, store = get_record(net, name, AT + 1), net[name].store
            assert store is not None
            assert record["went_back"].startswith(("loss not finite at step", "the last of 20 steps"))
            assert ("began from its own model", record["went_back"]) in describe_round(
                Ledger(net.genesis, store).get_round(AT + 1), "step"
            )
            events = [event for event in get_service(net, name).events.kept if event.kind == "spoiled"]
            assert [event.data["height"] for event in events] == [AT]
            before = max(get_record(net, name, at)["accuracy"] for at in range(1, AT))
            assert get_record(net, name, last)["accuracy"] > before - 0.05
        assert all(np.abs(x).max() < 1e3 for x in get_aggregate(net, AT + 1).values())

    deep = {"name": "mlp", "hidden": [64, 32]}
    federate(tmp_path, {"name": "fedavg"}, story, lies={AT: scale(3e3)}, weight=1_000_000, model=deep)


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "dfpl"}])
def test_a_liar_that_spoils_every_round_stops_nobody_from_learning(tmp_path: Path, method: dict[str, Any]) -> None:
    last = 12

    async def story(net: Cluster) -> None:
        await wait_for_records(net, last)
        assert all(len(get_authors(net, at)) == 4 for at in range(1, last + 1))
        assert all(get_record(net, name, at)["spoiled"] for name in HONEST for at in range(1, last + 1))
        assert min(get_record(net, name, last)["accuracy"] for name in HONEST) > 0.8  # as who trains alone

    federate(tmp_path, method, story, lies=dict.fromkeys(range(1, 20), fill(3e38)), limits=ANYTHING)


# ---- who comes late


def test_a_member_without_a_model_begins_from_the_newest_aggregate_that_is_sound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """node2 has lost its own, and holds two spoiled aggregates at the head of the chain."""
    caplog.set_level(logging.INFO)
    first: dict[str, Array] = {}
    client: list[Client] = []

    def keep(clients: list[Client]) -> None:
        client.append(clients[2])
        first.update(clients[2].state_arrays())

    async def story(net: Cluster) -> None:
        await net.wait_for_height(AT + 1)
        for node in net.nodes.values():
            assert isinstance(node.trainer, Unhurried)
            node.trainer.train_s = 60.0  # nothing is finalised meanwhile, but the round in hand
        await net.wait_for_height(AT + 2)
        train = f"training for round {AT + 3}"
        for name in HONEST:  # a round's record may be written as late as that
            busy = get_service(net, name).learner
            await net.wait_for(lambda busy=busy: (busy.work or "").startswith(train), f"{name} to train")  # type: ignore[misc]
        await net.crash("node2")
        client[0].load_state_arrays(first)
        net["node2"].trainer = Unhurried(client[0])
        net.start("node2")
        learner = get_service(net, "node2").learner
        await net.wait_for(
            lambda: (learner.work or "").startswith(f"training for round {AT + 3}"), "node2 to have taken in the head"
        )
        assert learner.spoiled is not None
        assert learner.spoiled.height == AT + 2
        assert f"training began from the aggregate of round {AT}" in caplog.text
        assert learner.metrics["accuracy"] == get_record(net, "node2", AT)["accuracy"] > 0.4
        await net.wait_for_height(AT + 3)
        assert net.id("node2") in get_authors(net, AT + 3)
        await wait_for_records(net, AT + 3, "node2")
        assert learner.spoiled is None

    spoiled = {AT + 1: fill(3e38), AT + 2: fill(3e38)}
    federate(tmp_path, {"name": "fedavg"}, story, lies=spoiled, prepare=keep, limits=ANYTHING)


def test_a_late_joiner_for_whom_nothing_is_sound_begins_from_the_initial_model(tmp_path: Path) -> None:
    early = ("node0", "node1", LIAR)

    async def story(net: Cluster) -> None:
        await net.wait_for_height(3, *early)
        net.start("node2")
        head = get_service(net, "node0").tip.height
        await net.wait_for_height(head + 2)
        service = get_service(net, "node2")
        assert service.learner.spoiled is not None
        await net.wait_for(
            lambda: any(net.id("node2") in get_authors(net, at) for at in range(4, service.tip.height + 1)),
            "node2 to contribute",
        )

    federate(
        tmp_path, {"name": "fedavg"}, story, start=early, lies=dict.fromkeys(range(1, 60), fill(3e38)), limits=ANYTHING
    )


# ---- trainings that diverge by themselves


def test_a_learning_rate_that_diverges_everywhere_is_told_and_ends_nobody(tmp_path: Path) -> None:
    tried: list[int] = []

    def count(clients: list[Client]) -> None:
        begin = clients[0].begin

        def counted(height: int, *args: Any, **kwargs: Any) -> Any:
            tried.append(height)
            return begin(height, *args, **kwargs)

        clients[0].begin = counted  # type: ignore[method-assign]

    async def story(net: Cluster) -> None:
        service = get_service(net, "node0")
        view = make_view(service, net["node0"].get_context(), make_config(tmp_path), make_book())
        metrics = make_metrics(CallTimes(), service, net["node0"].get_context(), "node0")
        await net.wait_for(lambda: service.learner.trouble is not None, "node0 to say that its training diverges")
        await asyncio.sleep(300.0)
        assert all(net[name].failure is None for name in net.nodes)
        status = await view.get_status()
        told = dict(describe(status))["NOT TRAINED"]
        assert re.search(r"loss not finite at step \d+ of 20, lr 1e\+30", told), told
        assert f"NOT TRAINED {told}" in describe_in_a_line(status)
        assert read_metrics(metrics)["fednode_training_failed"] == 1
        assert 5 <= len(tried) <= 6  # once a minute
        assert not status.contributes
        assert status.height == 0

    federate(tmp_path, {"name": "fedavg", "lr": 1e30}, story, prepare=count)


@pytest.mark.parametrize("flaw", ["no test samples", "a test sample that is no number"])
def test_a_node_whose_evaluation_is_not_finite_goes_on(tmp_path: Path, flaw: str) -> None:
    is_empty = flaw == "no test samples"

    def break_one(clients: list[Client]) -> None:
        data = clients[0].state.data
        if is_empty:
            none = data.matched.take(np.array([], np.int64))
            clients[0].state.data = type(data)(data.train, none, data.everyone, data.num_classes)
        else:
            data.matched.x[0] = torch.nan

    async def story(net: Cluster) -> None:
        await wait_for_records(net, 3)
        assert all(net[name].failure is None for name in net.nodes)
        record, store = get_record(net, "node0", 3), net["node0"].store
        assert store is not None
        assert record["apply"]["loss"] is None
        assert (record["accuracy"] is None) is is_empty
        assert (net.id("node0") in get_authors(net, 3)) is is_empty
        shown = Ledger(net.genesis, store).get_round(3)
        assert "loss" not in shown.apply
        assert shown.HasField("accuracy") is not is_empty
        if not is_empty:
            assert ("not trained", record["failure"]) in describe_round(shown, "step")

    federate(tmp_path, {"name": "fedavg"}, story, prepare=break_one)
