"""The example of a tokeniser: what it makes of a text, and a federation that learns from texts by it."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ml.simulation.run import SimulationConfig, simulate
from support.data.plugins import TEXT, put_plugin

WORDS = {
    "cardiology": ("heart", "rhythm", "valve", "murmur", "artery", "pulse"),
    "orthopaedics": ("bone", "fracture", "joint", "knee", "hip", "tendon"),
}
FRAMES = (
    "the patient reports {} and {} since monday",
    "examination of the {} shows a {} without change",
    "We recommend control of the {}, and the {} in two weeks",
)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(tmp_path)
    put_plugin(tmp_path, TEXT)
    yield importlib.import_module("example_text")
    del sys.modules["example_text"]


def make_reports(num: int) -> tuple[list[str], list[str]]:
    draw = random.Random(7)
    labels = [draw.choice(tuple(WORDS)) for _ in range(num)]
    return [draw.choice(FRAMES).format(*draw.sample(WORDS[label], 2)) for label in labels], labels


def test_words_are_counted_wherever_they_stand_and_however_they_are_written(example: ModuleType) -> None:
    texts = ["Knee, knee and valve.", "valve AND Knee (knee)", "", "Hüfte"]
    x = example.encode_texts(texts).reshape(4, example.LENGTH, 1, 1)
    counts = example.count_words(x)
    assert (counts.dtype, counts.shape) == (x.dtype, x.shape)
    assert np.array_equal(counts[0], counts[1])
    assert counts.sum((1, 2, 3)).tolist() == [4, 4, 0, 1]
    assert not np.array_equal(x[0], x[1])


def test_a_federation_learns_from_texts_by_a_tokeniser_of_its_own(tmp_path: Path, example: ModuleType) -> None:
    texts, labels = make_reports(300)
    path = tmp_path / "letters.npz"
    np.savez(path, x=example.encode_texts(texts), y=np.array(labels))

    config = SimulationConfig(
        method={"name": "fedavg", "local_epochs": 20, "lr": 0.1},
        model={"name": "mlp", "hidden": [8]},
        data={"format": "npz", "path": str(path), "transform": {"own": "words"}, "plugins": [TEXT]},
        input={"shape": [example.LENGTH, 1, 1], "resize": None, "normalize": "agreed"},
        partition="dirichlet:1",
        clients=3,
        rounds=4,
        seed=1,
    )
    assert simulate(config).rounds[-1].taa > 0.95  # it goes through the tokeniser once, and no more
