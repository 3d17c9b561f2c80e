"""A sponsor that lies to a site that is to join real nodes: by a false checkpoint, a false genesis, and addresses that
are all its own."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain.genesis import Genesis
from chain.join_file import JoinFile
from chain.join_request import JoinRequest
from node.testnet.cluster import NodeProcess
from node.testnet.layout import TestnetNode
from support.federation.operators import approve, propose, wait_until_over
from support.federation.ports import find_free_ports
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOINER = "joiner"
MEMBERS = ("node0", "node1", "node2", "node3")


def run(*words: object) -> str:
    done = run_command(*words)
    assert done.code == 0, f"fednode {words}: {done.err}"
    return done.out.strip()


def make_join_file(net: Federation, file: Path, **false: Any) -> JoinFile:
    """That of a member, with what the liar has put in its place; all its addresses are the liar's."""
    run("join-file", "-o", file, "-c", net.nodes["node0"].node.config_file)
    true = JoinFile.decode(file.read_bytes())
    addresses = dict.fromkeys(true.addresses, f"127.0.0.1:{find_free_ports(1)[0]}")
    made = replace(true, addresses=addresses, **false)
    file.write_bytes(made.encode())
    return made


def init(place: Path, file: Path) -> tuple[str, str]:
    """The request of a new site, and its address."""
    address = f"127.0.0.1:{find_free_ports(1)[0]}"
    where = ("--listen", address, "--advertise", address)
    return run("init", place, "--name", place.name, "--join", file, *where), address


async def test_a_false_checkpoint_keeps_a_site_out_and_false_addresses_do_not(tmp_path: Path) -> None:
    async with Federation(make_federation(tmp_path / "net", rounds=0, difficulty=4096)) as net:
        await net.start()
        await net.wait_for_height(4)
        site, file = tmp_path / JOINER, tmp_path / "federation.join"
        run("join-file", "-o", file, "-c", net.nodes["node0"].node.config_file)
        header = JoinFile.decode(file.read_bytes()).header
        file.unlink()
        false = make_join_file(net, file, header=replace(header, nonce=header.nonce + 1))
        request, address = init(site, file)
        key = JoinRequest.decode(request, net.genesis.chain_id).key
        net.nodes[JOINER] = NodeProcess(TestnetNode(JOINER, key, address, site / "node.yaml", 0, 0, ()))
        await net.start(JOINER)

        change = await propose(net, "node0", "add_member", request=request)
        await approve(net, change, *MEMBERS[1:])
        began_s = time.monotonic()
        said = f"does not lead to block {false.checkpoint.height} of the join file"
        await net.wait_for(lambda now: said in (now[JOINER]["stall_reason"] or ""), "the joiner to say so")
        said_s = time.monotonic() - began_s
        shown = await asyncio.to_thread(run, "status", "-c", site / "node.yaml")
        assert shown.startswith("STALLED")
        assert f"fednode chain show {false.checkpoint.height}" in shown
        status = await net.get_status(JOINER)
        assert status["height"] == 0
        height = max(each["height"] for each in (await net.get_statuses()).values())
        await net.wait_for_height(height + 5, *MEMBERS)
        assert (await net.get_status("node0"))["members"] == len(MEMBERS)  # who has not the chain is not let in

        assert await net.stop(JOINER) == 0
        file.unlink()
        make_join_file(net, file)
        (site / "federation.join").write_bytes(file.read_bytes())
        began_s = time.monotonic()
        await net.start(JOINER)
        height = (await net.get_status("node0"))["height"]
        await net.wait_for_height(height, JOINER)
        served_s = time.monotonic() - began_s
        await wait_until_over(net, change)
        assert (await net.get_status("node0"))["members"] == len(MEMBERS) + 1
        print(f"said {said_s:.1f} s after it was approved; {height} blocks {served_s:.1f} s after its start")
        await net.wait_for(lambda now: not now[JOINER]["stalled"], "the joiner to be content")
        await net.check_agreement()


async def test_a_false_genesis_is_seen_by_the_first_member_that_is_asked(tmp_path: Path) -> None:
    """The site asks for another chain. Nothing in its own file could have told it."""
    async with Federation(make_federation(tmp_path / "net", num_nodes=1, rounds=0, difficulty=16)) as net:
        await net.start()
        await net.wait_for_height(1)
        genesis = Genesis.from_mapping({**net.genesis.to_mapping(), "created_at": "2026-01-01T00:00:00Z"})
        file, config = tmp_path / "federation.join", net.nodes["node0"].node.config_file
        file.write_bytes(JoinFile.at_genesis(genesis).encode())
        request, _ = init(tmp_path / JOINER, file)
        done = await asyncio.to_thread(run_command, "propose", "add-member", request, "--yes", "-c", config)
        assert done.code == 1, done.err
        assert f"chain: expected {net.genesis.chain_id.hex()}, got {genesis.chain_id.hex()}" in done.err, done.err
