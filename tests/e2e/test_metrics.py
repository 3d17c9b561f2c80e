"""Two real nodes, scraped as Prometheus would: what they tell is all that is promised, and true."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from node.errors import NotFound
from node.telemetry.sinks.jsonl import METRICS
from node.testnet.cluster import NodeProcess
from support.federation.ports import find_free_ports
from support.federation.real_nodes import Federation, make_federation, run_command, run_process
from support.machines.scrape import NAMES, Scraped, list_expressions, list_unknown

pytestmark = [pytest.mark.e2e, pytest.mark.outer, pytest.mark.asyncio(loop_scope="module")]

ROUNDS = 4


class Scrapable(Federation):
    """A federation whose nodes answer HTTP."""

    def __init__(self, directory: Path, http_port: int) -> None:
        super().__init__(directory)
        self.http_port = http_port
        for name, node in self.nodes.items():
            self.nodes[name] = NodeProcess(node.node, options=("--log-format", "json"))

    async def get(self, name: str, path: str) -> tuple[int, str]:
        """Status and body."""
        port = self.http_port + self.names.index(name)

        def ask() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(ask)

    async def scrape(self, name: str) -> Scraped:
        status, text = await self.get(name, "/metrics")
        assert status == 200, text
        return Scraped.read(text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scrapable]:
    directory, http_port = tmp_path_factory.mktemp("metrics") / "net", find_free_ports(2)[0]
    make_federation(directory, num_nodes=2, rounds=ROUNDS, http_port=http_port)
    async with Scrapable(directory, http_port) as net:
        await net.start()
        await net.wait_for(lambda now: all(one["measured_round"] == ROUNDS for one in now.values()), "the last record")
        yield net


async def test_every_promised_name_is_there_with_its_type_and_labels(net: Scrapable) -> None:
    for name in net.names:
        await net.get_status(name)  # a call, at least one, and its end
        scraped = await net.scrape(name)
        assert {metric: scraped.types.get(metric) for metric in NAMES} == {one: NAMES[one][0] for one in NAMES}
        for metric, (kind, labels) in NAMES.items():
            assert scraped.labels[metric + "_count" if kind == "histogram" else metric] == labels, metric


async def test_values_agree_with_the_status(net: Scrapable) -> None:
    for name in net.names:
        finished = await asyncio.to_thread(run_command, "status", "--socket", net.nodes[name].socket, "--json")
        status: dict[str, Any] = json.loads(finished.out)
        scraped = await net.scrape(name)
        assert scraped.get("fednode_chain_height") == status["height"] == ROUNDS
        assert scraped.get("fednode_round") == status["round"]
        assert scraped.get("fednode_train_loss") == status["loss"]
        assert scraped.get("fednode_eval_accuracy", split="test") == status["accuracy"]
        assert scraped.get("fednode_eval_accuracy", split="test_local") == status["local_accuracy"]
        assert scraped.get("fednode_pow_hashes_total") == status["hashes"] > 0
        assert scraped.sum("fednode_peers") == status["peers_connected"] == 1
        assert scraped.get("fednode_stalled") == status["stalled"] == 0
        assert scraped.get("fednode_rounds_done") == status["done"] == 1
        assert scraped.sum("fednode_build_info", version=status["version"]) == 1
        assert scraped.get("fednode_chain_blocks_total", result="finalised") == ROUNDS
        assert scraped.sum("fednode_peer_bytes_total", direction="sent") >= status["bytes_sent"] > 0
        assert scraped.sum("fednode_peer_bytes_total", direction="received") >= status["bytes_received"] > 0
        assert scraped.sum("fednode_messages_rejected_total") == sum(
            sum(peer["not_taken"].values()) for peer in await _list_peers(net, name)
        )
        records = await net.nodes[name].get_rounds()
        samples = sum(record["train"].get("samples", 0) for record in records)
        assert scraped.get("fednode_train_samples_total") == samples > 0


async def _list_peers(net: Scrapable, name: str) -> list[dict[str, Any]]:
    finished = await asyncio.to_thread(run_command, "peers", "list", "--socket", net.nodes[name].socket, "--json")
    peers: Any = json.loads(finished.out)
    return list(peers if isinstance(peers, list) else peers["peers"])


async def test_calls_are_timed_by_method_and_code(net: Scrapable) -> None:
    await net.get_status("node0")
    with pytest.raises(NotFound):
        await net.ask("node0", lambda admin: admin.get_block(ROUNDS + 1))

    async def is_counted() -> bool:  # once the call has ended at the node, too
        return (await net.scrape("node0")).sum("fednode_rpc_seconds_count", method="Admin/GetBlock") > 0

    await net.wait_until(is_counted, "the call among those that were timed")
    scraped = await net.scrape("node0")
    assert scraped.get("fednode_rpc_seconds_count", method="Admin/GetStatus", code="ok") >= 1
    assert scraped.get("fednode_rpc_seconds_count", method="Admin/GetBlock", code="not_found") == 1
    methods = {dict(labels)["method"] for (name, labels) in scraped.values if name == "fednode_rpc_seconds_count"}
    assert not {method for method in methods if method.endswith(("/Push", "/Watch"))}


async def test_the_rules_and_the_dashboard_ask_for_nothing_that_a_node_does_not_tell(net: Scrapable) -> None:
    await net.get_status("node0")
    scraped = await net.scrape("node0")
    found = {place: list_unknown(expression, scraped) for place, expression in list_expressions()}
    assert {place: unknown for place, unknown in found.items() if unknown} == {}


async def test_each_round_is_a_line_and_the_log_says_where_the_node_stood(net: Scrapable) -> None:
    for name in net.names:
        lines = [json.loads(line) for line in (net.get_data_dir(name) / METRICS).read_text().splitlines()]
        assert [(line["node"], line["round"]) for line in lines] == [(name, n + 1) for n in range(ROUNDS)]
        assert lines[-1]["accuracy"] == (await net.get_status(name))["accuracy"]
        logged = [json.loads(line) for line in net.nodes[name].log_file.read_text().splitlines()]
        assert any(entry["message"].startswith(f"block {ROUNDS} ") for entry in logged)
        for entry in logged:
            assert entry.keys() >= {"time", "level", "logger", "message", "node", "height", "round"}, entry
            assert entry["node"] == name


async def test_a_node_that_has_lost_its_quorum_lives_and_is_not_ready(net: Scrapable) -> None:
    """The last story: node1 is not started again."""
    assert await net.get("node0", "/healthz") == (200, "ok\n")
    assert await net.get("node0", "/readyz") == (200, "ready\n")
    await net.kill("node1")
    await net.wait_for(lambda now: not now["node0"]["ready"], "node0 not ready")
    assert await net.get("node0", "/healthz") == (200, "ok\n")
    status, reason = await net.get("node0", "/readyz")
    assert (status, "missing node1" in reason) == (503, True)
    scraped = await net.scrape("node0")
    assert scraped.get("fednode_peers", state="missing") + scraped.get("fednode_peers", state="silent") == 1


async def test_two_nodes_cannot_have_one_port(net: Scrapable) -> None:
    """node1, which is down, on node0's."""
    finished = await asyncio.to_thread(
        run_process, "--config", net.nodes["node1"].node.config_file, "--set", f"http.listen=127.0.0.1:{net.http_port}"
    )
    assert finished.code == 78
    assert f"http.listen: 127.0.0.1:{net.http_port}: cannot listen there (Address already in use)" in finished.err
