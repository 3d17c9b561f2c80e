"""Four real nodes, one of which contributes 1e38 where genesis sets no bound to speak of, and is killed with the rest
while the head is spoiled: nobody else ends, nobody takes it over, and the federation heals by itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.faults.spoiler import get_command
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio]

HONEST, LIAR = ("node0", "node1", "node2"), "node3"
FIRST, LAST = 4, 24  # the heights of the lies: enough to be seen among them, at some 0.07 s a round
ROUNDS = 32
HEALED_IN = 4  # rounds


async def read_records(net: Federation, name: str) -> dict[int, dict[str, Any]]:
    """By round, of a stopped node."""
    done = await asyncio.to_thread(
        run_command, "rounds", "list", "--json", "--limit", 100, "--data-dir", net.get_data_dir(name)
    )
    assert done.code == 0, done.err
    return {entry["round"]: entry for entry in json.loads(done.out)["rounds"]}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", pytest.param("dfpl", marks=pytest.mark.long)])
async def test_a_spoiled_federation_heals_by_itself_through_a_kill_of_all(tmp_path: Path, method: str) -> None:
    directory = make_federation(
        tmp_path / "net",
        rounds=ROUNDS,
        seed=1,
        method=method,
        partition="dirichlet:0.5",
        settings=["limits.max_abs=3.4e38", "waits.collect_s=60"],
    )
    async with Federation(directory, via={LIAR: get_command(1e38, FIRST, LAST)}) as net:
        await net.start()
        await net.wait_for_height(FIRST + 1)
        statuses = await net.wait_for(
            lambda now: all(now[name].get("spoiled_round") for name in HONEST), "all to leave an aggregate"
        )
        assert all(FIRST <= statuses[name]["spoiled_round"] <= LAST for name in HONEST)
        await asyncio.gather(*(net.kill(name) for name in net.names))

        await net.start()
        await net.wait_for_height(ROUNDS)
        assert await net.check_agreement() == ROUNDS
        for height in (FIRST, LAST + 1, ROUNDS):
            assert set(await net.read_contributors("node0", height)) == {*HONEST, LIAR}
        statuses = await net.wait_for(
            lambda now: not any(now[name].get("spoiled_round") for name in HONEST), "all to take aggregates in again"
        )
        assert not any(status.get("training_trouble") for status in statuses.values())
        await asyncio.gather(*(net.stop(name) for name in net.names))
        for name in HONEST:
            records = await read_records(net, name)
            spoiled = {number for number, entry in records.items() if entry.get("spoiled")}
            assert FIRST in spoiled
            assert spoiled <= set(range(FIRST, LAST + 1))
            measured = {number: entry["accuracy"] for number, entry in records.items() if entry["measured"]}
            accuracies = {number: accuracy for number, accuracy in measured.items() if accuracy is not None}
            before = max(accuracy for number, accuracy in accuracies.items() if number < FIRST)
            after = max(accuracy for number, accuracy in accuracies.items() if LAST < number <= LAST + HEALED_IN)
            assert after > before - 0.05
