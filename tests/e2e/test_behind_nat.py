"""Members that can only dial out, behind routers that translate addresses: they take part in full.

What was measured is printed: `pytest -rP -m e2e tests/e2e/test_behind_nat.py`. After every story the nodes have one
chain, and what each has left on disk passes the audit.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.federation.dial_out import hide
from support.federation.real_nodes import Federation, make_federation, paused, run_command
from support.machines import nat
from support.machines.namespaces import ADDRESS
from support.machines.nat import Sites, sites

OBSTACLE = nat.find_obstacle()

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.outer,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces with NAT: {OBSTACLE}"),
]

NUM_NODES = 4
ROUNDS = 4
COLLECT_S = 90  # how long a round waits for who is in sight: whoever is not heard by then is left out of its block
ATTEMPTS = 5
SECONDS = 45.0  # what may pass for "seconds" on a loaded machine: well below COLLECT_S
METHODS: dict[str, dict[str, Any]] = {
    "dfpl": {},
    "fedavg": {"model": "mlp"},
    "uapdfl": {"settings": ("num_peers=2",)},
    "fededs": {
        "model": "cnn_cifar",
        "partition": "iid",
        "i_understand": True,
        "settings": (
            *("unet_width=4", "warmup_epochs=1", "encryptor_epochs=1", "local_epochs=1", "anneal_to=2"),
            "input.shape=[3,32,32]",  # 360 samples each: sets of 5.5 MB
        ),
    },
}
OFTEN = {("dfpl", 3), ("uapdfl", 2)}  # in CI too, where "dfpl", 1 is how the story of the router begins


@asynccontextmanager
async def spread(
    path: Path, net: Sites, method: str = "dfpl", rounds: int = 0, *, collect_s: int = COLLECT_S, **spec: Any
) -> AsyncIterator[Federation]:
    """A node on each host, those behind routers without an address. They are up; in the end they agree, and their
    directories pass the audit."""
    made = {**METHODS[method], **spec}
    made["settings"] = (*made.pop("settings", ()), f"waits.collect_s={collect_s}")
    shape = {"num_nodes": len(net), "host": ADDRESS, "method": method, "rounds": rounds, "difficulty": 4096}
    directory = hide(make_federation(path / "net", **shape, **made), *(name_host(i) for i in net.routers))
    async with Federation(directory, {name_host(host.index): host.enter for host in net}) as nodes:
        await nodes.start()
        await nodes.wait_until_ready()
        yield nodes
        await nodes.check_agreement()
        names = nodes.running
        assert await asyncio.gather(*(nodes.stop(name) for name in names)) == [0] * len(names)
        audits = await asyncio.gather(*(asyncio.to_thread(audit, nodes, name) for name in names))
        assert audits == [""] * len(names)


def audit(nodes: Federation, name: str) -> str:
    """What is wrong with what a stopped node has on disk."""
    done = run_command("chain", "verify", "--deep", "--json", "--data-dir", nodes.get_data_dir(name))
    return "" if done.code == 0 and json.loads(done.out)["ok"] else f"{name}: {done.out}{done.err}"


def name_host(index: int) -> str:
    return f"node{index}"


async def check_all_contribute(nodes: Federation, first: int, last: int) -> None:
    """The blocks of these heights have everybody's contribution, as every node has them."""
    for height in range(first, last + 1):
        began_s = time.monotonic()
        await nodes.wait_for_height(height)
        held = await asyncio.gather(*(nodes.read_contributors(name, height) for name in nodes.running))
        print(f"height {height}: {', '.join(held[0])}, {time.monotonic() - began_s:.1f} s after the one before")
        assert [sorted(names) for names in held] == [sorted(nodes.names)] * len(held), f"height {height}"


# ---- some of four


@pytest.mark.parametrize(
    ("method", "num_behind"),
    [
        pytest.param(method, num_behind, marks=pytest.mark.slow if (method, num_behind) in OFTEN else pytest.mark.long)
        for method in METHODS
        for num_behind in (1, 2, 3)
    ],
)
async def test_members_that_only_dial_out_contribute_to_every_block(
    tmp_path: Path, method: str, num_behind: int
) -> None:
    with sites(NUM_NODES, behind=range(NUM_NODES - num_behind, NUM_NODES)) as net:
        async with spread(tmp_path, net, method, ROUNDS) as nodes:
            await check_all_contribute(nodes, 1, ROUNDS)


