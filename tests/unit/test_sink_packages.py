"""Each optional sink with the package it is made for, read back by that package's own means."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from node.sinks.base import Point, SinkFailed

pytestmark = pytest.mark.filterwarnings("ignore")  # of packages that are not ours


def make(number: int, accuracy: float) -> Point:
    return {
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

    from node.sinks.tensorboard import TensorBoardSink

    for number in (1, 2):
        sink = TensorBoardSink(tmp_path / "tb")
        sink.write(make(number, number / 4))
        sink.close()
    curves: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((tmp_path / "tb").iterdir()):
        data = file.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    assert {name: sorted(curve) for name, curve in curves.items()} == {
        "accuracy": [(1, 0.25), (2, 0.5)],
        "seconds/train": [(1, 2.0), (2, 2.0)],
    }


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

    from node.sinks.otlp import OtlpSink

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
    assert sent == [
        {"fednode.round.number": n, "fednode.round.accuracy": n / 4, "fednode.round.seconds.train": 2} for n in (1, 2)
    ]


def test_a_collector_that_refuses_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from node.sinks.otlp import OtlpSink

    with collector(answer=400) as (place, _):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", place)
        sink = OtlpSink(node="a", node_id="b", chain_id="c")
        with pytest.raises(SinkFailed):
            sink.write(make(1, 0.25))
        sink.close()


def test_mlflow_has_one_run_for_all_lives_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    from node.sinks.mlflow import MlflowSink

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


def test_an_mlflow_that_is_away_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from node.sinks.mlflow import MlflowSink

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    sink = MlflowSink("http://127.0.0.1:1", experiment="e", node="a", data_dir=tmp_path)
    with pytest.raises(SinkFailed):
        sink.write(make(1, 0.25))
