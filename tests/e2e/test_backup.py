"""A real node is backed up while it trains, is lost with its machine, and comes back from the file elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from node.ledger.backup import SITE_CONFIG, SITE_KEY
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


async def test_a_node_comes_back_from_its_backup_and_contradicts_nothing(tmp_path: Path) -> None:
    directory = make_federation(tmp_path / "net", rounds=0, difficulty=4096)
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for_height(2)
        node = net.nodes["node3"].node
        file, config = tmp_path / "node3.tar", node.config_file
        done = run_command("backup", file, "-c", config, "--with-key", "--json")
        assert done.code == 0, done.err
        held = json.loads(done.out)["height"]
        assert held >= 2
        await net.wait_for_contribution("node3", held + 1)
        await net.kill("node3")
        data_dir = net.get_data_dir("node3")
        shutil.rmtree(data_dir)

        done = run_command("restore", file, "-c", config)
        assert done.code == 0, done.err
        assert (data_dir / SITE_CONFIG).read_bytes() == config.read_bytes()
        assert (data_dir / SITE_KEY).stat().st_mode & 0o777 == 0o600
        await net.start("node3")
        statuses = await net.get_statuses()
        height = max(status["height"] for status in statuses.values())
        await net.wait_for_contribution("node3", height + 2)
        for name in net.names:
            done = run_command("chain", "evidence", "-c", net.nodes[name].node.config_file, "--json")
            assert json.loads(done.out)["evidence"] == [], name
        await net.check_agreement()
