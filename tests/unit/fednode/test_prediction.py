"""Predictions gathered from a node's replies: tables by their labels' column, many samples, and runs with other
classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas
import pytest

import fednode
from fednode import prediction
from fednode.client import find_node
from ml import payload
from ml.data.inference_files import DEFAULT_LABEL
from node.admin.asking import Labelled
from node.admin.client import AdminClient
from node.pb import admin_pb2 as pb

CLASSES = ["benign", "malignant"]
CONFIG = """
node: {name: hospital-a, identity_key_file: keys/a.key, data_dir: data}
genesis_file: genesis.yaml
network: {listen: "127.0.0.1:7050"}
data: {format: csv, path: patients.csv, columns: {label: diagnosis}}
training: {seed: 1}
admin: {socket: run/node.sock}
"""


class Node:
    """Says 1 of a sample whose first feature is above 0. `classes` are those of the run in force."""

    def __init__(self, classes: list[str] = CLASSES, **input_: Any) -> None:
        self.counts: list[int] = []
        self._classes = classes
        self._input = {"shape": [2, 1, 1], **input_}

    def list_runs(self, number: int) -> list[pb.RunView]:
        terms = {"classes": self._classes, "input": self._input}
        return [pb.RunView(number=2, terms=json.dumps(terms))]

    def predict(
        self, samples: bytes, top: int, wait_s: float, *, alone: bool = False, prior: float | None = None
    ) -> pb.PredictReply:
        x = payload.decode_arrays(samples, len(samples))["x"]
        self.counts.append(len(x))
        labels = (x[:, 0, 0, 0] > 0).astype(int)
        return pb.PredictReply(applied_round=len(self.counts), predictions=map(self._say, labels))

    def _say(self, label: int) -> pb.Prediction:
        top = [
            pb.ClassProbability(label=k, class_name=CLASSES[k], probability=0.75 if k == label else 0.25)
            for k in (label, 1 - label)
        ]
        return pb.Prediction(label=label, class_name=CLASSES[label], probability=0.75, top=top)


def predict(node: Node, given: Any, column: str | None = None, default: str = DEFAULT_LABEL) -> fednode.Predictions:
    return prediction.predict(cast(AdminClient, node), given, Labelled(column, default), 1.0)


def test_a_tables_labels_are_in_the_column_that_is_named(tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    table.write_text("radius,diagnosis,texture\n1.5,malignant,2\n-1.5,malignant,3\n")
    said = predict(Node(), table, default="diagnosis")
    assert said.expected is not None
    assert (said.expected.tolist(), said.labels.tolist(), said.accuracy) == ([1, 1], [1, 0], 0.5)
    assert said.probabilities.tolist() == [[0.25, 0.75], [0.75, 0.25]]
    assert [(record["row"], record["expected"], record["correct"]) for record in said.records] == [
        (2, "malignant", True),
        (3, "malignant", False),
    ]
    with pytest.raises(fednode.NodeError, match="expected a column 'outcome' of labels"):
        predict(Node(), table, "outcome")


def test_the_columns_of_a_data_frame_are_matched_by_name(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(columns=[{"name": "radius"}, {"name": "texture"}], missing="zero")
    frame = pandas.DataFrame({"texture": [2, 3], "id": [7, 8], "radius": [1.5, None], "label": ["malignant", "benign"]})
    said = predict(node, frame)
    assert said.labels.tolist() == [1, 0]
    assert said.accuracy == 1.0
    assert [record["notes"] for record in said.records] == [[], ["1 of 2 filled"]]
    assert "1 column passed over, which genesis does not name: 'id'" in caplog.text
    with pytest.raises(fednode.NodeError, match="expected a column 'radius' of genesis"):
        predict(node, frame.drop(columns="radius"))
    assert predict(Node(), frame[["radius", "texture"]].fillna(-1)).labels.tolist() == [1, 0]
    with pytest.raises(fednode.NodeError, match="expected 2 columns of numbers, one for each feature, got 3: texture"):
        predict(Node(), frame)


def test_a_data_frame_with_labels_is_evaluated() -> None:
    node = Node(columns=[{"name": "radius"}, {"name": "texture"}])
    frame = pandas.DataFrame({"texture": range(8), "radius": [1.5, -1.5] * 4, "kind": ["malignant", "benign"] * 4})
    found = prediction.evaluate(cast(AdminClient, node), frame, Labelled("kind"), 10, 1.0)
    assert (found["measures"]["num_samples"], found["measures"]["summary"]["balanced_accuracy"]) == (8, 1.0)
    with pytest.raises(fednode.NodeError, match="expected a label for each sample"):
        prediction.evaluate(cast(AdminClient, node), frame.drop(columns="kind"), Labelled(), 10, 1.0)


def test_more_samples_than_a_request_may_have_are_sent_in_several() -> None:
    node = Node()
    x = np.linspace(-1, 1, 10_000).reshape(5000, 2)
    said = predict(node, x)
    assert node.counts == [2048, 2048, 904]
    assert said.labels.tolist() == (x[:, 0] > 0).astype(int).tolist()
    assert (said.applied_round, said.records[0]["applied_round"], said.records[0]["file"]) == (3, 1, None)


def test_one_sample_of_features_stands_alone() -> None:
    assert predict(Node(), [3.0, 1.0]).names == ("malignant",)


def test_a_model_of_a_run_with_other_classes_is_not_mixed_up_with_the_newest() -> None:
    for classes in (["malignant", "benign"], ["benign"]):
        with pytest.raises(fednode.NodeError, match="the node's model is of a run that has other classes"):
            predict(Node(classes), [[3.0, 1.0]])


def test_a_configuration_names_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednode.client.validate_socket", lambda path: None)
    config = tmp_path / "hospital.yaml"
    config.write_text(CONFIG)
    assert find_node(config, None) == tmp_path / "run" / "node.sock"
    (tmp_path / "without-suffix").write_text(CONFIG)
    assert find_node(str(tmp_path / "without-suffix"), None) == tmp_path / "run" / "node.sock"
    assert find_node("unix:///run/fednode/node.sock", None) == Path("/run/fednode/node.sock")
    config.write_text(CONFIG.replace("hospital-a", "hospital a!"))
    with pytest.raises(fednode.ConfigError, match=r"1 problem in .*hospital\.yaml; .*\n.*node\.name"):
        find_node(config, None)
