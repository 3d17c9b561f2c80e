"""Evaluations in a federation, on virtual time: every site measures one model, and all nodes have one matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from chain.calendar import Place
from chain.changes.runs import StartRun
from ml.measures.val import ValMeasures
from ml.methods import evaluation
from ml.payload import decode_arrays, encode_arrays
from ml.specs import add_kind, get_kind, get_spec
from ml.specs.run_schema import describe_payloads
from node.admin.json_view import to_json
from node.errors import ChangeRefused
from node.federation.builders import ChangeContext, ChangeRequest, build_change
from node.federation.measured_model import check_measured_model, check_min_samples, find_trained, read_measured_model
from node.federation.run_terms import draft_run
from node.ledger.evaluations import read_evaluations
from node.runs.specs import RunSpecs
from node.training.trainer import Trained
from support.federation.cluster import DIM, Cluster, ScriptedTrainer, cluster
from support.federation.evaluations import read_all
from support.federation.masked import make_model
from support.federation.proposing import (
    approve,
    change,
    get_service,
    get_state,
    propose,
    wait_for_state,
    wait_until_over,
)
from support.federation.runs import MODEL, NODES, RunTrainer, learn
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

SHAPE = (1, 8, 8)
AGREED = {"shape": list(SHAPE), "resize": None, "normalize": "agreed", "min_count": 5}
FEDAVG = {"name": "fedavg", "lr": 0.1, "local_iterations": 8}
FEW = {"min_samples": 20}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a node's worker, and a short bootstrap."""
    monkeypatch.setattr(evaluation, "NUM_RESAMPLES", 10)
    monkeypatch.setattr(evaluation, "MIN_RESAMPLES", 10)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def get_schema(method: Mapping[str, Any], input_: Mapping[str, Any]) -> dict[str, Any]:
    return describe_payloads(get_spec(method, MODEL, 10, SHAPE, rounds=3, num_members=4, input_=input_))


def draft(net: Cluster, terms: Mapping[str, Any], kind: str = "evaluation") -> tuple[StartRun, bytes | None]:
    """What the first node would sign."""
    store, tip = net["node0"].store, get_service(net, "node0").tip
    assert store is not None
    runs = RunSpecs.load(store)
    model = read_measured_model(store, runs, terms) if kind == "evaluation" else None
    ground = ChangeContext(tip, net.id("node0"), trained=find_trained(runs.calendar), model=model)
    built = build_change(ChangeRequest(kind, terms), ground)
    assert isinstance(built.change.kind, StartRun)
    return built.change.kind, built.blob


async def evaluate(net: Cluster, **terms: Any) -> StartRun:
    """An evaluation that three of four approve, after they have looked at its model."""
    start, blob = draft(net, FEW | terms)
    if blob is not None:
        store = net["node0"].store
        assert store is not None
        store.put_blob(blob)
    for name in NODES:
        store = net[name].store
        assert store is not None
        check_measured_model(store, RunSpecs.load(store), start)
    await change(net, start)
    await wait_for_state(net, "the evaluation", lambda state: state.run.number == start.number)
    await wait_until_over(net)
    return start


def test_all_nodes_have_one_matrix_of_what_each_site_measures(tmp_path: Path) -> None:
    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await wait_until_over(net)
        newest = await evaluate(net)
        assert newest.initial is None
        (first,) = read_all(net)
        assert (first["run"], first["of_run"], first["of_round"]) == (2, 1, 3)
        assert sorted(site["name"] for site in first["sites"]) == sorted(NODES)
        for trainer, name in zip(trainers, NODES, strict=True):
            (site,) = [site for site in first["sites"] if site["name"] == name]
            measured = trainer.client.measure()
            assert measured is not None
            assert site["measures"]["num_samples"] == measured.num_samples
            assert site["measures"]["summary"] == pytest.approx(measured.summarise(), abs=0.6e-4)
            assert site["measures"]["summary"]["accuracy"] > 0.3
        # an earlier round, by its digest, with what was agreed on as constants
        earlier = await evaluate(net, run=1, round=2)
        assert earlier.initial is not None
        assert "normalize" not in earlier.terms["input"]
        again = await evaluate(net)  # the newest that was trained, though the one in force is another
        matrix = read_all(net)
        assert [(one["of_run"], one["of_round"]) for one in matrix] == [(1, 3), (1, 2), (1, 3)]
        assert again.terms["input"] == earlier.terms["input"]
        assert matrix[2]["sites"] != matrix[1]["sites"]
        # and training goes on from there, by the method and the rounds of before
        onward = draft_run(get_state(net, "node0"), {}, (), None, trained=net.genesis.run)
        assert (onward.terms["method"]["name"], onward.terms["rounds"]) == ("fedavg", 3)
        await change(net, onward)
        await wait_for_state(net, "run 5", lambda state: state.run.number == 5)
        await wait_until_over(net)
        read_all(net)

    method = get_spec(FEDAVG, MODEL, 10, SHAPE).to_mapping()
    learn(tmp_path, method, story, input=AGREED, schema=get_schema(method, AGREED), rounds=3)


class Lying(RunTrainer):
    """Is better than anybody can be."""

    async def train(self, round_number: int, beacon: bytes, /, **options: Any) -> Trained:
        trained = await super().train(round_number, beacon, **options)
        if "evaluation" not in trained.payloads:
            return trained
        told = dict(decode_arrays(trained.payloads["evaluation"], 1 << 20))
        told["figures"] = told["figures"] * 0 + 2_000_000
        return dataclasses.replace(trained, payloads={"evaluation": encode_arrays(told)})


