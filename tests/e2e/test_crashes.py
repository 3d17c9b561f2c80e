"""A running federation loses daemons, workers and miners, in every phase of a round, and goes on.

All of it happens to one federation without an end. A phase is made to last by freezing the processes that would end
it, so that each node is ended in the very phase that the test names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from support.federation.processes import is_alive, kill
from support.federation.real_nodes import WAIT_S, Federation, Status, Statuses, make_federation, paused, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

NAMES = ("node0", "node1", "node2", "node3")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def federation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Federation]:
    directory = tmp_path_factory.mktemp("crashes") / "net"
    async with Federation(make_federation(directory, rounds=0, difficulty=4096)) as net:
        yield net


@pytest_asyncio.fixture(loop_scope="module")
async def net(federation: Federation) -> Federation:
    """All four up and contributing."""
    await federation.start()
    await federation.wait_until_ready()
    statuses = await federation.get_statuses()
    height = max(status["height"] for status in statuses.values())
    await asyncio.gather(*(federation.wait_for_contribution(name, height) for name in NAMES))
    return federation


# ---- making a phase last


async def hold_in_train(net: Federation, victim: str, held: ExitStack) -> None:
    held.enter_context(paused(await net.get_worker(victim)))
    await wait_in(net, "train", victim)


async def hold_in_exchange(net: Federation, victim: str, held: ExitStack) -> None:
    """Without the contributions of two others there is no quorum of them."""
    first, second = [name for name in NAMES if name != victim][:2]
    held.enter_context(paused(await net.get_worker(first), await net.get_worker(second)))
    await net.wait_for(
        lambda now: are_in(now, victim, exchange=[victim], train=[first, second]), f"{victim} in exchange", looks=2
    )


async def hold_in_mine(net: Federation, victim: str, held: ExitStack) -> None:
    statuses = await net.get_statuses()
    for status in statuses.values():
        held.enter_context(paused(*status["miner_pids"]))
    await net.wait_for(lambda now: are_in(now, victim, mine=NAMES), f"{victim} mining", looks=2)


async def hold_in_vote(net: Federation, victim: str, held: ExitStack) -> None:
    """Two who mine and vote are no quorum: the two others stand still until after the vote."""
    first, second = [name for name in NAMES if name != victim][:2]
    with ExitStack() as mining:
        await hold_in_mine(net, victim, mining)
        for name in (first, second):
            held.enter_context(paused(net.get_pid(name)))
    await wait_in(net, "vote", victim)


def are_in(now: Statuses, victim: str, **phases: list[str] | tuple[str, ...]) -> bool:
    """Whether all of these are in the victim's round, each in its phase."""
    return all(
        (now[name]["round"], now[name]["phase"]) == (now[victim]["round"], phase)
        for phase, names in phases.items()
        for name in names
    )


async def wait_in(net: Federation, phase: str, victim: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    seen: list[Status] = []
    while len(seen) < 2 or [status["phase"] for status in seen[-2:]] != [phase, phase]:
        seen.append(await net.get_status(victim))
        assert time.monotonic() < deadline_s, f"{victim} is not in {phase}: {seen[-1]}"
        await asyncio.sleep(0.1)


HOLDS = {"train": hold_in_train, "exchange": hold_in_exchange, "mine": hold_in_mine, "vote": hold_in_vote}


# ---- stories


@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        pytest.param(phase, victim, marks=pytest.mark.slow if i < 2 else pytest.mark.long)
        for i, (phase, victim) in enumerate(zip(HOLDS, NAMES, strict=True))
    ],
)
async def test_the_others_go_on_without_one_that_was_killed_and_it_contributes_again(
    net: Federation, phase: str, victim: str
) -> None:
    with ExitStack() as held:
        await HOLDS[phase](net, victim, held)
        await net.kill(victim)
    others = [name for name in NAMES if name != victim]
    height = (await net.get_status(others[0]))["height"]
    await net.wait_for_height(height + 2)
    await net.start(victim)
    again = await net.wait_for_contribution(victim, height + 2)
    await net.wait_for_height(again)
    assert await net.check_agreement() >= again


