"""Members killed at every durable step of a change, on virtual time: while it is proposed, approved and executed.

What they had told others is still theirs when they are back, and the change is executed once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from chain.audit import verify_chain
from chain.block import Answer, Approval
from chain.changes.rules import SetRules
from chain.changes.runs import SetRounds
from chain.store.interface import STEPS
from node.errors import InvalidRequest
from support.faults.doom import Doom, Killed
from support.federation.cluster import Cluster, cluster
from support.federation.joining import add, growing, start_joiner
from support.federation.proposing import (
    approve,
    find_change_heights,
    get_service,
    get_state,
    propose,
    wait_for_state,
    wait_until_over,
)
from support.federation.virtual_time import run_virtual
from support.federation.wiretap import TappedNetwork

pytestmark = pytest.mark.slow

NODES = ("node0", "node1", "node2", "node3")
RULES = SetRules({"keep_heights": (2, 3)})
MORE = SetRounds(1, 2, 4)


def list_steps(*transactions: str) -> list[str]:
    return [step for step in STEPS if step.split(".")[0] in transactions]


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@asynccontextmanager
async def tapped(path: Path, dooms: Sequence[tuple[str, str]], **options: Any) -> AsyncIterator[tuple[Cluster, Any]]:
    """A cluster some of whose members die at a step once they are told to. All that is told is written down."""
    async with cluster(path, 4, network_class=TappedNetwork, start=(), **options) as net:
        made = {name: Doom(net, [name], step) for name, step in dooms}
        for name in NODES:
            net.start(name, faults=made.get(name))
        yield net, made
        get_tap(net).check()


def get_tap(net: Cluster) -> TappedNetwork:
    assert isinstance(net.network, TappedNetwork)
    return net.network


def find_own(net: Cluster, name: str, change_id: bytes) -> Answer | None:
    """A member's own answer to an open change, as its node has it now."""
    proposal = get_service(net, name).proposals.get(change_id)
    approval = None if proposal is None else proposal.approvals.get(net.id(name))
    return None if approval is None else approval.answer


def check_min_samples(net: Cluster, name: str) -> list[Approval]:
    """What a member that is back had told others is its own still. All of that."""
    store = net[name].store
    assert store is not None
    told = [approval for approval in get_tap(net).approvals if approval.voter == net.id(name)]
    for approval in told:
        assert store.get_own_answers()[approval.change_id] == approval.answer
        if approval.change_id not in get_state(net, name).executed:
            assert find_own(net, name, approval.change_id) == approval.answer
    return told


async def check_executed_once(net: Cluster, change_id: bytes) -> None:
    """Everywhere, and nothing is kept of it."""
    await wait_for_state(net, "the change to be executed", lambda state: change_id in state.executed)
    await net.wait_for_height(max(node.height for node in net.nodes.values()))
    net.check_agreement()
    for name, node in net.nodes.items():
        assert len(find_change_heights(net, name)) == 1
        assert node.store is not None
        report = verify_chain(net.genesis, node.store)
        assert report.ok, report.fault

    def keeps_nothing() -> bool:
        return all(node.store is not None and node.store.get_changes() == () for node in net.nodes.values())

    await net.wait_for(keeps_nothing, "no row to be left")


# ---- proposed


@pytest.mark.parametrize("step", list_steps("change"))
def test_who_dies_while_it_proposes_has_proposed_or_not(tmp_path: Path, step: str) -> None:
    async def story() -> None:
        async with tapped(tmp_path, [("node0", step)]) as (net, dooms):
            await net.wait_for_height(1)
            dooms["node0"].arm()
            with pytest.raises(Killed):
                await propose(net, "node0", RULES)
            await dooms["node0"].wait()
            assert get_tap(net).approvals == []
            dooms["node0"].bring_back()
            is_kept = step.endswith("committed")
            held = [proposal.id for proposal in get_service(net, "node0").proposals]
            assert len(held) == is_kept
            change_id = held[0] if is_kept else await propose(net, "node0", RULES)
            await approve(net, change_id, "node1", "node3")
            await check_executed_once(net, change_id)

    run_virtual(story())


