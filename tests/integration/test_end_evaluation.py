"""The evaluation at the end of a run that selects, under virtual time: a height that all derive, and one matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain.changes.runs import SetRounds
from ml.measures.val import ValMeasures
from ml.methods import evaluation
from ml.payload import decode_arrays, encode_arrays
from ml.specs import get_spec
from ml.specs.run_schema import describe_payloads
from ml.specs.told import tell_nothing
from ml.tasks import CLASSIFICATION
from node.ledger.evaluations import read_evaluations
from node.payloads import retention
from node.runs.specs import RunSpecs
from node.training.trainer import Trained, WorkerDied
from support.federation.cluster import DIM, Cluster, ScriptedTrainer, cluster
from support.federation.evaluations import read_all
from support.federation.masked import make_model
from support.federation.proposing import RULES, approve, find_change_heights, propose
from support.federation.runs import MODEL, NODES, RunTrainer, learn
from support.federation.virtual_time import run_virtual

SHAPE = (1, 8, 8)
PATIENT = {"by": "loss", "patience": 2, "min_delta": 0.0, "evaluate": True}
LOSSES = (0.9, 0.7, 0.5, 0.6, 0.6, 0.6, 0.1)  # of rounds from 1 on
BEST, LAST = 3, 6  # which patience ends the run after
END = LAST + 2  # the height that evaluates
FEDAVG = get_spec({"name": "fedavg"}, {"name": "mlp", "hidden": [DIM]}, 10, SHAPE)


class MeasuringTrainer(ScriptedTrainer):
    """Makes up models, whose val loss after each round is scripted; tells of the round that a model is of."""

    def __init__(self, seed: int, samples: int = 60) -> None:
        super().__init__(seed)
        self.samples = samples
        self.told: list[tuple[bytes, int]] = []
        self.deaths = 0

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        return Trained(1, {"model": encode_arrays(make_model(self.seed, height))}, trained.metrics)

    async def apply(self, height: int, *args: Any, **options: Any) -> Mapping[str, float]:
        metrics = await super().apply(height, *args, **options)
        return {**metrics, **ValMeasures(60, LOSSES[min(height, len(LOSSES)) - 1]).to_metrics()}

    async def tell_of(self, aggregate: bytes, min_samples: int) -> bytes:
        self.told.append((aggregate, min_samples))
        if self.deaths:
            self.deaths -= 1
            raise WorkerDied("it was killed")
        return encode_arrays(make_told(self.samples if self.samples >= min_samples else 0))


def make_told(samples: int) -> dict[str, Any]:
    """The figures of nothing but the accuracy."""
    told = tell_nothing(CLASSIFICATION, 10)
    if samples:
        told["samples"] = np.array(samples, np.int64)
        told["figures"][0, 0] = 900_000
    return told


def make_trainers() -> list[MeasuringTrainer]:
    return [MeasuringTrainer(i) for i in range(4)]


def evaluating(path: Path, trainers: Sequence[Any], rounds: int = 20, **options: Any) -> Any:
    method = options.pop("method", FEDAVG.to_mapping())
    return cluster(path, 4, rounds=rounds, trainers=trainers, method=method, select=PATIENT, **options)


def is_over(net: Cluster, *names: str) -> bool:
    return all(net[name].service is not None and net[name].get_service().is_done for name in names or NODES)


def holds_all(net: Cluster, *names: str) -> bool:
    """Whether these nodes are at the end, with every payload of every block."""
    for name in names:
        store = net[name].store
        if store is None or store.head_height < END:
            return False
        blocks = (stored.block for stored in store.blocks(1, END))
        if not all(store.has_blob(ref.digest) for b in blocks for c in b.contributions for ref in c.payloads):
            return False
    return True


def check_matrix(net: Cluster, sites: Sequence[str] = NODES, *, is_whole: bool = True) -> None:
    (one,) = read_all(net, is_whole=is_whole)
    assert (one["run"], one["of_run"], one["of_round"], one["height"]) == (1, 1, BEST, END)
    assert one["model"] == net["node0"].get_block(BEST).header.aggregate.hex()
    told = sorted(site["name"] for site in one["sites"] if site.get("measures"))
    assert told == sorted(sites)
    ended, last = net["node0"].get_block(END), net["node0"].get_block(LAST)
    assert ended.header.aggregate == last.header.aggregate
    assert all(c.measure is None and len(c.payloads) == 1 for c in ended.contributions)


def test_the_end_of_a_run_evaluates_the_best_round_at_the_same_height_everywhere(tmp_path: Path) -> None:
    async def play() -> None:
        trainers = make_trainers()
        trainers[1].samples, trainers[2].deaths = 49, 1
        async with evaluating(tmp_path, trainers) as net:
            net["node3"].own_noise = {"update": 1.0}
            await net.crash("node3")
            net.start("node3")
            await net.wait_for(lambda: is_over(net), "the end of the run")
            assert net.check_agreement() == END
            check_matrix(net, ("node0", "node2"))
            aggregates = {aggregate for trainer in trainers for aggregate, _ in trainer.told}
            assert aggregates == {trainers[0].applied[BEST]}
            assert [len(trainer.told) for trainer in trainers] == [1, 1, 2, 0]
            assert {least for trainer in trainers for _, least in trainer.told} == {50}
            assert max(trainers[0].trained) == LAST

    run_virtual(play())


@pytest.mark.parametrize("at", [END - 1, END])
def test_who_is_killed_while_it_evaluates_and_who_joins_late_come_to_the_same(tmp_path: Path, at: int) -> None:
    async def play() -> None:
        names = ("node0", "node1", "node2")
        async with evaluating(tmp_path, make_trainers(), start=names) as net:
            await net.wait_for_height(at - 1, *names)
            for name in names:
                await net.crash(name)
            for name in names:
                net.start(name)
            await net.wait_for(lambda: is_over(net, *names), "the end of the run")
            net.start("node3")
            await net.wait_for(lambda: holds_all(net, "node3"), "all that the late one has to pull")
            net.check_agreement()
            check_matrix(net, names)

    run_virtual(play())


def test_who_comes_at_the_end_has_the_model_from_others_and_takes_part(tmp_path: Path) -> None:
    async def play() -> None:
        names = ("node0", "node1", "node2")
        trainers = make_trainers()
        async with evaluating(tmp_path, trainers, start=names) as net:
            await net.wait_for_height(END - 1, *names)
            await net.crash("node0")
            net.start("node3")
            await net.wait_for(lambda: is_over(net, "node1", "node2", "node3"), "the end of the run")
            assert trainers[3].told == trainers[1].told
            net.start("node0")
            await net.wait_for(lambda: holds_all(net, "node0", "node3"), "all that the late ones have to pull")
            (one,) = read_all(net)
            assert {"node1", "node2", "node3"} <= {site["name"] for site in one["sites"] if site.get("measures")}

    run_virtual(play())


def test_the_model_of_the_best_round_stays_until_it_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at a node that was started anew, and no longer."""
    monkeypatch.setattr(retention, "LARGE_BYTES", 100)

    def list_held(net: Cluster, name: str) -> list[int]:
        store, rounds = net[name].store, range(1, LAST + 1)
        assert store is not None
        return [number for number in rounds if store.has_blob(net[name].get_block(number).header.aggregate)]

    async def play() -> None:
        async with evaluating(tmp_path, make_trainers(), keep_heights=1) as net:
            await net.wait_for_height(LAST, *NODES)
            await net.crash("node1")
            net.start("node1")
            await net.wait_for_height(LAST, "node1")
            assert BEST in list_held(net, "node0")
            assert BEST in list_held(net, "node1")
            assert BEST - 1 not in list_held(net, "node0")
            await net.wait_for(lambda: is_over(net), "the end of the run")
            check_matrix(net, is_whole=False)
            assert [list_held(net, name) for name in NODES] == [[LAST]] * 4  # whose aggregate is in force

    run_virtual(play())


