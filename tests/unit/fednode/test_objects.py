"""Objects in the place of names and files: data and models that are given, and a model that is asked afterwards."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch.utils.data import Dataset, TensorDataset

import fednode
from support.data import user_models

FEW: dict[str, Any] = {"method": "fedavg", "rounds": 1, "settings": {"local_iterations": 3, "lr": 0.1}}
SMALL: dict[str, Any] = {**FEW, "nodes": 2, "partition": "iid"}
X = np.random.default_rng(1).random((60, 4, 4), np.float32)
Y = np.arange(60) % 3


@pytest.fixture(scope="module")
def images() -> fednode.Simulation:
    return fednode.simulate(data=(X, Y), **SMALL)


@pytest.fixture(scope="module")
def table() -> Any:
    """The columns of a table, on scales that a model can be trained on."""
    pytest.importorskip("pandas")
    frame = load_breast_cancer(as_frame=True).frame
    frame = frame.loc[:199, ["mean radius", "mean texture", "mean smoothness", "target"]]
    return frame.assign(target=frame["target"].map({0: "malignant", 1: "benign"}))


@pytest.fixture(scope="module")
def patients(table: Any) -> fednode.Simulation:
    settings = {"local_iterations": 30, "lr": 0.1, "input.normalize": "auto"}
    return fednode.simulate(data=(table, "target"), **{**SMALL, "settings": settings})


def test_arrays_and_datasets_are_trained_on_as_their_file_is(images: fednode.Simulation, tmp_path: Path) -> None:
    np.savez(tmp_path / "same.npz", x=X, y=Y)
    by_file = fednode.simulate(data=tmp_path / "same.npz", **SMALL)
    by_dataset = fednode.simulate(data=TensorDataset(torch.tensor(X), torch.tensor(Y)), **SMALL)
    assert images.rounds == by_file.rounds == by_dataset.rounds
    assert images.to_json() == by_dataset.to_json()
    assert images.to_json()["config"]["data"] == {"format": "npz"}


def test_a_run_tells_of_all_measures(images: fednode.Simulation) -> None:
    assert len(images.measures) == 2
    for measures, accuracy in zip(images.measures, images.accuracies, strict=True):
        assert measures is not None
        assert measures["summary"]["accuracy"] == pytest.approx(accuracy)
        assert {"auc", "balanced_accuracy", "macro_f1"} <= measures["summary"].keys()
        assert [each["class"] for each in measures["classes"]] == ["0", "1", "2"]


def test_a_run_predicts_and_is_evaluated(images: fednode.Simulation) -> None:
    said = images.predict(X)
    assert (said.probabilities.shape, said.accuracy, said.applied_round) == ((60, 3), None, 1)
    model = images.model()
    with torch.no_grad():
        logits = model(torch.tensor(X[:, None]))
    assert said.labels.tolist() == logits.argmax(1).tolist()
    assert said.probabilities == pytest.approx(logits.softmax(1).numpy(), abs=1e-6)
    for given in ((X, Y), (torch.tensor(X), Y), {"x": X, "y": Y}, TensorDataset(torch.tensor(X), torch.tensor(Y))):
        found = images.evaluate(given, node=1, resamples=0)
        assert found["measures"]["summary"]["accuracy"] == pytest.approx(float(np.mean(said.labels == Y)))
        assert found["measures"]["num_samples"] == 60
        assert found["alone"] is None
        assert images.predict(given).labels.tolist() == said.labels.tolist()


def test_each_nodes_own_model_is_asked() -> None:
    run = fednode.simulate(data=(X, Y), **{**SMALL, "method": "local"})
    first, second = (dict(run.model(node).named_parameters()) for node in (0, 1))
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert run.predict(X, prior=1.0).probabilities.shape == (60, 3)
    with pytest.raises(fednode.ConfigError, match=r"node: expected 0 to 1 \(got 2\)"):
        run.predict(X, node=2)


class Mixed(Dataset[Any]):
    """Images of two sizes and no labels."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(4, 4) if i < 3 else torch.zeros(8, 8)


def test_a_datasets_samples_are_classified_in_their_order(images: fednode.Simulation) -> None:
    said = images.predict(Mixed())
    assert [record["row"] for record in said.records] == [0, 1, 2, 3, 4]
    assert said.accuracy is None


