"""`fednode evaluation`, and its section in a report: what each site has signed of a model, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.measures.evaluation import evaluate
from ml.payload import encode_arrays
from ml.specs import get_spec
from ml.specs.run_schema import describe_payloads
from ml.specs.told import tell, tell_nothing
from ml.tasks import CLASSIFICATION
from node.cli import main
from node.training.trainer import Trained
from support.federation.cluster import ScriptedTrainer
from support.federation.ledgers import make_ledgers

Captured = pytest.CaptureFixture[str]
METHOD = {"name": "evaluation", "min_samples": 50, "min_count": 5}
MODEL = {"name": "linear"}
CLASSES = ("benign", "malignant")
SHAPE = [4, 1, 1]


def tell_of(seed: int) -> bytes:
    """What a site measures of a model that answers by chance; the fourth has too few samples."""
    if seed == 3:
        return encode_arrays(tell_nothing(CLASSIFICATION, 2))
    drawn = np.random.default_rng(seed)
    y, said = drawn.integers(0, 2, 60 + seed), drawn.dirichlet((1, 1), 60 + seed)
    measures, intervals = evaluate(y, said.argmax(1), said, ("0", "1"), 20)
    return encode_arrays(tell(CLASSIFICATION, 2, measures, intervals, 5))


class Telling(ScriptedTrainer):
    """Measures what its seed says."""

    async def train(self, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await super().train(height, beacon, **options)
        return Trained(1, {"evaluation": tell_of(self.seed)}, trained.metrics)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evaluated")
    spec = get_spec(METHOD, MODEL, 2, SHAPE, rounds=1, num_members=4)
    arrays = {
        name: np.zeros([int(n) for n in one.shape], one.dtype) for name, one in spec.task.model_schema.arrays.items()
    }
    make_ledgers(
        path,
        1,
        trainers=[Telling(i) for i in range(4)],
        method=METHOD,
        model=MODEL,
        classes=list(CLASSES),
        input={"shape": SHAPE, "resize": None, "mean": [0.0], "std": [1.0]},
        schema=describe_payloads(spec),
        initial_model=encode_arrays({f"model/{name}": array for name, array in arrays.items()}),
    )
    return path / "node0"


def ask(capsys: Captured, data_dir: Path, *words: str, code: int = 0) -> str:
    got = main([*words, "--data-dir", str(data_dir)])
    said = capsys.readouterr()
    assert got == code, said
    return said.err if code else said.out


def test_models_and_sites_are_a_matrix(capsys: Captured, data_dir: Path) -> None:
    head, row, few = ask(capsys, data_dir, "evaluation").splitlines()
    assert head.split() == ["AUC", "OF", "NODE0", "NODE1", "NODE2", "NODE3"]
    assert row.startswith("run 1, round 0 ")
    assert row.count(" to ") == 3
    assert row.endswith("-")
    assert few == "run 1, round 0: fewer than 50 test samples at node3"


def test_one_evaluation_is_shown_class_by_class(capsys: Captured, data_dir: Path) -> None:
    said = ask(capsys, data_dir, "evaluation", "--run", "1")
    assert "MEASURE" in said
    assert [line.split()[2:] for line in said.splitlines() if line.startswith("test samples")] == [["60", "61", "62"]]
    assert said.count("AS malignant") == 3
    assert "rounded down to a multiple of 5" in said


def test_it_is_data_too(capsys: Captured, data_dir: Path) -> None:
    (one,) = json.loads(ask(capsys, data_dir, "evaluation", "--json"))["evaluations"]
    assert (one["run"], one["height"], one["of_run"], one["of_round"]) == (1, 1, 1, 0)
    assert [site["name"] for site in one["sites"]] == ["node0", "node1", "node2", "node3"]
    assert one["sites"][3]["measures"] is None
    first = one["sites"][0]["measures"]
    assert first["num_samples"] == 60
    assert first["intervals"]["auc"]["low"] <= first["summary"]["auc"] <= first["intervals"]["auc"]["high"]
    assert {each["class"] for each in first["classes"]} == set(CLASSES)


def test_the_chain_is_sound_and_the_report_has_it(capsys: Captured, data_dir: Path, tmp_path: Path) -> None:
    ask(capsys, data_dir, "chain", "verify", "--deep", "--require-all")
    ask(capsys, data_dir, "runs", "report", "1", "-o", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert "What the model is worth at every site" in page
    assert "sensitivity, malignant" in page
    assert "nothing is told: node3" in page


def test_a_run_that_is_none_is_named(capsys: Captured, data_dir: Path) -> None:
    assert "run 7 is no evaluation" in ask(capsys, data_dir, "evaluation", "--run", "7", code=3)
