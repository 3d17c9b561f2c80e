"""`fednode data inspect` and `stats`, and how a command line names data."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ml.data import open_dataset
from node.cli import main
from node.config.genesis_file import load_genesis
from node.config.node_config import load_config
from node.config.settings import complete_data, make_data, make_input
from node.errors import ConfigError

Captured = pytest.CaptureFixture[str]
CLASSES = ("cat", "dog", "eel")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 6, 6), np.uint8)
LABELS = np.array(CLASSES)[np.arange(60) % 3]


def run(capsys: Captured, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "pets.npz"
    np.savez(path, x=IMAGES, y=LABELS)
    return path


def test_inspect_shows_what_there_is(capsys: Captured, archive: Path) -> None:
    code, out, err = run(capsys, "data", "inspect", f"npz:{archive}")
    assert (code, err) == (0, "")
    assert f"data             npz {archive}\n" in out
    assert "1 x 6 x 6 (channels, height, width), uint8 from 0 to 255\n" in out
    assert "there is no test split: a fifth of each class is held out" in out
    assert "cat     16         4\n" in out
    assert out.endswith("nothing amiss: no duplicates, no empty class, no constant image\n")
    assert "\x1b" not in out


def test_inspect_is_json_on_request(capsys: Captured, archive: Path) -> None:
    _, out, _ = run(capsys, "data", "inspect", archive, "--json")
    answer = json.loads(out)
    assert (answer["format"], answer["path"], answer["held_out"]) == ("npz", str(archive), True)
    assert (answer["classes"], answer["shape"], answer["input_shape"]) == (list(CLASSES), [1, 6, 6], None)
    train, test = answer["splits"]
    assert (train["split"], train["samples"], train["counts"]) == ("all", 48, [16, 16, 16])
    assert test["sha256"] == open_dataset({"format": "npz", "path": str(archive)})[1].sha256
    assert answer["findings"] == []


def test_a_warning_is_shown_and_is_no_failure(capsys: Captured, archive: Path) -> None:
    np.savez(archive, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:2], y_test=LABELS[:2])
    code, out, _ = run(capsys, "data", "inspect", archive)
    assert code == 0
    assert "warning: trained on, but without a sample in test: eel\n" in out
    assert "warning: 2 of 2 samples of test are in train too: x_test[0], y_test[0] is x_train[0], y_train[0]\n" in out


def test_broken_data_are_a_failure_that_names_the_place(capsys: Captured, archive: Path) -> None:
    broken = IMAGES.astype(np.float32)
    broken[7, 1, 2] = np.nan
    np.savez(archive, x=broken, y=LABELS)
    code, out, err = run(capsys, "data", "inspect", archive)
    assert (code, out) == (1, "")
    assert f"{archive}: x[7], y[7]: expected finite numbers, got nan" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either DATA, such as digits or npz:scans.npz, or --config FILE"),
        (["no/such.csv"], "--data: no/such.csv: no such file or directory"),
        (["mnist"], "--data: data.format: no such file or directory, and unknown format 'mnist'"),
        (["npz:"], "--data: expected digits or FORMAT:PATH (got 'npz:')"),
        (["digits", "--set", "data.columns.lable=x"], "data.columns.lable: unknown key: did you mean 'label'?"),
        (["digits", "--set", "method.lr=1"], "--set method.lr: unknown section 'method'. Known: data"),
    ],
)
def test_what_was_asked_for_wrongly_exits_with_78(capsys: Captured, arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, "data", "inspect", *arguments)
    assert (code, out) == (78, "")
    assert message in err


def test_splits_that_are_passed_over_are_said(capsys: Captured, tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / f"{split}.csv").write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(9)))
    _, out, _ = run(capsys, "data", "inspect", tmp_path)
    assert "\nnot looked at: val; data.train_split and data.test_split choose, by --set\n" in out
    _, out, _ = run(capsys, "data", "inspect", tmp_path, "--set", "data.test_split=val")
    assert "not looked at" not in out


def test_images_are_seen_beside_a_list_of_them(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "train/cat").mkdir(parents=True)
    (tmp_path / "train/cat/0.png").write_bytes(b"")
    (tmp_path / "all.csv").write_text("file,label\n")
    assert make_data(str(tmp_path))["format"] == "imagefolder"
    (tmp_path / "train.csv").write_text("file,label\n")
    assert make_data(str(tmp_path))["format"] == "csv"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (7, "--set input: expected {shape: …, mean: …, std: …} (got 7)"),
        ({"shape": 7}, "--set input.shape: expected [channels, height, width], got 7"),
        ({"mean": "x", "normalize": "auto"}, "--set input.mean: expected 1 numbers"),
    ],
)
def test_an_input_that_is_none_is_one_line(settings: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_input({"format": "digits"}, {"name": "mlp"}, None, settings)


def test_features_are_not_scaled_to_images(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    data = {"format": "csv", "path": str(tmp_path / "a.csv")}
    with pytest.raises(ConfigError, match="--model: cnn_cifar takes images, and the data have 2 features"):
        make_input(data, {"name": "cnn_cifar"}, None)
    with pytest.raises(ConfigError, match="--size: expected images to resize, and the data have 2 features"):
        make_input(data, {"name": "mlp"}, 16)
    with pytest.raises(ConfigError, match="--model: expected a name"):
        make_input(data, 7, None)  # type: ignore[arg-type]


def test_stats_are_those_that_genesis_takes(capsys: Captured, archive: Path) -> None:
    _, out, _ = run(capsys, "data", "stats", archive, "--json")
    answer = json.loads(out)
    train, _ = open_dataset({"format": "npz", "path": str(archive)})
    assert answer["mean"] == pytest.approx([train.x.mean() / 255], abs=1e-5)
    assert answer["std"] == pytest.approx([train.x.std() / 255], abs=1e-5)
    _, resized, _ = run(capsys, "data", "stats", archive, "--size", 12)
    assert resized.startswith("input: {shape: [1, 12, 12], mean: [")
    data = complete_data(make_data(str(archive)))
    measured = make_input(data, {"name": "mlp"}, None, {"normalize": "auto"})
    assert (measured["mean"], measured["std"]) == (answer["mean"], answer["std"])


def test_a_node_is_measured_by_its_genesis(capsys: Captured, archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "net"
    assert run(capsys, "testnet", "-n", 2, "-o", out, "--data", f"npz:{archive}", "--partition", "iid")[0] == 0
    config = out / "node0.yaml"
    assert run(capsys, "data", "inspect", "--config", config)[0] == 0
    np.savez(archive, x=IMAGES, y=np.where(LABELS == "eel", "cow", LABELS))
    code, _, err = run(capsys, "data", "inspect", "--config", config)
    assert code == 1
    assert "x[2], y[2]: class 'cow' is not one of genesis' classes: cat, dog, eel" in err
    code, _, err = run(capsys, "data", "inspect", "digits", "--genesis", out / "genesis.yaml")
    assert code == 1
    assert "label 0 is not" in err or "expected a label from 0 to 2" in err or "class '0' is not" in err


def test_a_test_network_takes_any_data_and_names_them_whole(
    capsys: Captured, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--data", "npz:pets.npz", "--partition", "iid", "--size", "8", "--set", "data.transform.augment=flip"]
    code, out, _ = run(capsys, "testnet", "-n", 2, "-o", "net", *arguments, "--set", "input.normalize=auto")
    assert code == 0
    assert "24 train" in out
    genesis, _ = load_genesis(tmp_path / "net/genesis.yaml")
    assert genesis.run.classes == CLASSES
    assert (genesis.run.input["shape"], genesis.run.input["resize"]) == ([1, 8, 8], [8, 8])
    assert 0.4 < genesis.run.input["mean"][0] < 0.6
    own = load_config(tmp_path / "net/node1.yaml").data
    assert (own.format, own.path, own.transform.augment) == ("npz", archive, "flip")
    code, out, _ = run(capsys, "--config", "net/node1.yaml", "--check")
    assert code == 0
    assert "with 24 train / " in out
    assert out.endswith(" test samples of npz\n")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.partition=iid"], "--set data.partition: expected --partition instead"),
        (["data.test_split=val"], "data.test_split: "),
        (["classes=5"], "--set classes: expected a list of names (got 5)"),
        (["classes=[cat, dog]"], "class 'eel' is not one of genesis' classes: cat, dog"),
        (["input.normalize=all"], "--set input.normalize: expected agreed, auto or none (got 'all')"),
        (["input.shape=[4, 6, 6]"], "input.shape: the data's images come in 1 or 3 channels, got 4"),
        (["input.mean=[0.5, 0.5]"], "input.mean: expected 1 numbers"),
    ],
)
def test_wrong_settings_of_data_are_one_line(
    capsys: Captured, archive: Path, tmp_path: Path, settings: list[str], message: str
) -> None:
    arguments = [part for setting in settings for part in ("--set", setting)]
    code, out, err = run(capsys, "testnet", "-n", 2, "-o", tmp_path / "net", "--data", archive, *arguments)
    assert (code, out) == (78, "")
    assert message in err
    assert not (tmp_path / "net").exists()


def test_simulate_takes_any_data(capsys: Captured, archive: Path) -> None:
    arguments = ["--data", f"npz:{archive}", "--partition", "classes:2,0", "-n", 3, "--set", "local_iterations=1"]
    code, out, err = run(capsys, "simulate", "--rounds", 1, *arguments, "--set", "input.mean=[0.5]", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["config"]["data"] == {"format": "npz", "path": str(archive)}
    assert (answer["config"]["input"]["shape"], answer["config"]["input"]["mean"]) == ([1, 6, 6], [0.5])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["a.npz"], "npz"),
        (["pathmnist.npz"], "medmnist"),
        (["a.csv"], "csv"),
        (["a.parquet"], "parquet"),
        (["d/train-00000-of-00001.parquet"], "parquet"),
        (["d/dataset_dict.json"], "hf"),
        (["d/state.json"], "hf"),
        (["d/data_batch_1"], "cifar"),
        (["d/train.bin"], "cifar"),
        (["d/train_32x32.mat"], "svhn"),
        (["d/train-images-idx3-ubyte.gz"], "idx"),
        (["d/cat/0.png"], "imagefolder"),
        (["d/train/cat/0.JPG"], "imagefolder"),
        (["d/train.csv"], "csv"),
    ],
)
def test_the_format_of_a_path_is_seen_from_its_names(tmp_path: Path, files: list[str], expected: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    path = str(tmp_path / files[0].split("/")[0])
    assert make_data(path) == {"format": expected, "path": path}


def test_a_path_of_no_format_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected FORMAT:PATH, since it does not look like any format"):
        make_data(str(tmp_path))


def test_data_are_named_by_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data: dict[str, Any] = complete_data({"format": "csv", "path": "a/../b.csv"})
    assert data == {"format": "csv", "path": f"{tmp_path}/b.csv"}


def test_a_table_is_spoken_of_as_a_table(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    lines = [f"{i % 50},{i / 1000},{'ab'[i % 2]}" for i in range(100)]
    table.write_text("\n".join(["area,smooth,label", *lines]) + "\n")
    code, out, _ = run(capsys, "data", "inspect", table)
    assert code == 0
    assert "row              2 features, float32 from 0 to 49\n" in out
    assert "all              80 rows of " in out
    assert re.search(r"COLUMN +TYPE +MISSING +MIN +MAX +MEAN +DEVIATION +VALUES\narea +number +0 +0 +49 ", out)
    assert "warning: scales are far apart: 'area' from 0 to 49 beside 'smooth' from 0" in out
    assert " x 1" not in out
    answer = json.loads(run(capsys, "data", "inspect", table, "--json")[1])
    assert answer["kind"] == "table"
    assert [own["name"] for own in answer["features"]] == ["area", "smooth"]
    assert set(answer["features"][0]) == {"name", "min", "max", "mean", "std"}
    assert [finding["text"][:20] for finding in answer["findings"]] == ["scales are far apart"]


def test_a_tables_last_word_is_of_features_and_a_long_one_is_cut(capsys: Captured, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=RNG.random((40, 42)).astype(np.float32), y=np.arange(40) % 2)
    out = run(capsys, "data", "inspect", tmp_path / "a.npz")[1]
    assert out.endswith("nothing amiss: no duplicates, no empty class, no constant feature\n")
    assert "feature 39" in out
    assert "feature 40" not in out
    assert "\nand 2 more; --json has them all\n" in out


def test_a_label_is_named_as_elsewhere(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    table.write_text("age,glucose,diagnosis\n" + "".join(f"{i},{i / 3:.3f},{'ab'[i % 2]}\n" for i in range(40)))
    for named in (("--label", "diagnosis"), ("--set", "data.columns.label=diagnosis")):
        code, out, err = run(capsys, "data", "inspect", table, *named, "--json")
        assert code == 0, err
        assert json.loads(out)["classes"] == ["a", "b"]


def test_a_regression_is_refused_where_data_are_first_looked_at(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    table.write_text("size,label\n" + "".join(f"{i},{i / 3:.3f}\n" for i in range(30)))
    for asked in (("data", "inspect", table), ("testnet", "-o", tmp_path / "net", "--data", f"csv:{table}")):
        code, _, err = run(capsys, *asked)
        assert code != 0
        assert "prices.csv: the labels are 30 numbers that are not whole" in err
        assert "is this a regression? task: regression learns numbers: name another column by data.columns.label" in err


def test_hundreds_of_classes_of_a_table_are_taken_where_they_are_listed(capsys: Captured, tmp_path: Path) -> None:
    table, names = tmp_path / "codes.csv", [f"c{i}" for i in range(120)]
    table.write_text("size,label\n" + "".join(f"{i % 77},{names[i % 120]}\n" for i in range(480)))
    made = ("testnet", "-n", 2, "-o", tmp_path / "net", "--data", f"csv:{table}", "--partition", "iid")
    code, _, err = run(capsys, *made)
    assert (code, "the labels have 120 different values" in err) == (78, True)
    assert run(capsys, *made, "--set", f"classes=[{','.join(names)}]")[0] == 0


def test_doctor_speaks_of_features_and_of_what_genesis_leaves(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    lines = [f"{i % 50},{i / 1000},{'ab'[i % 2]}" for i in range(100)]
    table.write_text("\n".join(["area,smooth,label", *lines]) + "\n")
    for name, settings in (("good", ()), ("bare", ("--set", "input.normalize=none"))):
        made = ("-n", 1, "-o", tmp_path / name, "--data", f"csv:{table}", "--partition", "iid", "--base-port", 0)
        assert run(capsys, "testnet", *made, *settings)[0] == 0
        checks = json.loads(run(capsys, "doctor", "-c", tmp_path / name / "node0.yaml", "--json")[1])["checks"]
        found = [(check["verdict"], check["found"]) for check in checks if check["check"] == "data"]
        assert found[-1] == ("ok", "csv: 80 train / 20 test rows; 2 classes and 2 features as genesis has them")
        warned = [text for verdict, text in found if verdict == "warn"]
        assert len(warned) == (name == "bare")
        assert all("genesis leaves them so, and the wide ones drown the others" in text for text in warned)


def test_doctor_says_what_is_missing_of_each_column(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    lines = [f"{i % 17},{'' if i % 4 else i % 9},{'' if i == 7 else i % 5},{'ab'[i % 2]}" for i in range(40)]
    table.write_text("\n".join(["age,ca,chol,label", *lines]) + "\n")
    made = ("-n", 1, "-o", tmp_path / "net", "--data", f"csv:{table}", "--partition", "iid", "--base-port", 0)
    code, _, err = run(capsys, "testnet", *made, "--set", "input.missing=mean")
    assert code == 0, err
    checks = json.loads(run(capsys, "doctor", "-c", tmp_path / "net" / "node0.yaml", "--json")[1])["checks"]
    assert [one for check in checks for one in check["missing"]] == [
        {"column": "ca", "missing": 30, "rows": 40},
        {"column": "chol", "missing": 1, "rows": 40},
    ]
    found = [check["found"] for check in checks if check["verdict"] == "warn" and check["check"] == "data"]
    assert found == ["empty cells: 'ca' 30 of 40, 'chol' 1 of 40"]


def test_each_site_has_a_file_of_its_own_in_a_simulation_and_a_test_network(capsys: Captured, tmp_path: Path) -> None:
    for name, columns in (("a", "age,crp,kind"), ("b", "kind,crp,age")):
        rows = [{"age": i % 17, "crp": i / 9, "kind": "xy"[i % 2]} for i in range(40)]
        lines = [",".join(str(row[column]) for column in columns.split(",")) for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join([columns, *lines]) + "\n")
    sites = ("--site", tmp_path / "a.csv", "--site", tmp_path / "b.csv", "--set", "data.columns.label=kind")
    options = ("--rounds", 1, "--method", "fedavg", "--set", "model.hidden=[4]")
    code, out, err = run(capsys, "simulate", *sites, *options, "--json")
    assert code == 0, err
    assert json.loads(out)["config"]["clients"] == 2
    code, _, err = run(capsys, "testnet", "-o", tmp_path / "net", *sites, *options)
    assert code == 0, err
    config = load_config(tmp_path / "net" / "node1.yaml")
    data = config.get_data()
    assert (data["format"], data["path"], data["domains"]) == ("domains", str(tmp_path), ["a.csv", "b.csv"])
    assert load_genesis(tmp_path / "net" / "genesis.yaml").genesis.run.input["columns"] == [
        {"name": "age"},
        {"name": "crp"},
    ]
    code, _, err = run(capsys, "simulate", *sites, "--partition", "iid")
    assert (code, "--site: expected no --partition beside it" in err) == (78, True)
    code, _, err = run(capsys, "simulate", *sites[:2])
    assert (code, "--site: expected two and more" in err) == (78, True)


def test_the_split_of_each_site_of_a_rehearsal_follows_from_the_seed(capsys: Captured, tmp_path: Path) -> None:
    for name in "ab":
        lines = [f"{RNG.normal(i % 2):.4f},{RNG.normal():.4f},{'xy'[i % 2]}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,crp,label", *lines]) + "\n")
    options = ("--site", tmp_path / "a.csv", "--site", tmp_path / "b.csv", "--rounds", 1, "--method", "fedavg")
    held = []
    for seed in (5, 6):
        net = tmp_path / f"net{seed}"
        assert run(capsys, "testnet", "-o", net, *options, "--seed", seed, "--base-port", 0)[0] == 0
        nodes = [load_config(net / f"node{i}.yaml").get_data() for i in range(2)]
        code, out, err = run(capsys, "simulate", *options, "--seed", seed, "--json")
        assert code == 0, err
        simulated = json.loads(out)["config"]["data"]
        assert [data["split_seed"] for data in (*nodes, simulated)] == [seed] * 3
        held.append({open_dataset(data)[1].sha256 for data in (*nodes, simulated)})
    assert list(map(len, held)) == [1, 1]
    assert not held[0] & held[1]


# ---- images


def save_images(folder: Path, num: int = 5) -> Path:
    for c, kind in enumerate(("cat", "dog")):
        (folder / kind).mkdir(parents=True)
        for i in range(num):
            pixels = np.full((6, 6), 100 * c + i, np.uint8)
            pixels[0, 0] = 255
            Image.fromarray(pixels).save(folder / kind / f"{i}.png")
    return folder


def test_inspect_says_what_it_passed_over(capsys: Captured, tmp_path: Path) -> None:
    folder = save_images(tmp_path / "scans")
    (folder / "__MACOSX").mkdir()
    for i in range(3):
        (folder / f"cat/{i}.dcm").write_bytes(b"x")
    code, out, err = run(capsys, "data", "inspect", folder)
    assert (code, err) == (0, "")
    assert f"note: {folder}: passed over '__MACOSX', where no samples are\n" in out
    assert f"warning: {folder}: 3 files passed over: 3 .dcm; images end in " in out
    _, out, _ = run(capsys, "data", "inspect", folder, "--json")
    assert [found["level"] for found in json.loads(out)["findings"]] == ["note", "warning"]


def test_a_setting_says_what_image_files_are(capsys: Captured, tmp_path: Path) -> None:
    folder = save_images(tmp_path / "scans")
    Image.fromarray(np.array([[0, 4095] * 3] * 6, np.uint16)).save(folder / "cat/0.png")
    _, out, _ = run(capsys, "data", "inspect", folder)
    assert "data.images.white=4095 makes that white" in out
    _, out, _ = run(capsys, "data", "inspect", folder, "--set", "data.images.white=4095")
    assert "nearly black" not in out
    code, _, err = run(capsys, "data", "inspect", folder, "--set", "data.images.white=0")
    assert (code, err) == (78, "fednode: data.images.white: expected 1 to 65535, got 0\n")


def test_names_of_any_bytes_are_shown(capsys: Captured, tmp_path: Path) -> None:
    folder = save_images(tmp_path / os.fsdecode(b"caf\xe9"))
    (folder / os.fsdecode(b"cat/\xff.dcm")).write_bytes(b"x")
    code, out, err = run(capsys, "data", "inspect", f"imagefolder:{folder}", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["splits"][0]["origin"] == f"{tmp_path}/caf\\xe9"
    assert json.loads(out)["path"] == f"{tmp_path}/caf\\xe9"
    (folder / os.fsdecode(b"cat/\xff.png")).write_bytes(b"x")
    code, out, err = run(capsys, "data", "inspect", f"imagefolder:{folder}")
    assert code == 1
    assert err.startswith(f"fednode: {tmp_path}/caf\\xe9/cat/\\xff.png: not a readable image")


def test_what_a_node_keeps_of_images_is_removed_on_request(capsys: Captured, tmp_path: Path) -> None:
    kept = tmp_path / "node" / "images"
    kept.mkdir(parents=True)
    (kept / f"{'a' * 64}.npy").write_bytes(bytes(2_000_000))
    (kept / f"{'a' * 64}.json").write_bytes(b"{}")
    code, out, _ = run(capsys, "data", "clear-cache", "--data-dir", kept.parent)
    assert (code, out) == (0, f"{kept.parent}: removed 2.0 MB of decoded images\n")
    assert not kept.exists()
    _, out, _ = run(capsys, "data", "clear-cache", "--data-dir", kept.parent, "--json")
    assert json.loads(out) == {"data_dir": str(kept.parent), "removed_bytes": 0}
    assert run(capsys, "data", "clear-cache")[0] != 0
