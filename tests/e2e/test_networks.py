"""Invariants of every federation, whatever its method and whatever was done to it: asked of each network that
`support.federation.networks` declares, which is lived through once.

What one of them alone has to say stands below.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from chain.signing import encode_id
from support.federation.networks import (
    MESSAGE_KINDS,
    NETWORKS,
    PER_PEER_AND_KIND,
    SAMPLES,
    SAMPLES_FILE,
    Lived,
    Network,
)
from support.federation.real_nodes import Federation, run_command

pytestmark = pytest.mark.e2e


def of(holds: Callable[[Network], bool]) -> pytest.MarkDecorator:
    """Asks it of each network of which `holds` does."""
    cases = [
        pytest.param(
            network.name,
            id=network.name,
            marks=[getattr(pytest.mark, network.stage)] if network.stage else [],
        )
        for network in NETWORKS
        if holds(network)
    ]
    return pytest.mark.parametrize("lived", cases, indirect=True)


def of_all() -> pytest.MarkDecorator:
    return of(lambda network: True)


def of_those(*names: str) -> pytest.MarkDecorator:
    return of(lambda network: network.name in names)


# ---- what holds of each


@of_all()
def test_all_have_one_chain_of_all_rounds(lived: Lived) -> None:
    """They never had two blocks at one height, before or after the restart."""
    members = [lived.after[name] for name in lived.network.members]
    if lived.network.rounds:
        assert len({(status["height"], status["head"]) for status in members}) == 1
        assert {status["round"] for status in members} == {lived.network.rounds}
        assert lived.agreed == members[0]["height"] or lived.network.leavers
    assert lived.blocks[0]["height"] == 0
    assert all(block["prev"] == parent["id"] for parent, block in pairwise(lived.blocks))
    for name in lived.names:
        shown = lived.ask(lived.names.index(name), "chain", "show", lived.agreed)
        assert shown["id"] == lived.blocks[lived.agreed]["id"], name


@of_all()
def test_each_can_recompute_its_chain_from_what_it_left(lived: Lived) -> None:
    for node in range(lived.network.num_nodes):
        report = lived.ask(node, "chain", "verify", "--deep", *(["--require-all"] if lived.network.is_calm else []))
        assert report["ok"], report
        assert report["to"] == report["blocks"] - 1 >= lived.agreed
        if lived.network.is_calm:
            assert (report["recomputed"], report["not_held"]) == (report["to"], [])
        if lived.names[node] in lived.network.members:
            assert report["recomputed"] >= report["to"] - 2  # all but what a restart has cut short


@of(lambda network: network.is_calm)
def test_each_block_of_a_calm_one_has_everybody(lived: Lived) -> None:
    assert [block["num_contributions"] for block in lived.blocks] == [0] + [len(lived.names)] * lived.network.rounds


@of(lambda network: network.is_simulated)
def test_the_blocks_name_the_simulations_aggregates(lived: Lived) -> None:
    """Bit for bit, also where members were away."""
    last = lived.simulated_rounds
    assert last > 0
    expected = [block["aggregate"] for block in lived.blocks[1 : last + 1]]
    assert [digest.hex() for digest in lived.simulated.aggregate_digests] == expected


@of(lambda network: network.is_calm)
def test_a_round_costs_its_payloads_and_little_besides(lived: Lived) -> None:
    """Summed over the nodes, since a blob may be pulled from any node that has it. Statuses are as many as a round has
    seconds, which is the machine's to say."""
    on_demand, n = lived.network.on_demand, len(lived.names)
    for height, of_one_height in enumerate(zip(*lived.rounds, strict=True), 1):
        shown = lived.ask(0, "chain", "show", height, "--payloads")
        payloads = [payload for each in shown["contributions"] for payload in each["payloads"]]
        voted = sum(int(payload["bytes"]) for payload in payloads if payload["kind"] not in on_demand)
        pulled = sum(int(entry["pulled_bytes"] or 0) for entry in of_one_height)
        assert (pulled > 0) == bool(on_demand)
        sent = sum(
            int(count) for entry in of_one_height for kind, count in entry["bytes_sent"].items() if kind != "status"
        )
        payload = (n - 1) * voted + pulled
        assert sent <= 1.1 * payload + PER_PEER_AND_KIND * n * (n - 1) * MESSAGE_KINDS
        assert sent > payload or on_demand  # of which a node takes nothing that it has


