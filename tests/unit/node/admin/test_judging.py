"""An evaluation of a table's rows: at a threshold, and by the values of a column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ml.measures.evaluation import evaluate
from ml.payload import decode_arrays
from node.admin.asking import Labelled
from node.admin.client import AdminClient
from node.admin.judging import Details, Evaluation, evaluate_node
from node.cli.model.evaluation import print_groups, print_points
from node.errors import NodeError
from node.pb import admin_pb2 as pb

CLASSES = ("well", "ill")
TERMS = {
    "input": {"shape": [1, 1, 1], "columns": [{"name": "risk"}], "empty": ["?"]},
    "classes": CLASSES,
}


class Answering:
    """A node whose model takes a sample's one number for the probability of the last class."""

    def __init__(self, **terms: Any) -> None:
        self._terms = TERMS | terms
        self.sent: list[np.ndarray] = []

    def list_runs(self, number: int) -> list[pb.RunView]:
        return [pb.RunView(terms=json.dumps(self._terms))]

    def get_config(self) -> dict[str, Any]:
        return {"training": {"answer_by": "federation"}}

    def predict(self, samples: bytes, top: int, wait_s: float, **_: Any) -> pb.PredictReply:
        x = decode_arrays(samples, len(samples))["x"]
        self.sent.append(x)
        reply = pb.PredictReply(applied_round=3, run=1)
        for p in x[:, 0, 0, 0].tolist():
            shares = np.append(np.full(len(self._terms["classes"]) - 1, 1 - p), p)
            said = reply.predictions.add(label=int(shares.argmax()), probability=float(shares.max()))
            said.class_name = self._terms["classes"][said.label]
            for i, name in enumerate(self._terms["classes"]):
                said.top.add(label=i, class_name=name, probability=float(shares[i]))
        return reply


def write_table(path: Path) -> tuple[list[float], list[int], list[str]]:
    """Sixty rows: what the model goes by, what they are, and a column that the run does not name."""
    rng = np.random.default_rng(5)
    y = np.arange(60) % 2
    risk = np.round(np.clip(0.25 + 0.4 * y + rng.normal(0, 0.2, 60), 0.01, 0.99), 3)
    sex = ["?" if i == 7 else "f" if i < 5 else "m" if i < 30 else "d" for i in range(60)]
    rows = [f"{risk[i]},{sex[i]},{20 + i},{CLASSES[y[i]]}" for i in range(60)]
    path.write_text("\n".join(["risk,sex,age,label", *rows]) + "\n")
    return risk.tolist(), y.tolist(), sex


def evaluate_table(path: Path, node: Answering | None = None, **details: Any) -> Evaluation:
    asked = cast(AdminClient, node or Answering())
    return evaluate_node(asked, [path], Labelled(), resamples=20, timeout_s=1, details=Details(**details))


def test_the_rows_of_each_value_are_measured_and_few_are_counted(tmp_path: Path) -> None:
    risk, y, sex = write_table(tmp_path / "test.csv")
    node = Answering()
    found = evaluate_table(tmp_path / "test.csv", node, by="sex")
    assert [(one.value, one.num_samples) for one in found.groups] == [("d", 30), ("f", 5), ("m", 24), ("(empty)", 1)]
    assert [one.measures is None for one in found.groups] == [False, True, False, True]
    [sent] = node.sent
    assert sent.shape == (60, 1, 1, 1)  # of the other columns the node hears nothing
    at = np.array([i for i in range(60) if sex[i] == "m"])
    ill = np.array(risk, np.float32).astype(np.float64)[at]
    said = np.stack([1 - ill, ill], 1)
    measures, intervals = evaluate(np.array(y)[at], said.argmax(1), said, CLASSES, 20)
    shown = found.groups[2].measures
    assert shown is not None
    assert dict(shown.summary) == pytest.approx(measures.summarise())
    assert (shown.intervals["auc"].low, shown.intervals["auc"].high) == pytest.approx(tuple(intervals["auc"]))
    record = json.loads(json.dumps(found.to_record()))
    assert record["groups"][1] == {"value": "f", "num_samples": 5, "measures": None}
    assert record["points"] == []
    assert evaluate_table(tmp_path / "test.csv").groups == ()


