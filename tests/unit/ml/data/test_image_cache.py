"""Decoded images are kept in private files, whole or not at all, of what lies there now and of nothing else."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ml.data import open_dataset
from ml.data.base import ArrayDataset
from ml.data.image_cache import ImageCache
from ml.errors import DataError

SHAPE = (3, 8, 8)
PLENTY = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for kind in "ab":
        (tmp_path / "scans" / kind).mkdir(parents=True)
        for i in range(10):
            image = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
            image.save(tmp_path / f"scans/{kind}/{i}.png")
    return tmp_path / "scans"


def make_cache(tmp_path: Path, max_bytes: int = PLENTY, **options: Any) -> ImageCache:
    return ImageCache(tmp_path / "images", max_bytes, **({"min_bytes": 1, "prunes": True} | options))


def read(folder: Path, cache: ImageCache | None, shape: Any = SHAPE, **images: Any) -> list[ArrayDataset]:
    data = {"format": "imagefolder", "path": str(folder), "images": images}
    return list(open_dataset(data, shape=shape, cache=cache))


def list_kept(tmp_path: Path) -> list[str]:
    directory = tmp_path / "images"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


@pytest.mark.parametrize(
    ("shape", "pixels", "dtype"),
    [(SHAPE, "float32", np.uint8), ((1, 5, 5), "float32", np.float32), ((1, 5, 5), "uint8", np.uint8)],
)
def test_mapped_samples_are_those_in_memory(
    folder: Path, tmp_path: Path, shape: Any, pixels: str, dtype: type[np.generic]
) -> None:
    mapped, plain = read(folder, make_cache(tmp_path), shape, pixels=pixels), read(folder, None, shape, pixels=pixels)
    for one, other in zip(mapped, plain, strict=True):
        assert isinstance(one.x, np.memmap)
        assert not isinstance(other.x, np.memmap)
        assert one.x.dtype == dtype
        assert one.sha256 == other.sha256


def test_images_are_decoded_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(folder, make_cache(tmp_path))
    monkeypatch.setattr("ml.data.image_set.decode_image", None)
    assert [part.sha256 for part in read(folder, make_cache(tmp_path))] == [part.sha256 for part in first]


def test_files_are_private_and_in_a_private_directory(folder: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        read(folder, make_cache(tmp_path))
    finally:
        os.umask(before)
    kept = list((tmp_path / "images").iterdir())
    assert len(kept) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert stat.S_IMODE((tmp_path / "images").stat().st_mode) == 0o700


@pytest.mark.parametrize("change", ["pixels", "order", "shape", "rules", "decoder"])
def test_what_images_are_made_of_decides_which_file_is_read(
    folder: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(folder, make_cache(tmp_path))
    before, options = list_kept(tmp_path), dict[str, Any]()
    match change:
        case "pixels":
            Image.new("RGB", (8, 8), 7).save(folder / "a/9.png")
        case "order":
            (folder / "a/9.png").rename(folder / "a/00.png")
        case "shape":
            options["shape"] = (1, 8, 8)
        case "rules":
            options["page"] = 1
        case _:
            monkeypatch.setattr("ml.data.image_cache.describe_decoder", lambda: "another")
    after = read(folder, make_cache(tmp_path), **options)
    assert [part.sha256 for part in after] == [part.sha256 for part in read(folder, None, **options)]
    assert len(list_kept(tmp_path)) == len(before)  # what was read before is gone
    assert list_kept(tmp_path) != before


def test_a_renamed_source_is_the_same_images(folder: Path, tmp_path: Path) -> None:
    read(folder, make_cache(tmp_path))
    before = list_kept(tmp_path)
    read(folder.rename(tmp_path / "moved"), make_cache(tmp_path))
    assert list_kept(tmp_path) == before


def test_images_go_with_their_source(folder: Path, tmp_path: Path) -> None:
    read(folder, make_cache(tmp_path))
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="no such file or directory"):
        read(folder, make_cache(tmp_path, prunes=False))
    assert len(list_kept(tmp_path)) == 4  # who only looks removes nothing
    with pytest.raises(DataError, match="no such file or directory"):
        read(folder, make_cache(tmp_path))
    assert list_kept(tmp_path) == []


def test_a_broken_image_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "b/9.png").read_bytes()
    (folder / "b/9.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=re.escape("b/9.png: not a readable image")):
        read(folder, make_cache(tmp_path))
    assert not any(name.endswith(".part") for name in list_kept(tmp_path))


def test_what_a_writer_left_that_was_killed_is_removed(folder: Path, tmp_path: Path) -> None:
    read(folder, make_cache(tmp_path))
    (tmp_path / "images/abc.npy.x.part").write_bytes(bytes(100))
    read(folder, make_cache(tmp_path))
    assert len(list_kept(tmp_path)) == 4


def test_a_damaged_file_is_made_anew(folder: Path, tmp_path: Path) -> None:
    expected = [part.sha256 for part in read(folder, make_cache(tmp_path))]
    for path in (tmp_path / "images").glob("*.npy"):
        path.write_bytes(path.read_bytes()[:200])
    assert [part.sha256 for part in read(folder, make_cache(tmp_path))] == expected


def test_few_images_are_not_kept(folder: Path, tmp_path: Path) -> None:
    train, _ = read(folder, make_cache(tmp_path, min_bytes=PLENTY))
    assert not isinstance(train.x, np.memmap)
    assert not (tmp_path / "images").exists()


def test_without_room_on_disk_they_lie_in_memory(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train, _ = read(folder, make_cache(tmp_path, 100))
    assert not isinstance(train.x, np.memmap)
    assert f"Decoded {folder} into memory: data.cache_gb allows 0.0 GB" in caplog.text


def test_without_room_anywhere_it_is_said_before_anything_is_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ml.data.image_cache.get_free_bytes", lambda: 10**9)
    data = {"format": "imagefolder", "path": str(folder)}
    said = (
        f"{folder}: 16 images made [3, 4096, 4096] need 3.2 GB on disk, and data.cache_gb allows 1.0 GB; "
        "in memory they need 9.7 GB, and 1.0 GB are free"
    )
    with pytest.raises(DataError, match=re.escape(said)):
        open_dataset(data, shape=(3, 4096, 4096), cache=make_cache(tmp_path, 10**9))
    assert list_kept(tmp_path) == []


def test_a_full_disk_is_said_and_leaves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(DataError, match=r"images: cannot be written \(No space left on device\); needs 0.0 GB"):
        read(folder, make_cache(tmp_path))
    assert list_kept(tmp_path) == []


def test_a_node_keeps_none_of_a_shared_data_set_or_in_anothers_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"cache_gb": 1.0}
    assert ImageCache.of_node(data, tmp_path) is not None
    assert ImageCache.of_node({**data, "partition": {"scheme": "iid"}}, tmp_path) is None
    assert ImageCache.of_node(data, tmp_path / "not yet") is None
    assert ImageCache.of_node(data, None) is None
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert ImageCache.of_node(data, tmp_path) is None
