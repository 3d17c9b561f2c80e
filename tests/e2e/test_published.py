"""Real nodes that publish their measures: the others show them, also after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fednode
from node.config.yaml_source import dump_yaml, read_yaml
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = pytest.mark.e2e

ROUNDS = 3


@pytest.mark.slow
async def test_sites_that_publish_stand_side_by_side(tmp_path: Path) -> None:
    directory = make_federation(
        tmp_path / "net",
        num_nodes=3,
        rounds=ROUNDS,
        method="fedavg",
        partition="iid",
        settings=("local_iterations=5",),
    )
    for name in ("node0", "node1"):
        config = directory / f"{name}.yaml"
        values = read_yaml(config).value
        values["training"] |= {"publish_metrics": True, "publish_min_samples": 30}
        config.write_text(dump_yaml(values))
    config = directory / "node2.yaml"
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for_height(ROUNDS)

        def read_members() -> list[dict[str, float]]:
            with fednode.connect(config) as node:
                return [row["members"] for row in node.member_metrics("accuracy")]

        async def has_all() -> bool:
            return [set(row) for row in await net.ask("node2", lambda _: read_members())] == [
                {"node0", "node1"}
            ] * ROUNDS

        await net.wait_until(has_all, "what both have published of every round")
        await net.stop("node2")
        await net.start("node2")
        assert await has_all()
        (own,) = [json.loads(run_command("rounds", "show", ROUNDS, "--json", "--config", directory / "node0.yaml").out)]
        (said,) = [one for one in own["published"] if one["name"] == "node0"]
        assert said["num_samples"] == own["measures"]["num_samples"]
        assert said["values"]["accuracy"] == pytest.approx(own["measures"]["summary"]["accuracy"], abs=5e-5)
    shown = run_command("metrics", "--members", "--data-dir", directory / "data" / "node2")
    assert shown.out.splitlines()[0].split() == ["ROUND", "NODE0", "NODE1"]
