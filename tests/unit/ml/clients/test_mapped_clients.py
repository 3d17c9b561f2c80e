"""A client whose images stay in their file trains, sends and answers to the same bytes as one that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ml.clients.build import Compute, Federation, make_client, make_initial_aggregate
from ml.clients.client import Client
from ml.clients.inference import answer
from ml.data.base import InputFormat
from ml.data.image_cache import ImageCache
from ml.data.mapped_samples import MappedSamples
from ml.data.own_transform import load_asked
from ml.payload import Arrays, encode_arrays
from support.federation.simulated import BEACON, run_round

WORK = {"local_iterations": 3, "batch_size": 4, "lr": 0.05}
CLASSES = ("a", "b")
CONSTANTS = {"mean": [0.4], "std": [0.3]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("scans"), np.random.default_rng(0)
    for kind in CLASSES:
        (path / kind).mkdir()
        for i in range(15):
            Image.fromarray(rng.integers(0, 256, (12, 12), np.uint8)).save(path / kind / f"{i}.png")
    return path


def make(
    folder: Path,
    cache: ImageCache | None,
    method: Mapping[str, Any],
    *,
    side: int = 12,
    constants: Mapping[str, Any] = CONSTANTS,
    model: Mapping[str, Any] = {"name": "mlp", "hidden": [16, 8]},
    images: Mapping[str, Any] = {},
    engine: Mapping[str, Any] = {},
    val: float | None = None,
) -> Client:
    input_ = {"shape": [1, side, side], "resize": None, **constants}
    federation = Federation(
        method={**WORK, **method}, model=model, classes=CLASSES, input=input_, rounds=5, num_members=1
    )
    return make_client(
        federation,
        data={"format": "imagefolder", "path": str(folder), "images": images, "val": val},
        seed=1,
        initial=make_initial_aggregate(model, input_["shape"], 2, 1),
        compute=Compute(engine=engine),
        cache=cache,
    )


def make_pair(folder: Path, tmp_path: Path, method: Mapping[str, Any], **options: Any) -> tuple[Client, Client]:
    return make(folder, ImageCache(tmp_path, 1 << 30, min_bytes=1), method, **options), make(
        folder, None, method, **options
    )


def live(client: Client, num_rounds: int) -> list[Any]:
    """What came of so many rounds, to the bit."""
    found: list[Any] = []
    for height in range(1, num_rounds + 1):
        (trained,) = run_round([client], height)
        found += [{kind: encode_arrays(arrays) for kind, arrays in trained.payloads.items()}, client.evaluate()["loss"]]
    return [*found, encode_arrays(client.state_arrays()), client.measure()]


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "dfpl", "aux_protos": "full"},
        {"name": "dfpl", "infer": "prototype"},
        {"name": "moon"},
        {"name": "swim"},
        {"name": "mpfedcl"},
        {"name": "fedproto"},
        {"name": "uapdfl"},
        {"name": "fedintr"},
        {"name": "fedavg", "dp_noise": 1.0},
    ],
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_every_way_of_going_over_samples_gives_the_same_bytes(
    folder: Path, tmp_path: Path, method: Mapping[str, Any]
) -> None:
    mapped, held = make_pair(folder, tmp_path, method)
    assert isinstance(mapped.state.data.train.x, MappedSamples)
    assert isinstance(mapped.state.data.matched.x, MappedSamples)
    assert not isinstance(held.state.data.train.x, MappedSamples)
    if "dp_noise" not in method:  # whose draws nobody can repeat
        assert live(mapped, 2) == live(held, 2)
    else:
        assert mapped.train(1, BEACON).weight == held.train(1, BEACON).weight


def test_images_of_another_size_are_read_from_their_file_too(folder: Path, tmp_path: Path) -> None:
    for pixels in ("float32", "uint8"):
        mapped, held = make_pair(folder, tmp_path, {"name": "fedavg"}, side=9, images={"pixels": pixels})
        assert isinstance(mapped.state.data.train.x, MappedSamples)
        assert live(mapped, 1) == live(held, 1)


def test_augmented_batches_are_of_what_was_read(folder: Path, tmp_path: Path) -> None:
    mapped, held = make_pair(folder, tmp_path, {"name": "fedavg"}, engine={"augment": "flip_crop"})
    assert live(mapped, 1) == live(held, 1)


def test_agreed_statistics_are_summed_from_the_file(folder: Path, tmp_path: Path) -> None:
    agreed = {"normalize": "agreed", "min_count": 5}
    mapped, held = make_pair(folder, tmp_path, {"name": "fedavg"}, constants=agreed)
    assert live(mapped, 2) == live(held, 2)
    assert isinstance(mapped.state.data.train.x, MappedSamples)


def test_a_frozen_encoder_goes_over_the_file_once(folder: Path, tmp_path: Path) -> None:
    mapped, held = make_pair(folder, tmp_path, {"name": "fedavg"}, side=16, model={"name": "head_256"})
    assert not isinstance(mapped.state.data.train.x, MappedSamples)
    assert live(mapped, 1) == live(held, 1)


def test_an_answer_rounds_as_the_site_does(folder: Path, tmp_path: Path) -> None:
    data = {"images": {"pixels": "uint8"}}
    client = make(folder, ImageCache(tmp_path, 1 << 30, min_bytes=1), {"name": "fedavg"}, side=9, images=data["images"])
    x = np.random.default_rng(1).integers(0, 256, (5, 1, 12, 12), np.uint8)
    wanted = InputFormat.from_mapping({"shape": [1, 9, 9], **CONSTANTS})
    rounded: Arrays = answer(client, wanted, x, transform=load_asked(data))
    exact: Arrays = answer(client, wanted, x)
    assert not np.array_equal(rounded["probabilities"], exact["probabilities"])
    assert np.abs(rounded["probabilities"] - exact["probabilities"]).max() < 0.01


def test_val_samples_stay_in_their_file_too(folder: Path, tmp_path: Path) -> None:
    mapped, held = make_pair(folder, tmp_path, {"name": "fedavg"}, val=0.5)
    assert mapped.state.data.val is not None
    assert isinstance(mapped.state.data.val.x, MappedSamples)
    assert (mapped.num_train, mapped.num_val) == (12, 12)
    assert live(mapped, 2) == live(held, 2)
    assert mapped.measure_val() == held.measure_val() != {}
