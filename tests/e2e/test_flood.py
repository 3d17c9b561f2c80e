"""A member that floods the others: they go on, know it for what it is, and do not grow. And what measures it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bench.flood import flooding, stop_flood
from node.admin.client import AdminClient
from node.admin.json_view import to_json
from node.host.procfs import read_memory
from support.federation.real_nodes import POLL_S, WAIT_S, Federation, make_federation, run_bench

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HONEST = ("node0", "node1", "node2")
GROWTH_BYTES = 64 << 20
TOLD = {"valid": {"rate", "calls"}, "invalid": {"refused"}}


async def _read_flooder(net: Federation, name: str) -> dict[str, Any]:
    def ask(admin: AdminClient) -> dict[str, Any]:
        (flooder,) = (to_json(peer) for peer in admin.list_peers() if peer.name == "node3")
        return flooder

    return await net.ask(name, ask)


async def _wait_until_told(net: Federation, name: str, reasons: set[str]) -> None:
    """Until the flood has begun to be too much for this node."""
    async with asyncio.timeout(WAIT_S):
        while not reasons <= (await _read_flooder(net, name))["not_taken"].keys():  # noqa: ASYNC110 - another process
            await asyncio.sleep(POLL_S)


@pytest.mark.parametrize("kind", ["valid", pytest.param("invalid", marks=pytest.mark.long)])
async def test_three_finalise_ten_rounds_while_the_fourth_floods_them(tmp_path: Path, kind: str) -> None:
    directory = make_federation(tmp_path / "net", num_nodes=4, method="local", partition="iid", rounds=0, difficulty=16)
    async with Federation(directory) as net:
        await net.start(*HONEST)
        await net.wait_for_height(3, *HONEST)
        before = {name: read_memory(net.get_pid(name))["resident"] for name in HONEST}
        async with flooding(directory / "node3.yaml", kind) as attacker:
            for name in HONEST:
                await _wait_until_told(net, name, TOLD[kind])
            height = max(status["height"] for status in (await net.get_statuses()).values())
            await net.wait_for_height(height + 10, *HONEST)
            grown = {name: read_memory(net.get_pid(name))["resident"] - before[name] for name in HONEST}
            flooders = [await _read_flooder(net, name) for name in HONEST]
            sent = await stop_flood(attacker)
        await net.check_agreement()
    assert sent["messages_per_s"] > 0
    assert all(growth < GROWTH_BYTES for growth in grown.values()), grown
    for flooder in flooders:
        assert (flooder["banned_for"] == "fault") is (kind == "invalid")
        assert flooder["not_taken"].keys() >= TOLD[kind]


@pytest.mark.long
def test_the_flood_is_measured_against_a_silent_member() -> None:
    done = run_bench("flood", "--seconds", 3, "--members", "silent,valid", "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["members"].keys() == {"silent", "valid"}
    for found in figures["members"].values():
        assert found["blocks_per_s"] > 0
        assert 0 < found["round_s"]["median"] <= found["round_s"]["p95"] <= found["round_s"]["max"]
        assert found["nodes"].keys() == set(HONEST)
    assert "attacker" not in figures["members"]["silent"]
    attacker = figures["members"]["valid"]["attacker"]
    assert attacker["messages_per_s"] > 0
    assert attacker["cpu_share"] > 0
    assert all(told["messages_received"] > 0 for told in figures["members"]["valid"]["told_of_fourth"].values())


@pytest.mark.long
def test_a_transfer_is_measured_against_none() -> None:
    done = run_bench("transfer", "--mb", 5, "--seconds", 4, "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["transfers"]["count"] >= 1
    assert figures["transfers"]["mb_per_s"]["min"] > 0
    for when in ("alone", "beside"):
        assert figures[when].keys() == figures["ratio"].keys()
        for found in figures[when].values():
            assert 0 <= found["median"] <= found["p99"] <= found["max"]