def test_a_frames_columns_are_found_by_name(patients: fednode.Simulation, table: Any) -> None:
    assert patients.accuracy > 0.8
    said = patients.predict(table)
    assert said.accuracy is not None
    assert said.accuracy > 0.8
    turned = table[table.columns[::-1]].assign(more="words")
    assert patients.predict(turned).labels.tolist() == said.labels.tolist()
    bare = table.drop(columns="target")
    with torch.no_grad():
        logits = patients.model()(torch.tensor(bare.to_numpy(np.float32))[:, :, None, None])
    assert logits.argmax(1).tolist() == said.labels.tolist()
    assert patients.predict(bare).labels.tolist() == said.labels.tolist()
    found = patients.evaluate((bare, table["target"]), resamples=0)
    assert found["measures"]["summary"]["accuracy"] == said.accuracy
    half = table.assign(more=["a", "b"] * (len(table) // 2) + ["a"] * (len(table) % 2))
    grouped = patients.evaluate(half, resamples=0, by="more", threshold=0.9, prevalence=0.1)
    assert [(one["value"], one["num_samples"]) for one in grouped["groups"]] == [
        (value, (half["more"] == value).sum()) for value in ("a", "b")
    ]
    [point] = grouped["points"]
    assert point["values"].keys() == {"sensitivity", "specificity", "ppv", "npv"}
    assert grouped["measures"] == found["measures"]
    with pytest.raises(fednode.ConfigError, match="expected a column 'mean texture' of genesis"):
        patients.predict(table.drop(columns="mean texture"))


def test_a_site_has_its_own_object_and_its_columns_in_another_order(table: Any) -> None:
    settings = {"local_iterations": 30, "lr": 0.1, "input.normalize": "auto"}
    sites = [table[:60], table[60:130][table.columns[::-1]], table[130:]]
    run = fednode.simulate(data=[(site, "target") for site in sites], **{**FEW, "settings": settings})
    assert len(run.accuracies) == 3
    assert np.mean(run.accuracies) > 0.7
    assert run.accuracies[1] > 0.7
    assert run.evaluate(table, resamples=0)["measures"]["summary"]["accuracy"] > 0.8


def test_a_run_is_evaluated_by_the_labels_that_mean_each_class(table: Any) -> None:
    grades = table.assign(target=np.where(table["target"] == 1, 0, 1 + np.arange(len(table)) % 3))
    settings = {**SMALL["settings"], "classes": {"benign": [0], "malignant": [1, 2, 3]}, "input.normalize": "auto"}
    run = fednode.simulate(data=(grades, "target"), **{**SMALL, "settings": settings})
    said = run.predict(grades)
    found = run.evaluate((grades, "target"), resamples=0)
    right = said.labels == (grades["target"].to_numpy() > 0)
    assert found["measures"]["summary"]["accuracy"] == said.accuracy == pytest.approx(right.mean())


def test_words_in_a_frame_are_for_the_run_to_say(table: Any) -> None:
    worded = table.assign(size=np.where(table["mean radius"] > 14, "large", "small"))
    with pytest.raises(fednode.ConfigError, match=r"data: of \d+ rows 'size' has words, 'large', 'small'"):
        fednode.simulate(data=(worded, "target"), **SMALL)
    settings = {**SMALL["settings"], "input.columns": "auto", "input.normalize": "auto"}
    run = fednode.simulate(data=(worded, "target"), **{**SMALL, "settings": settings})
    assert len(run.predict(worded[worded.columns[::-1]])) == len(table)


def test_numbers_are_learned_from_a_frame(table: Any) -> None:
    settings = {"local_iterations": 30, "lr": 0.05, "input.normalize": "auto"}
    frame = table.drop(columns="target")
    targets = ["mean radius", "mean texture"]
    frame = frame.assign(twice=2 * frame["mean radius"])
    given: dict[str, Any] = {"settings": settings, "method": "fedavg", "nodes": 2, "rounds": 1, "partition": "iid"}
    run = fednode.simulate(data=(frame, targets), task="regression", **given)
    said = run.predict(frame)
    assert said.values is not None
    assert said.values.shape == (200, 2)
    assert run.evaluate(frame, resamples=0)["measures"]["summary"].keys() >= {"r2", "rmse"}
    sites = [(frame[:90], targets), (frame[90:][frame.columns[::-1]], targets)]
    by_site = fednode.simulate(data=sites, task="regression", **{**FEW, "settings": settings})
    assert by_site.predict(frame).classes == ("mean radius", "mean texture")


def make_net(input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
    return user_models.make_small(input_shape, num_classes)


def test_a_model_is_the_class_or_the_factory_itself() -> None:
    run = fednode.simulate(data=(X, Y), model=user_models.make_small, **SMALL)
    assert run.to_json()["config"]["model"]["name"] == "support.data.user_models:make_small"
    assert isinstance(run.model().model, user_models.Small)
    assert run.predict(X).probabilities.shape == (60, 3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda shape, classes: None, "expected what nodes can import by its name, and .* has no .*<lambda>: write it"),
        (user_models.Small(1, 2, 3), "the class or factory of a torch.nn.Module .got an instance: Small is its class"),
        (functools.partial(user_models.make_small, width=3), "expected a name, or the class or factory"),
        (3, "expected a name, or the class or factory of a torch.nn.Module .got 3"),
        (torch.nn.ReLU, "model.name: torch.nn.modules.activation:ReLU"),
    ],
)
def test_what_is_no_model_is_refused(model: object, message: str) -> None:
    with pytest.raises(fednode.ConfigError, match=message):
        fednode.simulate(data=(X, Y), model=model, **SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": 3}, "data: expected .x, y., a frame, a Dataset, the path of a file, or a list"),
        ({"data": (X, Y[:5])}, r"data: y: expected shape \[60\], a label for each sample, got \[5\]"),
        ({"data": (X * np.nan, Y)}, r"data: x\[0\], y\[0\]: expected finite numbers, got nan"),
        ({"data": (X, Y / 7)}, "data: y: expected whole numbers or text, got float64"),
        ({"data": [(X, Y)] * 3, "nodes": 2}, r"nodes: expected 3, as data has one object for each site \(got 2\)"),
        ({"data": [(X, Y)] * 3, "partition": "iid"}, "partition: expected none, as data has one object for each site"),
        ({"data": [(X, Y), (X[:, :, 0], Y)]}, r"data\[1\]: expected samples like those of domain site0"),
        ({"data": [(X, Y)], "nodes": 2}, "data: expected at least 2 sites in a list, with an object for each .got 1"),
        ({"nodes": "4"}, "nodes: expected a whole number .got '4'"),
        ({"nodes": 0}, "nodes: expected at least 1 .got 0"),
        ({"seed": 1.5}, "seed: expected a whole number .got 1.5"),
        ({"shots": True}, "shots: expected a whole number .got True"),
        ({"partition": 3}, "partition: expected a text .got 3"),
        ({"participation": "half"}, "participation: expected a number .got 'half'"),
        ({"settings": "lr=1"}, "settings: expected a dictionary .got 'lr=1'"),
    ],
)
def test_a_mistake_is_told_by_its_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(fednode.ConfigError, match=message) as refused:
        fednode.simulate(**arguments)
    assert "fednode-data" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (3, "samples: expected shape"),
        ([["a"]], "samples: expected numbers, got <U"),
        (X[:, 0], "samples: expected images that can be made"),
        ((X, Y + 1), "samples: y.2.: label 3 is not one of genesis' classes: 0, 1, 2"),
        ({"z": X}, "samples: expected the keys x and y"),
    ],
)
def test_what_are_no_samples_is_told(images: fednode.Simulation, samples: object, message: str) -> None:
    with pytest.raises(fednode.ConfigError, match=message):
        images.predict(samples)
    with pytest.raises(fednode.ConfigError, match="samples: expected a label for each sample"):
        images.evaluate(X)
    with pytest.raises(fednode.ConfigError, match="node: expected a whole number"):
        images.predict(X, node="node0")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_dataset_of_hugging_face_is_read_as_it_lies_on_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    pixels = [(255 * x).astype(np.uint8) for x in X]
    whole = datasets.Dataset.from_dict({"image": pixels, "label": Y.tolist()}, features=features)
    run = fednode.simulate(data=whole, **SMALL)
    said = run.predict(whole)
    assert (said.classes, said.accuracy) == (("a", "b", "c"), run.predict((np.stack(pixels), Y)).accuracy)
    run = fednode.simulate(data=[whole.select(range(30)), whole.select(range(30, 60))], **FEW)
    assert len(run.accuracies) == 2


@pytest.mark.slow
def test_a_table_of_hugging_face_is_matched_by_name(table: Any) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_pandas(table, preserve_index=False)
    run = fednode.simulate(data=(whole, "target"), **SMALL)
    said = run.predict((whole, "target"))
    assert said.accuracy is not None
    turned = whole.select_columns(whole.column_names[::-1])
    assert run.predict(turned).labels.tolist() == said.labels.tolist() == run.predict(table).labels.tolist()
