"""A site that can only dial out, as a real process: it listens nowhere, trains and votes with the rest, and `peers` and
`doctor` tell so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from node.host.procfs import find_listeners
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def let_dial_out(directory: Path, name: str) -> int:
    """Has the node of this name dial out; returns the port at which genesis still says it is."""
    file = directory / f"{name}.yaml"
    tree = yaml.safe_load(file.read_text())
    port = int(tree["network"]["listen"].rpartition(":")[2])
    tree["network"] = {"dial_out": True, "peers": tree["network"].get("peers", [])}
    file.write_text(yaml.safe_dump(tree))
    return port


@pytest.mark.parametrize("method", ["dfpl", pytest.param("uapdfl", marks=pytest.mark.long)])
async def test_one_of_four_that_only_dials_out_contributes_to_every_block(tmp_path: Path, method: str) -> None:
    directory = make_federation(tmp_path / "net", rounds=0, difficulty=4096, method=method)
    port = let_dial_out(directory, "node3")
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for_height(1)
        height = (await net.get_status("node0"))["height"]
        for name in net.names:
            await net.wait_for_contribution(name, height)
        assert not find_listeners(port)
        done = run_command("peers", "list", "-c", directory / "node3.yaml", "--json")
        assert {peer["direction"] for peer in json.loads(done.out)["peers"]} == {"dialled"}
        done = run_command("peers", "list", "-c", directory / "node0.yaml", "--json")
        assert {peer["name"]: peer["direction"] for peer in json.loads(done.out)["peers"]}["node3"] == "accepted"
        done = run_command("doctor", "-c", directory / "node3.yaml", "--json")
        assert done.code == 0, done.out
        await net.check_agreement()
