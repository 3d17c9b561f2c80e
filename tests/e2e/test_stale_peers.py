"""UA-PDFL on four real nodes, one of which is paused, comes back and is killed: others take of what it showed last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Told:
    """What came of it: `authors[h]` are those of block h, `back` is node3's first block after its pause."""

    directory: Path
    back: int
    authors: list[list[str]]

    @property
    def away(self) -> int:
        """The first block without node3 that its pause has made."""
        return max(height for height in range(1, self.back) if "node3" in self.authors[height]) + 1


async def live_through_it(net: Federation) -> tuple[int, list[list[str]]]:
    """node3 is there, paused for longer than its entry lives, there again, and killed. Its return, and all authors."""
    await net.start()
    await net.wait_until_ready()
    await net.wait_for_contribution("node3", 1)
    await tell(net, "node3", "pause")
    paused = (await net.get_status("node3"))["height"] + 1  # which may have it yet
    await net.wait_for_height(paused + STALENESS + 2)
    await tell(net, "node3", "resume")
    back = await net.wait_for_contribution("node3", paused + STALENESS + 1)
    await net.wait_for_height(back + 1)
    alive = (await net.get_status("node0"))["height"]
    await net.kill("node3")
    await net.wait_for_height(alive + STALENESS + 3)
    assert await net.check_agreement() >= alive + STALENESS + 3
    return back, [[], *[await net.read_contributors("node0", height) for height in range(1, alive + 1)]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    directory = make_federation(
        tmp_path_factory.mktemp("stale") / "net",
        method="uapdfl",
        partition=PARTITION,
        seed=SEED,
        rounds=0,
        difficulty=4096,
        settings=SETTINGS,
    )

    async def story() -> tuple[int, list[list[str]]]:
        async with Federation(directory) as net:
            return await live_through_it(net)

    return Told(directory, *asyncio.run(story()))


@pytest.fixture(scope="module")
def blocks(told: Told) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = ask_stopped(told.directory, 0, "chain", "list", "--reverse", "--limit", 100)[
        "blocks"
    ]
    return listed


def test_everyone_can_recompute_what_was_carried_without_the_models(told: Told, blocks: list[dict[str, Any]]) -> None:
    for node in (0, 2):
        report = ask_stopped(told.directory, node, "chain", "verify", "--deep")
        assert report["ok"], report
        assert report["recomputed"] >= len(blocks) - 2
    shown = run_command("chain", "verify", "--deep", "--data-dir", told.directory / "data/node3")  # which was killed
    assert shown.code == 0, shown.err


def test_the_blocks_name_the_simulations_aggregates_with_the_same_members_away(
    told: Told, blocks: list[dict[str, Any]]
) -> None:
    """Until node3 is back: what it trains then may come too late for a block, and goes on in its own model."""
    last = told.back - 1
    genesis = Federation(told.directory).genesis
    members = sorted(genesis.state.members, key=lambda member: member.name)
    places = {member.name: i for i, member in enumerate(members)}
    present = {height: [places[name] for name in told.authors[height]] for height in range(1, last + 1)}
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


def test_rounds_tell_of_which_round_a_stale_peer_is_and_for_how_long(told: Told) -> None:
    assert told.back - told.away > STALENESS
    for height in range(told.away, told.away + STALENESS + 1):
        shown = ask_stopped(told.directory, 0, "rounds", "show", height)
        peers = {peer for node in shown["peering"]["nodes"] for peer in node["peers"]}
        assert (f"node3 (of round {told.away - 1})" in peers) == (height < told.away + STALENESS), json.dumps(shown)
