"""A source is opened once within `open_once`, and each time anew elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.data import forget_sources, get_classes, get_default_input, open_dataset, open_once
from ml.data.readers import npz
from ml.simulation.run import SimulationConfig, simulate
from node.testnet.layout import TestnetSpec, make_testnet


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    save(tmp_path / "a.npz")
    return {"format": "npz", "path": str(tmp_path / "a.npz")}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were opened, in order."""
    real, paths = npz.open_parts, []

    def open_parts(source: Any) -> Any:
        paths.append(str(source.path))
        return real(source)

    monkeypatch.setattr(npz, "open_parts", open_parts)
    return paths


def save(path: Path, num_classes: int = 2) -> None:
    np.savez(path, x=np.random.default_rng(0).random((60, 6, 6), np.float32), y=np.arange(60) % num_classes)


def test_within_it_a_source_is_opened_once(data: dict[str, Any], opened: list[str]) -> None:
    with open_once():
        get_default_input(data, {"name": "mlp"})
        with open_once():
            first = open_dataset(data)
        again = open_dataset(data)
    assert len(opened) == 1
    assert first[0].sha256 == again[0].sha256
    assert [len(part) for part in open_dataset(data)] == [len(part) for part in first]
    assert len(opened) == 2


def test_what_is_forgotten_is_opened_as_it_is_now(data: dict[str, Any], tmp_path: Path) -> None:
    forget_sources()  # nothing to forget
    with open_once():
        assert len(get_classes(data)) == 2
        save(tmp_path / "a.npz", 3)
        assert len(get_classes(data)) == 2
        forget_sources()
        assert len(get_classes(data)) == 3
    save(tmp_path / "a.npz", 2)
    assert len(get_classes(data)) == 2


def test_another_split_of_the_same_path_is_another_source(data: dict[str, Any], tmp_path: Path) -> None:
    x, y = np.zeros((4, 6, 6), np.uint8), np.arange(4)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    with open_once():
        assert [len(part) for part in open_dataset(data)] == [4, 2]
        assert [len(part) for part in open_dataset(data | {"train_split": "test", "test_split": "train"})] == [2, 4]


def test_a_testnet_and_a_simulation_open_their_data_once(
    data: dict[str, Any], opened: list[str], tmp_path: Path
) -> None:
    spec = TestnetSpec(num_nodes=2, data=f"npz:{data['path']}", partition="iid", settings=("input.normalize=auto",))
    make_testnet(tmp_path / "net", spec)
    assert len(opened) == 1
    with open_once():
        simulate(SimulationConfig(method={"name": "local"}, data=data, partition="iid", clients=2, rounds=1))
    assert len(opened) == 2
