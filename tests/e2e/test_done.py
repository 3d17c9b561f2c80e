"""A federation whose rounds are over: its nodes start again in any order, keep serving, and stop when told."""

from __future__ import annotations

import asyncio
import json

import pytest

from support.federation.real_nodes import DemoRun, Federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STATUS_KEYS = {
    *("id", "name", "height", "head", "round", "phase", "peers_connected", "members", "stalled", "accuracy"),
}


async def test_kept_nodes_start_again_in_any_order_serve_and_stop(demo: DemoRun) -> None:
    async with Federation(demo.directory) as net:
        for name in ("node2", "node0", "node3", "node1"):
            await net.start(name)
        statuses = await net.wait_for(
            lambda now: all(status["ready"] and status["peers_connected"] == 3 for status in now.values()),
            "four nodes that see each other",
        )
        for node in demo.result["nodes"]:
            status = statuses[node["name"]]
            assert status["done"]
            assert (status["phase"], status["stalled"]) == ("done", False)
            assert (status["id"], status["height"], status["head"]) == (node["id"], demo.rounds, node["head"])
            assert status["accuracy"] == node["accuracy"]
        await asyncio.to_thread(check_commands, net, "node3")
        assert await net.check_agreement() == demo.rounds
        assert await asyncio.gather(*(net.stop(name) for name in net.names)) == [0] * 4


def check_commands(net: Federation, name: str) -> None:
    """What an operator would ask of this node."""

    def ask(*arguments: object) -> str:
        done = run_command(*arguments, "--config", net.nodes[name].node.config_file)
        assert done.code == 0, done.err
        return done.out

    status = json.loads(ask("status", "--json"))
    assert set(status) >= STATUS_KEYS
    assert (status["name"], status["members"], status["peers_connected"]) == (name, 4, 3)
    assert {peer["name"] for peer in json.loads(ask("peers", "--json"))["peers"]} == set(net.names) - {name}
    assert "ready" in ask("health", "--ready")
    report = json.loads(ask("chain", "verify", "--deep", "--json"))
    assert report["ok"]
    assert report["recomputed"] == report["blocks"] - 1
    head = json.loads(ask("chain", "show", "head", "--json"))
    assert (head["id"], len(head["contributions"])) == (status["head"], 4)
    rounds = json.loads(ask("rounds", "list", "--json"))["rounds"]
    assert sorted(rounds[0]["contributor_names"]) == list(net.names)
