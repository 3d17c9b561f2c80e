"""Published measures of nodes, on virtual time: told, kept and passed on, whatever liars say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from chain.block import Id
from chain.calendar import Place
from chain.published import PublishedMeasures, decode_published, encode_published, sign_published
from chain.signing import SigningKey, encode_id
from ml.measures.classification import Measures
from node.consensus.context import NodeContext
from node.consensus.gossip import published
from node.consensus.gossip.published import NEWEST
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.ledger.reader import Ledger
from node.p2p.refusals import Reason
from node.p2p.transport.base import Message, MessageKind
from node.telemetry.metrics import CallTimes
from node.telemetry.monitor import make_metrics
from node.training.trainer import Measured
from support.data.chains import make_keys
from support.faults.liar import Liar, lying
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.proposing import get_service
from support.federation.virtual_time import run_virtual
from support.machines.scrape import Scraped

HONEST = ("node0", "node1", "node2")
SAMPLES = 60
(STRANGER,) = make_keys(1, "stranger")


class MeasuringTrainer(ScriptedTrainer):
    """Finds as many of its test samples as its seed says, each time anew."""

    async def measure(self) -> Measured:
        correct = SAMPLES // 2 + self.seed
        counts = ((correct, 0), (SAMPLES - correct, 0))
        return Measured(Measures(SAMPLES, correct, 0.5, 0.2, 0.1, confusion=counts, auc=(0.5, 0.5)))


def publishing(least: int | None) -> Callable[[NodeContext], RoundService]:
    return lambda context: make_round_service(replace(context, publish_from=least))


@asynccontextmanager
async def measured(path: Path, *, rounds: int = 0, publish: Mapping[str, int | None]) -> AsyncIterator[Cluster]:
    """Four members that measure; those in `publish` are up, and publish from so many samples on."""
    trainers = [MeasuringTrainer(seed) for seed in range(4)]
    async with cluster(path, 4, rounds=rounds, start=(), trainers=trainers) as net:
        for name, least in publish.items():
            net.start(name, publishing(least))
        yield net


@asynccontextmanager
async def told(path: Path) -> AsyncIterator[tuple[Cluster, Liar]]:
    """Three members that publish nothing, at the end of one round, and a fourth that says what it is told to."""
    async with measured(path, rounds=1, publish=dict.fromkeys(HONEST)) as net:
        await net.wait_for(lambda: all(get_service(net, name).is_done for name in HONEST), "the round to be over")
        async with lying(net, "node3") as liar:
            yield net, liar


def read(net: Cluster, name: str, height: int) -> dict[bytes, PublishedMeasures]:
    """What a node keeps of a round, by member."""
    return {one.key: one for one in net[name].get_context().store.get_published(height)}


def make_word(net: Cluster, key: SigningKey, round_number: int = 1, accuracy: float = 0.9) -> PublishedMeasures:
    values, place = {"accuracy": accuracy}, Place(1, round_number)
    return sign_published(key, net.genesis.chain_id, place, num_samples=SAMPLES, values=values)


def wrap(word: PublishedMeasures) -> Message:
    return Message(MessageKind.MEASURES, encode_published(word))


def list_heard(liar: Liar, sender: Id) -> list[PublishedMeasures]:
    """The words that a peer has given the liar."""
    data = [message.data for peer, message in liar.heard if peer == sender and message.kind is MessageKind.MEASURES]
    return [decode_published(each) for each in data]


async def wait_until_kept(net: Cluster, name: str, height: int, *members: str) -> None:
    keys = {net.id(member) for member in members}
    await net.wait_for(lambda: read(net, name, height).keys() == keys, f"{name} to keep the words of {members}")


def test_what_members_publish_is_kept_by_all_and_nobody_else_tells(tmp_path: Path) -> None:
    async def story() -> None:
        publish = {"node0": 1, "node1": SAMPLES, "node2": SAMPLES + 1, "node3": None}
        async with measured(tmp_path, publish=publish) as net:
            await net.wait_for_height(4)
            for name in publish:
                await wait_until_kept(net, name, 3, "node0", "node1")
            words = read(net, "node3", 3)
            assert words == read(net, "node0", 3)
            word = words[net.id("node1")]
            assert (word.place, word.num_samples) == (Place(1, 3), SAMPLES)
            assert word.get_values()["accuracy"] == round(31 / 60, 4)
            assert word.get_values()["balanced_accuracy"] == 0.5
            store = net["node3"].get_context().store
            shown = Ledger(net.genesis, store).get_round(3)
            assert [(one.name, one.num_samples) for one in shown.published] == [("node0", 60), ("node1", 60)]
            assert shown.published[1].values["accuracy"] == round(31 / 60, 4)

    run_virtual(story())


def test_it_is_there_after_a_restart_and_given_to_whoever_comes_up(tmp_path: Path) -> None:
    async def story() -> None:
        publish = {"node0": 1, "node1": None, "node2": None}
        async with measured(tmp_path, rounds=3, publish=publish) as net:
            await net.wait_for(lambda: get_service(net, "node1").is_done, "the rounds to be over")
            await wait_until_kept(net, "node1", 3, "node0")
            await net.crash("node0")
            await net.crash("node1")
            net.start("node1")
            net.start("node3")  # which hears of it from others
            await wait_until_kept(net, "node3", 3, "node0")
            (newest,) = get_service(net, "node1").published.list_newest()
            assert newest.place == Place(1, 3)
            assert read(net, "node3", 3) == read(net, "node2", 3)

    run_virtual(story())


def test_whom_the_author_does_not_reach_hears_of_it_from_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with measured(tmp_path, publish={"node0": 1, "node1": None, "node2": None, "node3": None}) as net:
            net.cut("node0", "node3")
            await net.wait_for_height(5)
            await wait_until_kept(net, "node3", 4, "node0")

    run_virtual(story())


def test_bytes_that_are_none_and_forged_ones_are_their_senders_fault(tmp_path: Path) -> None:
    async def story() -> None:
        async with told(tmp_path) as (net, liar):
            good = make_word(net, net["node1"].key)
            liar.send(wrap(replace(good, num_samples=5)), "node0")
            liar.send(Message(MessageKind.MEASURES, encode_published(good)[:-1]), "node2")
            for name in ("node0", "node2"):
                await net.wait_for(lambda name=name: liar.is_refused_by(name), f"{name} to refuse the liar")  # type: ignore[misc]
                assert read(net, name, 1) == {}

    run_virtual(story())


def test_words_of_strangers_and_of_other_rounds_are_left_out_and_nobodys_fault(tmp_path: Path) -> None:
    async def story() -> None:
        async with told(tmp_path) as (net, liar):
            peer = get_service(net, "node0").peers.get(liar.key.id)
            assert peer is not None
            for word in (
                make_word(net, STRANGER),
                make_word(net, liar.key, 2),  # of which there is none
                make_word(net, liar.key, 2**62),
                replace(make_word(net, liar.key), place=Place(7, 1)),
                make_word(net, net["node0"].key),  # of the receiver itself
                make_word(net, liar.key),
            ):
                liar.send(wrap(word), "node0")
            await wait_until_kept(net, "node0", 1, "node3")
            liar.send(wrap(make_word(net, liar.key, accuracy=0.1)), "node0")  # it has said something already
            await asyncio.sleep(5)
            assert read(net, "node0", 1)[liar.key.id] == make_word(net, liar.key)
            assert (peer.refusals[Reason.STRANGER], peer.refusals[Reason.OTHER_HEIGHT]) == (1, 3)
            assert not liar.is_refused_by("node0")

    run_virtual(story())


def test_a_flood_costs_no_more_than_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "READS_BURST", 1.0)
    monkeypatch.setattr(published, "READS_PER_S", 1e-3)

    async def story() -> None:
        async with told(tmp_path) as (net, liar):
            peer = get_service(net, "node0").peers.get(liar.key.id)
            assert peer is not None
            liar.send(wrap(make_word(net, liar.key)), "node0")
            await wait_until_kept(net, "node0", 1, "node3")
            forged = replace(make_word(net, net["node1"].key), signature=bytes(64))
            liar.send(wrap(forged), "node0")
            await net.wait_for(lambda: peer.refusals[Reason.RATE] == 1, "it to be counted")
            assert not liar.is_refused_by("node0")

    run_virtual(story())


def test_only_the_newest_rounds_are_held_and_taken(tmp_path: Path) -> None:
    async def story() -> None:
        last = NEWEST + 3
        async with measured(tmp_path, rounds=last, publish=dict.fromkeys(HONEST, 1)) as net:
            await wait_until_kept(net, "node1", last, *HONEST)
            async with lying(net, "node3") as liar:
                liar.send(liar.make_status(), "node1")
                await asyncio.sleep(5)  # it is given all that is held
                heights = {word.place.round for word in list_heard(liar, net.id("node1"))}
                assert min(heights) > 1
                assert last in heights
                assert len(heights) <= NEWEST + 1
                peer = get_service(net, "node1").peers.get(liar.key.id)
                assert peer is not None
                before = peer.refusals[Reason.OTHER_HEIGHT]
                liar.send(wrap(make_word(net, liar.key, 1)), "node1")
                await net.wait_for(lambda: peer.refusals[Reason.OTHER_HEIGHT] > before, "it to be left out")
                assert liar.key.id not in read(net, "node1", 1)

    run_virtual(story())


def test_prometheus_has_the_newest_word_of_each_member(tmp_path: Path) -> None:
    async def story() -> None:
        async with measured(tmp_path, rounds=3, publish={"node0": 1, "node1": None, "node2": 1}) as net:
            await wait_until_kept(net, "node1", 3, "node0", "node2")
            service = get_service(net, "node1")
            metrics = make_metrics(CallTimes(), service, net["node1"].get_context(), "node1")
            scraped = Scraped.read(metrics.encode("")[0].decode())
            for name, correct in (("node0", 30), ("node2", 32)):
                labels = {"peer": encode_id(net.id(name))[:8], "name": name, "measure": "accuracy"}
                key = "fednode_member_measure", frozenset(labels.items())
                assert scraped.values[key] == round(correct / SAMPLES, 4)

    run_virtual(story())