def test_numbers_are_ranges_and_a_column_is_one_of_the_table(tmp_path: Path) -> None:
    write_table(tmp_path / "test.csv")
    cut = evaluate_table(tmp_path / "test.csv", by="age", cuts=(30, 60))
    assert [(one.value, one.num_samples) for one in cut.groups] == [
        ("below 30", 10),
        ("30 to below 60", 30),
        ("60 or more", 20),
    ]
    assert [one.num_samples for one in evaluate_table(tmp_path / "test.csv", by="age").groups] == [15] * 4
    assert len(evaluate_table(tmp_path / "test.csv", by="risk").groups) == 4  # that the run names
    for by, cuts, said in (
        ("agee", (), "did you mean 'age'"),
        ("sex", (1.0,), "sex: expected a column of numbers"),
    ):
        with pytest.raises(NodeError, match=said):
            evaluate_table(tmp_path / "test.csv", by=by, cuts=cuts)
    np.savez(tmp_path / "test.npz", x=np.zeros((2, 1), np.float32), y=np.array([0, 1]))
    with pytest.raises(NodeError, match="expected a table, which has a column 'sex'"):
        evaluate_table(tmp_path / "test.npz", by="sex")


def test_a_threshold_is_of_the_second_class_or_of_one_that_is_named(tmp_path: Path) -> None:
    risk, y, _ = write_table(tmp_path / "test.csv")
    [point] = evaluate_table(tmp_path / "test.csv", threshold=0.3, prevalence=0.1).points
    called = np.array(risk) >= 0.3
    assert (point.name, point.prevalence, point.num_called) == ("ill", 0.1, called.sum())
    assert point.get_values()["sensitivity"] == called[np.array(y) == 1].mean()
    [other] = evaluate_table(tmp_path / "test.csv", positive="well").points
    assert (other.name, other.threshold, other.prevalence) == ("well", 0.5, 0.5)
    for terms, details, said in (
        ({}, {"positive": "sick"}, "expected one of well, ill for a threshold, got 'sick'"),
        ({"classes": ("a", "b", "c")}, {"threshold": 0.5}, "to be named for a threshold, as there are many"),
        ({"task": "regression"}, {"threshold": 0.5}, "this one is a regression"),
        ({}, {"prevalence": 1.0}, "prevalence: expected more than 0 and less than 1, got 1"),
        ({}, {"prevalence": float("nan")}, "prevalence: expected more than 0 and less than 1, got nan"),
        ({}, {"threshold": 1.5}, "threshold: expected a probability, got 1.5"),
    ):
        node = Answering(**terms)
        with pytest.raises(NodeError, match=said):
            evaluate_table(tmp_path / "test.csv", node, **details)
        assert node.sent == []


def test_both_are_tables_that_people_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path / "test.csv")
    found = evaluate_table(tmp_path / "test.csv", by="sex", threshold=0.3, prevalence=0.1)
    print_points(found.points)
    print_groups("sex", found.groups)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "CLASS",
        "THRESHOLD",
        "PREVALENCE",
        "CALLED",
        "SENSITIVITY",
        "SPECIFICITY",
        "PPV",
        "NPV",
    ]
    assert lines[2].split()[:3] == ["ill", "0.3", "0.100"]
    assert lines[4].split()[:4] == ["BY", "sex", "SAMPLES", "AUC"]
    assert lines[6].split() == ["f", "5", "-", "-", "-", "-"]
    assert [line.split()[:3] for line in lines[10:]] == [
        ["CLASS", "BY", "sex"],
        ["well", "d", "15"],
        ["well", "m", "12"],
        ["ill", "d", "15"],
        ["ill", "m", "12"],
    ]
    print_points(())
    print_groups("sex", ())
    assert capsys.readouterr().out == ""
