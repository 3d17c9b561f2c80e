"""A node that listens elsewhere than it did: it dials its peers, and they dial it where `peers add` says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from node.config.identity import open_identity
from node.config.node_config import load_config
from node.p2p.address_book import AddressBook
from support.federation.ports import find_free_ports
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


async def test_a_node_that_moved_takes_part_at_once_and_is_dialled_where_its_peers_are_told(tmp_path: Path) -> None:
    """What it dials itself carries both directions, so nobody has to know where it is."""
    directory = make_federation(tmp_path / "net", rounds=0, difficulty=4096)
    others = ("node0", "node1", "node2")
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for_height(1)
        await net.stop("node3")
        file = net.nodes["node3"].node.config_file
        tree = yaml.safe_load(file.read_text())
        old, new = tree["network"]["listen"], f"127.0.0.1:{find_free_ports(1)[0]}"
        tree["network"]["listen"] = new
        file.write_text(yaml.safe_dump(tree))
        await net.start("node3")
        await net.wait_for_contribution("node3", (await net.get_status("node0"))["height"])
        assert not (await net.get_status("node3"))["stalled"]

        node3 = open_identity(load_config(file)).id
        place = f"{(await net.get_status('node3'))['id']}@{new}"
        for name in others:
            done = run_command("peers", "add", place, "-c", net.nodes[name].node.config_file, "--json")
            assert done.code == 0, done.err
            assert json.loads(done.out)["address"] == new
        height = (await net.get_status("node0"))["height"]
        await net.wait_for_contribution("node3", height)

        await net.kill("node0")  # who was told only so, goes there after a restart too
        await net.start("node0")
        done = run_command("peers", "list", "-c", net.nodes["node0"].node.config_file, "--json")
        shown = {peer["name"]: peer for peer in json.loads(done.out)["peers"]}
        assert (shown["node3"]["address"], shown["node3"]["added"]) == (new, True)
        await net.wait_for_contribution("node0", height)
        done = run_command("peers", "remove", "node3", "-c", net.nodes["node0"].node.config_file, "--json")
        assert (json.loads(done.out)["address"], json.loads(done.out)["added"]) == (old, False)
        assert not AddressBook.load(net.get_data_dir("node0"), {}).is_added(node3)
        await net.check_agreement()
