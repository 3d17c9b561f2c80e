"""Published data sets: recognised by digest, in the layouts they come in, and as the docs say."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.datasets import dump_svmlight_file

from ml.data import load_dataset, open_dataset, published
from ml.data.detect_format import guess_format
from ml.data.published import PUBLISHED, PublishedFile, recognise
from ml.errors import DataError
from node.cli import main
from support.data.domain_folders import save_idx, save_npz

ROOT = Path(__file__).parents[4]
DOCS = (ROOT / "docs" / "data.md").read_text()
PACKAGE = Path("/usr/share/datasets/fashion-mnist")
EXPERIMENTS = sorted((ROOT / "deploy" / "experiments").glob("*.yaml"))


def test_each_digest_is_one_and_stands_in_the_docs_beside_its_file() -> None:
    assert len({file.digest for file in PUBLISHED}) == len(PUBLISHED)
    for file in PUBLISHED:
        assert re.fullmatch(r"[0-9a-f]{32}|[0-9a-f]{64}", file.digest), file
        held = "" if file.held is None else f"[^`\n]*`{file.held}`"
        assert re.search(rf"`{re.escape(file.name)}`[^`\n]*`{file.digest}`{held}", DOCS), file
    shown = set(re.findall(r"`([0-9a-f]{32}|[0-9a-f]{64})`", DOCS))
    assert shown == {digest for file in PUBLISHED for digest in (file.digest, file.held) if digest is not None}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_each_experiment_says_in_its_header_where_its_data_lie(path: Path) -> None:
    places = set(_find_paths(yaml.safe_load(path.read_text())))
    if not places:
        return
    header = _read_header(path)
    assert "docs/data.md" in header
    for other in re.findall(r"as in ([a-z0-9-]+\.yaml)", " ".join(header.replace("#", "").split())):
        header += _read_header(path.with_name(other))
    for place in places:
        assert place in header, place
        assert f"`{place}" in DOCS or place in ("data/digit5-few", "data/mnist-2000.npz"), place


def _read_header(path: Path) -> str:
    return "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))


def _find_paths(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [path for own in value.values() for path in _find_paths(own)]
    if isinstance(value, list):
        return [path for own in value for path in _find_paths(own)]
    return [value] if isinstance(value, str) and value.startswith("data/") else []


def publish(monkeypatch: pytest.MonkeyPatch, data_set: str, path: Path, algorithm: str = "sha256") -> None:
    """Has it that the file there is a published one."""
    file = PublishedFile(data_set, path.name, hashlib.new(algorithm, path.read_bytes()).hexdigest())
    monkeypatch.setattr(published, "PUBLISHED", (*published.PUBLISHED, file))


def test_a_file_with_the_published_bytes_is_told_from_one_that_only_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fashion"
    save_idx(folder)
    for path in sorted(folder.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    publish(monkeypatch, "Fashion-MNIST", folder / "train-images-idx3-ubyte.gz")
    found = recognise(guess_format(folder), folder)
    assert {one.path.name: one.data_set for one in found} == {
        "train-images-idx3-ubyte.gz": "Fashion-MNIST",
        "train-labels-idx1-ubyte.gz": None,
        "t10k-images-idx3-ubyte.gz": None,
        "t10k-labels-idx1-ubyte.gz": None,
    }
    assert found[1].expected == ("MNIST", "Fashion-MNIST")
    assert main(["data", "inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "as published: Fashion-MNIST, train-images-idx3-ubyte.gz\n" in shown
    assert f"other than published: {folder / 't10k-images-idx3-ubyte.gz'} (MNIST or Fashion-MNIST has" in shown


def test_published_bytes_that_were_packed_anew_are_told_by_what_the_archive_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fashion"
    save_idx(folder)
    for path in sorted(folder.iterdir()):
        held = path.read_bytes()
        archive = path.with_name(path.name + ".gz")
        archive.write_bytes(gzip.compress(held, 1))
        path.unlink()
        if archive.name.startswith("t10k"):
            digest = hashlib.sha256(held).hexdigest()
            file = PublishedFile("Fashion-MNIST", archive.name, hashlib.sha256(b"").hexdigest(), held=digest)
            monkeypatch.setattr(published, "PUBLISHED", (*published.PUBLISHED, file))
    found = {one.path.name: (one.data_set, one.is_repacked) for one in recognise("idx", folder)}
    assert found["t10k-images-idx3-ubyte.gz"] == ("Fashion-MNIST", True)
    assert found["train-images-idx3-ubyte.gz"] == (None, False)
    assert main(["data", "inspect", str(folder)]) == 0
    assert "as published: Fashion-MNIST, t10k-images-idx3-ubyte.gz (packed anew)" in capsys.readouterr().out
    cut_off = folder / "t10k-images-idx3-ubyte.gz"
    cut_off.write_bytes(cut_off.read_bytes()[:-9])
    assert {one.data_set for one in recognise("idx", folder) if one.path == cut_off} == {None}


@pytest.mark.skipif(not PACKAGE.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_files_of_debians_package_are_fashion_mnists() -> None:
    found = recognise(guess_format(PACKAGE), PACKAGE)
    assert [(one.data_set, one.is_repacked) for one in found] == [("Fashion-MNIST", True)] * 4


def test_an_archive_of_its_own_is_recognised_by_its_md5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pathmnist.npz"
    arrays = {f"{part}_{what}": np.zeros((9, 28, 28, 3) if what == "images" else (9, 1), np.uint8)
              for part in ("train", "val", "test") for what in ("images", "labels")}  # fmt: skip
    np.savez(path, allow_pickle=False, **arrays)  # as medmnist writes them
    publish(monkeypatch, "PathMNIST", path, "md5")
    assert [(one.path, one.data_set) for one in recognise(guess_format(path), path)] == [(path, "PathMNIST")]


def test_names_say_nothing_in_another_format(tmp_path: Path) -> None:
    for name in ("train", "test", "data_batch_1"):  # of CIFAR
        (tmp_path / name).mkdir()
    assert recognise("imagefolder", tmp_path) == []
    assert recognise("cifar", tmp_path) == []  # no files


def test_a_packed_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"expected CIFAR-10 unpacked, in a directory cifar-10-batches-py"):
        guess_format(path)


@pytest.mark.parametrize(
    ("names", "format_"),
    [
        (("amazon", "caltech", "dslr", "webcam"), "domains"),
        (("clipart", "real", "sketch"), "domains"),
        (("mug", "bike"), "imagefolder"),
        (("amazon", "mug"), "imagefolder"),  # of which one is no domain
    ],
)
def test_known_domains_side_by_side_are_domains(tmp_path: Path, names: tuple[str, ...], format_: str) -> None:
    for name in names:
        (tmp_path / name / "1").mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / name / "1" / "first.png")
        Image.new("L", (4, 4)).save(tmp_path / name / "first.png")
    assert guess_format(tmp_path) == format_


def test_digit_5_is_read_as_the_docs_lay_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """USPS as libsvm's own tools write it, by the very lines that the docs give."""
    rng = np.random.default_rng(1)
    pixels = {"usps.bz2": rng.integers(0, 256, (40, 256)), "usps.t.bz2": rng.integers(0, 256, (20, 256))}
    for name, values in pixels.items():
        plain = tmp_path / "plain"
        dump_svmlight_file(values / 255 * 2 - 1, np.arange(len(values)) % 10 + 1, str(plain), zero_based=False)
        (tmp_path / name).write_bytes(bz2.compress(plain.read_bytes()))
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", DOCS, re.S) if "load_svmlight_file" in block)
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(line.removeprefix("  ") for line in code.splitlines()), "docs/data.md", "exec"), {})
    train, test = open_dataset({"format": "npz", "path": "data/digit5/usps/usps.npz"})
    for part, name in ((train, "usps.bz2"), (test, "usps.t.bz2")):
        np.testing.assert_array_equal(part.x.reshape(-1, 256), pixels[name])
        assert part.y.tolist() == [i % 10 for i in range(len(pixels[name]))]

    root = tmp_path / "data" / "digit5"
    save_idx(root / "mnist")
    save_npz(root / "synth")
    assert guess_format(root) == "domains"
    data = {"format": "domains", "path": str(root), "domains": ["mnist", "usps", "synth"]}
    whole, _ = load_dataset(data, {"shape": [1, 28, 28], "resize": [28, 28], "mean": [0.0], "std": [1.0]})
    assert len(whole.classes) == 10