@pytest.mark.long
async def test_sets_of_100_mb_come_to_and_from_members_that_only_dial_out(tmp_path: Path) -> None:
    """360 encrypted images of 3 x 160 x 160 a member, 110 MB each: two of these pairs have them through the others."""
    settings = (*METHODS["fededs"]["settings"][:-1], "unet_width=1", "input.shape=[3,160,160]", "share_max=360")
    with sites(NUM_NODES, behind=[2, 3]) as net:
        async with spread(tmp_path, net, "fededs", 2, collect_s=900, settings=settings) as nodes:
            await nodes.wait_for(
                lambda now: all(status["height"] >= 1 for status in now.values()), "the first block", timeout_s=900
            )
            await check_all_contribute(nodes, 1, 2)


# ---- what befalls a connection


@asynccontextmanager
async def in_mid_round(nodes: Federation, name: str) -> AsyncIterator[int]:
    """This node does not train meanwhile, so all wait for it in one round, whose height it is."""
    for _ in range(ATTEMPTS):
        with paused(await nodes.get_worker(name)):
            round_ = await find_round(nodes, name)
            if round_ is not None:
                yield round_
                return
        await asyncio.sleep(0.5)
    raise AssertionError(f"{name} was not stopped while it trained, in {ATTEMPTS} attempts")


async def find_round(nodes: Federation, name: str) -> int | None:
    """The one that all are in, where this node trains; None of one that was stopped while it did something else."""
    with suppress(AssertionError):
        now = await nodes.wait_for(
            lambda now: now[name]["phase"] == "train" and len({status["round"] for status in now.values()}) == 1,
            f"{name} to train in the round of all",
            looks=3,
            timeout_s=10,
        )
        return int(now[name]["round"])
    return None


async def wait_for_round(nodes: Federation, height: int, what: str) -> None:
    """All contribute to this round and the next, within seconds."""
    began_s = time.monotonic()
    await check_all_contribute(nodes, height, height + 1)
    took_s = time.monotonic() - began_s
    print(f"{what} in mid-round {height}: its block and the next after {took_s:.1f} s")
    assert took_s < SECONDS


@pytest.mark.slow
async def test_a_router_that_forgets_or_moves_in_mid_round_costs_seconds(tmp_path: Path) -> None:
    with sites(NUM_NODES, behind=[3]) as net:
        router = net.routers[3]
        async with spread(tmp_path, net) as nodes:
            await check_all_contribute(nodes, 1, 2)
            for befall, what in ((router.forget, "forgets"), (router.move, "moves")):
                async with in_mid_round(nodes, "node3") as height:
                    befall()
                await wait_for_round(nodes, height, f"a router that {what}")


@pytest.mark.long
async def test_connections_outlast_a_firewall_that_forgets_what_is_idle(tmp_path: Path) -> None:
    """Its patience is longer than a pause between two pings, and shorter than the round."""
    patience_s = 15
    with sites(NUM_NODES, behind=[3]) as net:
        net.routers[3].forget_idle_after(patience_s, silently=True)
        async with spread(tmp_path, net) as nodes:
            await check_all_contribute(nodes, 1, 2)
            async with in_mid_round(nodes, "node3") as height:
                before = net.routers[3].list_connections()
                await asyncio.sleep(2 * patience_s)
                assert net.routers[3].list_connections() == before
            await wait_for_round(nodes, height, "a firewall that forgets")


@pytest.mark.long
@pytest.mark.parametrize("hold_s", [5.0, 60.0])
async def test_a_site_that_sleeps_contributes_again_when_it_wakes(tmp_path: Path, hold_s: float) -> None:
    """Its link is down and its processes stand still; the others go on."""
    with sites(NUM_NODES, behind=[3]) as net:
        async with spread(tmp_path, net) as nodes:
            await check_all_contribute(nodes, 1, 2)
            others = nodes.names[:3]
            net.unplug(net[3])
            with paused(*nat.list_pids(net[3])):
                await asyncio.sleep(hold_s)
                statuses = [await nodes.get_status(name) for name in others]
                height = max(status["height"] for status in statuses)
            net.plug_in(net[3])
            began_s = time.monotonic()
            contributed = await nodes.wait_for_contribution("node3", height)
            took_s = time.monotonic() - began_s
            print(f"after {hold_s:g} s asleep it contributes to height {contributed}, {took_s:.1f} s on")
            await check_all_contribute(nodes, contributed + 1, contributed + 2)