class LyingTrainer(MeasuringTrainer):
    """Is better than anybody can be."""

    async def tell_of(self, aggregate: bytes, min_samples: int) -> bytes:
        told = dict(decode_arrays(await super().tell_of(aggregate, min_samples), 1 << 20))
        told["figures"] = told["figures"] * 0 + 2_000_000
        return encode_arrays(told)


def test_measures_out_of_range_are_refused_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    async def play() -> None:
        trainers = [*make_trainers()[:3], LyingTrainer(3)]
        async with evaluating(tmp_path, trainers) as net:
            await net.wait_for_height(END, *NODES[:3])
            store = net["node0"].store
            assert store is not None
            (one,) = read_evaluations(store, RunSpecs.load(store))
            assert {site.name for site in one.sites} == {*NODES[:3]}

    run_virtual(play())


def test_a_change_may_take_the_height_and_the_evaluation_comes_one_later(tmp_path: Path) -> None:
    async def play() -> None:
        async with evaluating(tmp_path, make_trainers()) as net:
            await net.wait_for_height(1, *NODES)
            await approve(net, await propose(net, "node0", RULES, first=END), "node1", "node2")
            await net.wait_for(lambda: is_over(net), "the end of the run")
            assert find_change_heights(net, "node0") == [END]
            assert net.check_agreement() == END + 1
            (one,) = read_all(net)
            assert (one["height"], one["of_round"]) == (END + 1, BEST)
            assert all(site["measures"] for site in one["sites"])

    run_virtual(play())