@of_all()
def test_nodes_that_start_again_are_where_they_were_and_take_part(lived: Lived) -> None:
    """In another order than at first."""
    for name, before in lived.before.items():
        after = lived.after[name]
        assert after["id"] == before["id"]
        assert after["pid"] != before["pid"]
        if lived.network.rounds and name in lived.network.members:
            same = ("height", "head", "accuracy", "applied_round", "measured_round", "done")
            assert {key: after[key] for key in same} == {key: before[key] for key in same}
            assert (after["phase"], after["stalled"]) == ("done", False)
        else:
            assert after["height"] >= before["height"]


@of_all()
def test_a_node_that_is_back_says_what_is_so(lived: Lived) -> None:
    """To an operator's commands."""
    said, after = lived.said, lived.after[lived.asked]
    status = said["status",]
    assert (status["name"], status["id"], status["members"]) == (lived.asked, after["id"], len(lived.network.members))
    peers = {peer["name"] for peer in said["peers",]["peers"]}
    assert peers - {*lived.network.leavers} == {*lived.network.members} - {lived.asked}
    report = said["chain", "verify", "--deep"]
    assert report["ok"]
    assert report["to"] == report["blocks"] - 1
    head = said["chain", "show", "head"]
    assert head["id"] == lived.blocks[head["height"]]["id"]
    newest = said["rounds", "list"]["rounds"][0]
    authors = {
        contribution["name"] for contribution in lived.ask(0, "chain", "show", newest["height"])["contributions"]
    }
    assert set(newest["contributor_names"]) == authors


@of_all()
def test_a_node_that_is_back_knows_some_digits(lived: Lived) -> None:
    assert len(lived.predictions) == SAMPLES
    found = [prediction["class"] for prediction in lived.predictions]
    assert set(found) <= set(lived.federation.genesis.run.classes)
    right = sum(said == label for said, label in zip(found, lived.truth, strict=True))
    assert right >= lived.network.right * SAMPLES
    applied = {prediction["applied_round"] for prediction in lived.predictions}
    assert len(applied) == 1
    assert applied.pop() >= lived.network.rounds


@of_all()
def test_nothing_is_left_behind(lived: Lived) -> None:
    """Of a node that was killed or left, what it had only begun to pull is kept until it is pruned."""
    assert set(lived.exit_codes) == {0}
    assert lived.alive == []
    assert lived.list_left_over("*.sock", "*.tmp", *(["*.part"] if lived.network.is_calm else [])) == []
    for name in lived.names:
        log = (lived.directory / f"{name}.log").read_text(errors="replace")
        assert "Traceback" not in log


# ---- MP-FedCL


@of_those("mpfedcl")
def test_a_contribution_has_a_model_and_prototypes(lived: Lived) -> None:
    assert get_kinds(lived, "head") == {frozenset({"model", "prototypes"})}


@of_those("mpfedcl")
def test_an_answer_names_the_member_whose_prototype_was_nearest(lived: Lived) -> None:
    authors = {encode_id(key) for key in lived.ids}
    assert {
        contribution["author"] for contribution in lived.ask(2, "chain", "show", "head")["contributions"]
    } == authors
    for found in lived.predictions:
        assert found["nearest"] in authors
        assert found["nearest_name"] in lived.names
        assert 0 <= found["distance"] <= 2  # between two vectors of at most unit length


@of_those("reembed")
def test_the_last_block_is_of_prototypes_of_the_averaged_model_alone(lived: Lived) -> None:
    assert get_kinds(lived, lived.network.rounds - 1) == {frozenset({"model", "prototypes"})}
    assert get_kinds(lived, lived.network.rounds) == {frozenset({"prototypes"})}


