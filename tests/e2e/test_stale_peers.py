"""UA-PDFL on four real nodes, one of which is paused, comes back and is killed: others take of what it showed last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ml.simulation.run import SimulationConfig, simulate
from support.federation.real_nodes import Federation, ask_stopped, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NODES, SEED, PARTITION, STALENESS = 4, 1, "dirichlet:0.5", 2
SETTINGS = ("num_peers=3", f"staleness={STALENESS}", "local_iterations=5", "input.normalize=none")
RATIO = 4.0  # the nodes' guard


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in a node's worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


async def tell(net: Federation, name: str, *words: str) -> None:
    done = await asyncio.to_thread(run_command, *words, "--json", "-c", net.nodes[name].node.config_file)
    assert done.code == 0, done.err


async def live_through_it(net: Federation) -> int:
    """node3 is there, paused for longer than its entry lives, there again, and killed. The height before its death."""
    await net.start()
    await net.wait_until_ready()
    back = await net.wait_for_contribution("node3", 1)
    await tell(net, "node3", "pause")
    await net.wait_for_height(back + STALENESS + 3)
    await tell(net, "node3", "resume")
    back = await net.wait_for_contribution("node3", back + STALENESS + 3)
    await net.wait_for_height(back + 1)
    alive = (await net.get_status("node0"))["height"]
    await net.kill("node3")
    await net.wait_for_height(alive + STALENESS + 3)
    assert await net.check_agreement() >= alive + STALENESS + 3
    return int(alive)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    directory = make_federation(
        tmp_path_factory.mktemp("stale") / "net",
        method="uapdfl",
        partition=PARTITION,
        seed=SEED,
        rounds=0,
        difficulty=4096,
        settings=SETTINGS,
    )

    async def story() -> int:
        async with Federation(directory) as net:
            return await live_through_it(net)

    return directory, asyncio.run(story())


@pytest.fixture(scope="module")
def blocks(told: tuple[Path, int]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = ask_stopped(told[0], 0, "chain", "list", "--reverse", "--limit", 100)["blocks"]
    return listed


def list_authors(directory: Path, height: int) -> list[str]:
    block = ask_stopped(directory, 0, "chain", "show", height)
    return [contribution["name"] for contribution in block["contributions"]]


def test_everyone_can_recompute_what_was_carried_without_the_models(
    told: tuple[Path, int], blocks: list[dict[str, Any]]
) -> None:
    for node in (0, 2):
        report = ask_stopped(told[0], node, "chain", "verify", "--deep")
        assert report["ok"], report
        assert report["recomputed"] >= len(blocks) - 2
    shown = run_command("chain", "verify", "--deep", "--data-dir", told[0] / "data/node3")  # which was killed
    assert shown.code == 0, shown.err


def find_return(directory: Path, alive: int) -> int:
    """The height at which node3 is in a block again."""
    there = ["node3" in list_authors(directory, height) for height in range(1, alive + 1)]
    away = next(i for i in range(len(there)) if not any(there[i : i + STALENESS + 1]))
    return there.index(True, away) + 1  # heights begin at 1


def test_the_blocks_name_the_simulations_aggregates_with_the_same_members_away(
    told: tuple[Path, int], blocks: list[dict[str, Any]]
) -> None:
    """Until node3 is back: what it trains then may come too late for a block, and goes on in its own model."""
    directory, alive = told
    last = find_return(directory, alive) - 1
    genesis = Federation(directory).genesis
    members = sorted(genesis.state.members, key=lambda member: member.name)
    places = {member.name: i for i, member in enumerate(members)}
    present = {height: [places[name] for name in list_authors(directory, height)] for height in range(1, last + 1)}
    assert {len(there) for there in present.values()} == {3, 4}

    def get_present(height: int) -> Collection[int]:
        return present[height]

    config = SimulationConfig(
        method=genesis.run.method,
        input=genesis.run.input,
        partition=PARTITION,
        clients=NODES,
        rounds=last,
        seed=SEED,
        max_loss_ratio=RATIO,
    )
    simulated = simulate(
        config,
        ids=[member.key for member in members],
        beacons=lambda height: bytes.fromhex(blocks[height - 1]["id"]),
        present=get_present,
    )
    expected = [block["aggregate"] for block in blocks[1 : last + 1]]
    assert [digest.hex() for digest in simulated.aggregate_digests] == expected


def test_rounds_tell_of_which_round_a_stale_peer_is_and_for_how_long(told: tuple[Path, int]) -> None:
    directory, alive = told
    there = ["node3" in list_authors(directory, height) for height in range(1, alive + 1)]
    pause = [True, *[False] * (STALENESS + 1)]
    first = next(i for i in range(len(there)) if there[i : i + len(pause)] == pause) + 2  # heights begin at 1
    for height in range(first, first + STALENESS + 1):
        shown = ask_stopped(directory, 0, "rounds", "show", height)
        peers = {peer for node in shown["peering"]["nodes"] for peer in node["peers"]}
        assert (f"node3 (of round {first - 1})" in peers) == (height < first + STALENESS), json.dumps(shown)
