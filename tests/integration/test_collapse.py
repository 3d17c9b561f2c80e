"""A model that does not learn: each node says so, in its record, its log, its status and its metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from node.consensus.record.learning_watch import PATIENCE, LearningWatch
from node.telemetry.metrics import CallTimes
from node.telemetry.monitor import make_metrics
from support.federation.cluster import Cluster
from support.federation.proposing import get_service
from support.federation.runs import NODES, RunTrainer, learn
from support.machines.scrape import Scraped

FEDAVG = {"name": "fedavg", "lr": 0.1, "local_epochs": 1}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_model_that_stands_still_is_told_of_once_it_lasts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At a learning rate of almost nothing the model stays as it was drawn."""

    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await net.wait_for_height(PATIENCE - 1)
        assert get_service(net, "node0").records.learning.lasting == {}
        await net.wait_for_height(PATIENCE + 2)
        service = get_service(net, "node0")
        assert "majority" in service.records.learning.lasting
        metrics = make_metrics(CallTimes(), service, net["node0"].get_context(), "node0")
        scraped = Scraped.read(metrics.encode("")[0].decode())
        assert scraped.get("fednode_not_learning", sign="majority") == 1
        assert scraped.get("fednode_not_learning", sign="worse") == 0
        assert 0 <= scraped.get("fednode_eval_measure", measure="balanced_accuracy") <= 1
        store = net["node0"].get_context().store
        record = store.get_round(PATIENCE)
        assert record is not None
        assert "accuracy" in record["signs"]["majority"]
        assert sum(map(sum, record["measures"]["confusion"])) == trainers[0].client.num_test
        again = LearningWatch.load(store, net["node0"].height)
        assert again.lasting.keys() == service.records.learning.lasting.keys()

    caplog.set_level(logging.WARNING)
    learn(tmp_path, FEDAVG | {"lr": 1e-9}, story, rounds=0)
    told = [record.getMessage() for record in caplog.records if "does not learn" in record.getMessage()]
    assert any("accuracy" in text for text in told)


def test_a_model_that_learns_is_not(tmp_path: Path) -> None:
    async def story(net: Cluster, trainers: list[RunTrainer]) -> None:
        await net.wait_for_height(12)
        for name in NODES:
            assert get_service(net, name).records.learning.lasting == {}

    learn(tmp_path, FEDAVG, story, rounds=0)