def test_a_run_that_goes_on_for_more_rounds_is_evaluated_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with evaluating(tmp_path, make_trainers()) as net:
            await net.wait_for(lambda: is_over(net), "the end of the run")
            more = await propose(net, "node0", SetRounds(1, 20, 9))
            await approve(net, more, "node1", "node2")
            await net.wait_for(lambda: is_over(net) and net["node0"].height == END + 4, "the new end")
            first, second = read_all(net)
            assert (first["height"], second["height"], second["of_round"]) == (END, END + 4, LAST + 2)

    run_virtual(play())


def test_a_run_that_too_few_measure_evaluates_its_newest_round(tmp_path: Path) -> None:
    class Blind(MeasuringTrainer):
        async def apply(self, height: int, *args: Any, **options: Any) -> Mapping[str, float]:
            return await ScriptedTrainer.apply(self, height, *args, **options)

    async def play() -> None:
        trainers = [Blind(i) for i in range(4)]
        async with evaluating(tmp_path, trainers, rounds=2) as net:
            await net.wait_for(lambda: is_over(net), "the end of the run")
            (one,) = read_all(net)
            assert (one["height"], one["of_round"], len(one["sites"])) == (4, 2, 4)

    run_virtual(play())


@pytest.fixture
def _short_bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(evaluation, "NUM_RESAMPLES", 10)
    monkeypatch.setattr(evaluation, "MIN_RESAMPLES", 10)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_short_bootstrap")
def test_each_site_tells_what_the_model_in_common_makes_of_its_own_samples(tmp_path: Path) -> None:
    """Also where the samples are normalised by what all have agreed on; and a proposed evaluation tells the same."""

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await net.wait_for(lambda: is_over(net), "the end of the run")
        (one,) = read_all(net)
        best = net["node0"].get_service().tip.selection.best
        assert (one["of_round"], len(one["sites"])) == (best, 4)
        for site in one["sites"]:
            assert site["measures"]["num_samples"] >= 50
            assert site["measures"]["summary"]["accuracy"] > 0.3

    select = {"by": "loss", "patience": 0, "min_delta": 0.0, "evaluate": True}
    input_ = {"shape": list(SHAPE), "resize": None, "normalize": "agreed", "min_count": 5}
    settings = {"name": "fedavg", "lr": 0.1, "local_iterations": 8}
    spec = get_spec(settings, MODEL, 10, SHAPE, rounds=4, num_members=4, input_=input_)
    learn(
        tmp_path,
        spec.to_mapping(),
        story,
        data={"format": "digits", "val": 0.1},
        input=input_,
        schema=describe_payloads(spec),
        rounds=4,
        select=select,
    )
