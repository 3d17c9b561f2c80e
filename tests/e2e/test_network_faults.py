"""Real nodes, each on a host of its own in a network that is cut, silent, slow or lossy (PROTOCOL §8).

What was measured is printed: `pytest -rP -m e2e tests/e2e/test_network_faults.py`. After every story the nodes have one
chain, and what each has left on disk passes the audit.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.faults import weather
from support.faults.slow_peers import SilentServer, SlowProxy
from support.faults.weather import Storm, Weather, stormy_lan
from support.federation.real_nodes import Federation, Finished, Statuses, make_federation, run_command
from support.machines import namespaces
from support.machines.namespaces import ADDRESS, Host, Lan, lan

OBSTACLE = namespaces.find_obstacle()
NO_WEATHER = weather.find_obstacle()

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces: {OBSTACLE}"),
]

HOLD_S = 3.0  # how long those who must not go on are watched
LONG_S = 60.0  # the same, longer than any connection stands and any pause between two attempts to connect


@asynccontextmanager
async def spread(path: Path, net: Lan, **spec: Any) -> AsyncIterator[Federation]:
    """A node on each host, up and contributing. In the end they agree, and their directories pass the audit."""
    made = {"rounds": 0, "difficulty": 4096, "settings": ("local_iterations=5", *spec.pop("settings", ()))}
    directory = make_federation(path / "net", num_nodes=len(net), host=ADDRESS, **made, **spec)
    async with Federation(directory, {f"node{host.index}": host.enter for host in net}) as nodes:
        yield nodes
        await nodes.check_agreement()
        names = nodes.running
        codes = await asyncio.gather(*(nodes.stop(name) for name in names))
        assert codes == [0] * len(names)
        audits = await asyncio.gather(*(asyncio.to_thread(audit, nodes, name) for name in names))
        assert [(name, done.code) for name, done in zip(names, audits, strict=True)] == [(name, 0) for name in names]


def audit(nodes: Federation, name: str) -> Finished:
    return run_command("chain", "verify", "--deep", "--data-dir", nodes.get_data_dir(name))


async def start(nodes: Federation, *names: str) -> None:
    """All contribute to one block."""
    await nodes.start(*names)
    await nodes.wait_until_ready()
    await asyncio.gather(*(nodes.wait_for_contribution(name, 0) for name in nodes.running))


def say(what: str, began_s: float) -> None:
    print(f"{what}: {time.monotonic() - began_s:.1f} s")


def name_hosts(hosts: Sequence[Host]) -> list[str]:
    return [f"node{host.index}" for host in hosts]


async def wait_for_stall(nodes: Federation, names: Collection[str], reason: str) -> Statuses:
    """Until these say so, and none of them trains any more."""
    began_s = time.monotonic()
    await nodes.wait_for(
        lambda now: all(now[name]["stall_reason"] == reason for name in names), f"{names} to say {reason!r}"
    )
    say(f"{', '.join(names)} said {reason!r} after", began_s)
    shown = await asyncio.to_thread(run_command, "status", "--config", nodes.nodes[min(names)].node.config_file)
    assert f"STALLED   {reason}".split() == shown.out.splitlines()[0].split()
    return await nodes.wait_for(lambda now: is_at_rest(now, names), f"{names} at one head, and done with training")


def is_at_rest(now: Statuses, names: Collection[str]) -> bool:
    return len({now[name]["head"] for name in names}) == 1 and all(now[name]["phase"] != "train" for name in names)


def get_places(now: Statuses, names: Collection[str]) -> dict[str, tuple[object, ...]]:
    """Where nodes stand, and what they have measured of rounds they trained for."""
    keys = ("head", "round", "measured_round", "ready")
    return {name: tuple(now[name][key] for key in keys) for name in names}


async def wait_for_agreement(nodes: Federation, what: str) -> None:
    """Until all have a block that is newer than any there was, and see a quorum."""
    began_s = time.monotonic()
    height = max(status["height"] for status in (await nodes.get_statuses()).values())
    await nodes.wait_for(
        lambda now: all(status["height"] > height and not status["stalled"] for status in now.values()),
        f"all above height {height}",
    )
    say(f"all above height {height} after {what}", began_s)
    await nodes.check_agreement()


async def wait_until_all_contribute(nodes: Federation, what: str) -> None:
    began_s = time.monotonic()
    height = max(status["height"] for status in (await nodes.get_statuses()).values())
    await asyncio.gather(*(nodes.wait_for_contribution(name, height) for name in nodes.running))
    say(f"every member contributes again after {what}", began_s)


async def count_heights(nodes: Federation, names: Collection[str], num_blocks: int, what: str) -> None:
    """Until the named have so many blocks more."""
    began_s = time.monotonic()
    before = await nodes.get_statuses()
    height = max(before[name]["height"] for name in names) + num_blocks
    await nodes.wait_for_height(height, *names)
    say(f"{num_blocks} blocks {what} in", began_s)


async def hold_still(nodes: Federation, names: Collection[str], hold_s: float = HOLD_S) -> None:
    """These finalise nothing and train for nothing, for a while."""
    before = get_places(await nodes.get_statuses(), names)
    await asyncio.sleep(hold_s)
    now = await nodes.get_statuses()
    assert get_places(now, names) == before
    assert is_at_rest(now, names)


# ---- cuts both ways


@pytest.mark.long
@pytest.mark.parametrize("hold_s", [HOLD_S, LONG_S])
async def test_one_of_five_cut_off_waits_and_says_so_while_four_go_on(tmp_path: Path, hold_s: float) -> None:
    with lan(5) as net:
        async with spread(tmp_path, net) as nodes:
            await start(nodes)
            four, alone = name_hosts(net[:4]), ["node4"]
            net.partition(net[:4], net[4:])
            reason = "1 of 5 members in sight, 4 needed; missing node0, node1, node2, node3"
            before = get_places(await wait_for_stall(nodes, alone, reason), alone)
            await count_heights(nodes, four, 10, "among the four")
            await hold_still(nodes, alone, hold_s)
            assert get_places(await nodes.get_statuses(), alone) == before
            net.heal()
            await wait_for_agreement(nodes, f"the cut 1|4 of {hold_s:g} s and more was healed")
            await wait_until_all_contribute(nodes, "that")


@pytest.mark.parametrize(
    ("here", "there", "hold_s"),
    [
        pytest.param(1, 2, HOLD_S, marks=pytest.mark.slow),
        pytest.param(2, 2, HOLD_S, marks=pytest.mark.long),
        pytest.param(2, 2, LONG_S, marks=pytest.mark.long),
        pytest.param(2, 3, HOLD_S, marks=pytest.mark.long),
    ],
)
async def test_two_sides_without_a_quorum_finalise_nothing_and_resume(
    tmp_path: Path, here: int, there: int, hold_s: float
) -> None:
    with lan(here + there) as net:
        async with spread(tmp_path, net) as nodes:
            await start(nodes)
            sides = [name_hosts(net[:here]), name_hosts(net[here:])]
            net.partition(net[:here], net[here:])
            quorum = f"{nodes.genesis.state.q} needed"
            await asyncio.gather(
                *(
                    wait_for_stall(
                        nodes, side, f"{len(side)} of {len(net)} members in sight, {quorum}; missing {', '.join(other)}"
                    )
                    for side, other in (sides, sides[::-1])
                )
            )
            await asyncio.gather(*(hold_still(nodes, side, hold_s) for side in sides))
            net.heal()
            await wait_for_agreement(nodes, f"the cut {here}|{there} of {hold_s:g} s and more was healed")
            await wait_until_all_contribute(nodes, "that")


@pytest.mark.long
async def test_three_of_five_go_on_without_two_where_a_majority_decides(tmp_path: Path) -> None:
    with lan(5) as net:
        async with spread(tmp_path, net, settings=("quorum=majority",)) as nodes:
            await start(nodes)
            two, three = name_hosts(net[:2]), name_hosts(net[2:])
            net.partition(net[:2], net[2:])
            await wait_for_stall(nodes, two, "2 of 5 members in sight, 3 needed; missing node2, node3, node4")
            await count_heights(nodes, three, 10, "among the three")
            await hold_still(nodes, two)
            net.heal()
            await wait_for_agreement(nodes, "the cut 2|3 was healed")
            await wait_until_all_contribute(nodes, "that")


@pytest.mark.slow
async def test_one_of_three_cut_off_waits_while_two_go_on_where_a_majority_decides(tmp_path: Path) -> None:
    with lan(3) as net:
        async with spread(tmp_path, net, settings=("quorum=majority",)) as nodes:
            await start(nodes)
            net.partition(net[:2], net[2:])
            await wait_for_stall(nodes, ["node2"], "1 of 3 members in sight, 2 needed; missing node0, node1")
            await count_heights(nodes, name_hosts(net[:2]), 5, "among the two")
            await hold_still(nodes, ["node2"])
            net.heal()
            await wait_for_agreement(nodes, "the cut 1|2 was healed")


# ---- cuts one way


@pytest.mark.long
async def test_a_cut_one_way_between_two_of_four_costs_nobody_its_place(tmp_path: Path) -> None:
    with lan(4) as net:
        async with spread(tmp_path, net) as nodes:
            await start(nodes)
            net.cut(net[0], net[1])
            await nodes.wait_for(
                lambda now: now["node0"]["peers_connected"] == now["node1"]["peers_connected"] == 2,
                "node0 and node1 to lose their connection",
            )
            await count_heights(nodes, nodes.names, 5, "with node0 unheard at node1")
            await wait_until_all_contribute(nodes, "that, still cut one way")
            net.heal()
            await nodes.wait_for(
                lambda now: all(status["members_in_sight"] == 4 for status in now.values()), "all in sight"
            )
            await wait_for_agreement(nodes, "the cut one way was healed")


@pytest.mark.long
@pytest.mark.parametrize("direction", ["from", "to"])
async def test_one_that_is_cut_off_in_one_direction_waits_while_three_go_on(tmp_path: Path, direction: str) -> None:
    with lan(4) as net:
        async with spread(tmp_path, net) as nodes:
            await start(nodes)
            for other in net[:3]:
                net.cut(*((net[3], other) if direction == "from" else (other, net[3])))
            reason = "1 of 4 members in sight, 3 needed; missing node0, node1, node2"
            await wait_for_stall(nodes, ["node3"], reason)
            await count_heights(nodes, name_hosts(net[:3]), 10, f"among three, with packets {direction} node3 lost")
            await hold_still(nodes, ["node3"])
            net.heal()
            await wait_for_agreement(nodes, f"packets {direction} node3 arrive again")
            await wait_until_all_contribute(nodes, "that")


# ---- peers that are there and no use


@pytest.mark.long
async def test_three_go_on_beside_a_host_that_accepts_and_never_answers(tmp_path: Path) -> None:
    with lan(4) as net:
        async with spread(tmp_path, net) as nodes:
            port = get_port(nodes, "node3")
            async with SilentServer(net[3].call(lambda: socket.create_server((net[3].address, port)))) as silent:
                await start(nodes, "node0", "node1", "node2")
                await count_heights(nodes, nodes.running, 20, "beside a host that never answers")
                assert silent.num_connections >= 3
                print(f"it was dialled {silent.num_connections} times and sent {silent.num_bytes} bytes")
            began_s = time.monotonic()
            await nodes.start("node3")
            await nodes.wait_for_contribution("node3", 0)
            say("node3 is in its place, and contributes after", began_s)


@pytest.mark.long
async def test_rounds_go_on_with_a_member_that_answers_one_byte_a_second(tmp_path: Path) -> None:
    """node3 itself dials as usual; what others ask of it comes through a proxy, which gets slow in the middle."""
    with lan(4) as net:
        async with spread(tmp_path, net) as nodes:
            port = get_port(nodes, "node3")
            behind = move_behind(nodes, "node3", port)
            listener = net[3].call(lambda: socket.create_server((net[3].address, port)))
            async with SlowProxy(
                listener, lambda: net[3].call(lambda: open_connection(net[3].address, behind))
            ) as proxy:
                await start(nodes)
                proxy.bytes_per_s = 1.0
                others = name_hosts(net[:3])
                await count_heights(nodes, others, 10, "right after node3 became slow")
                await count_heights(nodes, others, 10, "while node3 is slow")
                await nodes.wait_for_height((await nodes.get_status("node0"))["height"], "node3")
                print(f"{proxy.num_connections} connections; {proxy.num_bytes} bytes answered at that pace")
                proxy.bytes_per_s = None
                await wait_until_all_contribute(nodes, "it answers at once again")
                await wait_for_agreement(nodes, "that")


def get_port(nodes: Federation, name: str) -> int:
    return int(nodes.nodes[name].node.address.rpartition(":")[2])


def move_behind(nodes: Federation, name: str, port: int) -> int:
    """Lets a node listen on another port than the one that it is dialled at; that port."""
    file = nodes.nodes[name].node.config_file
    text = file.read_text(encoding="utf-8")
    listen = f"listen: '0.0.0.0:{port}'"
    assert text.count(listen) == 1, text
    file.write_text(text.replace(listen, f"listen: '0.0.0.0:{port + 100}'"), encoding="utf-8")
    return port + 100


def open_connection(address: str, port: int) -> socket.socket:
    return socket.create_connection((address, port), timeout=30)


# ---- weather


@pytest.mark.long
@pytest.mark.skipif(NO_WEATHER is not None, reason=f"needs TUN devices: {NO_WEATHER}")
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
async def test_rounds_go_on_in_spite_of_delay_jitter_loss_and_reordering(tmp_path: Path, loss: float) -> None:
    async with stormy_lan(4, Weather(), seed=1) as (net, storm), spread(tmp_path, net) as nodes:
        await start(nodes)
        await count_heights(nodes, nodes.names, 10, "in fine weather")
        storm.weather = Weather(delay_s=0.1, jitter_s=0.05, loss=loss)
        await count_heights(nodes, nodes.names, 5, f"with 100 ms, +-50 ms and {loss:.0%} of packets lost")
        await count_heights(nodes, nodes.names, 5, "in the same weather")
        await nodes.check_agreement()
        print(storm.describe())
        assert_stormy(storm)
        storm.weather = Weather()
        await wait_for_agreement(nodes, "the weather cleared up")
        await wait_until_all_contribute(nodes, "that")


def assert_stormy(storm: Storm) -> None:
    assert storm.num_overtaken > 0
    assert (storm.num_lost > 0) == (storm.weather.loss > 0)
