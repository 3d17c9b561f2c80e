"""Curves for MLflow: one experiment a federation, one run a node, which the node continues after a restart."""

from __future__ import annotations

import logging
import os
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow would report its use to its makers
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")  # retries for a minute, while other points wait

import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, RunStatus
from mlflow.exceptions import MlflowException

from node.telemetry.sinks.base import Point, SinkFailed
from node.telemetry.sinks.point import get_time_s, list_scalars

logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # else it warns at each try

RUN_FILE = "mlflow_run"  # in the data directory: the id of this node's run


class MlflowSink:
    """Writes points to MLflow. It connects with the first point, so that a node starts even if MLflow does not
    answer."""

    def __init__(self, uri: str, *, experiment: str, node: str, data_dir: Path) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        self._experiment = experiment
        self._node = node
        self._file = data_dir / RUN_FILE
        self._run_id: str | None = None

    def write(self, point: Point) -> None:
        at_ms = int(get_time_s(point) * 1000)
        try:
            if self._run_id is None:
                self._run_id = self._open_run()
            metrics = [Metric(name, value, at_ms, point["round"]) for name, value in list_scalars(point)]
            self._client.log_batch(self._run_id, metrics=metrics)
        except (MlflowException, requests.RequestException, OSError) as error:
            raise SinkFailed(str(error).partition("\n")[0]) from error

    def _open_run(self) -> str:
        """Returns the run from before a restart, if MLflow still has it, else a new one."""
        if self._file.exists():
            run_id = self._file.read_text().strip()
            try:
                self._client.update_run(run_id, status=RunStatus.to_string(RunStatus.RUNNING))
            except MlflowException:
                pass
            else:
                return run_id
        experiment = self._client.get_experiment_by_name(self._experiment)
        experiment_id = (
            self._client.create_experiment(self._experiment) if experiment is None else experiment.experiment_id
        )
        run_id = str(self._client.create_run(experiment_id, run_name=self._node).info.run_id)
        self._file.write_text(f"{run_id}\n")
        return run_id

    def close(self) -> None:
        if self._run_id is None:
            return
        try:
            self._client.set_terminated(self._run_id)
        except (MlflowException, requests.RequestException, OSError) as error:
            raise SinkFailed(str(error).partition("\n")[0]) from error