@pytest.mark.parametrize("step", list_steps("change"))
def test_who_dies_while_it_hears_of_a_change_hears_of_it_again(tmp_path: Path, step: str) -> None:
    async def story() -> None:
        async with tapped(tmp_path, [("node2", step)]) as (net, dooms):
            await net.wait_for_height(1)
            dooms["node2"].arm()
            change_id = await propose(net, "node0", RULES)
            await dooms["node2"].wait()
            dooms["node2"].bring_back()
            assert find_own(net, "node2", change_id) is None
            await approve(net, change_id, "node2", "node1")
            await check_executed_once(net, change_id)

    run_virtual(story())


# ---- approved


@pytest.mark.parametrize("step", list_steps("approval"))
def test_who_dies_while_it_approves_has_approved_or_not(tmp_path: Path, step: str) -> None:
    async def story() -> None:
        async with tapped(tmp_path, [("node1", step)]) as (net, dooms):
            await net.wait_for_height(1)
            change_id = await propose(net, "node0", RULES)
            await net.wait_for(lambda: get_service(net, "node1").proposals.get(change_id) is not None, "it")
            dooms["node1"].arm()
            with pytest.raises(Killed):
                await get_service(net, "node1").proposals.approve(change_id, Answer.YES_WITHOUT_TRAINING)
            await dooms["node1"].wait()
            dooms["node1"].bring_back()
            assert check_min_samples(net, "node1") == []
            is_kept = step.endswith("committed")
            assert find_own(net, "node1", change_id) == (Answer.YES_WITHOUT_TRAINING if is_kept else None)
            if is_kept:  # and stands
                with pytest.raises(InvalidRequest, match="approved it without training in it"):
                    await approve(net, change_id, "node1")
            else:
                await approve(net, change_id, "node1")
            await net.wait_for(lambda: check_min_samples(net, "node1") != [], "others to be told")
            (told,) = check_min_samples(net, "node1")
            assert told.answer is (Answer.YES_WITHOUT_TRAINING if is_kept else Answer.YES)
            await approve(net, change_id, "node2")
            await check_executed_once(net, change_id)

    run_virtual(story())


@pytest.mark.parametrize("step", list_steps("approval"))
def test_who_dies_while_it_hears_an_approval_still_has_its_own(tmp_path: Path, step: str) -> None:
    async def story() -> None:
        async with tapped(tmp_path, [("node1", step)]) as (net, dooms):
            await net.wait_for_height(1)
            change_id = await propose(net, "node0", RULES)
            await approve(net, change_id, "node1")
            await net.wait_for(lambda: len(get_tap(net).approvals) == 2, "others to be told")
            dooms["node1"].arm()
            await approve(net, change_id, "node3")
            await dooms["node1"].wait()
            dooms["node1"].bring_back()
            assert [told.change_id for told in check_min_samples(net, "node1")] == [change_id]
            await check_executed_once(net, change_id)

    run_virtual(story())


@pytest.mark.parametrize("step", list_steps("approval"))
def test_who_dies_while_it_approves_what_was_executed_has_approved_it_or_not(tmp_path: Path, step: str) -> None:
    async def story() -> None:
        async with tapped(tmp_path, [("node3", step)], rounds=2) as (net, dooms):
            change_id = await propose(net, "node0", MORE)
            await approve(net, change_id, "node1", "node2")
            await wait_for_state(net, "the change to be executed", lambda state: change_id in state.executed)
            service = get_service(net, "node3")
            await net.wait_for(lambda: service.proposals.get(change_id) is None, "it to be closed")
            await net.wait_for_height(find_change_heights(net, "node3")[0] + 1)
            dooms["node3"].arm()
            with pytest.raises(Killed):
                await service.proposals.approve(change_id)
            await dooms["node3"].wait()
            dooms["node3"].bring_back()
            store = net["node3"].store
            assert store is not None
            assert (change_id in store.get_own_answers()) == step.endswith("committed")
            await wait_until_over(net)
            await get_service(net, "node3").proposals.approve(change_id)
            assert store.get_own_answers()[change_id] is Answer.YES
            await check_executed_once(net, change_id)

    run_virtual(story())


