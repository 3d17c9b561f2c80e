"""A worker whose images take much trains from what it has decoded into the node's data directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ml.clients.build import make_initial_aggregate
from ml.data.image_cache import DIRECTORY
from ml.data.mapped_samples import MappedSamples
from ml.payload import encode_arrays
from node.training.worker_child import build_client
from node.training.worker_config import WorkerConfig

SIDE, CLASSES = 1024, ("a", "b")
MODEL = {"name": "mlp", "hidden": [2]}
INPUT: dict[str, Any] = {"shape": [3, SIDE, SIDE], "resize": None, "mean": [0.0], "std": [1.0]}


@pytest.fixture
def config(tmp_path: Path) -> WorkerConfig:
    """Of two classes of 14 images, of which 22 are trained on: 66 MiB, and 18 MiB of the others."""
    for c, kind in enumerate(CLASSES):
        (tmp_path / "scans" / kind).mkdir(parents=True)
        for i in range(14):
            Image.new("RGB", (SIDE, SIDE), (i, 100 * c, 0)).save(tmp_path / f"scans/{kind}/{i}.bmp")
    (tmp_path / "node").mkdir()
    return WorkerConfig(
        method={"name": "fedavg", "local_iterations": 1, "batch_size": 2, "lr": 0.01},
        model=MODEL,
        classes=CLASSES,
        input=INPUT,
        data={"format": "imagefolder", "path": str(tmp_path / "scans"), "cache_gb": 1.0},
        seed=1,
        initial_model=b"",
        checkpoint_dir=tmp_path / "node/checkpoints",
        outgoing_dir=tmp_path / "node/outgoing",
        data_dir=tmp_path / "node",
        device="cpu",
    )


def build(config: WorkerConfig) -> Any:
    initial = make_initial_aggregate(MODEL, INPUT["shape"], len(CLASSES), 1)
    return build_client({**config.encode().header["config"]}, initial).client


@pytest.mark.slow
def test_it_trains_from_there_to_the_same_bytes(
    config: WorkerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_interop_threads", lambda _: None)  # which a process may say once
    mapped = build(config)
    assert isinstance(mapped.state.data.train.x, MappedSamples)
    assert not isinstance(mapped.state.data.matched.x, MappedSamples)  # which take less
    kept = list((tmp_path / "node" / DIRECTORY).iterdir())
    assert {path.suffix for path in kept} == {".npy", ".json"}
    assert sum(path.stat().st_size for path in kept) == pytest.approx(22 * 3 * SIDE**2, rel=1e-3)
    held = build(replace(config, data={**config.data, "cache_gb": 0}))
    assert not list((tmp_path / "node").glob(f"{DIRECTORY}/*"))  # those of before
    sent = [client.train(1, bytes(32)).payloads["model"] for client in (mapped, held)]
    assert encode_arrays(sent[0]) == encode_arrays(sent[1])
    assert np.isfinite(mapped.evaluate()["loss"])
