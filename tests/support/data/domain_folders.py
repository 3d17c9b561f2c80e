"""Data sets of several domains for tests: small ones, of other formats, sizes and channels each."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

NUM_CLASSES = 5


def draw(seed: int, n: int, shape: tuple[int, ...]) -> Any:
    """Draws random pixels with one bright row that depends on the class, so that a model can learn it."""
    x = np.random.default_rng(seed).integers(0, 100, (n, *shape), np.uint8)
    for i in range(n):
        x[i, i % NUM_CLASSES] += np.uint8(150)
    return x


def save_idx(folder: Path, seed: int = 1, train: int = 40, test: int = 10) -> None:
    """Writes grey images of 6 x 6, with a test split."""
    folder.mkdir(parents=True)
    for name, n in (("train", train), ("t10k", test)):
        x, y = draw(seed + n, n, (6, 6)), (np.arange(n) % NUM_CLASSES).astype(np.uint8)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(
            bytes([0, 0, 8, 3]) + struct.pack(">3I", *x.shape) + bytes(x)
        )
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", n) + bytes(y))


def save_npz(folder: Path, seed: int = 2, n: int = 50) -> None:
    """Writes floats of 8 x 5, without a test split."""
    folder.mkdir(parents=True)
    x = draw(seed, n, (8, 5)).astype(np.float32) / 255
    np.savez(folder / f"{folder.name}.npz", x=x, y=np.arange(n) % NUM_CLASSES)


def save_images(folder: Path, seed: int = 3, train: int = 20, test: int = 10, names: str = "01234") -> None:
    """Writes PNGs of 7 x 7 in colour, in a directory for each class of each split."""
    for split, n in (("train", train), ("test", test)):
        for i, pixels in enumerate(draw(seed + n, n, (7, 7, 3))):
            path = folder / split / names[i % len(names)] / f"{i:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)


def save_domains(path: Path) -> dict[str, Any]:
    """Writes three domains: `mnist` in idx, `mnistm` in images, `usps` in an .npz."""
    save_idx(path / "mnist")
    save_images(path / "mnistm")
    save_npz(path / "usps")
    return {"format": "domains", "path": str(path)}
