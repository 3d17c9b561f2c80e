"""Each optional sink with the package it is made for, read back by that package's own means."""

from __future__ import annotations

import gzip
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from node.telemetry.sinks.base import Point, SinkFailed
from node.telemetry.sinks.point import get_time_s
from support.federation.ports import find_free_ports

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


def make(number: int, accuracy: float) -> Point:
    return {
        "time": f"2026-11-20T14:0{number}:00Z",
        "round": number,
        "height": number,
        "node": "a",
        "accuracy": accuracy,
        "loss": None,
        "seconds": {"train": 2.0},
    }


def test_tensorboard_reads_the_curves_of_every_life(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    from node.telemetry.sinks.tensorboard import TensorBoardSink

    for number in (1, 2):
        sink = TensorBoardSink(tmp_path / "tb")
        sink.write(make(number, number / 4))
        sink.close()
    curves: dict[str, list[tuple[int, float]]] = {}
    times: dict[int, float] = {}
    for file in sorted((tmp_path / "tb").iterdir()):
        data = file.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.simple_value))
                times[event.step] = event.wall_time
    assert {name: sorted(curve) for name, curve in curves.items()} == {
        "accuracy": [(1, 0.25), (2, 0.5)],
        "seconds/train": [(1, 2.0), (2, 2.0)],
    }
    assert times == {number: get_time_s(make(number, 0)) for number in (1, 2)}  # not when they were written


def test_tensorboard_itself_shows_one_run(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("tensorboardX")
    from node.telemetry.sinks.tensorboard import TensorBoardSink

    for number in (1, 2):
        sink = TensorBoardSink(tmp_path)
        sink.write(make(number, number / 4))
        sink.close()
    shown = accumulator.EventAccumulator(str(tmp_path))
    shown.Reload()
    assert sorted(shown.Tags()["scalars"]) == ["accuracy", "seconds/train"]
    assert [(one.step, one.value) for one in shown.Scalars("accuracy")] == [(1, 0.25), (2, 0.5)]


@contextmanager
def collector(answer: int = 200) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An OpenTelemetry collector's door: where it is, and what came."""
    came: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.path, gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body))
            self.send_response(answer)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", came
        server.shutdown()


def test_a_collector_is_sent_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    from node.telemetry.sinks.otlp import OtlpSink

    with collector() as (place, came):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", place)
        sink = OtlpSink(node="hospital-a", node_id="k5ry", chain_id="7c1f")
        sink.write(make(1, 0.25))
        sink.write(make(2, 0.5))
        sink.close()
    assert {path for path, _ in came} == {"/v1/metrics"}
    sent = []
    for _, body in came[:2]:
        [resource] = ExportMetricsServiceRequest.FromString(body).resource_metrics
        told = {one.key: one.value.string_value for one in resource.resource.attributes}
        assert (told["service.name"], told["service.instance.id"], told["fednode.node"]) == (
            "fednode",
            "k5ry",
            "hospital-a",
        )
        [scope] = resource.scope_metrics
        sent.append({metric.name: metric.gauge.data_points[0].as_double for metric in scope.metrics})
        assert {metric.name: metric.unit for metric in scope.metrics} == {
            "fednode.round.number": "",
            "fednode.round.accuracy": "",
            "fednode.round.seconds.train": "s",
        }
    assert sent == [
        {"fednode.round.number": n, "fednode.round.accuracy": n / 4, "fednode.round.seconds.train": 2} for n in (1, 2)
    ]


def test_a_collector_that_refuses_is_a_failure_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from node.telemetry.sinks.otlp import OtlpSink

    with collector(answer=404) as (place, _):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", place)
        sink = OtlpSink(node="a", node_id="b", chain_id="c")
        with pytest.raises(SinkFailed, match="404"):
            sink.write(make(1, 0.25))
        sink.close()
    assert not logging.getLogger("opentelemetry.exporter.otlp").propagate  # it is said once, by whoever asked


def test_mlflow_has_one_run_for_all_lives_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    from node.telemetry.sinks.mlflow import MlflowSink

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    for number in (1, 2):
        sink = MlflowSink(uri, experiment="fednode demo", node="hospital-a", data_dir=tmp_path)
        sink.write(make(number, number / 4))
        sink.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("fednode demo")
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("hospital-a", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.25), (2, 0.5)]
    assert run.data.metrics["seconds/train"] == 2.0
    assert [metric.timestamp for metric in history] == [1000 * get_time_s(make(number, 0)) for number in (1, 2)]


def test_an_mlflow_that_is_away_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from node.telemetry.sinks.mlflow import MlflowSink

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    sink = MlflowSink("http://127.0.0.1:1", experiment="e", node="a", data_dir=tmp_path)
    with pytest.raises(SinkFailed):
        sink.write(make(1, 0.25))


@pytest.mark.long
def test_mlflow_has_the_rounds_also_of_the_time_before_its_server_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own server over HTTP: first away, then there, at last hanging, when nobody waits for it."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("flask", reason="mlflow-skinny has no server: it comes with the whole mlflow")
    from node.telemetry.sinks.base import SinkThread
    from node.telemetry.sinks.mlflow import MlflowSink

    [port] = find_free_ports(1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "9")  # on a busy machine its start takes minutes
    uri = f"http://127.0.0.1:{port}"
    thread = SinkThread("mlflow", MlflowSink(uri, experiment="fednode demo", node="hospital-a", data_dir=tmp_path))
    thread.put(make(1, 0.25))
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--artifacts-destination", str(tmp_path)]
    env = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    with subprocess.Popen(command, env=env, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True) as server:
        try:
            await_port(port)
            for number in (2, 3):
                thread.put(make(number, number / 4))
            client = mlflow.MlflowClient(tracking_uri=uri)
            deadline_s = time.monotonic() + 480
            found: list[tuple[int, float]] = []
            while found != [(1, 0.25), (2, 0.5), (3, 0.75)]:
                assert time.monotonic() < deadline_s, found
                time.sleep(0.2)
                if (experiment := client.get_experiment_by_name("fednode demo")) is not None:
                    for run in client.search_runs([experiment.experiment_id]):
                        history = client.get_metric_history(run.info.run_id, "accuracy")
                        found = sorted((metric.step, metric.value) for metric in history)
            os.killpg(server.pid, signal.SIGSTOP)
            thread.put(make(4, 1.0))
            thread.close(0.1)  # returns
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def await_port(port: int) -> None:
    deadline_s = time.monotonic() + 480
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s, "the server does not listen"
            time.sleep(0.2)
        else:
            return
