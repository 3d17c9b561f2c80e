"""An account of what a site has told that is behind the chain: the node counts what its own contributions show, once,
and nothing where the account knows of them."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain.changes.members import RemoveMember
from chain.store.sqlite import SqliteStore
from ml.accountant import Release, Told, compute_epsilon
from node.consensus.learning.privacy_recount import UNSEEN
from node.consensus.signing.restored import RESTORED
from node.training.account import Account
from node.training.privacy_ledger import PrivacyLedger, change_account, read_account
from node.training.trainer import RunTask, Trained, TrainerInfo
from support.data.chains import make_genesis_mapping
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.proposing import approve, get_seat, propose, wait_for_state
from support.federation.virtual_time import run_virtual

SAMPLES = 100
METHOD = {**make_genesis_mapping([])["method"], "dp_noise": 2.0}
RELEASE = Release(20, 32 / SAMPLES, 2.0, 5.0)


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class CountingTrainer(ScriptedTrainer):
    """Counts each phase before it begins, as a worker does."""

    def __init__(self, seed: int, path: Path, train_s: float = 0.02) -> None:
        super().__init__(seed, train_s)
        self.path = path / "privacy.json"

    async def start(self, task: RunTask) -> TrainerInfo:
        return replace(await super().start(task), num_train=SAMPLES)

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        ledger = PrivacyLedger.open(self.path, 1e-5, None, noise={"dp_noise": 2.0}, samples=SAMPLES)
        ledger.add(RELEASE, height)
        return await super().train(height, beacon, **options)


def make_trainers(path: Path) -> list[CountingTrainer]:
    return [CountingTrainer(i, path / f"node{i}") for i in range(4)]


def list_own(net: Cluster, name: str) -> list[int]:
    """The heights, here rounds too, of a node's contributions on the chain."""
    return [
        height
        for height in range(1, net["node1"].height + 1)
        if net.id(name) in {each.author for each in net["node1"].get_block(height).contributions}
    ]


def list_counted(account: Account) -> list[int]:
    return [number for first, last in account.runs[1].rounds for number in range(first, last + 1)]


def get_account(net: Cluster, name: str = "node0") -> Account:
    return read_account(net[name].path / "privacy.json")


async def take_away(net: Cluster, path: Path, heights: tuple[int, int]) -> None:
    """A copy of node0's directory from the first height on; at the second the node is gone."""
    await net.wait_for_height(heights[0])
    await net.crash("node0")
    shutil.copytree(net["node0"].path, path)
    net.start("node0")
    await net.wait_for_height(heights[1])
    await net.wait_for(lambda: net["node1"].height in list_own(net, "node0"), "a contribution of node0")
    await net.crash("node0")


async def wait_for_own(net: Cluster, name: str) -> None:
    """A contribution of a node to a height to come."""
    height = net["node1"].height
    await net.wait_for(lambda: max(list_own(net, name), default=0) > height, f"a contribution of {name}")


@pytest.mark.parametrize("keeps", ["all", "no account"])
def test_a_node_that_was_put_back_has_told_no_less_than_it_had(tmp_path: Path, keeps: str) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, trainers=make_trainers(tmp_path / "nodes"), method=METHOD) as net:
            node = net["node0"]
            await take_away(net, tmp_path / "backup", (3, 9))
            before, sent = get_account(net), list_own(net, "node0")
            assert before.told.phases >= 9
            shutil.rmtree(node.path)
            shutil.copytree(tmp_path / "backup", node.path)
            if keeps == "no account":
                (node.path / "privacy.json").unlink()
            else:
                assert get_account(net).told.phases < before.told.phases
            with SqliteStore.open(node.path, net.genesis) as store:
                store.put_meta(RESTORED, {"until": None})
            net.start("node0")
            await wait_for_own(net, "node0")
            after = get_account(net)
            assert set(sent) <= set(list_counted(after))
            assert after.told.prototypes[5.0] == after.told.phases >= before.told.phases
            assert after.told.steps.keys() == {(RELEASE.rate, 2.0)}  # by as many samples as the site has
            assert not set(list_own(net, "node0")) - set(list_counted(after))

            await net.crash("node0")  # it is counted once
            again = get_account(net)
            trained = len(node.trainer.trained) if isinstance(node.trainer, ScriptedTrainer) else 0
            net.start("node0")
            await wait_for_own(net, "node0")
            more = get_account(net).told.phases - again.told.phases
            assert isinstance(node.trainer, ScriptedTrainer)
            assert more <= len(node.trainer.trained) - trained + 1  # one may be under way

    run_virtual(story())