@pytest.mark.parametrize(
    "phase",
    [
        "mine",
        pytest.param("train", marks=pytest.mark.slow),
        pytest.param("exchange", marks=pytest.mark.long),
        pytest.param("vote", marks=pytest.mark.long),
    ],
)
async def test_a_node_told_to_stop_ends_with_0_in_any_phase_and_resumes(net: Federation, phase: str) -> None:
    victim = NAMES[1]
    with ExitStack() as held:
        await HOLDS[phase](net, victim, held)
        children = get_children(await net.get_status(victim))
        assert await net.stop(victim) == 0
    assert not any(is_alive(pid) for pid in children)
    assert not net.nodes[victim].socket.exists()
    height = (await net.get_status(NAMES[0]))["height"]
    await net.start(victim)
    await net.wait_for_contribution(victim, height + 1)  # the round it left may hold a contribution from before
    await net.check_agreement()


@pytest.mark.slow
async def test_a_node_told_to_stop_in_the_middle_of_a_long_training_breaks_it_off(tmp_path: Path) -> None:
    settings = ("local_iterations=1000000000",)
    async with Federation(make_federation(tmp_path / "net", num_nodes=1, rounds=0, settings=settings)) as net:
        await net.start()
        await net.wait_until_ready()
        status = await net.get_status("node0")
        assert (status["height"], status["phase"]) == (0, "train")
        assert await net.stop("node0") == 0
        assert not any(is_alive(pid) for pid in get_children(status))


def get_children(status: Status) -> list[int]:
    return [status["worker_pid"], *status["miner_pids"]]


@pytest.mark.slow
async def test_two_of_four_down_finalise_nothing_and_say_why(net: Federation) -> None:
    await asyncio.gather(net.kill("node1"), net.kill("node2"))
    reason = "2 of 4 members in sight, 3 needed; missing node1, node2"

    def are_stalled(now: Statuses) -> bool:
        """Both, at one head: that which one of them had finalised just before, the other has by now."""
        is_one = len({status["head"] for status in now.values()}) == 1
        return is_one and all(status["stall_reason"] == reason and not status["ready"] for status in now.values())

    before = await net.wait_for(are_stalled, f"both to say {reason!r}")
    assert all(status["stalled"] for status in before.values())
    config = net.nodes["node0"].node.config_file
    shown = await asyncio.to_thread(run_command, "status", "--config", config)
    assert shown.code == 0
    assert "2 of 4 members in sight, 3 needed" in shown.out
    health = await asyncio.to_thread(run_command, "health", "--ready", "--config", config)
    assert health.code == 6
    assert "missing" in health.err
    after = await net.get_statuses()
    assert {name: status["head"] for name, status in after.items()} == {
        name: status["head"] for name, status in before.items()
    }
    height = max(status["height"] for status in after.values())
    await net.start("node2")
    await net.wait_for_height(height + 2)
    resumed = await net.wait_for(
        lambda now: not any(status["stalled"] for status in now.values()), "three to be out of the stall"
    )
    assert set(resumed) == {"node0", "node2", "node3"}
    await net.check_agreement()


async def test_a_killed_worker_and_a_killed_miner_are_replaced(net: Federation) -> None:
    before = await net.get_status("node3")
    for pid in get_children(before):
        kill(pid)

    def has_new_ones(now: Statuses) -> bool:
        status = now["node3"]
        worker, miners = status["worker_pid"], status["miner_pids"]
        return worker not in (None, before["worker_pid"]) and not {*miners} <= {*before["miner_pids"]}

    after = await net.wait_for(has_new_ones, "a new worker and a new miner of node3")
    assert after["node3"]["pid"] == before["pid"]
    await net.wait_for_contribution("node3", after["node3"]["height"])
    mined = after["node3"]["hashes"]
    await net.wait_for(lambda now: now["node3"]["hashes"] > mined, "the new miner to mine")
    await net.check_agreement()
