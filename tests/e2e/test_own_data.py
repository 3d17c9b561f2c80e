"""Sites with data of their own, in different files and formats, none of which has all classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from node.config.node_config import load_config
from node.config.yaml_source import dump_yaml, read_yaml
from support.federation.real_nodes import Federation, make_federation, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.outer]

CLASSES = ("cat", "dog", "eel")
ROUNDS = 3


def make_images(label: int, count: int) -> np.ndarray:
    """Noise, brighter in the row of its class."""
    images = np.random.default_rng(label).integers(0, 60, (count, 6, 6), np.uint8)
    images[:, 2 * label] += 150
    return images


def save_archive(path: Path, labels: tuple[int, ...]) -> None:
    x = np.concatenate([make_images(label, 40) for label in labels])
    np.savez(path, x=x, y=np.repeat([CLASSES[label] for label in labels], 40))


def save_folder(path: Path, labels: tuple[int, ...]) -> None:
    from PIL import Image

    for label in labels:
        for i, image in enumerate(make_images(label, 40)):
            file = path / ("train" if i < 30 else "test") / CLASSES[label] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(file)


async def test_nodes_with_some_of_the_classes_learn_all_of_them_together(tmp_path: Path) -> None:
    save_archive(tmp_path / "all.npz", (0, 1, 2))
    save_archive(tmp_path / "node0.npz", (0, 1))
    save_folder(tmp_path / "node1", (1, 2))
    directory = make_federation(
        tmp_path / "net",
        num_nodes=2,
        rounds=ROUNDS,
        method="fedavg",
        data=f"npz:{tmp_path}/all.npz",
        partition="iid",
        settings=("local_iterations=30", "lr=0.1"),
    )
    for name, own in (
        ("node0", {"format": "npz", "path": "../node0.npz"}),
        ("node1", {"format": "imagefolder", "path": "../node1"}),
    ):
        config = directory / f"{name}.yaml"
        config.write_text(dump_yaml(read_yaml(config).value | {"data": own}))
        done = run_command("data", "inspect", "--config", config)
        assert done.code == 0, done.err
        assert "note: no sample at all of " in done.out
    assert load_config(directory / "node1.yaml").data.path == tmp_path / "node1"
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for(lambda now: all(status["done"] for status in now.values()), "all rounds")
        assert await net.check_agreement() == ROUNDS
        statuses = await net.get_statuses()
        assert {name: status["accuracy"] for name, status in statuses.items()} == pytest.approx(
            {"node0": 1.0, "node1": 1.0}, abs=0.15
        )
