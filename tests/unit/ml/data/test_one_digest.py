"""The same samples give the same digest, whatever files they lie in."""

from __future__ import annotations

import gzip
import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ml.data import open_dataset
from ml.data.base import ArrayDataset
from ml.data.image_cache import ImageCache

PACKAGE = Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
COUNTS = {"train": 200, "test": 50}
NAMES = {"train": "train", "test": "t10k"}
CLASSES = [str(k) for k in range(10)]


def load(split: str) -> tuple[Any, Any]:
    """The first images of Fashion-MNIST, or made up ones where it is not at hand, and their labels, sorted by them."""
    count = COUNTS[split]
    if PACKAGE.is_dir():
        with gzip.open(PACKAGE / f"{NAMES[split]}-images-idx3-ubyte.gz") as file:
            x = np.frombuffer(file.read(16 + 784 * count)[16:], np.uint8).reshape(-1, 28, 28)
        with gzip.open(PACKAGE / f"{NAMES[split]}-labels-idx1-ubyte.gz") as file:
            y = np.frombuffer(file.read(8 + count)[8:], np.uint8).astype(np.int64)
    else:
        x = np.random.default_rng(count).integers(0, 256, (count, 28, 28), np.uint8)
        y = np.arange(count) % 10
    order = np.argsort(y, kind="stable")  # as directories have them
    return x[order], y[order]


def encode(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_idx(path: Path) -> dict[str, Any]:
    path.mkdir()
    for split, name in NAMES.items():
        x, y = load(split)
        (path / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, *x.shape) + x.tobytes())
        labels = struct.pack(">II", 2049, len(y)) + y.astype(np.uint8).tobytes()
        (path / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    return {"format": "idx", "path": str(path)}


def write_folders(path: Path) -> dict[str, Any]:
    for split in NAMES:
        for i, (pixels, label) in enumerate(zip(*load(split), strict=True)):
            file = path / split / str(label) / f"{i:05}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode(pixels))
    return {"format": "imagefolder", "path": str(path)}


def write_parquet(path: Path) -> dict[str, Any]:
    path.mkdir()
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": CLASSES}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for split in NAMES:
        x, y = load(split)
        images = pa.array([{"bytes": encode(pixels), "path": None} for pixels in x])
        table = pa.table({"image": images, "label": pa.array(y)}).replace_schema_metadata(metadata)
        pq.write_table(table, path / f"{split}-00000-of-00001.parquet")
    return {"format": "parquet", "path": str(path)}


@pytest.mark.parametrize("shape", [None, (1, 28, 28)])
def test_fashion_mnist_has_one_digest_as_idx_as_folders_and_as_parquet(tmp_path: Path, shape: Any) -> None:
    sources = [write_idx(tmp_path / "idx"), write_folders(tmp_path / "png"), write_parquet(tmp_path / "parquet")]
    digests = {open_both(data, shape, None) for data in sources}
    digests |= {open_both(sources[1], shape, ImageCache(tmp_path / "kept", 1 << 30, min_bytes=1))}
    assert len(digests) == 1


def open_both(data: dict[str, Any], shape: Any, cache: ImageCache | None) -> tuple[str, ...]:
    """The digests of both sides, by the classes that all formats name."""
    split: tuple[ArrayDataset, ...] = open_dataset(data, shape=shape, classes=CLASSES, cache=cache)
    return tuple(part.sha256 for part in split)
