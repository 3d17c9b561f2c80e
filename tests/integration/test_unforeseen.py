"""Errors that nobody foresaw, at every step of what a peer's bytes cause: they end no node, and the members go on."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from chain import validation
from chain.block import Contribution, Phase
from chain.errors import StoreFull
from chain.signing import encode_id
from chain.state import State
from ml import specs
from ml.payload import KINDS
from node.admin.wiring import make_view
from node.boundary import UNFORESEEN, Boundary
from node.cli.federation.rounds import describe_round
from node.cli.output import show_id
from node.consensus import handler
from node.consensus.gossip import sync
from node.consensus.height import actions
from node.consensus.height.machine import RoundMachine
from node.consensus.learning import auditor
from node.consensus.record.record import RoundRecord
from node.consensus.service import RoundService
from node.events import Events
from node.ledger.reader import Ledger
from node.p2p.refusals import Reason
from node.p2p.transport.base import Message, MessageKind
from node.payloads.checks import RoundPayloads
from node.telemetry.metrics import CallTimes
from node.telemetry.monitor import Monitor, make_metrics
from support.faults.liar import lying
from support.federation.asked import make_book, make_config
from support.federation.cluster import Cluster, Node, VirtualClock, cluster
from support.federation.pulling import UAPDFL, taking
from support.federation.sharing import get_trainer, sharing
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

FOUR = ("node0", "node1", "node2", "node3")
VICTIM, LIAR = "node0", "node3"
PAYLOADS = ("service", "parts", "payloads")

Arm = Callable[[pytest.MonkeyPatch, Node], None]


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def get_service(net: Cluster, name: str = VICTIM) -> RoundService:
    service = net[name].service
    assert service is not None
    return service


def get_boundary(net: Cluster, name: str = VICTIM) -> Boundary:
    return net[name].get_context().boundary


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("a bug in the service")


async def fail_later(*_: object, **__: object) -> NoReturn:
    fail()


def break_(patch: pytest.MonkeyPatch, owner: Any, path: Sequence[str]) -> None:
    """Makes the method at this path of `owner`, a node or what is in it, fail when it is called or awaited."""
    *names, last = path
    for name in names:
        owner = getattr(owner, name)
    patch.setattr(owner, last, fail_later if iscoroutinefunction(getattr(owner, last)) else fail)


def is_author(net: Cluster, name: str, height: int) -> bool:
    authors = [contribution.author for contribution in net["node1"].get_block(height).contributions]
    return net.id(name) in authors


async def take_part_again(net: Cluster, *names: str) -> None:
    """A block comes that all of these have contributed to, and all hold the same chain."""
    start = net.check_agreement()
    for height in range(start + 1, start + 20):
        await net.wait_for_height(height)
        if all(is_author(net, name, height) for name in names or FOUR):
            break
    else:
        raise AssertionError(f"no block of {names or FOUR} in 20 heights")
    net.check_agreement()


# ---- at one node, all the time


@dataclass(frozen=True)
class Fault:
    """`arm` makes every such step of the victim's fail. `what` is under what names that is counted."""

    arm: Arm
    what: frozenset[str]


def at(what: str, *path: str) -> Fault:
    """The method at this path of the node."""
    return Fault(lambda patch, node: break_(patch, node, path), frozenset({what}))


def at_part(what: str, *path: str) -> Fault:
    """The method at this path of the parts of its service."""
    return at(what, "service", "parts", *path)