def test_rounds_around_those_that_the_chain_shows_are_counted_as_they_may_have_been_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, trainers=make_trainers(tmp_path / "nodes"), method=METHOD) as net:
            await net.wait_for_height(6)
            await net.crash("node0")
            chain = [at for at in list_own(net, "node0") if at <= read_head(net)]
            account = Account().plus(RELEASE, 1, 2)  # all else was lost
            (net["node0"].path / "privacy.json").write_bytes(account.encode())
            node0 = net["node0"]
            for name in ("node1", "node2", "node3"):
                await net.crash(name)
            node0.trainer = ScriptedTrainer(0)  # nothing is counted any more but by the node
            net.start("node0")
            await net.wait_for(lambda: get_account(net).checked is not None, "the account")
            assert max(chain) >= 6
            assert list_counted(get_account(net)) == list(range(1, max(chain) + UNSEEN + 1))
            every = replace(RELEASE, rate=1.0)  # as this worker says that it has a single sample
            assert get_account(net).told == Told.of([RELEASE]).plus(every, max(chain) + UNSEEN - 1)

    def read_head(net: Cluster) -> int:
        with SqliteStore.open(net["node0"].path, net.genesis) as store:
            return store.head_height

    run_virtual(story())


def test_nothing_is_counted_by_the_chain_that_the_account_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, trainers=make_trainers(tmp_path / "nodes"), method=METHOD) as net:
            for height in (3, 6, 9):
                await net.wait_for_height(height)
                await net.crash("node0")
                net.start("node0")
            await net.wait_for_height(12)
            for name in net.nodes:
                trainer = net[name].trainer
                assert isinstance(trainer, CountingTrainer)
                account = get_account(net, name)
                assert account.told.phases <= len(trainer.trained) + 4  # of those that a crash broke off
                assert max(list_counted(account)) <= net[name].height + 1

    with caplog.at_level(logging.WARNING, "node.consensus.learning.privacy_recount"):
        run_virtual(story())
    assert not [each for each in caplog.records if each.name == "node.consensus.learning.privacy_recount"]


def test_what_an_earlier_release_wrote_stands_for_all_up_to_then(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, trainers=make_trainers(tmp_path / "nodes"), method=METHOD) as net:
            await net.wait_for_height(5)
            await net.crash("node0")
            told = get_account(net).told
            file = net["node0"].path / "privacy.json"
            file.write_text(json.dumps({"format": 1, **told.to_json()}))
            trainer = net["node0"].trainer
            assert isinstance(trainer, CountingTrainer)
            trained = len(trainer.trained)
            net.start("node0")
            await wait_for_own(net, "node0")
            await net.crash("node0")
            account = get_account(net)
            assert account.chain == net.genesis.chain_id.hex()
            assert told.phases < account.told.phases <= told.phases + len(trainer.trained) - trained + 1
            assert min(list_counted(account)) >= 5
            assert account.told.guessable == told.phases  # none of what this release has trained
            assert account.secret_since is None or account.secret_since >= 5

    run_virtual(story())


def test_the_rounds_of_another_chain_are_not_taken_for_those_of_this(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, trainers=make_trainers(tmp_path / "nodes"), method=METHOD) as net:
            await net.wait_for_height(5)
            await net.crash("node0")
            file = net["node0"].path / "privacy.json"
            change_account(file, lambda account: replace(account, chain="00" * 32))
            told = get_account(net).told
            net.start("node0")
            await net.wait_for(lambda: get_account(net).chain == net.genesis.chain_id.hex(), "the account")
            await wait_for_own(net, "node0")
            assert get_account(net).told.phases >= told.phases + 5

    run_virtual(story())


