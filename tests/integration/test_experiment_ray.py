"""Sweeps on a Ray cluster: two machines in this one, of which one is lost, and their results all here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.experiments.plan import Experiment
from node.experiments.runner import Progress, Where, run_experiment, take_stock
from support.data.experiments import make_experiment

pytestmark = pytest.mark.slow

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install '.[ray]'")

TEXT = """\
name: far
base: {clients: 3, rounds: 3, shots: 10, method: {local_iterations: 2}}
sweep:
  method: [local, dfpl]
  seed: [1, 2, 3]
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that computes nothing, and two machines of one core each, which are missed soon."""
    system = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": system})
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    try:
        yield made
    finally:
        made.shutdown()


def run_on_ray(experiment: Experiment, directory: Path, **settings: Any) -> Iterator[Progress]:
    where = Where(ray="ray", **settings)
    pending = take_stock(experiment, directory).list_pending(experiment)
    return run_experiment(
        experiment, directory, pending, jobs=None, data_root=directory, should_stop=lambda: False, where=where
    )


def test_a_machine_lost_in_mid_sweep_costs_time_and_nothing_else(tmp_path: Path, cluster: Any) -> None:
    machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    experiment = make_experiment(tmp_path, TEXT, "base.rounds=150")
    ended: list[Progress] = []
    began: set[str] = set()
    for news in run_on_ray(experiment, tmp_path):
        began.add(news.run.id)
        if news.done:
            ended.append(news)
        if len(began) == 2 and machines:  # both are at work
            cluster.remove_node(machines.pop(), allow_graceful=False)
            machines.clear()
    assert [news.error for news in ended] == [None] * 6
    stock = take_stock(experiment, tmp_path)
    assert len(stock.finished) == 6

    alone = tmp_path / "alone"
    runs = list(experiment.runs.values())
    list(run_experiment(experiment, alone, runs, jobs=2, data_root=tmp_path, should_stop=lambda: False))
    here = take_stock(experiment, alone).finished
    for run_id, result in stock.finished.items():
        assert [row.taa for row in result.rounds] == [row.taa for row in here[run_id].rounds]


def test_stopping_leaves_the_cluster_free_for_the_same_command(tmp_path: Path, cluster: Any) -> None:
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    endless = make_experiment(tmp_path, TEXT, "base.rounds=100000")
    news = run_on_ray(endless, tmp_path / "endless")
    assert not next(news).done
    news.close()  # type: ignore[attr-defined]  # it is a generator
    began_s = time.monotonic()
    short = make_experiment(tmp_path, TEXT, "sweep.seed=[1]")
    done = [one for one in run_on_ray(short, tmp_path / "short") if one.done]
    assert ([one.error for one in done], time.monotonic() - began_s < 60) == ([None, None], True)
