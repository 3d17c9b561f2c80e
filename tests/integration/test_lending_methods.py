"""Models that sites lend of real methods, on virtual time: each is measured by its own classifier at every site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from ml.methods import evaluation
from ml.payload import Arrays
from ml.specs import get_spec
from ml.specs.run_schema import describe_payloads
from node.training.trainer import RunTask, TrainerInfo
from support.federation.cluster import Cluster, cluster
from support.federation.evaluations import read_all
from support.federation.lending import begin_lending
from support.federation.proposing import wait_until_over
from support.federation.runs import MODEL, NODES, RunTrainer, make_initial
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

SHAPE = (1, 8, 8)
INPUT = {"shape": list(SHAPE), "resize": None, "mean": [0.0], "std": [1.0]}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a node's worker, and a short bootstrap."""
    monkeypatch.setattr(evaluation, "NUM_RESAMPLES", 10)
    monkeypatch.setattr(evaluation, "MIN_RESAMPLES", 10)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Lending(RunTrainer):
    """Takes its own model of the run before into the evaluation."""

    before: Arrays | None = None

    async def start(self, task: RunTask) -> TrainerInfo:
        if task.own is not None:
            self.before = self.client.state_arrays()
        info = await super().start(task)
        if self.before is not None:
            self.client.take_own(self.before, lends=task.lends)
        return info


def learn(path: Path, method: Mapping[str, Any], story: Any) -> None:
    trainers = [Lending(index, len(NODES)) for index in range(len(NODES))]
    spec = get_spec(method, MODEL, 10, SHAPE, rounds=1, num_members=4, input_=INPUT)
    genesis = {"method": spec.to_mapping(), "model": MODEL, "input": INPUT, "schema": describe_payloads(spec)}

    async def run() -> None:
        classes = [str(digit) for digit in range(10)]
        initial = make_initial(MODEL, _Run(), seed=1)  # type: ignore[arg-type]
        options: dict[str, Any] = {**genesis, "classes": classes, "rounds": 1}
        async with cluster(path, len(NODES), trainers=trainers, initial_model=initial, **options) as net:
            await story(net)

    run_virtual(run())


class _Run:
    input, classes = {"shape": SHAPE}, range(10)


@pytest.mark.parametrize("method", ["dfpl", "fedper", "local", "mpfedcl"])
def test_models_of_each_method_are_measured(tmp_path: Path, method: str) -> None:
    async def story(net: Cluster) -> None:
        await wait_until_over(net)
        start = await begin_lending(net, ["node1", "node2"], min_samples=20)
        await wait_until_over(net)
        found = read_all(net)
        lent = [one for one in found if one["lender"] is not None]
        assert sorted(one["lender_name"] for one in lent) == ["node1", "node2"]
        assert len(found) == (3 if method == "mpfedcl" else 2)
        assert "only_lent" in start.terms["method"] or method == "mpfedcl"
        told = [[site["measures"]["summary"]["accuracy"] for site in one["sites"]] for one in lent]
        assert all(len(row) == 4 for row in told)
        assert (told[0] == told[1]) == (method == "mpfedcl")  # which leaves a site the model in common
        own = [site for one in lent for site in one["sites"] if site["name"] == one["lender_name"]]
        assert all(site["measures"]["summary"]["accuracy"] > 0.15 for site in own)  # not what it began with

    learn(tmp_path, {"name": method, "local_iterations": 40}, story)