def test_nothing_is_trained_while_the_account_cannot_be_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, trainers=make_trainers(tmp_path / "nodes"), method=METHOD) as net:
            await net.wait_for_height(3)
            await net.crash("node0")
            (net["node0"].path / "privacy.json").write_text("{")
            node = net["node0"]
            node.trainer = ScriptedTrainer(0)  # which does not look itself
            net.start("node0")
            height = net["node1"].height
            await net.wait_for_height(height + 4)
            assert node.trainer.trained == []
            assert node.service is not None
            assert "is damaged" in (node.service.learner.trouble or "")

    run_virtual(story())


def test_noise_of_the_sites_own_is_counted_from_when_it_was_there(tmp_path: Path) -> None:
    async def story() -> None:
        trainers = [ScriptedTrainer(i) for i in range(4)]
        async with cluster(tmp_path / "nodes", 4, trainers=trainers) as net:
            node = net["node0"]
            await net.wait_for_height(4)
            await net.crash("node0")
            with SqliteStore.open(node.path, net.genesis) as store:
                has_signed = store.get_contribution(store.head_height + 1) is not None
                unhidden = store.head_height + has_signed
            node.own_noise, node.trainer = {"dp_noise": 2.0}, CountingTrainer(0, node.path)
            net.start("node0")
            await net.wait_for(lambda: get_account(net).own_since is not None, "the account")
            since = get_account(net).own_since
            assert since == unhidden >= 4
            await take_away(net, tmp_path / "backup", (since + 4, since + 9))
            before = get_account(net)
            assert min(list_counted(before)) > since  # what had no noise is not counted as if it had
            shutil.rmtree(node.path)
            shutil.copytree(tmp_path / "backup", node.path)
            with SqliteStore.open(node.path, net.genesis) as store:
                store.put_meta(RESTORED, {"until": None})
            net.start("node0")
            await wait_for_own(net, "node0")
            after = get_account(net)
            assert after.told.phases >= before.told.phases
            assert {at for at in list_own(net, "node0") if at > since} <= set(list_counted(after))
            assert after.told.steps.keys() == {(RELEASE.rate, 2.0)}

            await net.crash("node0")
            node.own_noise, node.trainer = {}, ScriptedTrainer(0)
            told = get_account(net).told
            net.start("node0")
            await wait_for_own(net, "node0")
            assert get_account(net).own_since is None
            assert get_account(net).told.phases <= told.phases + UNSEEN

    run_virtual(story())


def test_who_else_is_a_member_changes_nothing_of_what_is_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4, trainers=make_trainers(tmp_path / "nodes"), method=METHOD) as net:
            await net.wait_for_height(3)
            old = get_account(net)
            change = await propose(net, "node0", RemoveMember(get_seat(net, "node3")))
            await approve(net, change, "node1", "node2", "node3")
            others = ("node0", "node1", "node2")
            await wait_for_state(net, "three members", lambda state: state.n == 3, *others)
            await net.wait_for_height(net["node1"].height + 4, *others)
            await net.crash("node0")
            sent = Told.of([RELEASE] * len(list_own(net, "node0")))
            (net["node0"].path / "privacy.json").write_bytes(old.encode())
            net.start("node0")
            await wait_for_own(net, "node0")
            account = get_account(net)
            assert len(list_own(net, "node0")) > sent.phases > old.told.phases
            assert account.told.phases >= len(list_own(net, "node0"))
            assert compute_epsilon(account.told, 1e-5) >= compute_epsilon(sent, 1e-5)

    run_virtual(story())


def test_a_run_without_noise_has_no_account(tmp_path: Path) -> None:
    async def story() -> None:
        async with cluster(tmp_path / "nodes", 4) as net:
            await net.wait_for_height(4)
            assert not list((tmp_path / "nodes").glob("*/privacy.json"))

    run_virtual(story())
