"""Addresses of every kind, as real nodes dial them: names that lead elsewhere by and by, IPv6 alone and beside IPv4."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.federation.real_nodes import Federation, make_federation
from support.machines import nat
from support.machines.namespaces import Host
from support.machines.nat import ADDRESS6, get_address6, renumber, sites

OBSTACLE = nat.find_obstacle()
PORT = 7000
ROUNDS = 3
NAME = "node{i}.site"
GRPC_OWN_S = 30.0  # how long gRPC, left to itself, goes by what it has looked up

SERVER = f"""
import asyncio, sys, grpc
async def answer(request, context): return sys.argv[1].encode()
async def main():
    server = grpc.aio.server()
    handlers = {{"Who": grpc.unary_unary_rpc_method_handler(answer)}}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Site", handlers),))
    server.add_insecure_port("0.0.0.0:{PORT}")
    await server.start()
    await server.wait_for_termination()
asyncio.run(main())
"""
CALLER = f"""
import asyncio, grpc
from node.p2p.transport.channel import Caller
async def main():
    ask = Caller(bytes(32), None).open_channel(bytes(32), "alice:{PORT}").unary_unary("/Site/Who")
    while True:
        try:
            print((await ask(b"", wait_for_ready=True, timeout=5)).decode(), flush=True)
        except grpc.aio.AioRpcError:
            pass
        await asyncio.sleep(0.1)
asyncio.run(main())
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.outer,
    pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces with NAT: {OBSTACLE}"),
]


# ---- names


@pytest.mark.slow
def test_a_name_that_leads_elsewhere_is_looked_up_again_within_seconds() -> None:
    """The host it led to does not answer any more, and does not say so."""
    num_moves = 2  # there and back
    with sites(3) as net:
        servers = [start(host, SERVER, str(host.index)) for host in net[1:]]
        net.name({"alice": [net[1].address]})
        caller = start(net[0], CALLER)
        try:
            wait_for_answer(caller, "1")
            began_s = time.monotonic()
            for move in range(num_moves):
                here, there = (net[1], net[2]) if move % 2 == 0 else (net[2], net[1])
                net.name({"alice": [there.address]})
                net.unplug(here)
                wait_for_answer(caller, str(there.index))
                net.plug_in(here)
            took_s = time.monotonic() - began_s
        finally:
            for process in (caller, *servers):
                process.kill()
                process.communicate()
    print(f"{num_moves} moves in {took_s:.1f} s")
    assert took_s < num_moves * GRPC_OWN_S / 2


def start(host: Host, script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*host.enter, sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def wait_for_answer(caller: subprocess.Popen[str], wanted: str) -> None:
    """The test's own time limit ends it."""
    assert caller.stdout is not None
    while (line := caller.stdout.readline()).strip() != wanted:
        assert line, "the caller has ended"


@pytest.mark.slow
async def test_a_member_whose_name_leads_to_a_new_address_contributes_again(tmp_path: Path) -> None:
    with sites(4) as net:
        addresses = {NAME.format(i=host.index): [host.address] for host in net}
        net.name(addresses)
        async with at_hosts(make_federation(tmp_path / "net", host=NAME, rounds=0), net) as nodes:
            await nodes.start()
            await nodes.wait_for_contribution("node3", 0)
            addresses[NAME.format(i=3)] = [renumber(net[3].namespace, net[3].address)]
            net.name(addresses)
            height = max(status["height"] for status in (await nodes.get_statuses()).values())
            began_s = time.monotonic()
            contributed = await nodes.wait_for_contribution("node3", height)
            print(f"renumbered at height {height}, in block {contributed} after {time.monotonic() - began_s:.1f} s")
            await nodes.wait_for(
                lambda now: all(status["members_in_sight"] == 4 for status in now.values()), "all in sight of all"
            )
            await nodes.check_agreement()


# ---- IPv6


def at_hosts(directory: Path, net: nat.Sites) -> Federation:
    return Federation(directory, {f"node{host.index}": host.enter for host in net})


@pytest.mark.slow
async def test_hosts_of_ipv6_alone_finalise_and_doctor_finds_nothing_amiss(tmp_path: Path) -> None:
    with sites(4) as net:
        net.add_ipv6(*net)
        net.drop_ipv4(*net)
        made = make_federation(tmp_path / "net", host=ADDRESS6, rounds=ROUNDS, settings=("waits.collect_s=120",))
        async with at_hosts(made, net) as nodes:
            await nodes.start()
            await nodes.wait_for_height(ROUNDS)
            assert len(await nodes.read_contributors("node0", ROUNDS)) == 4
            peers = await ask(nodes, net[0], "peers")
            assert sorted(peer["address"].rpartition(":")[0] for peer in peers["peers"]) == [
                f"[{get_address6(host)}]" for host in net[1:]
            ]
            checks = (await ask(nodes, net[0], "doctor"))["checks"]
            assert [check for check in checks if check["verdict"] == "fail"] == []
            await nodes.check_agreement()


async def ask(nodes: Federation, host: Host, command: str) -> Any:
    """The object that a command prints which runs on this host."""
    config = nodes.nodes[f"node{host.index}"].node.config_file
    words = [*host.enter, sys.executable, "-m", "node.cli", command, "--json", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return json.loads(out)


@pytest.mark.slow
async def test_a_host_of_ipv4_alone_and_one_of_ipv6_alone_reach_those_of_both_kinds_by_name(tmp_path: Path) -> None:
    """And each other through these."""
    with sites(4) as net:
        net.add_ipv6(*net[:3])
        net.drop_ipv4(net[2])
        kinds = {0: "46", 1: "46", 2: "6", 3: "4"}
        net.name(
            {
                NAME.format(i=host.index): [
                    {"4": host.address, "6": get_address6(host)}[kind] for kind in kinds[host.index]
                ]
                for host in net
            }
        )
        made = make_federation(tmp_path / "net", host=NAME, rounds=ROUNDS, settings=("waits.collect_s=60",))
        async with at_hosts(made, net) as nodes:
            await nodes.start()
            await nodes.wait_for_height(ROUNDS)
            for height in range(1, ROUNDS + 1):
                assert len(await nodes.read_contributors("node0", height)) == 4, f"height {height}"
            await nodes.check_agreement()
