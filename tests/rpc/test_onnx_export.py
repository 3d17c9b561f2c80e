"""A node's model as ONNX: the same probabilities as torch gives, or a plain refusal. Needs the extra `onnx`."""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
from ml.data.base import InputFormat
from ml.models import Model, build_model, onnx_file
from ml.models.onnx_file import INPUT, OUTPUT, OnnxRefused, encode_onnx
from node.cli import main
from node.training.checkpoint import CHECKPOINTS, Checkpoint, Checkpoints, Phase, get_run_dir
from support.data.chains import make_genesis, make_keys

onnxruntime: Any = pytest.importorskip("onnxruntime")
onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytestmark = [
    pytest.mark.slow,  # torch's exporter takes seconds
    pytest.mark.filterwarnings("ignore"),  # of packages that are not ours
]

Captured = pytest.CaptureFixture[str]
CONSTANTS = {"mean": [0.25], "std": [0.5]}


class Branching(Model):
    """Takes another way by what the samples hold, which no recorded graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1) if x.sum().item() > 0 else -x.flatten(1)

    def classify(self, z: Tensor) -> Tensor:
        logits: Tensor = self.linear(z)
        return logits


def run(data: bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (probabilities,) = session.run([OUTPUT], {INPUT: x})
    return np.asarray(probabilities)


def make_node(directory: Path) -> tuple[Genesis, Model]:
    """The data directory of a stopped node, and the model in it."""
    genesis = make_genesis(make_keys(3))
    SqliteStore.open(directory, genesis).close()
    torch.manual_seed(3)
    net = build_model(genesis.run.model, genesis.run.input["shape"], len(genesis.run.classes))
    checkpoints = Checkpoints(get_run_dir(directory / CHECKPOINTS, 1))
    arrays = {f"model/{name}": tensor.numpy() for name, tensor in net.state_dict().items()}
    checkpoints.save(Checkpoint(7, Phase.APPLIED, arrays))
    checkpoints.close()
    return genesis, net


def test_onnxruntime_gives_from_samples_what_the_node_would(capsys: Captured, tmp_path: Path) -> None:
    genesis, net = make_node(tmp_path / "node")
    out = tmp_path / "model.onnx"
    assert main(["model", "export", str(out), "--data-dir", str(tmp_path / "node"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    data = out.read_bytes()
    assert said["onnx"]["bytes"] == len(data)
    assert said["onnx"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert 0 <= said["onnx"]["max_difference"] <= onnx_file.TOLERANCE
    input_ = InputFormat.from_mapping(genesis.run.input)
    for count in (1, 5):
        x = np.random.default_rng(count).random((count, *input_.shape), np.float32)
        with torch.no_grad():
            expected = torch.softmax(net.eval()(torch.from_numpy(input_.normalise(x))), 1).numpy()
        assert run(data, x) == pytest.approx(expected, abs=1e-5)
    card = {entry.key: entry.value for entry in onnx.load(str(out)).metadata_props}
    assert json.loads(card["fednode.classes"]) == list(genesis.run.classes)
    assert (card["fednode.round"], card["fednode.chain_id"]) == ("7", genesis.chain_id.hex())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "node"]
    assert main(["model", "export", str(out), "--data-dir", str(tmp_path / "node")]) == 1


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ({"name": "mlp", "hidden": [8]}, (30, 1, 1)),
        ({"name": "cnn_mnist"}, (1, 28, 28)),
        ({"name": "cnn_cifar"}, (3, 32, 32)),
        ({"name": "resnet18"}, (3, 32, 32)),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_models_by_name_normalise_by_themselves(model: dict[str, Any], shape: tuple[int, int, int]) -> None:
    torch.manual_seed(1)
    net = build_model(model, shape, 3)
    mean, std = CONSTANTS["mean"] * shape[0], CONSTANTS["std"] * shape[0]
    data, difference = encode_onnx(net, shape, mean, std, {})
    assert difference is not None
    x = torch.rand(4, *shape)
    with torch.no_grad():
        expected = torch.softmax(net((x - 0.25) / 0.5), 1).numpy()
    assert run(data, x.numpy()) == pytest.approx(expected, abs=1e-4)


def test_a_model_that_no_graph_can_hold_is_refused() -> None:
    with pytest.raises(OnnxRefused, match="torch cannot write this model as ONNX"):
        encode_onnx(Branching(), (4, 1, 1), [0.0] * 4, [1.0] * 4, {})


def test_a_file_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = (build_model({"name": "mlp", "hidden": [8]}, (4, 1, 1), 2) for _ in range(2))
    written, export = list[Any](), torch.onnx.export

    def export_once(*given: Any, **options: Any) -> Any:
        if not written:
            written.append(export(*given, **options))
        return written[0]

    monkeypatch.setattr(torch.onnx, "export", export_once)
    encode_onnx(other, (4, 1, 1), [0.0] * 4, [1.0] * 4, {})
    with pytest.raises(OnnxRefused, match="probabilities within"):
        encode_onnx(net, (4, 1, 1), [0.0] * 4, [1.0] * 4, {})


def test_what_cannot_be_compared_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path) -> None:
    make_node(tmp_path / "node")
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None if name == "onnxruntime" else find_spec(name))
    assert main(["model", "export", str(tmp_path / "m.onnx"), "--data-dir", str(tmp_path / "node")]) == 0
    assert "onnxruntime is not installed, so nothing was compared" in capsys.readouterr().err
