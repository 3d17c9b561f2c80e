"""A published state dict from a local file: what is taken of it, what is drawn anew, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ml.errors import SpecError
from ml.models import Pretrained, initial_parameters, load_pretrained
from ml.models.pretrained import match_pretrained
from ml.payload import decode_arrays
from ml.specs.architectures import buffer_shapes, get_layout, parameter_shapes
from node.config.genesis_file import load_genesis
from node.errors import ConfigError
from node.testnet.layout import TestnetSpec, make_testnet

RGB = (3, 32, 32)
RESNET = {"name": "resnet18"}
MLP = {"name": "mlp", "hidden": [4]}


def make_state(model: dict[str, Any], num_classes: int = 1000, value: float = 0.5) -> dict[str, Tensor]:
    """A state dict as torchvision publishes one, counters and all; every number is `value`."""
    parameters, buffers = parameter_shapes(model, RGB, num_classes), buffer_shapes(model, RGB, num_classes)
    state = {name: torch.tensor(value).expand(shape) for name, shape in (parameters | buffers).items()}
    means = [name for name in buffers if name.endswith("running_mean")]
    return state | {name.replace("running_mean", "num_batches_tracked"): torch.tensor(7) for name in means}


def save(path: Path, state: Any) -> Path:
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def match(state: dict[str, Tensor], model: dict[str, Any] = RESNET, shape: tuple[int, int, int] = RGB) -> Pretrained:
    """What a file of this state dict would give."""
    return match_pretrained(Path("file.pth"), state, model["name"], get_layout(model, shape, 10))


def load(path: Path, model: dict[str, Any] = MLP) -> Pretrained:
    return load_pretrained(path, model, RGB, 10)


def test_a_published_resnet18_fills_all_but_the_classifier() -> None:
    loaded = match(make_state(RESNET))
    assert loaded.left == ("fc.weight", "fc.bias")
    assert loaded.unused == ("fc.bias", "fc.weight")
    assert len(loaded.arrays) == 60 + 40
    assert {array.dtype for array in loaded.arrays.values()} == {np.dtype(np.float32)}
    assert loaded.describe() == (
        "file.pth: took 100 arrays; drew anew fc.weight, fc.bias; did not use fc.bias, fc.weight"
    )


def test_the_rest_is_drawn_from_the_seed_as_it_would_have_been(tmp_path: Path) -> None:
    path = save(tmp_path / "resnet18.pth", make_state(RESNET))
    drawn = initial_parameters(RESNET, RGB, 10, 3)
    given = initial_parameters(RESNET, RGB, 10, 3, pretrained=path)
    assert given.keys() == drawn.keys()
    assert {name for name in drawn if np.array_equal(drawn[name], given[name])} == {"fc.weight", "fc.bias"}
    assert np.all(given["layer4.1.bn2.running_var"] == 0.5)


def test_a_classifier_that_fits_is_taken_too() -> None:
    loaded = match(make_state(RESNET, num_classes=10))
    assert (loaded.left, loaded.unused) == ((), ())
    assert loaded.describe() == "file.pth: took 102 arrays"


@pytest.mark.parametrize(
    ("model", "shape"), [(RESNET, (1, 28, 28)), ({"name": "resnet18_cifar"}, RGB)], ids=["grey", "3x3"]
)
def test_a_stem_of_another_shape_is_drawn_anew(model: dict[str, Any], shape: tuple[int, int, int]) -> None:
    loaded = match(make_state(RESNET), model, shape)
    assert loaded.left == ("conv1.weight", "fc.weight", "fc.bias")
    assert len(loaded.arrays) == 99


def test_a_classifier_of_other_layers_is_drawn_anew_as_a_whole() -> None:
    published = {name: tensor for name, tensor in make_state({"name": "vgg11"}).items() if name.startswith("features")}
    for i, n, m in ((0, 4096, 25088), (3, 4096, 4096), (6, 1000, 4096)):
        published[f"classifier.{i}.weight"] = torch.tensor(0.5).expand(n, m)
    single, three = (match(published, {"name": "vgg11", "classifier": kind}) for kind in ("single", 4096))
    assert single.left == ("classifier.weight", "classifier.bias")
    assert three.left == tuple(f"classifier.{i}.{part}" for i in (0, 3, 6) for part in ("weight", "bias"))
    assert len(single.arrays) == len(three.arrays) == 16
    assert single.unused == three.unused == tuple(f"classifier.{i}.weight" for i in (0, 3, 6))


def test_the_encoder_of_head_256_is_filled_and_its_head_drawn() -> None:
    loaded = match(make_state(RESNET), {"name": "head_256"})
    assert loaded.left == ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    assert loaded.unused == ("fc.bias", "fc.weight")
    assert len(loaded.arrays) == 100
    assert all(name.startswith("encoder.") for name in loaded.arrays)


def test_a_frozen_stem_must_fit_since_it_would_never_be_learned() -> None:
    with pytest.raises(SpecError, match=r"'conv1.weight': expected shape \[64, 1, 7, 7\], got \[64, 3, 7, 7\]"):
        match(make_state(RESNET), {"name": "head_256"}, (1, 28, 28))


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_numbers_of_other_precisions_become_float32(tmp_path: Path, suffix: str) -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float64)
    state = {name: tensor.to(dtypes[i % 3]) for i, (name, tensor) in enumerate(make_state(MLP, 10).items())}
    loaded = load(save(tmp_path / f"mlp{suffix}", state))
    assert {array.dtype for array in loaded.arrays.values()} == {np.dtype(np.float32)}
    assert all(np.all(array == 0.5) for array in loaded.arrays.values())
    assert loaded.arrays.keys() == state.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"layer1.0.conv1.weight": torch.zeros(64, 64, 5, 5)},
            r"'layer1.0.conv1.weight': expected shape \[64, 64, 3, 3\]",
        ),
        ({"layer1.0.conv1.bias": torch.zeros(64)}, "'layer1.0.conv1.bias' is not of resnet18: did you mean"),
        ({"layer1.2.conv1.weight": torch.zeros(1)}, "'layer1.2.conv1.weight' is not of resnet18"),
        ({"bn1.bias": None, "bn1.weight": None}, "expected 2 more arrays, 'bn1.weight' first, which are missing"),
        ({"bn1.bias": torch.full((64,), torch.nan)}, "'bn1.bias': expected finite numbers only"),
        (
            {"bn1.bias": torch.zeros(64, dtype=torch.int64)},
            "'bn1.bias': expected floating-point numbers, got torch.int64",
        ),
        ({"bn1.bias": torch.zeros(64).to_sparse()}, "'bn1.bias': expected floating-point numbers"),
    ],
)
def test_a_file_of_another_network_is_refused_with_its_name_and_the_array(change: dict[str, Any], message: str) -> None:
    state = {name: tensor for name, tensor in (make_state(RESNET, 10) | change).items() if tensor is not None}
    with pytest.raises(SpecError, match=message) as caught:
        match(state)
    assert caught.value.path == "pretrained"
    assert caught.value.message.startswith("file.pth: ")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"fc1.weight": torch.zeros(1), "epoch": 90}, "expected names with a tensor each, got 'epoch': int"),
        ({"state_dict": {}}, "expected names with a tensor each, got 'state_dict': dict"),
        ([torch.zeros(1)], "expected a state dict, names with a tensor each, got list"),
    ],
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load(save(tmp_path / "checkpoint.pt", state))


def test_a_file_that_matches_nothing_says_what_it_has() -> None:
    with pytest.raises(SpecError, match=r"has no array of resnet18: .* as conv1\.weight, got blocks\.0\.norm, patch"):
        match({"blocks.0.norm": torch.zeros(2), "patch": torch.zeros(2)})


class Hostile:
    """Runs when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_hostile_pickle_does_not_run(tmp_path: Path, zipped: bool) -> None:
    trace = tmp_path / "ran"
    path = tmp_path / "resnet18.pth"
    torch.save({"conv1.weight": Hostile(trace)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(SpecError, match=r"resnet18.pth: cannot be read as .pth \(UnpicklingError: expected tensors"):
        load(path)
    assert not trace.exists()
    path.write_bytes(pickle.dumps(Hostile(trace)))
    with pytest.raises(SpecError, match=r"cannot be read as \.pth"):
        load(path)
    assert not trace.exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_broken_file_names_itself(tmp_path: Path, suffix: str) -> None:
    whole = save(tmp_path / f"mlp{suffix}", make_state(MLP, 10)).read_bytes()
    broken = tmp_path / f"broken{suffix}"
    for data in (b"", b"\x80", whole[: len(whole) // 2], b"\xff" * 64, b"not a model"):
        broken.write_bytes(data)
        with pytest.raises(SpecError, match=rf"broken{suffix}: cannot be read as {suffix}"):
            load(broken)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.pth", "no such file"),
        ("model.bin", "expected a .safetensors, .pt or .pth file"),
        ("dir.pt", "no such file"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "model.bin").touch()
    (tmp_path / "dir.pt").mkdir()
    with pytest.raises(SpecError, match=message):
        load(tmp_path / name)


# ---- in a federation


SPEC = TestnetSpec(num_nodes=2, partition="iid", rounds=1)


def test_a_testnet_starts_from_the_file_and_says_what_it_took(tmp_path: Path) -> None:
    state = make_state({"name": "mlp", "hidden": [8]}, 10)  # of 3 x 32 x 32 inputs
    state["fc1.weight"] = torch.full((8, 64), 0.25)
    path = save(tmp_path / "mlp.safetensors", state)
    made = make_testnet(
        tmp_path / "cluster", replace(SPEC, settings=("model.hidden=[8]", "input.normalize=auto"), pretrained=path)
    )
    assert made.pretrained == f"{path}: took 4 arrays"
    initial = load_genesis(tmp_path / "cluster/genesis.yaml").initial_model.read_bytes()
    assert np.all(decode_arrays(initial, len(initial))["model/fc1.weight"] == 0.25)


def test_a_testnet_is_not_made_from_a_file_that_does_not_fit(tmp_path: Path) -> None:
    path = save(tmp_path / "mlp.pt", make_state({"name": "mlp"}, 10))
    with pytest.raises(ConfigError, match=r"--pretrained: .*mlp.pt: 'fc1.weight': expected shape \[64, 64\]"):
        make_testnet(tmp_path / "cluster", replace(SPEC, settings=("input.normalize=none",), pretrained=path))
    assert not (tmp_path / "cluster").exists()
