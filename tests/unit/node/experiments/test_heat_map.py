"""`fednode data partition` and its heat maps: what a testnet would deal, told before it does."""

from __future__ import annotations

import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from ml.data import open_dataset, open_labels
from ml.data.partition import hash_splits, make_partition
from ml.data.readers.digits import load_digits
from ml.seeding import get_partition_seed
from node.cli import main
from node.cli.data.heat_map import print_heat_map
from node.config.node_config import load_config
from node.errors import ConfigError
from node.experiments.heat_map import draw_heat_map
from node.testnet.layout import TestnetSpec, make_testnet

Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["data", "partition", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def draw(counts: list[list[int]], **options: Any) -> str:
    console = Console(file=io.StringIO(), **options)
    labels = ["CLIENT", *(f"{i:>6}" for i in range(len(counts)))]
    print_heat_map(console, labels, ["TRAIN", *(f"{sum(row):>5}" for row in counts)], counts)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_it_tells_what_the_run_of_that_seed_deals(capsys: Captured) -> None:
    train, test = load_digits()
    for scheme, shots in (("classes:3,1", None), ("dirichlet:0.3,per=client", 5), ("domains", None), ("shards:2", 7)):
        splits = make_partition(scheme, train.y, test.y, 6, get_partition_seed(9), shots)
        options = ["--partition", scheme, "-n", "6", "--seed", "9", "--json"]
        code, out, _ = run(capsys, *options, *(["--shots", str(shots)] if shots else []))
        told = json.loads(out)
        assert code == 0
        assert told["sha256"] == hash_splits(splits)
        assert (told["seed"], told["partition_seed"]) == (9, get_partition_seed(9))
        assert [part["train"] for part in told["parts"]] == [len(split.train) for split in splits]
        assert [part["test"] for part in told["parts"]] == [len(split.test) for split in splits]
        assert [part["domain"] for part in told["parts"]] == [split.domain for split in splits]
        for part, split in zip(told["parts"], splits, strict=True):
            assert part["counts"] == np.bincount(train.y[split.train], minlength=10).tolist()
        assert told["dealt"] == sum(part["train"] for part in told["parts"])
        assert told["mean_distance"] == pytest.approx(np.mean([part["distance"] for part in told["parts"]]))


def test_a_testnet_is_held_to_what_was_told(capsys: Captured, tmp_path: Path) -> None:
    _, out, _ = run(capsys, "--partition", "dirichlet:0.5,balance=false", "-n", "3", "--seed", "5", "--json")
    spec = TestnetSpec(num_nodes=3, seed=5, partition="dirichlet:0.5,balance=false")
    for node in make_testnet(tmp_path / "cluster", spec).nodes:
        partition = load_config(node.config_file).data.partition
        assert partition is not None
        assert partition.sha256 == json.loads(out)["sha256"]


def test_a_partition_reads_labels_alone(capsys: Captured, tmp_path: Path) -> None:
    for name in (f"{kind}/{i}.png" for kind in ("cat", "dog") for i in range(6)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        size = (5, 4 + len(list(tmp_path.glob("*/*.png"))))  # of many sizes, which a testnet brings to one
        Image.new("L", size).save(tmp_path / name)
    code, by_position, _ = run(capsys, str(tmp_path), "--partition", "iid", "-n", "2", "--json")
    assert code == 0
    assert run(capsys, "--data", str(tmp_path), "--partition", "iid", "-n", "2", "--json")[1] == by_position
    data = {"format": "imagefolder", "path": str(tmp_path)}
    train, test = open_dataset(data, shape=(1, 5, 5))
    known = open_labels(data)
    assert (known.train_y.tolist(), known.test_y.tolist()) == (train.y.tolist(), test.y.tolist())
    assert known.classes == train.classes


def test_a_file_of_ones_own_is_dealt_like_any_other(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "flowers.csv"
    lines = [f"{i},{i % 7},{('iris', 'rose')[i % 2]}" for i in range(40)]
    table.write_text("\n".join(["length,width,kind", *lines]) + "\n")
    options = ["--data", f"csv:{table}", "--set", "data.columns.label=kind", "-n", "2"]
    code, out, _ = run(capsys, *options, "--partition", "shards:1")
    assert code == 0
    assert out.startswith(f"shards:1 on csv:{table}, 2 clients, seed 1\n")
    assert "\n0 iris, 1 rose\n" in out
    assert "distance  0.500 on average" in out
    code, out, err = run(capsys, *options, "--partition", "domains")
    assert (code, out) == (78, "")
    assert err.startswith("fednode: domains: expected images of at least 3 x 3 pixels, got samples of [2, 1, 1]")


def test_it_reads_well_in_a_pipe(capsys: Captured) -> None:
    code, out, _ = run(capsys, "--partition", "domains", "-n", "3")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "domains on digits, 3 clients, seed 1"
    assert lines[2].split() == ["CLIENT", "TRAIN", "TEST", "CLASSES", "DISTANCE", "DOMAIN", *"0123456789"]
    rows = [line.split() for line in lines[3:6]]
    assert [row[5] for row in rows] == ["identity", "inversion", "noise"]
    assert all(int(row[1]) == sum(map(int, row[6:])) for row in rows)
    assert "dealt     1,438 of 1,438 training samples" in out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in lines)


def test_nothing_is_a_dash_and_a_pipe_has_one_line_for_a_row() -> None:
    wide = [[0] * 49 + [12], [7] * 50]
    lines = draw(wide, width=40).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["0", "12", *["-"] * 49, "12"]
    assert lines[2].split() == ["1", "350", *["7"] * 50]
    assert len({len(line) for line in lines}) == 1


def test_a_narrow_terminal_has_the_other_columns_below() -> None:
    terminal = {"force_terminal": True, "width": 30, "no_color": True, "color_system": None}
    lines = [line.split() for line in draw([[1, 2, 3, 4, 5, 0], [0, 1, 2, 3, 4, 5]], **terminal).splitlines()]
    assert lines == [
        ["CLIENT", "TRAIN", "0", "1", "2", "3", "4"],
        ["0", "15", "1", "2", "3", "4", "5"],
        ["1", "15", "-", "1", "2", "3", "4"],
        [],
        ["CLIENT", "5"],
        ["0", "-"],
        ["1", "5"],
    ]


def test_shades_go_from_light_to_dark_and_not_without_colours() -> None:
    options = {"force_terminal": True, "width": 80, "color_system": "truecolor"}
    out = draw([[0, 1, 10]], **options)
    assert "48;2;201;216;233m  1 " in out
    assert "48;2;8;48;107m 10 " in out
    assert "48;2" not in out.split("  1 ")[0]
    assert "48;2" not in draw([[0, 1, 10]], **options, no_color=True)


@pytest.mark.parametrize("shape", [(1, 2), (10, 10), (100, 10), (3, 200)])
def test_the_picture_is_a_png_of_bounded_size(tmp_path: Path, shape: tuple[int, int]) -> None:
    counts = np.arange(shape[0] * shape[1]).reshape(shape).tolist()
    path = tmp_path / "map.png"
    draw_heat_map(path, counts, [str(i) for i in range(shape[0])], ["class"] * shape[1], "title")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert 300 < width <= 150 * 21
    assert 300 < height <= 150 * 16
    assert "matplotlib.pyplot" not in sys.modules


def test_the_picture_is_drawn_on_request_and_said(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "map.png"
    code, out, _ = run(capsys, "-n", "4", "--partition", "domains", "--png", str(path))
    assert code == 0
    assert out.splitlines()[-1].split() == ["drawn", "into", str(path)]
    assert path.stat().st_size > 1000


def test_without_matplotlib_it_is_said_what_to_install(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = run(capsys, "--png", str(tmp_path / "map.png"))
    assert (code, out) == (78, "")
    assert err == "fednode: --png: expected matplotlib to be installed: pip install 'fednode[report]'\n"


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no/map\.png: cannot be written \(No such file or directory\)"):
        draw_heat_map(tmp_path / "no" / "map.png", [[1, 1], [1, 1]], ["0", "1"], ["a", "b"], "title")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "shard:2"], "fednode: partition: unknown scheme 'shard': did you mean 'shards'?\n"),
        (["-n", "2000"], "fednode: partition: expected at least one sample for each of 2000 clients, got 1438\n"),
    ],
)
def test_what_cannot_be_dealt_is_one_line(capsys: Captured, arguments: list[str], message: str) -> None:
    assert run(capsys, *arguments) == (78, "", message)
