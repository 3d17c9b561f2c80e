"""Four real nodes, of which one has a valid key and lies (PROTOCOL §11.7): the others go on finalising and learning.

What was measured is printed: `pytest -rP -m 'e2e and (slow or not slow)' tests/e2e/test_hostile_member.py`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from support import hostile_node
from support.hostile_node import TRICKS
from support.real_nodes import Federation, make_federation, run_command

pytestmark = pytest.mark.e2e

HONEST = ("node0", "node1", "node2")
ROUNDS = 12
QUICK = ("sends_what_overflows", "seals_at_the_edge_of_what_clocks_allow", "promises_and_says_nothing")


FAST = {"difficulty": 20_000, "rounds": 1000, "num_nodes": 4}
GUARDED = ("aggregation=trimmed_mean", "weight_cap=4")
SHARING = ("local_epochs=1", "warmup_epochs=1", "encryptor_epochs=1", "unet_width=2")


def make_trick(name: str) -> object:
    return pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("trick", [make_trick(name) for name in TRICKS])
async def test_three_of_four_go_on_and_learn_beside_one_that(tmp_path: Path, trick: str) -> None:
    spec = {"method": "fedavg", "partition": "dirichlet:1", "settings": (*GUARDED, "pow.adaptive=true")}
    assert await run_beside(tmp_path, trick, **spec) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "trick", "settings"),
    [
        ("fedavg", "sends_what_overflows", ()),
        ("fednova", "sends_what_overflows", ()),
        ("dfpl", "sends_what_overflows", ()),
        ("dfpl", "sends_the_greatest_numbers_there_may_be", GUARDED),
        ("mpfedcl", "sends_what_overflows", ()),
        ("uapdfl", "sends_what_overflows", ()),
        ("uapdfl", "sends_the_greatest_numbers_there_may_be", ()),
        ("uapdfl", "turns_its_model_round", ()),
        ("dispfl", "sends_the_greatest_numbers_there_may_be", ()),
        ("fededs", "sends_a_payload_of_a_kind_that_there_is_not", SHARING),
        ("fededs", "sends_what_overflows", SHARING),
    ],
)
async def test_they_do_by_every_paper(tmp_path: Path, method: str, trick: str, settings: Sequence[str]) -> None:
    """Where the rule or the node itself keeps the lie out."""
    assert await run_beside(tmp_path, trick, method=method, partition="dirichlet:1", settings=settings) > 0.5


@pytest.mark.slow
async def test_a_plain_mean_of_the_greatest_numbers_stops_nobody(tmp_path: Path) -> None:
    """Nobody learns anything by it: the mean is where the liar wants it."""
    await run_beside(tmp_path, "sends_the_greatest_numbers_there_may_be", method="fedavg", partition="dirichlet:1")


async def run_beside(tmp_path: Path, trick: str, **spec: Any) -> float:
    """The mean accuracy of the honest, some rounds on."""
    consent = {"i_understand": True} if spec["method"] == "fededs" else {}
    directory = make_federation(tmp_path / "net", **FAST, **spec, **consent)
    via = {"node3": (sys.executable, str(hostile_node.__file__), trick)}
    async with Federation(directory, via) as nodes:
        await nodes.start()
        await nodes.wait_for(lambda now: all(now[name]["ready"] for name in HONEST), "the honest to be ready")
        statuses = await nodes.get_statuses()
        began_s, first = time.monotonic(), max(statuses[name]["height"] for name in HONEST)
        await nodes.wait_for_height(first + ROUNDS, *HONEST)
        took_s = time.monotonic() - began_s
        now = await nodes.wait_for(
            lambda now: all(now[name]["measured_round"] >= first + ROUNDS for name in HONEST), "the honest to measure"
        )
        accuracy: float = mean(now[name]["accuracy"] for name in HONEST)
        method = spec["method"]
        print(f"{method} {trick}: {took_s / ROUNDS:.2f} s a round, accuracy {accuracy:.3f} after {first + ROUNDS}")
        assert all(nodes.nodes[name].is_running for name in HONEST)
        await check_chains(nodes)
    return accuracy


async def check_chains(nodes: Federation) -> None:
    """The honest have one chain, and each stops cleanly and passes the audit."""
    chains = [await nodes.read_chain(name) for name in HONEST]
    least = min(map(len, chains))
    assert all(
        [block["id"] for block in chain[:least]] == [block["id"] for block in chains[0][:least]] for chain in chains
    )
    await nodes.kill("node3")
    assert await asyncio.gather(*(nodes.stop(name) for name in HONEST)) == [0, 0, 0]
    for name in HONEST:
        assert run_command("chain", "verify", "--deep", "--data-dir", nodes.get_data_dir(name)).code == 0
