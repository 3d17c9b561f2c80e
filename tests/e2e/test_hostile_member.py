"""Four real nodes, of which one has a valid key and lies (PROTOCOL §11.7): the others go on finalising and learning.

What was measured is printed: `pytest -rP -m e2e tests/e2e/test_hostile_member.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from support.faults import hostile_node
from support.faults.hostile_node import TRICKS
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = pytest.mark.e2e

HONEST = ("node0", "node1", "node2")
ROUNDS = 12
QUICK = ("sends_what_overflows",)
LATER = (
    "promises_and_says_nothing",
    "seals_at_the_edge_of_what_clocks_allow",
    "sends_the_greatest_numbers_there_may_be",
    "votes_for_one_thing_here_and_for_another_there",
)


FAST = {"difficulty": 20_000, "rounds": 1000, "num_nodes": 4}
GUARDED = ("aggregation=trimmed_mean", "weight_cap=4")
SHARING = ("local_epochs=1", "warmup_epochs=1", "encryptor_epochs=1", "unet_width=2")


def make_trick(name: str) -> object:
    marks = () if name in QUICK else pytest.mark.slow if name in LATER else pytest.mark.long
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("trick", [make_trick(name) for name in TRICKS])
@pytest.mark.slow
async def test_three_of_four_go_on_and_learn_beside_one_that(tmp_path: Path, trick: str) -> None:
    spec = {"method": "fedavg", "partition": "dirichlet:1", "settings": (*GUARDED, "pow.adaptive=true")}
    assert await run_beside(tmp_path, trick, **spec) > 0.6


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.slow
async def test_the_honest_are_shown_whose_contribution_is_far_and_does_harm(tmp_path: Path) -> None:
    """Where the plain mean follows the liar. Nobody decides anything by it: the liar contributes to the next round."""
    directory = make_federation(
        tmp_path / "net", num_nodes=4, method="fedavg", partition="dirichlet:5", rounds=0, difficulty=20_000
    )
    via = {"node3": (sys.executable, str(hostile_node.__file__), "turns_its_model_round")}
    async with Federation(directory, via) as nodes:
        await nodes.start()
        await nodes.wait_until_ready()
        await nodes.wait_for_height(3)
        number = await find_round_of_all(nodes)
        for name in HONEST:
            told = run_command("rounds", "show", number, "--scores", "--json", "--socket", nodes.nodes[name].socket)
            assert told.code == 0, told.err
            shown = json.loads(told.out, parse_constant=pytest.fail)
            scores = {score["name"]: score for score in shown["scores"]}
            print(name, number, [(one, score["distance"], score["effect"]) for one, score in scores.items()])
            liar = scores.pop("node3")
            assert liar["distance"] > 5
            assert liar["distance"] > 2 * max(score["distance"] for score in scores.values())
            assert liar["effect"] > max(0.0, *(score["effect"] for score in scores.values()))
            assert shown["no_distance"] is shown["no_effect"] is None
        height = max(status["height"] for status in (await nodes.get_statuses()).values())
        await nodes.wait_for_height(height + 1, *HONEST)
        assert await nodes.stop("node2") == 0
        left = run_command("rounds", "show", number, "--json", "--data-dir", nodes.get_data_dir("node2"))
        assert json.loads(left.out)["scores"] == shown["scores"]
        data_dir = nodes.get_data_dir("node2")
        other = run_command("rounds", "show", number + 1, "--scores", "--json", "--data-dir", data_dir)
        held = json.loads(other.out)
        assert {score["effect"] for score in held["scores"]} == {None}
        assert held["no_effect"] == "a stopped node evaluates nothing: ask it while it runs"


async def find_round_of_all(nodes: Federation) -> int:
    """The first one to which everybody contributed."""
    for number in itertools.count(1):
        await nodes.wait_for_height(number, *HONEST)
        if len(await nodes.read_contributors(HONEST[0], number)) == len(nodes.names):
            return number
    raise AssertionError


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