def test_what_cannot_be_is_left_out_and_another_model_is_not_approved(tmp_path: Path) -> None:
    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await wait_until_over(net)
        start, blob = draft(net, FEW | {"run": 1, "round": 1})
        store = net["node1"].store
        assert store is not None
        runs = RunSpecs.load(store)
        assert blob is not None
        check_measured_model(store, runs, start)
        for lie in ({"of_round": 2}, {"of_round": 9}, {"of_run": 7}):
            other = {**start.terms, "method": {**start.terms["method"], **lie}}
            with pytest.raises(ChangeRefused, match=r"not the model of run 1, round 2|to name a round"):
                check_measured_model(store, runs, StartRun(start.number, other, start.initial))
        own = {**start.terms, "method": {**start.terms["method"]}}
        with pytest.raises(ChangeRefused, match="expected none of what continues"):
            check_measured_model(store, runs, StartRun(start.number, own, None))
        check_min_samples(start, 20)
        with pytest.raises(ChangeRefused, match="expected at least 21, which training"):
            check_min_samples(start, 21)
        trainers[3].__class__ = Lying
        await approve(net, await propose(net, "node0", draft(net, FEW)[0]), "node1", "node2")
        await wait_for_state(net, "the evaluation", lambda state: state.run.number == 2)
        await net.wait_for_height(get_state(net, "node0").run.first_height, *NODES[:3])
        (one,) = [to_json(each) for each in read_evaluations(store, RunSpecs.load(store))]
        assert sorted(site["name"] for site in one["sites"]) == sorted(NODES[:3])

    method = get_spec(FEDAVG, MODEL, 10, SHAPE).to_mapping()
    input_ = {"shape": list(SHAPE), "resize": None, "mean": [0.0], "std": [1.0]}
    learn(tmp_path, method, story, input=input_, schema=get_schema(method, input_), rounds=2)


def test_a_model_is_taken_out_of_an_aggregate_that_has_more(tmp_path: Path) -> None:
    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await wait_until_over(net)
        start = await evaluate(net)
        assert start.initial is not None
        (one,) = read_all(net)
        assert (one["of_run"], one["of_round"], len(one["sites"])) == (1, 1, 4)

    method = get_spec({"name": "mpfedcl", "local_iterations": 2}, MODEL, 10, SHAPE).to_mapping()
    input_ = {"shape": list(SHAPE), "resize": None, "mean": [0.0], "std": [1.0]}
    learn(tmp_path, method, story, input=input_, schema=get_schema(method, input_), rounds=1)


class Modelling(ScriptedTrainer):
    """Makes up models."""

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        return dataclasses.replace(trained, payloads={"model": encode_arrays(make_model(self.seed, height))})


def test_a_round_of_masked_sums_is_the_sum_that_was_opened(tmp_path: Path) -> None:
    method = get_spec({"name": "fedavg", "aggregation": "masked_sum"}, {"name": "mlp", "hidden": [DIM]}, 10, SHAPE)

    async def story() -> None:
        trainers = [Modelling(i) for i in range(4)]
        async with cluster(tmp_path, 4, rounds=2, trainers=trainers, method=method.to_mapping()) as net:
            await net.wait_for_height(5)
            store = net["node0"].store
            assert store is not None
            runs = RunSpecs.load(store)
            for asked, height in (("newest", 5), (2, 5), (1, 3)):
                found = read_measured_model(store, runs, {"round": asked})
                data = store.get_blob(net["node0"].get_block(height).header.aggregate)
                model = get_kind(decode_arrays(data, len(data)), "model")
                assert model is not None
                assert found.blob == encode_arrays(add_kind("model", model))
            with pytest.raises(ChangeRefused, match="from 1 to 2"):
                read_measured_model(store, runs, {"round": 3})

    run_virtual(story())


class Measuring(Modelling):
    """Is best in round 2, by val samples."""

    async def apply(self, height: int, *args: Any, **options: Any) -> Mapping[str, float]:
        metrics = await super().apply(height, *args, **options)
        return {**metrics, **ValMeasures(60, (0.9, 0.5, 0.7)[min(height, 3) - 1]).to_metrics()}


def test_the_best_round_is_that_of_the_chain(tmp_path: Path) -> None:
    async def story() -> None:
        trainers = [Measuring(i) for i in range(4)]
        select, method = {"by": "loss", "patience": 5, "min_delta": 0.0}, {"name": "fedavg"}
        async with cluster(tmp_path, 4, rounds=3, trainers=trainers, method=method, select=select) as net:
            await net.wait_for_height(4)
            store = net["node0"].store
            assert store is not None
            runs = RunSpecs.load(store)
            assert read_measured_model(store, runs, {"round": "best"}).place == Place(1, 2)
            assert read_measured_model(store, runs, {}).place == Place(1, 3)
            start, blob = draft(net, {"round": "best"})
            assert blob is not None
            assert (start.terms["method"]["of_round"], "select" in start.terms) == (2, False)
            check_measured_model(store, runs, start)

    run_virtual(story())


def test_what_has_no_model_in_common_is_not_evaluated(tmp_path: Path) -> None:
    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await wait_until_over(net)
        refusals: list[tuple[dict[str, Any], str]] = [
            ({}, "run 1: dfpl has no whole model in common"),
            ({"round": "best"}, "run 1 has no best round"),
            ({"round": 2}, "expected newest, best or a number from 1 to 1"),
            ({"round": True}, "expected newest"),
            ({"run": 2}, "expected one that trains, got 2"),
            ({"rounds": 2}, "rounds"),
        ]
        for terms, said in refusals:
            with pytest.raises(ChangeRefused, match=said):
                draft(net, terms)

    method = get_spec({"name": "dfpl"}, MODEL, 10, SHAPE).to_mapping()
    input_ = {"shape": list(SHAPE), "resize": None, "mean": [0.0], "std": [1.0]}
    learn(tmp_path, method, story, input=input_, schema=get_schema(method, input_), rounds=1)
