"""Evaluations for which sites lend their own models, under virtual time: who lends is a row, and nobody keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain.calendar import Place
from chain.changes.runs import StartRun
from ml.payload import Array, encode_arrays, kind_code
from ml.specs import add_kind, get_spec
from ml.specs.methods.lending import LENT
from node.cli.federation.evaluations import describe_copies
from node.errors import ChangeRefused
from node.federation.measured_model import check_measured_model
from node.federation.run_terms import draft_run
from node.ledger.evaluations import read_evaluations
from node.payloads.lent_blobs import LentBlobs
from node.runs.specs import RunSpecs
from node.training.trainer import Trained
from support.federation.cluster import DIM, Cluster, cluster
from support.federation.evaluations import read_all
from support.federation.lending import Change, Lender, begin_lending, draft_lending, make_lent, note_lending
from support.federation.masked import make_model
from support.federation.proposing import (
    RULES,
    approve,
    change,
    find_change_heights,
    get_state,
    propose,
    wait_for_state,
    wait_until_over,
)
from support.federation.virtual_time import run_virtual

NAMES = ("node0", "node1", "node2", "node3")
INITIAL = encode_arrays(add_kind("model", make_model(9, 0)))
LENDING, MEASURING = 4, 5  # the heights, after two rounds and a change


def lending(path: Path, trainers: Sequence[Lender] | None = None, **options: Any) -> Any:
    trainers = trainers or [Lender(i) for i in range(4)]
    return cluster(path, 4, rounds=2, trainers=trainers, initial_model=INITIAL, **options)


def get_lent(net: Cluster, name: str) -> list[bool]:
    """Of each payload that was lent, whether the node holds it."""
    store, block = net[name].store, net[name].get_block(LENDING)
    assert store is not None
    refs = [ref for one in block.contributions for ref in one.payloads if ref.kind == kind_code(LENT)]
    return [store.has_blob(ref.digest) for ref in refs]


def describe(matrix: Sequence[dict[str, Any]]) -> dict[str | None, list[str]]:
    """By lender the sites that have measured its model."""
    return {one["lender_name"]: sorted(s["name"] for s in one["sites"] if s["measures"]) for one in matrix}


def test_who_lends_is_a_row_and_what_was_lent_goes_with_the_evaluation(tmp_path: Path) -> None:
    async def play() -> None:
        trainers = [Lender(i) for i in range(4)]
        async with lending(tmp_path, trainers) as net:
            await wait_until_over(net)
            start = await begin_lending(net, ["node1", "node3"])
            assert (start.terms["method"]["only_lent"], start.terms["rounds"]) == (True, 2)
            await net.wait_for_height(LENDING, *NAMES)
            assert all(all(get_lent(net, name)) for name in NAMES)
            await wait_until_over(net)
            assert net.check_agreement() == MEASURING
            matrix = read_all(net)
            assert describe(matrix) == {"node1": [*NAMES], "node3": [*NAMES]}
            tasks = [trainer.task for trainer in trainers]
            assert [task is not None and task.lends for task in tasks] == [False, True, False, True]
            assert {task.own for task in tasks if task is not None} == {Place(1, 2)}
            assert all(one["lends"] and (one["of_run"], one["of_round"]) == (1, 2) for one in matrix)
            expected = {net.id(f"node{i}"): round(abs(make_lent(i)["fc1.bias"][0, 0]) % 1, 6) for i in (1, 3)}
            order = sorted(expected)
            for one, lender in zip(matrix, order, strict=True):
                assert one["sites"][0]["measures"]["summary"]["accuracy"] == pytest.approx(expected[lender], abs=1e-6)
            assert not any(any(get_lent(net, name)) for name in NAMES)

    run_virtual(play())


def test_nobody_lends_unasked_and_an_evaluation_of_nothing_says_so(tmp_path: Path) -> None:
    async def play() -> None:
        async with lending(tmp_path) as net:
            await wait_until_over(net)
            await begin_lending(net, [])
            await wait_until_over(net)
            (one,) = read_all(net)
            assert (one["lends"], one["lender"], one["model"], one["height"]) == (True, None, "", MEASURING)
            assert not any(site["measures"] for site in one["sites"])

    run_virtual(play())


def test_consent_outlasts_a_restart_of_who_gave_it_and_what_was_lent_outlasts_no_restart(tmp_path: Path) -> None:
    async def play() -> None:
        async with lending(tmp_path) as net:
            await wait_until_over(net)
            start, blob = draft_lending(net)
            store = net["node0"].store
            assert store is not None
            store.put_blob(blob)
            change_id = await propose(net, "node0", start)
            await note_lending(net, "node1", change_id)
            await net.crash("node1")
            net.start("node1")
            await approve(net, change_id, "node1", "node2")
            await net.wait_for_height(LENDING, *NAMES)
            await net.crash("node2")
            net.start("node2")
            await wait_until_over(net)
            assert describe(read_all(net))["node1"]
            await net.crash("node3")
            net.start("node3")
            await wait_until_over(net)
            assert not any(any(get_lent(net, name)) for name in NAMES)

    run_virtual(play())


def spoil(number: float) -> Change:
    def change(lent: dict[str, Array]) -> dict[str, Array]:
        lent["fc1.bias"][0, 0] = number
        return lent

    return change


def grow(lent: dict[str, Array]) -> dict[str, Array]:
    return {name: np.repeat(array, 2, axis=0) for name, array in lent.items()}


def reshape(lent: dict[str, Array]) -> dict[str, Array]:
    return {**lent, "fc1.bias": lent["fc1.bias"][:, :-1]}


@pytest.mark.parametrize("lie", [spoil(np.nan), spoil(1e30), grow, reshape], ids=["nan", "huge", "long", "shape"])
def test_what_is_no_model_of_the_run_is_refused_and_the_others_go_on(tmp_path: Path, lie: Change) -> None:
    async def play() -> None:
        trainers = [*(Lender(i) for i in range(3)), Lender(3, lie)]
        async with lending(tmp_path, trainers) as net:
            await wait_until_over(net)
            await begin_lending(net, ["node0", "node3"])
            await net.wait_for_height(MEASURING, *NAMES[:3])
            authors = {one.author for one in net["node0"].get_block(LENDING).contributions}
            assert authors == {net.id(name) for name in NAMES[:3]}
            assert describe(read_all(net, NAMES[:3])).keys() == {"node0"}

    run_virtual(play())


def test_who_lends_the_model_of_another_is_a_row_with_the_same_digest(tmp_path: Path) -> None:
    async def play() -> None:
        trainers = [*(Lender(i) for i in range(3)), Lender(3, lambda lent: make_lent(1))]
        async with lending(tmp_path, trainers) as net:
            await wait_until_over(net)
            await begin_lending(net, ["node1"])
            await wait_until_over(net)
            matrix = read_all(net)
            assert describe(matrix).keys() == {"node1", "node3"}
            assert len({one["model"] for one in matrix}) == 1
            store = net["node0"].store
            assert store is not None
            (said,) = describe_copies(read_evaluations(store, RunSpecs.load(store)))
            first, second = [one["lender_name"] for one in matrix]
            assert said == f"run 1, round 2, {second}'s own: the very model that {first} lent"
            assert len(trainers[0].measured) == 2

    run_virtual(play())


def test_a_lender_that_dies_in_between_is_measured_by_the_others(tmp_path: Path) -> None:
    async def play() -> None:
        async with lending(tmp_path) as net:
            await wait_until_over(net)
            await begin_lending(net, ["node1", "node2"])
            await net.wait_for_height(LENDING, *NAMES)
            await net.crash("node1")
            others = ("node0", "node2", "node3")
            await net.wait_for_height(MEASURING, *others)
            assert describe(read_all(net, others)) == {"node1": [*others], "node2": [*others]}
            net.start("node1")
            await net.wait_for_height(MEASURING, *NAMES)
            await wait_until_over(net)
            assert not any(any(get_lent(net, name)) for name in NAMES)
            read_all(net)

    run_virtual(play())


def test_who_joins_when_it_is_over_has_the_matrix_and_nothing_of_what_was_lent(tmp_path: Path) -> None:
    async def play() -> None:
        names = ("node0", "node1", "node2")
        async with lending(tmp_path, start=names) as net:
            await wait_until_over(net)
            await begin_lending(net, ["node1"])
            await net.wait_for_height(MEASURING, *names)
            net.start("node3")
            await net.wait_for(lambda: holds_measures(net, "node3"), "all that the late one has to pull")
            assert describe(read_all(net)) == {"node1": [*names]}
            assert not any(get_lent(net, "node3"))

    run_virtual(play())


def holds_measures(net: Cluster, name: str) -> bool:
    store = net[name].store
    if store is None or store.head_height < MEASURING:
        return False
    block = net[name].get_block(MEASURING)
    return all(store.has_blob(ref.digest) for one in block.contributions for ref in one.payloads)


def test_a_change_between_the_two_rounds_takes_a_height_and_nothing_else(tmp_path: Path) -> None:
    async def play() -> None:
        async with lending(tmp_path) as net:
            await wait_until_over(net)
            await begin_lending(net, ["node2"])
            await approve(net, await propose(net, "node0", RULES, first=MEASURING), "node1", "node2")
            await net.wait_for_height(MEASURING + 1, *NAMES)
            await wait_until_over(net)
            assert find_change_heights(net, "node0") == [3, MEASURING]
            assert describe(read_all(net)) == {"node2": [*NAMES]}
            assert not any(any(get_lent(net, name)) for name in NAMES)

    run_virtual(play())


def test_what_a_node_that_went_down_has_left_goes_when_it_starts(tmp_path: Path) -> None:
    async def play() -> None:
        async with lending(tmp_path) as net:
            await wait_until_over(net)
            await begin_lending(net, ["node1"])
            await wait_until_over(net)
            store = net["node0"].store
            assert store is not None
            store.put_blob(encode_arrays(make_lent(1)))
            assert any(get_lent(net, "node0"))
            LentBlobs(store, RunSpecs.load(store))
            assert not any(get_lent(net, "node0"))

    run_virtual(play())


class Averaging(Lender):
    """Has a model in common."""

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        if "prototypes" not in trained.payloads:
            return trained
        return Trained(1, {"model": encode_arrays(make_model(self.seed, height))}, trained.metrics)


def test_what_was_pulled_and_came_too_late_goes_and_what_was_here_before_stays(tmp_path: Path) -> None:
    async def play() -> None:
        async with lending(tmp_path) as net:
            await wait_until_over(net)
            await begin_lending(net, ["node1"])
            await wait_until_over(net)
            block, store = net["node0"].get_block(LENDING), net["node0"].store
            assert store is not None
            late = next(one for one in block.contributions if one.author == net.id("node1"))
            others = tuple(one for one in block.contributions if one is not late)
            without = replace(block, body=replace(block.body, contributions=others))
            digest = store.put_blob(encode_arrays(make_lent(1)))
            lent = LentBlobs(store, RunSpecs.load(store))
            store.put_blob(encode_arrays(make_lent(1)))
            last = net["node0"].get_block(MEASURING)
            for pulled, stays in ((frozenset[bytes](), True), (frozenset([digest]), False)):
                lent.on_block(without, [late], pulled)
                assert store.has_blob(digest)
                lent.on_block(last)
                assert store.has_blob(digest) == stays

    run_virtual(play())


def test_where_there_is_a_model_in_common_it_is_the_first_row_and_training_goes_on_from_it(tmp_path: Path) -> None:
    async def play() -> None:
        trainers = [Averaging(i) for i in range(4)]
        async with lending(tmp_path, trainers, method={"name": "fedavg"}) as net:
            await wait_until_over(net)
            start = await begin_lending(net, ["node3"])
            assert "only_lent" not in start.terms["method"]
            await wait_until_over(net)
            matrix = read_all(net)
            assert describe(matrix) == {None: [*NAMES], "node3": [*NAMES]}
            first, second = matrix
            assert first["sites"][0]["measures"]["summary"]["accuracy"] == 0
            assert first["model"] == start.initial.hex() if start.initial else ""
            assert second["model"] != first["model"]
            heads = {net["node0"].get_block(height).header.aggregate for height in (3, LENDING, MEASURING)}
            assert heads == {start.initial}
            onward = draft_run(get_state(net, "node0"), {}, (), None, trained=net.genesis.run)
            assert (onward.terms["method"]["name"], onward.terms["rounds"]) == ("fedavg", 2)
            await change(net, onward)
            await wait_for_state(net, "run 3", lambda state: state.run.number == 3)
            await wait_until_over(net)

    run_virtual(play())


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"name": "fedavg", "aggregation": "masked_sum"}, "whose masked sums hide"),
        ({"name": "fedavg", "dp_noise": 1.0, "dp_clip": 1.0}, "whose noise hides"),
        ({"name": "fedavg", "dp_update_noise": 1.0}, "whose noise hides"),
    ],
)
def test_where_noise_or_a_sum_hides_what_weights_would_tell_nothing_is_lent(
    tmp_path: Path, method: dict[str, Any], said: str
) -> None:
    async def play() -> None:
        trainers = [Averaging(i) for i in range(4)]
        spec = get_spec(method, {"name": "mlp", "hidden": [DIM]}, 10, (1, 8, 8))
        async with lending(tmp_path, trainers, method=spec.to_mapping()) as net:
            await wait_until_over(net)
            with pytest.raises(ChangeRefused, match=said):
                draft_lending(net)

    run_virtual(play())


def test_another_template_or_a_lie_about_what_is_in_common_is_not_approved(tmp_path: Path) -> None:
    async def play() -> None:
        async with lending(tmp_path) as net:
            await wait_until_over(net)
            start, _ = draft_lending(net)
            store = net["node1"].store
            assert store is not None
            runs = RunSpecs.load(store)
            check_measured_model(store, runs, start)
            method = {key: value for key, value in start.terms["method"].items() if key != "only_lent"}
            lies = [
                (StartRun(start.number, start.terms, bytes(31) + b"1"), "not the model of run 1, round 2"),
                (StartRun(start.number, {**start.terms, "method": method}, start.initial), "only_lent: expected true"),
            ]
            for lie, said in lies:
                with pytest.raises(ChangeRefused, match=said):
                    check_measured_model(store, runs, lie)

    run_virtual(play())
