"""A real node ends itself with SIGKILL at every durable step of a change, and is started again without that.

It dies as it proposes, hears, approves, stands ready, and executes. What it had told others is what its directory
holds, and the change is executed once. The federation is idle meanwhile, so each step is the change's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from chain.store.interface import STEPS
from node.admin.client import AdminClient
from node.errors import NodeError
from support.faults.killed_nodes import Killable
from support.federation.operators import (
    approve,
    get_proposal,
    init_newcomer,
    is_open,
    make_request,
    propose,
    read_change_heights,
    wait_until_open,
    wait_until_over,
)
from support.federation.ports import find_free_ports
from support.federation.real_nodes import make_federation

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

PRECOMMIT = "justification.committed"  # with what it rests on
NUM_ATTEMPTS = 20  # to find a nonce before three others do
GATHER_S = 5.0  # in which all come to a step of one block, or never will


class Step(NamedTuple):
    """The step to die at: the n-th `name` after the first `after`."""

    name: str
    times: int = 1
    after: str | None = None

    def __str__(self) -> str:
        return self.name + (f" after {self.after}" if self.after else "")


def list_steps(*transactions: str, times: int = 1, after: str | None = None) -> list[Step]:
    return [Step(step, times, after) for step in STEPS if step.split(".")[0] in transactions]


EXECUTED = [
    *list_steps("vote"),  # a prevote
    *list_steps("justification", "append", "close"),
]


class Idle(NamedTuple):
    """A federation that has done its rounds, and the changes that it has executed since."""

    net: Killable
    changes: list[str]
    values: Iterator[int]

    async def propose(self, name: str) -> str:
        """A change that matters to nothing here."""
        return await propose(self.net, name, "set_rules", rules=self._make_rules())

    async def propose_in_vain(self, name: str) -> None:
        """At a node that dies of it."""
        request = make_request("set_rules", rules=self._make_rules())
        await self.say_in_vain(name, lambda admin: admin.propose(request))

    def _make_rules(self) -> dict[str, int]:
        return {"waits.collect_s": next(self.values)}

    async def say_in_vain(self, name: str, say: Callable[[AdminClient], object]) -> None:
        def tell() -> None:
            with suppress(NodeError), AdminClient(self.net.nodes[name].socket) as admin:
                say(admin)

        await asyncio.to_thread(tell)

    async def doom(self, name: str, step: Step) -> None:
        """This one dies at the step; it and all others run, and see each other."""
        await self.net.stop_one(name)
        await self.net.start_doomed(name, step.name, times=step.times, after=step.after)
        await self.meet()

    async def meet(self) -> None:
        everybody = len(self.net.names)
        await self.net.wait_for(
            lambda now: len(now) == everybody and all(s["members_in_sight"] == everybody for s in now.values()),
            "all to see each other",
        )

    async def bring_back(self, name: str) -> None:
        """What the dead left is whole; it is started as an operator would."""
        self.net.check_dead(name)
        await self.net.start(name)
        await self.meet()

    async def check_executed(self, change: str) -> None:
        """By all, who agree; nothing was contradicted."""
        await wait_until_over(self.net, change)
        height = await self.net.get_greatest_height()
        await self.net.wait_for_height(height)
        assert await self.net.check_agreement() == height
        self.net.check_nothing_contradicted()
        self.changes.append(change)


@asynccontextmanager
async def idle(path: Path, num_nodes: int) -> AsyncIterator[Idle]:
    """In the end every directory holds, and each change once."""
    directory = make_federation(path / "net", num_nodes=num_nodes, rounds=1, difficulty=4096)
    async with Killable(directory) as net:
        await net.start()
        await net.wait_for(lambda now: all(status["done"] for status in now.values()), "the only round")
        made = Idle(net, [], count(5))
        yield made
        await net.stop_and_check_all()
        for name, change in product(net.names, made.changes):
            assert len(read_change_heights(net.get_data_dir(name), change)) == 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def four(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Idle]:
    async with idle(tmp_path_factory.mktemp("changes"), 4) as four:
        yield four


# ---- proposed


@pytest.mark.parametrize("step", list_steps("change"), ids=str)
async def test_killed_while_it_proposes_it_has_proposed_or_not(four: Idle, step: Step) -> None:
    await four.doom("node0", step)
    await four.propose_in_vain("node0")
    await four.net.wait_until_killed("node0", str(step))
    await four.bring_back("node0")
    held = [proposal.id for proposal in await four.net.ask("node0", AdminClient.list_proposals)]
    assert len(held) == step.name.endswith("committed")
    change = held[0] if held else await four.propose("node0")
    await approve(four.net, change, "node1", "node3")
    await four.check_executed(change)


@pytest.mark.parametrize("step", list_steps("change"), ids=str)
async def test_killed_while_it_hears_of_a_change_it_hears_of_it_again(four: Idle, step: Step) -> None:
    await four.doom("node2", step)
    change = await four.propose("node0")
    await four.net.wait_until_killed("node2", str(step))
    await four.bring_back("node2")
    await approve(four.net, change, "node2", "node1")
    await four.check_executed(change)


# ---- approved


@pytest.mark.parametrize("step", list_steps("approval"), ids=str)
async def test_killed_while_it_approves_it_has_approved_or_not(four: Idle, step: Step) -> None:
    await four.doom("node1", step)
    change = await four.propose("node0")
    await wait_until_open(four.net, change, "node1")
    await four.say_in_vain("node1", lambda admin: admin.approve(change))
    await four.net.wait_until_killed("node1", str(step))
    await four.bring_back("node1")
    held = await get_proposal(four.net, "node1", change)
    assert (held is not None and held.approved_here) == step.name.endswith("committed")
    await approve(four.net, change, "node1", "node2")  # a second answer is the first
    await four.check_executed(change)


@pytest.mark.parametrize("step", list_steps("approval", times=2), ids=str)
async def test_killed_while_it_hears_an_approval_it_still_has_its_own(four: Idle, step: Step) -> None:
    await four.doom("node1", step)
    change = await four.propose("node0")
    await approve(four.net, change, "node1", "node3")
    await four.net.wait_until_killed("node1", str(step))
    await four.bring_back("node1")
    await four.check_executed(change)


# ---- executed


@pytest.mark.parametrize(("name", "step"), list(product(("node0", "node3"), EXECUTED)), ids=str)
async def test_killed_while_a_change_is_executed_it_executes_it_once(four: Idle, name: str, step: Step) -> None:
    """Its proposer, and one that has not approved it."""
    await four.doom(name, step)
    change = await four.propose("node0")
    await wait_until_open(four.net, change)
    await approve(four.net, change, "node1", "node2")
    await four.net.wait_until_killed(name, str(step))
    await four.bring_back(name)
    await four.check_executed(change)


@pytest.mark.parametrize("step", list_steps("candidate"), ids=str)
async def test_killed_with_a_change_block_that_it_has_mined_it_executes_it_once(four: Idle, step: Step) -> None:
    await four.doom("node3", step)
    for _ in range(NUM_ATTEMPTS):
        change = await four.propose("node0")
        await approve(four.net, change, "node1", "node2")
        await wait_until_over(four.net, change, "node0")
        if not four.net.nodes["node3"].is_running:
            break
        await four.check_executed(change)
    await four.net.wait_until_killed("node3", str(step))
    await four.bring_back("node3")
    await four.check_executed(change)


@pytest.mark.parametrize("step", [Step(PRECOMMIT), *list_steps("append")], ids=str)
async def test_all_that_die_at_one_step_of_a_change_execute_it_once(four: Idle, step: Step) -> None:
    """Each as it comes to it; then power is lost, and all are back at once."""
    net = four.net
    await asyncio.gather(*(net.stop(name) for name in net.running))
    await asyncio.gather(*(net.start_doomed(name, step.name, times=step.times, after=step.after) for name in net.names))
    await four.meet()
    change = await four.propose("node0")
    await wait_until_open(net, change)
    await approve(net, change, "node1")
    await four.say_in_vain("node2", lambda admin: admin.approve(change))
    await asyncio.sleep(GATHER_S)
    assert len(net.running) < len(net.names)
    for name in net.running:
        await net.kill(name)
    for name in net.names:
        await net.wait_until_unlocked(name)
        net.check_dead(name)
    await net.start()
    await four.meet()
    if await is_open(net, "node2", change):  # it may have died before it kept its answer
        await four.say_in_vain("node2", lambda admin: admin.approve(change))
    await four.check_executed(change)


# ---- ready


@pytest.mark.parametrize("name", ["node3", "node1"])
@pytest.mark.parametrize("step", list_steps("readiness"), ids=str)
async def test_killed_while_a_joiner_stands_ready_it_has_it_in_the_end(tmp_path: Path, name: str, step: Step) -> None:
    """The joiner itself, and a member that hears of it."""
    async with idle(tmp_path, 3) as three:
        net = three.net
        newcomer = await init_newcomer(net, "node3", f"127.0.0.1:{find_free_ports(1)[0]}", via="node0")
        if name == "node1":
            await three.doom(name, step)
        net.add(newcomer.node)
        if name == "node3":
            await net.start_doomed(name, step.name)
        else:
            await net.start("node3")
        await net.wait_for(lambda now: len(now) == 4, "an answer of all")
        change = await propose(net, "node0", "add_member", request=newcomer.request)
        await approve(net, change, *(other for other in ("node1", "node2") if other != name))
        await net.wait_until_killed(name, str(step))
        net.check_dead(name)
        await net.start(name)
        if name == "node1":
            await approve(net, change, name)
        await three.check_executed(change)
        await three.meet()
        members = (await net.ask("node3", AdminClient.list_members)).members
        assert sorted(member.name for member in members) == sorted(net.names)
        rule = await three.propose("node3")  # it has a say
        await approve(net, rule, "node0", "node1")
        await three.check_executed(rule)
