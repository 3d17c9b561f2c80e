"""An operator pauses, resumes, reloads and ends real nodes, as from a shell."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from node.testnet.cluster import NodeProcess
from support.federation.real_nodes import WAIT_S, Federation, make_federation, run_command

pytestmark = pytest.mark.e2e


async def tell(net: Federation, name: str, *words: str, code: int = 0) -> Any:
    """What a command about a node prints as JSON."""
    done = await asyncio.to_thread(run_command, *words, "--json", "-c", net.nodes[name].node.config_file)
    assert done.code == code, done.err
    return json.loads(done.out)


async def get_exit_code(node: NodeProcess) -> int:
    assert node.process is not None
    return await asyncio.wait_for(node.process.wait(), WAIT_S)


@pytest.mark.slow
async def test_one_of_four_is_paused_restarted_resumed_and_ended(tmp_path: Path) -> None:
    async with Federation(make_federation(tmp_path / "net", rounds=0, difficulty=4096)) as net:
        await net.start()
        await net.wait_until_ready()
        await net.wait_for_contribution("node3", 0)

        part = await tell(net, "node3", "pause")
        assert part["paused"] is True
        first = part["round"] + 1
        await net.wait_for_height(first + 2)
        for height in range(first, first + 3):
            assert sorted(await net.read_contributors("node0", height)) == ["node0", "node1", "node2"]

        process = net.nodes["node3"].process
        assert process is not None
        process.send_signal(signal.SIGHUP)
        await net.wait_for(lambda _: "the configuration was read again" in net.read_log("node3"), "the reload")
        assert (await tell(net, "node3", "reload"))["applied"] == []

        assert await net.stop("node3") == 0
        await net.start("node3")
        await net.wait_until_ready("node3")
        assert (await net.get_status("node3"))["paused"] is True
        height = (await net.get_status("node0"))["height"]
        await net.wait_for_height(height + 2)
        assert sorted(await net.read_contributors("node0", height + 2)) == ["node0", "node1", "node2"]

        assert (await tell(net, "node3", "resume"))["paused"] is False
        await net.wait_for_contribution("node3", height + 2)

        last = (await tell(net, "node3", "stop", "--after-round", "0"))["stops_after"]
        assert await get_exit_code(net.nodes["node3"]) == 0
        assert (await net.get_status("node0"))["height"] >= last
        assert await net.check_agreement() >= last
        assert (await tell(net, "node2", "stop", "--grace", "60"))["stopping"] is True
        assert await get_exit_code(net.nodes["node2"]) == 0
        gone = await asyncio.to_thread(run_command, "pause", "-c", net.nodes["node2"].node.config_file)
        assert gone.code == 4


@pytest.mark.slow
async def test_a_node_that_cannot_end_is_cut_off_and_one_whose_terminal_is_gone_ends(tmp_path: Path) -> None:
    async with Federation(make_federation(tmp_path / "net", num_nodes=2, rounds=0, difficulty=4096)) as net:
        await net.start("node0")
        await net.wait_for(lambda now: bool(now["node0"]["device"]), "node0's worker")
        worker = await net.get_worker("node0")
        os.kill(worker, signal.SIGSTOP)  # it never answers that it has ended
        assert (await tell(net, "node0", "stop", "--grace", "1"))["stopping"] is True
        assert await get_exit_code(net.nodes["node0"]) == 0
        assert "was cut off" in net.read_log("node0")
        with pytest.raises(ProcessLookupError):
            await _wait_until_gone(worker)

        config = net.nodes["node1"].node.config_file
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "node.cli", "start", "--config", str(config)])
        said = b""
        while b"chain height" not in said:
            said += await asyncio.to_thread(os.read, terminal, 1 << 16)
        os.kill(pid, signal.SIGHUP)
        while b"was read again" not in said:
            said += await asyncio.to_thread(os.read, terminal, 1 << 16)
        os.close(terminal)
        _, status = await asyncio.wait_for(asyncio.to_thread(os.waitpid, pid, 0), WAIT_S)
        assert os.waitstatus_to_exitcode(status) == 0


async def _wait_until_gone(pid: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            os.kill(pid, 0)
            await asyncio.sleep(0.1)