def within(patch: pytest.MonkeyPatch, owner: Any, method: str, target: Any, name: str, value: Any) -> None:
    """Has `target`, which may be a module that all nodes share, hold `value` for as long as this method of `owner`
    runs."""
    run = getattr(owner, method)

    def run_with(*arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(target, name, value)
            return run(*arguments)

    patch.setattr(owner, method, run_with)


def arm_reading_status(patch: pytest.MonkeyPatch, node: Node) -> None:
    within(patch, node.get_service().handler, "on_message", handler, "status_from_bytes", fail)


def arm_taking_in(patch: pytest.MonkeyPatch, node: Node) -> None:
    current = node.get_service().current
    post = current.post

    def post_others(height: int, event: actions.Event) -> None:
        if isinstance(event, actions.ContributionSeen | actions.CandidateSeen | actions.VoteSeen):
            fail()
        post(height, event)

    within(patch, node.get_service().handler, "on_message", current, "post", post_others)


def arm_publishing_block(patch: pytest.MonkeyPatch, node: Node) -> None:
    events = node.get_service().events
    publish = events.publish
    patch.setattr(events, "publish", lambda kind, **data: fail() if kind == "block" else publish(kind, **data))


def at_opening(kind: MessageKind) -> Fault:
    def arm(patch: pytest.MonkeyPatch, node: Node) -> None:
        authenticator = node.get_service().parts.gossip.authenticator
        opened = authenticator.open

        def open_(message: Message, **options: Any) -> object:
            return fail() if message.kind is kind else opened(message, **options)

        patch.setattr(authenticator, "open", open_)

    return Fault(arm, frozenset({kind.name.lower()}))


def at_payloads(step: str, error: type[Exception], *what: str) -> Fault:
    def arm(patch: pytest.MonkeyPatch, node: Node) -> None:
        done, blobs = getattr(RoundPayloads, step), node.get_service().blobs

        async def do(payloads: RoundPayloads, *arguments: Any) -> Any:
            if payloads.blobs is blobs:
                raise error
            return await done(payloads, *arguments)

        patch.setattr(RoundPayloads, step, do)

    return Fault(arm, frozenset(what))


def at_event(kind: type[actions.Event]) -> Fault:
    def arm(patch: pytest.MonkeyPatch, node: Node) -> None:
        on, current = RoundMachine.on, node.get_service().current

        def on_event(machine: RoundMachine, event: actions.Event, now: actions.Now) -> Any:
            assert machine is not current.machine or not isinstance(event, kind), "a machine that is mistaken"
            return on(machine, event, now)

        patch.setattr(RoundMachine, "on", on_event)

    return Fault(arm, frozenset({"event"}))


EVENTS: list[type[actions.Event]] = [
    actions.ContributionSeen,
    actions.PayloadsVerified,
    actions.MemberAlive,
    actions.AggregateComputed,
    actions.Mined,
    actions.CandidateSeen,
    actions.CandidateValidated,
    actions.VoteSeen,
]
FAULTS = {
    **{f"opening a {kind.name.lower()}": at_opening(kind) for kind in (MessageKind.CONTRIBUTION, MessageKind.BLOCK)},
    "opening a vote": at_opening(MessageKind.VOTE),
    "opening a status": Fault(arm_reading_status, frozenset({"status"})),
    "what a status says": at_part("status", "gossip", "clocks", "on_status"),
    "repair": at_part("status", "gossip", "gossip", "on_status"),
    "its own status": at_part("status", "gossip", "gossip", "get_status"),
    "taking a thing in": Fault(arm_taking_in, frozenset({"contribution", "block", "vote"})),
    "fetching payloads": at_payloads("ensure", MemoryError, "payloads"),
    "naming transfers": at("payloads", "service", "transfers", "name"),
    "aggregating": at_payloads("aggregate", MemoryError, "own aggregate", "candidate"),
    "checking a candidate": at_payloads("ensure_all", RuntimeError, "candidate"),
    "pulling a blob": at_part("transfer", "context", "node", "transport", "fetch_blob"),
    "noting an event": at_part("record", "gossip", "gossip", "on_held"),
    **{f"the round at {kind.__name__}": at_event(kind) for kind in EVENTS},
    "deleting what is old": at_part("retention", "committer", "retention", "on_block"),
    "telling of a block": Fault(arm_publishing_block, frozenset({"record"})),
    "writing a round down": at("record", "store", "put_round"),
    "ending a record": at_part("record", "context", "records", "learning", "observe"),
    "taking in an aggregate": at("training", "trainer", "apply"),
    "training": at("training", "trainer", "train"),
    "gathering shared sets": at("shared sets", *PAYLOADS, "shared_sets", "gather"),
    "gathering what is on demand": at("blobs on demand", *PAYLOADS, "on_demand", "take"),
    "saying why it waits": at_part("stall", "stall", "detector", "describe"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_step_that_fails_ends_no_node_and_the_members_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """At one node, each time. The others finalise, it follows, and once it works again it takes part."""
    fault = FAULTS[name]

    async def story() -> None:
        async with cluster(tmp_path, 4, may_fail=True) as net:
            await net.wait_for_height(2)
            with monkeypatch.context() as patch:
                fault.arm(patch, net[VICTIM])
                before = net["node1"].height
                failures = get_boundary(net).failures
                await net.wait_for(lambda: fault.what <= failures.keys(), "its failures")
                await net.wait_for_height(before + 5)
            assert net.check_agreement() >= before + 5
            told = [r for r in caplog.records if r.name == "node.boundary" and r.levelno == logging.ERROR]
            assert 1 <= len(told) <= 2 * len(failures)  # by the place, and not by the message
            assert all(record.exc_info for record in told)
            await take_part_again(net)

    run_virtual(story())


# ---- at every node, now and then


def fail_at_first(patch: pytest.MonkeyPatch, owner: Any, path: Sequence[str], times: int = 1) -> None:
    """Has the first calls of the method at this path of `owner` fail."""
    *names, last = path
    for name in names:
        owner = getattr(owner, name)
    method, left = getattr(owner, last), [times]

    def call(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        return fail() if left[0] >= 0 else method(*arguments, **options)

    async def call_later(*arguments: Any, **options: Any) -> Any:
        return await call(*arguments, **options)

    patch.setattr(owner, last, call_later if iscoroutinefunction(method) else call)


@pytest.mark.parametrize("name", ["on_blocks_request", "on_blob_request"])
def test_one_that_comes_late_is_served_by_those_that_could_not_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, may_fail=True, start=("node0", "node1", "node2")) as net:
            await net.wait_for_height(4, "node0", "node1", "node2")
            for other in ("node0", "node1", "node2"):
                fail_at_first(monkeypatch, get_service(net, other).handler, [name])
            net.start("node3")
            await net.wait_for_height(6)
            what = "blocks" if name == "on_blocks_request" else "blob"
            boundaries = [get_boundary(net, other) for other in FOUR[:3]]
            await net.wait_for(lambda: any(one.failures[what] for one in boundaries), "a request that fails")
            assert any(one.by_peer for one in boundaries)
            await take_part_again(net)

    run_virtual(story())


@pytest.mark.parametrize(
    ("path", "what", "times"),
    [
        ((validation, "validate_certificate"), "sync", 2),
        ((sync, "speaks"), "sync", 2),
        (("context", "node", "transport", "request_blocks"), "sync", 2),
        (("learning", "auditor", "add"), "audit", 2),
        ((auditor, "RoundPayloads"), "audit", 2),
        ((auditor, "kind_code"), "audit", 2),
        (("payloads", "aggregates", "compute"), "aggregate", 1),
        (("context", "node", "transport", "fetch_blob"), "transfer", 2),
        (("committer", "retention", "on_block"), "retention", 2),
        (("handler", "on_peer_up"), "connection", 2),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else str(value),
)
def test_one_that_catches_up_does_so_whatever_fails_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: tuple[Any, ...], what: str, times: int
) -> None:
    """Nor does an audit that fails say anything of the block: the node does not halt. A path begins with a part of the
    service, or with a module of which only one that catches up calls this."""

    async def story() -> None:
        async with cluster(tmp_path, 4, may_fail=True) as net:
            await net.wait_for_height(2)
            await net.crash("node3")
            await net.wait_for_height(6, "node0", "node1", "node2")
            net.start("node3")
            owner, names = (get_service(net, "node3").parts, path) if isinstance(path[0], str) else (path[0], path[1:])
            fail_at_first(monkeypatch, owner, names, times)
            await net.wait_for_height(8)
            await net.wait_for(lambda: get_boundary(net, "node3").failures[what] == times, f"{times} failures")
            await take_part_again(net)

    run_virtual(story())


def test_records_that_cannot_be_made_leave_the_rounds_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with cluster(tmp_path, 4, may_fail=True) as net:
            await net.wait_for_height(2)
            for name in ("on_final", "on_applied", "to_mapping"):
                with monkeypatch.context() as patch:
                    patch.setattr(RoundRecord, name, fail)
                    await net.wait_for_height(net["node0"].height + 2)
            assert all(get_boundary(net, name).failures["record"] for name in FOUR)
            await take_part_again(net)

    run_virtual(story())


def test_an_aggregate_that_fails_at_every_node_is_tried_again_until_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say whose payload it is, so nobody is left out: the height waits, and all go on when it works."""

    async def story() -> None:
        async with cluster(tmp_path, 4, may_fail=True) as net:
            await net.wait_for_height(2)
            with monkeypatch.context() as patch:
                patch.setattr(specs, "compute_aggregate", fail)
                await net.wait_for(
                    lambda: all(get_boundary(net, name).failures["own aggregate"] > 3 for name in FOUR),
                    "failures at every node",
                )
                height = net.check_agreement()
            await net.wait_for_height(height + 3)
            net.check_agreement()

    run_virtual(story())


def test_the_monitor_goes_on_after_an_event_it_could_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        told: list[str] = []
        events, boundary = Events(VirtualClock()), Boundary()
        metrics: Any = SimpleNamespace(on_event=lambda event: told.append(event.kind), run=asyncio.Event().wait)
        monitor = Monitor(events, metrics, [], "node0", boundary)
        fail_at_first(monkeypatch, metrics, ["on_event"])
        task = asyncio.create_task(monitor.run())
        for kind in ("block", "round"):
            events.publish(kind)
            await asyncio.sleep(0.01)
        assert told == ["round"]
        assert boundary.failures == {"monitor": 1}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(story())


# ---- of what one member sends


@asynccontextmanager
async def waiting(path: Path, **settings: Any) -> AsyncIterator[Cluster]:
    async with cluster(path, 4, may_fail=True, start=("node0", "node1", "node2"), **settings) as net:
        await net.wait_for_height(2, "node0", "node1", "node2")
        yield net


def test_who_causes_an_error_is_counted_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `peers`, in `rounds show` and in the metrics, as the author of the contribution that brought it about."""

    async def story() -> None:
        async with waiting(tmp_path) as net, lying(net, LIAR) as liar:
            service = get_service(net)
            ensure = RoundPayloads.ensure

            async def ensure_(payloads: RoundPayloads, contribution: Any) -> None:
                if contribution.author == liar.key.id:
                    fail()
                await ensure(payloads, contribution)

            monkeypatch.setattr(RoundPayloads, "ensure", ensure_)
            height = liar.height
            liar.send(liar.make_contribution())
            await net.wait_for(lambda: bool(get_boundary(net).failures), "the failure")
            store = net[VICTIM].store
            assert store is not None
            await net.wait_for(lambda: any(map(store.get_round, (height, height + 1))), "the record")
            assert get_boundary(net).failures == {"payloads": 1}
            assert get_boundary(net).by_peer == {liar.key.id: 1}
            assert service.get_refusals()[liar.key.id] == {Reason.FAILED: 1}

            context, book = net[VICTIM].get_context(), make_book()
            view = make_view(service, context, make_config(tmp_path), book)
            shown = next(peer for peer in view.list_peers().peers if peer.id == encode_id(liar.key.id))
            assert shown.rejected == 1
            at = height if store.get_round(height) else height + 1
            told = dict(describe_round(Ledger(net.genesis, store).get_round(at), "step"))
            assert told["not taken of node3"] == "1 failed"
            assert told[f"without {show_id(encode_id(liar.key.id))}"] == UNFORESEEN
            metrics = make_metrics(CallTimes(), service, context, VICTIM).encode("")[0].decode()
            assert 'fednode_unforeseen_failures_total{what="payloads"} 1.0' in metrics
            assert 'fednode_messages_rejected_total{reason="failed"} 1.0' in metrics

    run_virtual(story())


def test_evidence_and_what_is_kept_that_fail_leave_the_node_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with waiting(tmp_path) as net, lying(net, LIAR) as liar:
            service = get_service(net)
            with monkeypatch.context() as patch:
                patch.setattr(net[VICTIM].store, "put_evidence", fail)
                for value in (b"a" * 32, b"b" * 32):
                    liar.send(liar.make_vote(Phase.PREVOTE, value), VICTIM)
                await net.wait_for(lambda: get_boundary(net).failures["accusation"] == 1, "the accusation")
            validate = validation.validate_contribution

            def validate_others(state: State, contribution: Contribution, **options: Any) -> None:
                if contribution.author == liar.key.id:
                    fail()
                validate(state, contribution, **options)

            within(monkeypatch, service.handler, "release", validation, "validate_contribution", validate_others)
            liar.send(liar.make_contribution(height=liar.height + 1), VICTIM)
            await net.wait_for(lambda: get_boundary(net).failures["kept"] == 1, "what was kept")
            assert get_boundary(net).by_peer == {liar.key.id: 2}
            await net.wait_for_height(net[VICTIM].height + 3, "node0", "node1", "node2")

    run_virtual(story())


def test_evidence_that_cannot_be_opened_is_its_senders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with waiting(tmp_path) as net, lying(net, LIAR) as liar:
            monkeypatch.setattr(get_service(net).parts.gossip.evidence, "is_accused", fail)
            for value in (b"a" * 32, b"b" * 32):
                liar.send(liar.make_vote(Phase.PREVOTE, value), "node1")  # which tells the others
            await net.wait_for(lambda: get_boundary(net).failures["evidence"] > 0, "the evidence")
            assert net.id("node1") in get_boundary(net).by_peer
            await net.wait_for_height(net[VICTIM].height + 3, "node0", "node1", "node2")

    run_virtual(story())


@pytest.mark.parametrize("step", [("clocks", "on_status"), ("authenticator", "open")], ids=lambda step: step[0])
def test_the_nodes_own_trouble_ends_it_wherever_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[str, str]
) -> None:
    async def story() -> None:
        async with waiting(tmp_path) as net:

            def fill_up(*_: object, **__: object) -> NoReturn:
                raise StoreFull("the disk is full")

            part, method = step
            monkeypatch.setattr(getattr(get_service(net).parts.gossip, part), method, fill_up)
            task = net[VICTIM].task
            assert task is not None
            await asyncio.wait({task}, timeout=60)
            failure = net[VICTIM].failure
            assert isinstance(failure, ExceptionGroup)
            assert isinstance(failure.exceptions[0], StoreFull)

    run_virtual(story())


# ---- what single methods do besides


def test_a_kind_that_nobody_knows_is_refused_where_sets_are_shared(tmp_path: Path) -> None:
    """Named as a transfer before it was looked at, it ended every node."""

    async def story() -> None:
        async with sharing(tmp_path, 4, num_samples=2000, start=()) as net, lying(net, LIAR) as liar:
            for name in FOUR[:3]:
                net.start(name)
            await net.wait_for(lambda: len(liar.transport.connected()) == 3, "the liar to be connected")
            assert liar.height == 1  # at which sets are shared
            liar.send(liar.make_contribution(kind=200))
            await net.wait_for(
                lambda: all(get_service(net, name).get_refusals().get(liar.key.id) for name in FOUR[:3]), "refusals"
            )
            await net.wait_for_height(3, "node0", "node1", "node2")
            for name in FOUR[:3]:
                assert get_service(net, name).get_refusals()[liar.key.id] == {Reason.PAYLOAD: 1}
            assert len(net["node0"].get_block(1).contributions) == 3
            assert 200 not in KINDS.values()

    run_virtual(story())


@pytest.mark.parametrize(
    ("step", "what"), [((*PAYLOADS, "shared_sets", "gather"), "shared sets"), (("store", "check_blob"), "shared set")]
)
def test_shared_sets_that_fail_are_trained_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[str, ...], what: str
) -> None:
    async def story() -> None:
        async with sharing(tmp_path, 4, num_samples=2000, may_fail=True) as net:
            break_(monkeypatch, net[VICTIM], step)
            await net.wait_for_height(4)
            assert get_boundary(net).failures[what] > 0
            given: Mapping[int, Any] = get_trainer(net, VICTIM).shared
            assert not any(exchange.files for height, exchange in given.items() if height > 1)
            assert any(exchange.files for exchange in get_trainer(net, "node1").shared.values())

    run_virtual(story())


@pytest.mark.parametrize(
    ("step", "what"), [(("on_demand", "take"), "blobs on demand"), (("demanded_blobs", "try_fetch"), "blob on demand")]
)
def test_what_is_on_demand_and_fails_is_gone_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[str, str], what: str
) -> None:
    async def story() -> None:
        async with taking(tmp_path, 4, UAPDFL, may_fail=True) as fed:
            break_(monkeypatch, fed.net[VICTIM], [*PAYLOADS, *step])
            await fed.wait_for_round(4)
            assert get_boundary(fed.net).failures[what] > 0
            for height in range(1, 5):
                exchange = fed.get_exchange(VICTIM, height)
                assert exchange.me == fed.net.id(VICTIM)
                assert not exchange.blobs
            assert any(fed.get_exchange("node1", height).blobs for height in range(1, 5))

    run_virtual(story())
