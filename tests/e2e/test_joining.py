"""Keys and join files of real nodes, as an operator meets them in a shell."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from chain.join_file import JoinFile
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = pytest.mark.e2e


async def tell(net: Federation, *words: str, code: int = 0) -> Any:
    """What a command about the only node prints as JSON."""
    done = await asyncio.to_thread(run_command, *words, "--json", "-c", net.nodes["node0"].node.config_file)
    assert done.code == code, done.err
    return json.loads(done.out) if done.out else done.err


def get_mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


@pytest.mark.slow
async def test_a_node_goes_over_to_its_new_key_and_keeps_it(tmp_path: Path) -> None:
    async with Federation(make_federation(tmp_path / "net", num_nodes=1, rounds=0, difficulty=4096)) as net:
        await net.start()
        await net.wait_until_ready()
        await net.wait_for_height(2)
        old = (await net.get_status("node0"))["id"]
        rotated = await tell(net, "key", "rotate")
        assert await asyncio.to_thread(get_mode, rotated["key"]) == 0o600

        async def wait_for_key() -> None:
            while True:
                done = await asyncio.to_thread(
                    run_command, "status", "--json", "-c", net.nodes["node0"].node.config_file
                )
                if done.code == 0 and json.loads(done.out)["id"] == rotated["id"] != old:
                    return
                await asyncio.sleep(0.5)

        await asyncio.wait_for(wait_for_key(), 60)
        await net.wait_until_ready()
        height = (await net.get_status("node0"))["height"]
        await net.wait_for_height(height + 3)
        assert "this node goes on with its other key" in net.read_log("node0")
        assert "once in 1000 heights" in str(await tell(net, "key", "rotate", code=2))

        assert await net.stop("node0") == 0
        await net.start("node0")  # both files lie where they were
        await net.wait_until_ready()
        assert (await net.get_status("node0"))["id"] == rotated["id"]

        file = tmp_path / "federation.join"
        made = await tell(net, "join-file", "-o", str(file))
        joined = JoinFile.decode(file.read_bytes())
        assert made["hash"] == joined.describe_digest()
        assert joined.checkpoint.height >= height
        assert [member.name for member in joined.state.members] == ["node0"]
