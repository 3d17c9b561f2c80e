"""A node's model as others open it: from a running node and from what a stopped one has left, the same bytes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
from ml.models import build_model, initial_parameters, onnx_file, resolve_model
from ml.payload import Array, decode_arrays, encode_arrays
from ml.plugins import ANY_PLUGIN, NO_PLUGINS
from ml.specs import get_spec
from node.admin.client import AdminClient
from node.admin.exported_model import write_model
from node.cli import main
from node.cli.model.model_onnx import write_onnx
from node.errors import NodeError, NotFound, VerificationFailed
from node.federation.run_terms import read_initial
from node.pb import admin_pb2 as pb
from node.training.checkpoint import CHECKPOINTS, Checkpoint, Checkpoints, Phase, get_run_dir
from node.training.model_file import CHUNK_BYTES, is_initial_needed, make_model_file, read_model
from support.data.chains import make_genesis, make_keys
from support.federation.asked import running
from support.federation.ledgers import flip_byte

Captured = pytest.CaptureFixture[str]


def make_arrays(genesis: Genesis, seed: int = 3) -> dict[str, Array]:
    """What a client of this genesis has, by chance."""
    torch.manual_seed(seed)
    net = build_model(genesis.run.model, genesis.run.input["shape"], len(genesis.run.classes))
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def save_checkpoint(data_dir: Path, height: int, arrays: dict[str, Array]) -> Path:
    checkpoints = Checkpoints(get_run_dir(data_dir / CHECKPOINTS, 1))
    state = {f"model/{name}": array for name, array in arrays.items()} | {"state/protos": np.zeros((2, 3), np.float32)}
    checkpoints.save(Checkpoint(height, Phase.APPLIED, state))
    checkpoints.close()
    return checkpoints.path(Phase.APPLIED)


@pytest.fixture
def genesis() -> Genesis:
    return make_genesis(make_keys(3))


@pytest.fixture
def data_dir(tmp_path: Path, genesis: Genesis) -> Path:
    SqliteStore.open(tmp_path / "node", genesis).close()
    return tmp_path / "node"


def test_torch_loads_the_file_into_the_model_it_is_of(
    capsys: Captured, data_dir: Path, genesis: Genesis, tmp_path: Path
) -> None:
    arrays = make_arrays(genesis)
    save_checkpoint(data_dir, 7, arrays)
    out = tmp_path / "model.safetensors"
    assert main(["model", "export", str(out), "--data-dir", str(data_dir), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["applied_round"], said["bytes"]) == (7, out.stat().st_size)
    assert said["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    net = build_model(genesis.run.model, genesis.run.input["shape"], len(genesis.run.classes))
    net.load_state_dict(load_file(out))
    assert all(np.array_equal(tensor.numpy(), arrays[name]) for name, tensor in net.state_dict().items())
    with safe_open(out, framework="np") as opened:
        card = opened.metadata()
    assert (card["format"], card["fednode.round"], card["fednode.chain_id"]) == ("pt", "7", genesis.chain_id.hex())
    assert json.loads(card["fednode.classes"]) == list(genesis.run.classes)

    assert main(["model", "info", "--data-dir", str(data_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == said["sha256"]
    assert main(["model", "export", str(out), "--data-dir", str(data_dir)]) == 1
    assert "expected no file, as nothing is written over" in capsys.readouterr().err


def test_before_the_first_round_there_is_no_model(capsys: Captured, data_dir: Path, tmp_path: Path) -> None:
    assert main(["model", "export", str(tmp_path / "out.safetensors"), "--data-dir", str(data_dir)]) == 3
    assert "no model yet" in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("name", ["model.pt", "model", "model.safetensors.gz"])
def test_a_kind_of_file_that_nobody_can_write_is_refused(
    capsys: Captured, data_dir: Path, genesis: Genesis, tmp_path: Path, name: str
) -> None:
    save_checkpoint(data_dir, 7, make_arrays(genesis))
    assert main(["model", "export", str(tmp_path / name), "--data-dir", str(data_dir)]) == 2
    assert "expected a name that ends in .safetensors or .onnx" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_onnx_is_refused_where_what_writes_it_is_not_installed(
    capsys: Captured, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None)
    assert main(["model", "export", str(tmp_path / "model.onnx"), "--data-dir", str(data_dir)]) == 1
    assert "pip install 'fednode[onnx]'" in capsys.readouterr().err
    assert not (tmp_path / "model.onnx").exists()


def test_a_damaged_checkpoint_is_not_exported(
    data_dir: Path, genesis: Genesis, capsys: Captured, tmp_path: Path
) -> None:
    arrays = make_arrays(genesis)
    path = save_checkpoint(data_dir, 1, arrays)
    flip_byte(path, max(arrays.values(), key=lambda array: array.size).tobytes(), 5)
    assert main(["model", "export", str(tmp_path / "out.safetensors"), "--data-dir", str(data_dir)]) == 5
    assert "expected SHA-256" in capsys.readouterr().err
    assert path.exists()  # it is the worker's to set aside


def test_what_is_frozen_comes_from_block_0(genesis: Genesis, tmp_path: Path) -> None:
    assert not is_initial_needed(genesis.run)
    arrays = make_arrays(genesis)
    frozen = np.arange(4, dtype=np.float32)
    initial = encode_arrays({f"model/{name}": 0 * array for name, array in arrays.items()} | {"model/encoder": frozen})
    save_checkpoint(tmp_path, 2, arrays)
    shown = {array.name for array in read_model(tmp_path, genesis, genesis.run, initial).info.arrays}
    assert shown == {*arrays, "encoder"}
    own = max(arrays.values(), key=lambda array: array.size).tobytes()
    assert own in read_model(tmp_path, genesis, genesis.run, initial).data
    assert frozen.tobytes() in read_model(tmp_path, genesis, genesis.run, initial).data


def test_an_array_with_two_names_is_written_under_both(genesis: Genesis, tmp_path: Path) -> None:
    named = {"name": "support.data.adapter_models:make_tied"}
    shape, num_classes = genesis.run.input["shape"], len(genesis.run.classes)
    run = replace(genesis.run, model=resolve_model(named, shape, num_classes))
    save_checkpoint(tmp_path, 2, initial_parameters(run.model, shape, num_classes, 1, plugins=ANY_PLUGIN))
    file = tmp_path / "model.safetensors"
    file.write_bytes(read_model(tmp_path, genesis, run, None).data)
    net = build_model(run.model, shape, num_classes, plugins=ANY_PLUGIN)
    net.load_state_dict(load_file(file))
    arrays = read_initial(file, get_spec(run.method, run.model, num_classes, shape))  # a later run may begin from it
    assert "model/second.weight" not in decode_arrays(arrays, len(arrays))


def test_what_is_not_as_announced_is_not_kept(genesis: Genesis, tmp_path: Path) -> None:
    def cut(messages: Iterator[pb.ModelChunk]) -> Iterator[pb.ModelChunk]:
        *most, last = messages
        yield from most
        yield pb.ModelChunk(data=last.data[:-1])

    model = make_model_file(genesis, genesis.run, 1, make_arrays(genesis))
    with pytest.raises(VerificationFailed, match=r"expected .* bytes with SHA-256"):
        write_model(tmp_path / "out", cut(model.to_messages()))
    for none in ([], [pb.ModelChunk(info=model.info)]):
        with pytest.raises(VerificationFailed, match="got 0 with"):
            write_model(tmp_path / "out", iter(none))
    for lies in ({"model": "[[[["}, {"input": "7"}, {"input": '{"shape": [999999999, 2, 2]}'}):
        info = pb.ModelInfo()
        info.CopyFrom(model.info)
        for key, value in lies.items():
            setattr(info, key, value)
        chunks = [pb.ModelChunk(info=info), pb.ModelChunk(data=model.data)]
        with pytest.raises(NodeError, match=f"{tmp_path}/out.onnx: "):
            write_onnx(tmp_path / "out.onnx", iter(chunks), plugins=NO_PLUGINS)
    assert list(tmp_path.iterdir()) == []


def test_a_large_model_comes_in_pieces(genesis: Genesis, tmp_path: Path) -> None:
    model = make_model_file(genesis, genesis.run, 1, {"w": np.arange(CHUNK_BYTES // 2, dtype=np.float32)})
    messages = list(model.to_messages())
    assert len(messages) == 1 + 3
    assert max(message.ByteSize() for message in messages) < 2 * CHUNK_BYTES
    write_model(tmp_path / "out", iter(messages))
    assert (tmp_path / "out").read_bytes() == model.data


async def test_a_running_node_gives_its_model_and_says_when_it_has_none(tmp_path: Path) -> None:
    async with running(tmp_path) as one:
        with pytest.raises(NotFound, match="no model yet"):
            await one.ask(lambda node: node.get_model_info())
        with pytest.raises(NotFound, match="no model yet"):
            await one.ask(lambda node: list(node.export_model()))
        arrays = {"fc.weight": np.ones((2, 3), np.float32)}
        await asyncio.to_thread(save_checkpoint, one.context.store.path, 4, arrays)
        info = await one.ask(lambda node: node.get_model_info())
        assert (info.applied_round, info.numbers) == (4, 6)
        assert [(array.name, list(array.shape)) for array in info.arrays] == [("fc.weight", [2, 3])]

        def export(node: AdminClient) -> pb.ModelInfo:
            return write_model(tmp_path / "out", node.export_model())

        assert await one.ask(export) == info
        assert load_file(tmp_path / "out")["fc.weight"].shape == (2, 3)
