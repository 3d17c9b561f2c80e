"""`fednode.LocalCluster`: real nodes for the time of a block, and nothing of them afterwards."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fednode
import support
from node.host.forking import is_supported
from node.host.procfs import get_pss_mb
from node.testnet.running import is_running
from support.data import user_models
from support.faults.foreign_names import make_environment, make_hostile_directory
from support.federation.processes import get_parent

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.e2e

SMALL: dict[str, Any] = {"method": "fedavg", "partition": "iid", "settings": {"local_iterations": 2}}
PROGRAM = """
import json
import fednode

with fednode.LocalCluster(2, method="fedavg", rounds=2, partition="iid", settings={"local_iterations": 2}) as cluster:
    cluster.wait(1)
    heights = [status["height"] for status in cluster.status().values()]
    cluster.wait()
    accuracies = [record["accuracy"] for record in cluster.rounds("node1")]
    pids = [status["pid"] for status in cluster.status().values()]
    directory = str(cluster.directory)
print(json.dumps({"heights": heights, "accuracies": accuracies, "pids": pids, "directory": directory}))
"""


def get_workers(cluster: fednode.LocalCluster) -> list[int | None]:
    return [None if status is None else status["worker_pid"] for status in cluster.status().values()]


def get_pids(cluster: fednode.LocalCluster) -> list[int]:
    statuses = cluster.status().values()
    assert all(status is not None for status in statuses)
    return [pid for status in statuses if status is not None for pid in (status["pid"], status["worker_pid"])]


@pytest.mark.outer
def test_a_program_among_modules_of_our_names_runs_a_cluster(tmp_path: Path) -> None:
    place = make_hostile_directory(tmp_path / "place")
    command, environment = [sys.executable, "-c", PROGRAM], make_environment(place)
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert min(told["heights"]) >= 1
    assert len(told["accuracies"]) == 2
    assert all(0 <= accuracy <= 1 for accuracy in told["accuracies"])
    assert not any(map(is_running, told["pids"]))
    assert not Path(told["directory"]).exists()


def test_an_error_in_the_block_stops_the_nodes_and_keeps_a_directory_that_was_given(tmp_path: Path) -> None:
    cluster = fednode.LocalCluster(2, rounds=0, directory=tmp_path / "net", **SMALL)
    pids: list[int] = []

    def use() -> None:
        with cluster:
            cluster.wait(1)
            pids.extend(get_pids(cluster))
            assert all(map(is_running, pids))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert len(pids) == 4
    assert not any(map(is_running, pids))
    assert (tmp_path / "net" / "node0.yaml").exists()
    with pytest.raises(fednode.NodeError, match="expected a cluster that runs"):
        cluster.status()
    with pytest.raises(fednode.ConfigError, match="expected a new or empty directory"):
        cluster.__enter__()


@pytest.mark.outer
@pytest.mark.skipif(not is_supported(), reason="Linux alone can share")
def test_nodes_share_what_they_import_and_go_on_alone_where_the_server_is_gone() -> None:
    with fednode.LocalCluster(2, rounds=0, **SMALL) as cluster:
        cluster.wait(1)
        before = get_pids(cluster)
        (server,) = set(map(get_parent, before))
        assert sum(map(get_pss_mb, before)) < 300  # of two workers alone it would be more
        os.kill(server, signal.SIGKILL)
        while {*before, None} & set(get_workers(cluster)):
            time.sleep(0.1)
        daemons, workers = get_pids(cluster)[::2], get_pids(cluster)[1::2]
        assert daemons == before[::2]
        assert list(map(get_parent, workers)) == daemons
        cluster.wait(1 + max(record["round"] for record in cluster.rounds("node0")))


@pytest.mark.outer
def test_what_a_cluster_cannot_be_asked_is_told() -> None:
    with fednode.LocalCluster(1, rounds=0, **SMALL) as cluster:
        cluster.wait(1)
        assert cluster.names == ("node0",)
        assert "round" in cluster.read_log("node0").lower()
        with pytest.raises(fednode.NodeError, match="expected one of node0, got 'node2'"):
            cluster.rounds("node2")
        with pytest.raises(fednode.NodeError, match="goes on without end"):
            cluster.wait()


@pytest.mark.outer
def test_a_node_that_ends_by_itself_is_told_with_its_log() -> None:
    with fednode.LocalCluster(1, rounds=0, **SMALL) as cluster:
        cluster.wait(1)
        (pid, _) = get_pids(cluster)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(fednode.NodeError, match=r"(?s)node0 ended with exit code -9:.*round"):
            cluster.wait(1_000_000)


@pytest.mark.outer
async def test_it_works_beside_a_running_loop_and_says_what_is_out_of_reach() -> None:
    await asyncio.sleep(0)
    with fednode.LocalCluster(1, rounds=1, **SMALL) as cluster:
        with pytest.raises(fednode.NodeError, match=r"round: expected 1 to 1 \(got 2\)"):
            cluster.wait(2)
        cluster.wait()
        assert [record["round"] for record in cluster.rounds("node0")] == [1]
        with pytest.raises(fednode.NodeError, match="runs already"):
            cluster.__enter__()
    assert repr(cluster) == "<LocalCluster of 1 nodes, fedavg: not running>"


def test_what_cannot_be_made_is_a_configuration_error() -> None:
    with pytest.raises(fednode.ConfigError, match="nodes: expected at least 1"), fednode.LocalCluster(0):
        pass


@pytest.mark.slow
def test_sites_are_given_as_objects_and_train_as_their_simulation_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One a site, columns in another order, and a model by its own function; the samples stay with the directory."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(support.__path__[0]).parent), *sys.path]))
    rng = np.random.default_rng(1)
    tables = []
    for size in (80, 120):
        a, b = rng.normal(size=(2, size))
        tables.append(pandas.DataFrame({"a": a, "b": b, "outcome": np.where(a > b, "above", "below")}))
    tables[1] = tables[1][["outcome", "b", "a"]]
    given: dict[str, Any] = {
        "data": [(table, "outcome") for table in tables],
        "model": user_models.Normed,
        "method": "fedavg",
        "rounds": 2,
        "settings": {"local_iterations": 20, "lr": 0.1, "input.normalize": "auto"},
    }
    simulated = fednode.simulate(**given)
    with fednode.LocalCluster(directory=tmp_path / "net", **given) as cluster:
        assert cluster.names == ("node0", "node1")
        cluster.wait()
        with cluster.connect("node1") as node:
            said = node.predict(tables[0], answer_by="federation")
            turned = node.predict(tables[0][["b", "outcome", "a"]], answer_by="federation")
            assert said.labels.tolist() == turned.labels.tolist()
            as_simulated = simulated.predict(tables[0], node=1).probabilities
            assert said.probabilities == pytest.approx(as_simulated, abs=1e-4)  # sums are in the order of random keys
            found = node.evaluate((tables[0][["a", "b"]], tables[0]["outcome"]), resamples=0)
            assert found["measures"]["summary"]["accuracy"] == said.accuracy
            model = node.model(plugins=["support"])
            x = torch.tensor(tables[0][["a", "b"]].to_numpy(np.float32))[:, :, None, None]
            assert said.labels.tolist() == model(x).argmax(1).tolist()
            with pytest.raises(fednode.NodeError, match="is code of the plugin support: expected plugins to name it"):
                node.model()
    assert (tmp_path / "net-data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "net-data" / "site0" / "train.csv").exists()


def test_objects_that_cannot_be_read_leave_nothing_behind(tmp_path: Path) -> None:
    x = np.zeros((8, 2, 2))
    for labels, nodes, message in (([0, 1], 2, r"data: y: expected shape \[8\]"), ([0, 1] * 4, 0, "nodes: expected")):
        with (
            pytest.raises(fednode.ConfigError, match=message),
            fednode.LocalCluster(nodes, data=(x, labels), directory=tmp_path / "net"),
        ):
            pass
    (tmp_path / "net-data").mkdir()
    with (
        pytest.raises(fednode.ConfigError, match="net-data: expected no such file, for data"),
        fednode.LocalCluster(data=(x, [0, 1] * 4), directory=tmp_path / "net"),
    ):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["net-data"]


def test_a_model_that_nodes_would_not_find_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lonely_net.py").write_text("def make(input_shape, num_classes):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    lonely = importlib.import_module("lonely_net")
    with (
        pytest.raises(
            fednode.ConfigError, match=f"model: expected lonely_net in the working directory or .*{tmp_path}"
        ),
        fednode.LocalCluster(2, model=lonely.make),
    ):
        pass
