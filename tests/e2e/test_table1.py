"""Real processes run the baselines of DFPL's table I like any other method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS = 3


@pytest.mark.parametrize(
    "method", ["swim", pytest.param("fedintr", marks=pytest.mark.long)]
)  # one needs the number of rounds, one sends more than a model
async def test_four_nodes_agree_on_what_can_be_recomputed(tmp_path: Path, method: str) -> None:
    settings = ("local_iterations=2", "waits.collect_s=120")  # every block has all four
    directory = make_federation(tmp_path / "net", num_nodes=4, method=method, rounds=ROUNDS, settings=settings)
    async with Federation(directory) as net:
        await net.start()
        done = await net.wait_for(lambda now: all(status["done"] for status in now.values()), "the end of all rounds")
        assert len({status["head"] for status in done.values()}) == 1
        assert await net.check_agreement() == ROUNDS
        for height in range(1, ROUNDS + 1):
            assert sorted(await net.read_contributors("node0", height)) == list(net.names)
    verified = run_command(
        "chain", "verify", "--deep", "--require-all", "--json", "--data-dir", net.get_data_dir("node3")
    )
    assert verified.code == 0, verified.err
    assert json.loads(verified.out)["recomputed"] == ROUNDS
