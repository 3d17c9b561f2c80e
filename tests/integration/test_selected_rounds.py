"""Runs that select their best round, under virtual time: measures on the chain, the end by patience, and who was away
there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from chain.block import Measure
from chain.changes.runs import SetRounds
from chain.selection import read_selection
from chain.signing import encode_id
from ml.clients.build import Federation, make_clients, make_initial_aggregate
from ml.data import get_classes
from ml.guard import OnRefused
from ml.measures.val import ValMeasures
from ml.methods import evaluation
from ml.payload import encode_arrays
from ml.simulation.run import SimulationConfig, simulate
from ml.specs.run_schema import describe_payloads
from node.admin.offline import OfflineNode
from node.admin.simulated_evaluation import show_evaluation
from node.errors import NotFound
from node.experiments.simulation import make_selector
from node.ledger.audit import run_audit
from node.ledger.evaluations import read_evaluations
from node.runs.specs import RunSpecs
from node.training.exchange import Exchange
from node.training.trainer import NOTHING_TAKEN
from support.data.chains import make_keys
from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.inline import InlineTrainer
from support.federation.proposing import approve, propose
from support.federation.virtual_time import run_virtual

PATIENT = {"by": "loss", "patience": 2, "min_delta": 0.0}
LOSSES = (0.9, 0.7, 0.5, 0.6, 0.6, 0.6, 0.1, 0.1)  # of rounds from 1 on
BEST, LAST = 3, 6  # which patience ends the run after


class MeasuringTrainer(ScriptedTrainer):
    """Has val samples, whose loss after each round is scripted."""

    def __init__(self, seed: int, losses: Sequence[float] = LOSSES, samples: int = 60) -> None:
        super().__init__(seed)
        self.losses = losses
        self.samples = samples

    async def apply(
        self,
        height: int,
        aggregate: bytes | None,
        exchange: Exchange = NOTHING_TAKEN,
        on_refused: OnRefused | None = None,
    ) -> Mapping[str, float]:
        metrics = await super().apply(height, aggregate, exchange, on_refused)
        return {**metrics, **ValMeasures(self.samples, self.losses[min(height, len(self.losses)) - 1]).to_metrics()}


def make_trainers(losses: Sequence[float] = LOSSES) -> list[ScriptedTrainer]:
    return [MeasuringTrainer(i, losses) for i in range(4)]


def is_done(net: Cluster, *names: str) -> Callable[[], bool]:
    return lambda: all(net[name].service is not None and net[name].get_service().is_done for name in names or net.nodes)


def check_end(net: Cluster, height: int = LAST + 1) -> None:
    assert net.check_agreement() == height
    for node in net.nodes.values():
        selection, run = node.get_service().tip.selection, node.get_service().tip.state.run
        assert (run.stopped, selection.best, selection.score) == (LAST, BEST, 500_000)
        assert node.store is not None
        assert read_selection(node.store.get_state, node.store.read_blocks, height) == selection
        audited = run_audit(net.genesis, node.store, deep=True)  # of who has joined late, what has come by now
        assert audited.ok, audited.fault


def test_patience_ends_a_run_at_the_same_height_everywhere(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path, 4, rounds=20, trainers=make_trainers(), select=PATIENT) as net:
            await net.wait_for(is_done(net), "the end of the run")
            check_end(net)
            last = net["node0"].get_block(LAST + 1)
            assert all(not c.payloads and c.measure == Measure(60, 600_000) for c in last.contributions)
            assert last.header.aggregate == net["node0"].get_block(LAST).header.aggregate
            assert net["node0"].get_block(1).contributions[0].measure is None
            trainer = net["node0"].trainer
            assert isinstance(trainer, MeasuringTrainer)
            assert (max(trainer.trained), max(trainer.applied)) == (LAST, LAST)

    run_virtual(play())
    with OfflineNode(tmp_path / "node0") as node:
        rounds = node.list_rounds(None, 20, reverse=True).rounds
        assert [(one.round, one.best) for one in rounds] == [(n, n == BEST) for n in range(1, LAST + 1)]
        assert node.get_round(BEST).best
        with pytest.raises(NotFound, match="closes a run"):
            node.get_round(LAST + 1)


@pytest.mark.parametrize("lie", [0.0, 999.0])
def test_one_of_four_that_lies_for_ever_moves_neither_the_end_nor_the_best(tmp_path: Path, lie: float) -> None:
    async def play() -> None:
        liar = MeasuringTrainer(0, [lie], samples=900_000)
        async with cluster(tmp_path, 4, rounds=20, trainers=[liar, *make_trainers()[1:]], select=PATIENT) as net:
            await net.wait_for(is_done(net), "the end of the run")
            check_end(net)

    run_virtual(play())


def test_rounds_are_the_most_and_one_height_has_the_last_measures(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path, 4, rounds=2, trainers=make_trainers(), select=PATIENT) as net:
            await net.wait_for(is_done(net), "the end of the run")
            assert net.check_agreement() == 3
            selection = net["node0"].get_service().tip.selection
            assert (selection.best, selection.last) == (2, 2)
            store = net["node0"].store
            assert store is not None
            audited = run_audit(net.genesis, store, deep=True, require_all=True)
            assert audited.ok, audited.fault

    run_virtual(play())


def test_a_run_that_too_few_measure_goes_on_to_its_rounds(tmp_path: Path) -> None:
    async def play() -> None:
        trainers = [*make_trainers()[:2], ScriptedTrainer(2), ScriptedTrainer(3)]
        async with cluster(tmp_path, 4, rounds=4, trainers=trainers, select=PATIENT) as net:
            await net.wait_for(is_done(net), "the end of the run")
            assert net.check_agreement() == 5
            assert net["node0"].get_service().tip.selection.best == 0
            told = [c for c in net["node0"].get_block(3).contributions if c.measure is not None]
            assert {c.author for c in told} == {net.id("node0"), net.id("node1")}

    run_virtual(play())


@pytest.mark.parametrize("at", [LAST - 1, LAST, LAST + 1])
def test_who_crashes_at_the_end_and_who_joins_late_come_to_the_same(tmp_path: Path, at: int) -> None:
    async def play() -> None:
        names = ("node0", "node1", "node2")
        async with cluster(tmp_path, 4, rounds=20, trainers=make_trainers(), select=PATIENT, start=names) as net:
            await net.wait_for_height(at - 1, *names)
            for name in names:
                await net.crash(name)
            for name in names:
                net.start(name)
            await net.wait_for(is_done(net, *names), "the end of the run")
            net.start("node3")
            await net.wait_for_height(LAST + 1, "node3")
            check_end(net)

    run_virtual(play())


def test_a_run_that_is_over_goes_on_for_more_rounds(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path, 4, rounds=20, trainers=make_trainers(), select=PATIENT) as net:
            await net.wait_for(is_done(net), "the end of the run")
            change = await propose(net, "node0", SetRounds(1, 20, 9))
            await approve(net, change, "node1", "node2")
            await net.wait_for(lambda: all(node.height == LAST + 5 for node in net.nodes.values()), "the new end")
            net.check_agreement()
            tip = net["node0"].get_service().tip
            assert (tip.state.run.stopped, tip.selection.best) == (0, LAST + 1)  # what closed it counts as a round now

    run_virtual(play())


EVALUATING = {"by": "loss", "patience": 1, "min_delta": 0.25, "evaluate": True}


@pytest.mark.parametrize(
    ("method", "iterations", "select"),
    [("fedavg", 20, EVALUATING), ("dfpl", 4, {"by": "loss", "patience": 1, "min_delta": 0.01})],
)
def test_the_simulation_ends_at_the_same_round_and_names_and_evaluates_the_same_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, iterations: int, select: Mapping[str, Any]
) -> None:
    monkeypatch.setattr(evaluation, "NUM_RESAMPLES", 10)
    monkeypatch.setattr(evaluation, "MIN_RESAMPLES", 10)
    evaluates, rounds = "evaluate" in select, 12
    config = SimulationConfig(
        method={"name": method, "local_iterations": iterations, "lr": 0.5},
        data={"format": "digits", "val": 0.2},
        model={"name": "mlp", "hidden": [8]},
        partition="dirichlet:5",
        shots=8,
        clients=4,
        rounds=rounds,
        select=select,
    )
    simulated = simulate(config, ids=[key.id for key in make_keys(4)], selector=make_selector(config))
    classes = get_classes(config.data)
    assert config.input is not None
    initial = make_initial_aggregate(config.model, config.input["shape"], len(classes), config.seed)
    federation = Federation(
        method=config.method, model=config.model, classes=classes, input=config.input, rounds=rounds, num_members=4
    )
    clients = make_clients(
        federation, data=config.data, partition=config.partition, run_seed=config.seed, shots=8, initial=initial
    )
    spec = clients[0].spec

    async def play() -> None:
        async with cluster(
            tmp_path,
            4,
            rounds=rounds,
            trainers=[InlineTrainer(client) for client in clients],
            initial_model=encode_arrays(initial),
            method=spec.to_mapping(),
            model=config.model,
            classes=list(classes),
            input=dict(config.input or {}),
            schema=describe_payloads(spec),
            select=select,
        ) as net:
            await net.wait_for(is_done(net), "the end of the run")
            last = len(simulated.rounds)
            assert net.check_agreement() == last + (2 if evaluates else 1)
            digests = [net["node0"].get_block(height).header.aggregate for height in range(1, last + 1)]
            assert digests == list(simulated.aggregate_digests)
            tip = net["node0"].get_service().tip
            assert tip.selection.best == simulated.best_round
            assert (tip.state.run.stopped or rounds) == last
            if evaluates:
                store, shown = net["node0"].store, show_evaluation(simulated, classes)
                assert store is not None
                assert shown is not None
                (one,) = read_evaluations(store, RunSpecs.load(store))
                assert (one.of_round, one.model) == (shown.of_round, shown.model)
                assert one.of_round == simulated.best_round == last - 2
                by_key = {encode_id(key.id): site for key, site in zip(make_keys(4), shown.sites, strict=True)}
                assert [site.measures for site in one.sites] == [by_key[site.id].measures for site in one.sites]
                assert any(site.HasField("measures") for site in one.sites)

    run_virtual(play())
    assert len(simulated.rounds) < rounds
    assert simulated.best_round is not None