@of_those("reembed")
async def test_answers_lean_to_the_sites_own_classes_the_more_the_larger_the_prior(lived: Lived) -> None:
    answers: dict[object, list[dict[str, Any]]] = {}
    async with Federation(lived.directory) as net:
        await net.start(lived.asked)
        await net.wait_for(lambda now: now[lived.asked]["device"] is not None, "a worker that is ready")
        for kappa in (None, 0, 0.5, 50):
            config = net.nodes[lived.asked].node.config_file
            asked = ("predict", lived.directory / SAMPLES_FILE, "--config", config, "--json", "--top", 10)
            prior = () if kappa is None else ("--prior", kappa)
            finished = await asyncio.to_thread(run_command, *asked, *prior)
            assert finished.code == 0, finished.err
            answers[kappa] = json.loads(finished.out)["predictions"]
    classes = {kappa: [said["class"] for said in given] for kappa, given in answers.items()}
    assert classes[None] == classes[0]
    (most,) = set(classes[50])  # the class that the site has most of, whatever is asked
    assert len(set(classes[0])) > 5
    own = {kappa: given.count(most) for kappa, given in classes.items()}
    assert own[0] <= own[0.5] <= own[50] == SAMPLES
    for kappa in (0, 0.5):
        for said in answers[kappa]:
            shown = sum(other["probability"] for other in said["top"])
            assert shown == pytest.approx(1, abs=1e-3)
            assert said["probability"] == said["top"][0]["probability"]
            assert said["applied_round"] == lived.network.rounds
    members = {said.get("nearest") for said in answers[0]}
    assert None in members  # to some, a sample of the site's own was nearest
    assert len(members) > 1


def get_kinds(lived: Lived, height: object) -> set[frozenset[str]]:
    """The kinds that the contributions of a block carry."""
    shown = lived.ask(0, "chain", "show", height, "--payloads")
    return {frozenset(payload["kind"] for payload in made["payloads"]) for made in shown["contributions"]}


# ---- UA-PDFL


@of_those("uapdfl", "alike")
def test_each_node_pulls_what_the_rule_asks_for_and_draws_as_the_simulation_does(lived: Lived) -> None:
    last = lived.ask(0, "chain", "show", "head", "--payloads")
    sizes = {payload["kind"]: int(payload["bytes"]) for payload in last["contributions"][0]["payloads"]}
    for of_one_height in zip(*lived.rounds, strict=True):
        for entry in of_one_height:
            told = entry["apply"]
            drawn = told["peers"] * sizes["g"] + told["similar"] * sizes["h"]
            assert int(entry["pulled_bytes"]) <= (sizes["g"] + sizes["h"] if told["dropout"] else drawn)
    for number, result in enumerate(lived.simulated.rounds):
        branches = [entries[number]["apply"]["dropout"] for entries in lived.rounds]
        assert result.dropout == pytest.approx(sum(branches) / len(lived.names))


@of_those("uapdfl", "alike")
def test_rounds_show_tells_who_drew_whom_and_why(lived: Lived) -> None:
    shown = run_command("rounds", "show", lived.network.rounds, "--data-dir", lived.directory / "data/node3")
    assert shown.code == 0, shown.err
    assert all(name in shown.out for name in lived.names)
    branch = {1.0: "dropout", 0.0: "personalise"}
    for entries in lived.rounds:
        assert branch[entries[lived.network.rounds - 1]["apply"]["dropout"]] in shown.out
    assert all(earlier["round"] + 1 == later["round"] for earlier, later in pairwise(lived.rounds[0]))


@of_those("stale")
def test_rounds_tell_of_which_round_a_stale_peer_is_and_for_how_long(lived: Lived) -> None:
    victim, staleness = lived.names[-1], int(lived.federation.genesis.run.method["staleness"])
    back = lived.simulated_rounds + 1
    assert {len(authors) for authors in lived.authors[1:back]} == {3, 4}
    away = max(height for height in range(1, back) if victim in lived.authors[height]) + 1
    assert back - away > staleness
    for height in range(away, away + staleness + 1):
        shown = lived.ask(0, "rounds", "show", height)
        peers = {peer for node in shown["peering"]["nodes"] for peer in node["peers"]}
        assert (f"{victim} (of round {away - 1})" in peers) == (height < away + staleness), shown


# ---- a member that comes late


@of_those("late")
def test_the_difficulty_follows_the_miners_and_the_late_one_is_in_no_block_before_it_came(lived: Lived) -> None:
    """Mining takes far less than the target of 10 minutes, so the difficulty rises by the most that it may: 4 times."""
    expected = [1] + [262_144] * 16 + [1_048_576] * 16 + [4_194_304] * 2
    assert [block["difficulty"] for block in lived.blocks] == expected
    late = [height for height, authors in enumerate(lived.authors) if lived.names[-1] in authors]
    assert late[0] > 5