# ---- ready


@pytest.mark.parametrize("name", ["node3", "node1"])
@pytest.mark.parametrize("step", list_steps("readiness"))
def test_who_dies_while_a_joiner_stands_ready_has_it_in_the_end(tmp_path: Path, name: str, step: str) -> None:
    """The joiner itself, and a member that hears of it."""

    async def story() -> None:
        async with growing(tmp_path, 3, ["node3"], network_class=TappedNetwork, start=()) as net:
            doom = Doom(net, [name], step)
            for each in NODES[:3]:
                net.start(each, faults=doom if each == name else None)
            await net.wait_for_height(1, *NODES[:3])
            net.start("node3", faults=doom if name == "node3" else None)
            doom.arm()
            change_id = await propose(net, "node0", add(net, "node3"))
            await approve(net, change_id, *(each for each in ("node1", "node2") if each != name))
            await doom.wait()
            if name == "node3":
                net.network.set_up(net.id(name))
                start_joiner(net, name)
            else:
                doom.bring_back()
                await approve(net, change_id, name)
            await wait_for_state(net, "four members", lambda state: state.n == 4)
            await net.wait_for_height(net["node0"].height + 3)
            await check_executed_once(net, change_id)

    run_virtual(story())


# ---- executed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("node1", step) for step in list_steps("candidate")),
        *product(("node0", "node1", "node3"), list_steps("vote", "justification", "append", "close")),
    ],
)
def test_who_dies_while_a_change_is_executed_executes_it_once(tmp_path: Path, name: str, step: str) -> None:
    """Its proposer, another that approved it, and one that did not. The federation is idle, so each step is its own."""

    async def story() -> None:
        async with tapped(tmp_path, [(name, step)], rounds=2) as (net, dooms):
            await wait_until_over(net)
            change_id = await propose(net, "node0", MORE)
            await approve(net, change_id, "node1")
            if name == "node3":
                await net.wait_for(lambda: get_service(net, name).proposals.get(change_id) is not None, "it")
            if step.startswith("candidate"):  # which only who finds a nonce comes to
                for other in NODES:
                    get_service(net, other).opener.mines = other == name
            dooms[name].arm()
            with suppress(Killed):
                await approve(net, change_id, "node2")
            await dooms[name].wait()
            dooms[name].bring_back()
            check_min_samples(net, name)
            await wait_until_over(net)
            await net.wait_for_height(5)
            await check_executed_once(net, change_id)

    run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("step", list_steps("candidate", "vote", "justification", "append", "close"))
def test_all_that_die_at_one_step_of_a_change_execute_it_once(tmp_path: Path, step: str) -> None:
    """Each as it comes to it; then power is lost, and all are back at once."""

    async def story() -> None:
        async with tapped(tmp_path, [(name, step) for name in NODES], rounds=2) as (net, dooms):
            await wait_until_over(net)
            change_id = await propose(net, "node0", MORE)
            await approve(net, change_id, "node1", "node3")
            for doom in dooms.values():
                doom.arm()
            with suppress(Killed):
                await approve(net, change_id, "node2")
            await asyncio.sleep(5.0)
            assert any(doom.is_dead for doom in dooms.values())
            for name in NODES:
                net.network.set_down(net.id(name))
            for name in NODES:
                await net.crash(name)
            for doom in dooms.values():
                doom.bring_back()
            for name in NODES:
                check_min_samples(net, name)
            await wait_until_over(net)
            await net.wait_for_height(5)
            await check_executed_once(net, change_id)

    run_virtual(story())
