"""Sweeps on a Ray cluster: two machines in this one, of which one is lost, and their results all here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.experiments.plan import Experiment
from node.experiments.runner import Progress, Where, run_experiment
from node.experiments.stock import take_stock
from support.data.experiments import make_experiment
from support.federation.real_nodes import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.outer]

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install '.[ray]'")

TEXT = """\
name: far
base: {clients: 3, rounds: 3, shots: 10, method: {local_iterations: 2}}
sweep:
  method: [local, dfpl]
  seed: [1, 2]
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that computes nothing, and two machines of one core each, which are missed soon."""
    system = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
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


def list_processes(pid: int) -> list[int]:
    """A process and all that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in list_processes(int(child)))]


@contextmanager
def hung(machine: Any) -> Iterator[None]:
    """A machine that answers nothing any more, though nobody has closed its connections."""
    processes = [pid for own in machine.all_processes["raylet"] for pid in list_processes(own.process.pid)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_a_machine_lost_in_mid_sweep_costs_time_and_nothing_else(tmp_path: Path, cluster: Any, how: str) -> None:
    machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    experiment = make_experiment(tmp_path, TEXT, "base.rounds=150")
    ended: list[Progress] = []
    began: set[str] = set()
    with ExitStack() as stack:
        for news in run_on_ray(experiment, tmp_path):
            began.add(news.run.id)
            if news.done:
                ended.append(news)
            if len(began) == 2 and machines:  # both are at work
                lost = machines.pop()
                machines.clear()
                if how == "killed":
                    cluster.remove_node(lost, allow_graceful=False)
                else:
                    stack.enter_context(hung(lost))
    assert [news.error for news in ended] == [None] * 4
    stock = take_stock(experiment, tmp_path)
    assert len(stock.finished) == 4

    alone = tmp_path / "alone"
    runs = list(experiment.runs.values())
    list(run_experiment(experiment, alone, runs, jobs=2, data_root=tmp_path, should_stop=lambda: False))
    here = take_stock(experiment, alone).finished
    for run_id, result in stock.finished.items():
        assert [row.taa for row in result.rounds] == [row.taa for row in here[run_id].rounds]


def test_a_signal_ends_a_sweep_on_a_cluster_of_its_own_as_it_does_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    text = TEXT.replace("rounds: 3, ", "").replace("sweep:", "sweep:\n  rounds: [2, 100000]").replace("[1, 2]", "[1]")
    (tmp_path / "it.yaml").write_text(text)
    command = [sys.executable, "-m", "node.cli", "experiment", "run", "it.yaml", "-o", "out", "--on", "ray", "-j", "1"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert "1/4  " in process.stdout.readline()
        process.terminate()
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    assert "runs are left; the same command goes on with them" in err
    assert "done before; now " in out


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
