"""Three organisations that begin: each with `fednode init`, one with `fednode genesis new`, all with the same file."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from chain.run import Run
from chain.store.sqlite import SqliteStore
from ml.data import get_classes
from ml.models import initial_parameters
from node.cli import main
from node.config.genesis_file import INITIAL_MODEL, load_genesis
from node.config.identity import load_identity
from node.config.node_config import load_config
from node.config.recommended import CARE, choose_method, choose_model, find_guards

pytestmark = pytest.mark.outer

Captured = pytest.CaptureFixture[str]
SMALL = ("--data", "digits", "--set", "model.hidden=[8]", "--rounds", "2")


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def init(capsys: Captured, directory: Path, *options: str) -> str:
    """`id@host:port`, as it is printed."""
    code, out, err = run(capsys, "init", str(directory), *options)
    assert code == 0, err
    return out.strip()


def test_a_site_answers_by_both_models_mixed(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,label\n61,ill\n")
    for name, data in (("a", f"csv:{tmp_path / 'a.csv'}"), ("b", "digits")):
        init(capsys, tmp_path / name, "--advertise", "a.example:7050", "--data", data)
        training = load_config(tmp_path / name / "node.yaml").training
        assert (training.compare_local, training.answer_by) == (True, "mixed")


def test_three_sites_begin_with_ids_and_one_file(capsys: Captured, tmp_path: Path) -> None:
    sites = [tmp_path / name for name in ("alice", "bob", "carol")]
    peers = [init(capsys, site, "--advertise", f"{site.name}.example:7050") for site in sites]
    genesis = tmp_path / "shared" / "genesis.yaml"
    members = [f"{site.name}={peer}" for site, peer in zip(sites, peers, strict=True)]
    code, out, err = run(capsys, "genesis", "new", *members, "-o", str(genesis), *SMALL)
    assert code == 0, err
    made, model = load_genesis(genesis)
    assert made.chain_id.hex() in out
    assert {member.name: member.address for member in made.founders} == {
        site.name: f"{site.name}.example:7050" for site in sites
    }
    for site in sites:
        (site / "genesis.yaml").write_bytes(genesis.read_bytes())
        (site / INITIAL_MODEL).write_bytes(model.read_bytes())
        code, out, err = run(capsys, "start", "--check", "--config", str(site / "node.yaml"))
        assert code == 0, err
        assert f"ok: {site.name} is {site.name} (" in out


@pytest.mark.parametrize(
    ("options", "listen", "advertise"),
    [
        (("--advertise", "alice.example:7070"), "0.0.0.0:7070", "alice.example:7070"),
        (("--advertise", "[2001:db8::1]:7070"), "0.0.0.0:7070", "[2001:db8::1]:7070"),
        (("--advertise", "alice.example:443", "--listen", "10.0.0.1:7071"), "10.0.0.1:7071", "alice.example:443"),
        (("--listen", "10.0.0.1:7071"), "10.0.0.1:7071", f"{socket.gethostname()}:7071"),
        ((), "0.0.0.0:7050", f"{socket.gethostname()}:7050"),
    ],
    ids=["a name", "IPv6", "behind a forwarded port", "listen alone", "neither"],
)
def test_a_site_listens_at_the_port_that_its_peers_dial_unless_told_otherwise(
    capsys: Captured, tmp_path: Path, options: tuple[str, ...], listen: str, advertise: str
) -> None:
    assert init(capsys, tmp_path / "alice", *options).endswith(f"@{advertise}")
    network = load_config(tmp_path / "alice" / "node.yaml").network
    assert (network.listen, network.advertise) == (listen, advertise)


def test_init_names_the_page_as_a_comment(capsys: Captured, tmp_path: Path) -> None:
    init(capsys, tmp_path / "site", "--advertise", "alice.example:7000")
    text = (tmp_path / "site" / "node.yaml").read_text()
    assert "http" not in yaml.safe_load(text)
    [line] = [line for line in text.splitlines() if line.startswith("# http:")]
    assert yaml.safe_load(line.removeprefix("# ")) == {"http": {"listen": "127.0.0.1:8080"}}


def test_init_keeps_the_key_to_its_owner_and_says_the_id_it_has(capsys: Captured, tmp_path: Path) -> None:
    site = tmp_path / "alice"
    peer = init(capsys, site, "--listen", "0.0.0.0:7777", "--advertise", "alice.example:7000")
    key = site / "keys" / "alice.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    load_identity(key)
    assert run(capsys, "id", "--config", str(site / "node.yaml"), "--peer")[1].strip() == peer
    assert peer.endswith("@alice.example:7000")
    assert load_config(site / "node.yaml").network.listen == "0.0.0.0:7777"


def test_a_site_that_dials_out_is_its_id_alone(capsys: Captured, tmp_path: Path) -> None:
    site = tmp_path / "dora"
    peer = init(capsys, site, "--dial-out")
    assert "@" not in peer
    network = load_config(site / "node.yaml").network
    assert (network.dial_out, network.advertise) == (True, None)
    assert run(capsys, "id", "--config", str(site / "node.yaml"))[1].strip() == peer
    code, _, err = run(capsys, "id", "--config", str(site / "node.yaml"), "--peer")
    assert (code, "of a node that peers dial" in " ".join(err.split())) == (2, True)
    code, _, err = run(capsys, "init", str(tmp_path / "eve"), "--dial-out", "--advertise", "eve.example:7050")
    assert code == 2
    others = [f"{name}={init(capsys, tmp_path / name, '--advertise', f'{name}.example:7050')}" for name in ("a", "b")]
    genesis = tmp_path / "genesis.yaml"
    code, _, err = run(capsys, "genesis", "new", *others, f"dora={peer}", "-o", str(genesis), *SMALL)
    assert code == 0, err
    assert {founder.name: founder.address for founder in load_genesis(genesis)[0].founders}["dora"] in (None, "")


def test_init_writes_over_nothing(capsys: Captured, tmp_path: Path) -> None:
    init(capsys, tmp_path / "alice", "--advertise", "a:1")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for missing in ("node.yaml", "node.schema.json"):
        (tmp_path / "alice" / missing).unlink()
        code, out, err = run(capsys, "init", str(tmp_path / "alice"), "--advertise", "a:1")
        assert (code, out) == (78, "")
        assert "expected no file, as nothing is written over" in err
        after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert after == {path: data for path, data in before.items() if path in after}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name", "b b"], "--name: node.name: expected letters"),
        (["--advertise", "foo"], "--advertise: network.advertise: expected host:port (got 'foo')"),
        (["--data", "npz:/nope"], ""),
        (
            ["--label", "diagnosis"],
            "--label: expected a table (csv, parquet, hf) in --data, as data.format digits has no",
        ),
        (["--data", "csv:a.csv", "--label", ""], "data.columns.label: expected text, got ''"),
        (["--genesis", "nope.yaml"], "nope.yaml: no such file"),
        (["--key", "nope.key"], "nope.key: no such file"),
    ],
)
def test_init_that_is_refused_leaves_nothing(
    capsys: Captured, tmp_path: Path, options: list[str], message: str
) -> None:
    code, out, err = run(capsys, "init", str(tmp_path / "alice"), "--advertise", "a:1", *options)
    if not message:  # data may come later than the configuration
        assert code == 0
        return
    assert (code, out) == (78, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_init_names_the_column_of_labels_in_a_table(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    table.write_text("age,diagnosis\n1,well\n2,ill\n3,well\n4,ill\n")
    init(capsys, tmp_path / "a", "--advertise", "a:1", "--data", f"csv:{table}", "--label", "diagnosis")
    data = load_config(tmp_path / "a" / "node.yaml").data
    assert (data.format, data.columns.label) == ("csv", "diagnosis")
    assert get_classes(data.model_dump(mode="json")) == ("ill", "well")


def test_init_takes_a_key_there_is_and_its_passphrase(capsys: Captured, tmp_path: Path) -> None:
    passphrase, key = tmp_path / "secret", tmp_path / "mine.key"
    passphrase.write_text("correct horse\n")
    made = run(capsys, "keygen", "-o", str(key), "--passphrase-file", str(passphrase), "--json")[1]
    options = ("--key", str(key), "--passphrase-file", str(passphrase), "--advertise", "a:1", "--json")
    code, out, _ = run(capsys, "init", str(tmp_path / "alice"), *options)
    assert code == 0
    answer = json.loads(out)
    assert answer["id"] == json.loads(made)["id"]
    assert not (tmp_path / "alice" / "keys").exists()
    assert run(capsys, "id", "--config", answer["config"])[1].strip() == answer["id"]


def test_four_sites_begin_with_what_bounds_each_of_them_and_three_are_told_why_not(
    capsys: Captured, tmp_path: Path
) -> None:
    peers = [init(capsys, tmp_path / name, "--advertise", "a:1") for name in "abcd"]
    for number, expected in ((4, ("trimmed_mean", 4)), (3, ("mean", None))):
        out = tmp_path / str(number) / "genesis.yaml"
        code, _, err = run(capsys, "genesis", "new", *peers[:number], "-o", str(out), *SMALL)
        assert code == 0, err
        method = load_genesis(out).genesis.run.method
        assert (method["aggregation"], method.get("weight_cap")) == expected
        told = "aggregation: trimmed_mean and weight_cap: 4 are for 4 members and more, and not written for 3"
        assert (told in err) == (number == 3)
        assert ("three members under bft stand no loss" in err) == (number == 3)
    out = tmp_path / "majority" / "genesis.yaml"
    err = run(capsys, "genesis", "new", *peers[:3], "-o", str(out), *SMALL, "--set", "quorum=majority")[2]
    assert "stand no loss" not in err


AGREED = {"normalize": "agreed", "min_count": 5}


@pytest.mark.parametrize(
    ("shape", "settings", "expected"),
    [
        ("1x8x8", (), AGREED),
        ("2x1x1", (), AGREED),
        ("2x1x1", ("input.min_count=20", "input.class_counts=true"), {**AGREED, "min_count": 20, "class_counts": True}),
        ("1x8x8", ("input.normalize=none",), {"mean": [0.0], "std": [1.0]}),
        ("1x8x8", ("input.std=[0.25]",), {"mean": [0.0], "std": [0.25]}),
    ],
)
def test_members_agree_on_what_normalises_their_samples_unless_somebody_says_it(
    capsys: Captured, tmp_path: Path, shape: str, settings: tuple[str, ...], expected: dict[str, Any]
) -> None:
    peer = init(capsys, tmp_path / "alice", "--advertise", "a:1")
    out = tmp_path / "genesis.yaml"
    stated = ("--classes", "x,y", "--input", shape, *(part for setting in settings for part in ("--set", setting)))
    code, _, err = run(capsys, "genesis", "new", peer, "-o", str(out), *stated)
    assert code == 0, err
    genesis = load_genesis(out).genesis
    assert {key: value for key, value in genesis.run.input.items() if key not in ("shape", "resize")} == expected
    assert ("in round 1 members tell sums of their training samples" in err) == ("normalize" in expected)
    assert ("statistics" in genesis.run.schema["rounds"].get("1", {})) == ("normalize" in expected)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("input.normalize=auto", "--set input.normalize: expected agreed or none without --data (got 'auto')"),
        ("input.normalize=inherited", "expected agreed or none without --data"),
        ("input.min_count=0", "input.min_count: expected a whole number from 1, got 0"),
    ],
)
def test_an_agreement_that_cannot_be_is_one_line(capsys: Captured, tmp_path: Path, setting: str, problem: str) -> None:
    peer = init(capsys, tmp_path / "alice", "--advertise", "a:1")
    made = ("genesis", "new", peer, "-o", str(tmp_path / "genesis.yaml"), "--classes", "x,y", "--input", "2")
    code, _, err = run(capsys, *made, "--set", setting)
    assert code == 78
    assert problem in err


def test_a_genesis_of_data_has_what_is_recommended_and_says_what_normalises(capsys: Captured, tmp_path: Path) -> None:
    peer, out = init(capsys, tmp_path / "alice", "--advertise", "a:1"), tmp_path / "genesis.yaml"
    (tmp_path / "a.csv").write_text("small,large,label\n" + "0.001,100,x\n0.003,300,y\n" * 5)
    made = ("genesis", "new", peer, "-o", str(out), "--data", f"csv:{tmp_path / 'a.csv'}")

    def make(*options: str) -> tuple[Run, str]:
        for path in (out, tmp_path / "initial_model.safetensors"):
            path.unlink(missing_ok=True)
        code, _, err = run(capsys, *made, *options)
        assert code == 0, err
        return load_genesis(out).genesis.run, err

    own, err = make()
    named = [{"name": "small"}, {"name": "large"}]
    assert own.input == {"shape": [2, 1, 1], "resize": None, **AGREED, "columns": named}
    assert "fednode: 2 columns stand in genesis, and are matched by name" in err
    dropped, _ = make("--drop", "small")
    assert (dropped.input["shape"], dropped.input["columns"]) == ([1, 1, 1], named[1:])
    assert (own.method["name"], own.method["optimizer"], own.method["local_epochs"]) == ("fedavg", "adamw", 1)
    assert own.model == {"name": "wide_deep", "hidden": [64]}
    named_method, _ = make("--method", "dfpl")
    assert [named_method.method[key] for key in ("aux", "normalize", "lambda")] == ["contrast", True, 1.0]
    assert named_method.model["name"] == "mlp"
    own, err = make("--set", "input.normalize=auto")
    assert f"input.mean and input.std are of csv:{tmp_path / 'a.csv'}, and all members see them" in err
    assert own.input["mean"] == pytest.approx([0.002, 200])
    assert own.input["std"] == pytest.approx([0.001, 100])
    filled, _ = make("--set", "input.columns=auto", "--set", "input.missing=mean")
    assert filled.input == {"shape": [2, 1, 1], "resize": None, **AGREED, "columns": named, "missing": "mean"}
    meant, _ = make("--set", "classes={low: [x], high: [y, z]}")
    assert (meant.classes, meant.labels) == (("low", "high"), {"low": ["x"], "high": ["y", "z"]})
    own, err = make("--method", "dfpl", "--set", "input.normalize=none", "--set", "aux=l2")
    assert "input.mean" not in err
    assert (own.method["aux"], own.input["mean"], own.input["std"]) == ("l2", [0.0], [1.0])
    assert "normalize" not in own.method


def test_pretrained_weights_bring_their_constants_or_are_refused(capsys: Captured, tmp_path: Path) -> None:
    peer, out = init(capsys, tmp_path / "alice", "--advertise", "a:1"), tmp_path / "genesis.yaml"
    made = ("genesis", "new", peer, "-o", str(out), "--classes", "x,y", "--input", "2", "--model", "mlp")
    stated = (*made, "--set", "model.hidden=[3]")
    arrays = initial_parameters({"name": "mlp", "hidden": [3]}, (2, 1, 1), 2, 1)
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    named = {"mean": [1.5, 2000.0], "std": [0.5, 300.0]}
    silent, card, keys, own, broken = (tmp_path / f"{name}.safetensors" for name in ("a", "b", "c", "d", "e"))
    save_file(weights, silent)
    save_file(weights, card, {name: json.dumps(values) for name, values in named.items()})
    save_file(weights | {name: torch.tensor(values) for name, values in named.items()}, keys)
    save_file(weights, own, {"fednode.input": json.dumps({"shape": [2, 1, 1], "resize": None, **named})})
    save_file(weights, broken, {"mean": "[1.5, 2000.0]", "std": "[0, 1]"})
    code, _, err = run(capsys, *stated, "--pretrained", str(silent))
    assert code == 78
    assert "does not say what its weights saw" in err
    code, _, err = run(capsys, *stated, "--pretrained", str(broken))
    assert (code, "expected a std for each channel, got [0, 1]" in err) == (78, True)
    for file in (card, keys, own):
        code, _, err = run(capsys, *stated, "--pretrained", str(file))
        assert code == 0, err
        assert {key: load_genesis(out).genesis.run.input[key] for key in named} == named
        assert f"those that {file} names" in err
        for path in (out, tmp_path / "initial_model.safetensors"):
            path.unlink()
    code, _, err = run(capsys, *stated, "--pretrained", str(silent), "--set", "input.normalize=agreed")
    assert code == 0, err
    assert load_genesis(out).genesis.run.input["normalize"] == "agreed"


ADAMW = {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01}
ANSWERS = {"lr": 0.03, "momentum": 0.9, "num_prototypes": 8, "reembed": True, "own_samples": 2000, "prior": 0.25}
CONTRAST = {"aux": "contrast", "normalize": True}
TABLE, IMAGE = True, False


@pytest.mark.parametrize(
    ("name", "settings", "is_table", "task", "chosen"),
    [
        ("auto", {}, TABLE, "classification", {"name": "fedavg", **ADAMW, "local_epochs": 1}),
        ("auto", {}, TABLE, "regression", {"name": "fedavg", **ADAMW, "local_epochs": 1}),
        ("auto", {}, IMAGE, "classification", {"name": "mpfedcl", **ANSWERS}),
        ("auto", {}, IMAGE, "multilabel", {"name": "fedavg"}),
        ("auto", {"prior": 0.1}, IMAGE, "classification", {"name": "mpfedcl", **ANSWERS, "prior": 0.1}),
        ("auto", {"lr": 0.5}, TABLE, "classification", {"name": "fedavg", "lr": 0.5, "local_epochs": 1}),
        ("auto", {"momentum": 0.5}, TABLE, "classification", {"name": "fedavg", "momentum": 0.5, "local_epochs": 1}),
        ("local", {"local_iterations": 9}, TABLE, "classification", {"name": "local", **ADAMW, "local_iterations": 9}),
        ("mpfedcl", {}, IMAGE, "classification", {"name": "mpfedcl"}),
        ("mpfedcl", {}, TABLE, "classification", {"name": "mpfedcl"}),
        ("dfpl", {"lambda": 2}, TABLE, "classification", {"name": "dfpl", "lambda": 2, **CONTRAST}),
        ("dfpl", {"aux": "l2"}, IMAGE, "classification", {"name": "dfpl", "aux": "l2"}),
        ("dfpl", {"lr": -1}, IMAGE, "classification", {"name": "dfpl", "lr": -1}),  # which what reads it refuses
        ("nope", {}, IMAGE, "classification", {"name": "nope"}),
        ("auto", "dfpl", IMAGE, "classification", "dfpl"),
    ],
)
def test_a_method_is_given_what_suits_the_data_and_is_not_set(
    name: str, settings: object, is_table: bool, task: str, chosen: object
) -> None:
    assert choose_method(name, settings, task, is_table=is_table) == chosen


def test_a_table_has_a_network_with_a_linear_path_where_models_are_what_is_averaged() -> None:
    for method, is_table, name in [("fedavg", TABLE, "wide_deep"), ("dfpl", TABLE, "mlp"), ("fedavg", IMAGE, "mlp")]:
        assert choose_model("auto", {"hidden": [3]}, {"name": method}, is_table=is_table) == {
            "name": name,
            "hidden": [3],
        }
    assert choose_model("linear", {}, {"name": "fedavg"}, is_table=TABLE) == {"name": "linear"}
    assert choose_model("auto", "linear", {"name": "fedavg"}, is_table=TABLE) == "linear"


@pytest.mark.parametrize(
    ("method", "guards"),
    [
        ({"name": "dfpl"}, {"aggregation": "trimmed_mean", "weight_cap": 4}),
        ({"name": "mpfedcl", "lr": 0.5}, {"aggregation": "trimmed_mean", "weight_cap": 4}),
        ({"name": "fednova"}, {"weight_cap": 4}),
        ({"name": "fededs", "base": "fednova"}, {"weight_cap": 4}),
        ({"name": "dfpl", "proto_agg": "samples"}, {"weight_cap": 4}),
        ({"name": "fedavg", "aggregation": "mean"}, {"weight_cap": 4}),
        ({"name": "fedavg", "aggregation": "median", "weight_cap": 9}, {}),
        ({"name": "uapdfl"}, {}),
        ({"name": "local"}, {}),
        ({"name": "fedavg", "lr": -1}, {}),  # which is refused by what reads it
        ({"name": "nope"}, {}),
        ("dfpl", {}),
    ],
)
def test_a_method_is_given_the_guards_that_it_takes_and_has_not(method: object, guards: dict[str, object]) -> None:
    assert find_guards(method) == guards


@pytest.mark.parametrize(
    ("method", "care"),
    [
        ({"name": "dfpl"}, {"min_class_samples": 5}),
        ({"name": "mpfedcl"}, {"min_class_samples": 5, "weights": "bucketed"}),
        ({"name": "fedavg"}, {"weights": "bucketed"}),
        ({"name": "fedavg", "weights": "samples"}, {}),
        ({"name": "uapdfl"}, {"weights": "bucketed"}),
        ({"name": "dispfl"}, {}),
        ({"name": "local"}, {}),
    ],
)
def test_a_method_is_given_what_spares_sites(method: object, care: dict[str, object]) -> None:
    assert find_guards(method, CARE) == care


def test_genesis_without_data_says_classes_and_input_itself(capsys: Captured, tmp_path: Path) -> None:
    peer = init(capsys, tmp_path / "alice", "--advertise", "a:1")
    out = tmp_path / "genesis.yaml"
    stated = ("--classes", "benign,malignant", "--input", "3x16x16", "--set", "input.mean=[0.5]", "--set", "lr=0.05")
    code, said, err = run(capsys, "genesis", "new", peer, "-o", str(out), *stated, "--json")
    assert code == 0, err
    genesis = load_genesis(out).genesis
    assert json.loads(said) == {
        "file": str(out),
        "chain_id": genesis.chain_id.hex(),
        "members": 1,
        "quorum": 1,
    }
    assert genesis.run.classes == ("benign", "malignant")
    assert genesis.run.input == {"shape": [3, 16, 16], "resize": [16, 16], "mean": [0.5], "std": [1.0]}
    assert genesis.run.method["lr"] == 0.05
    assert (genesis.run.rounds, genesis.profile) == (0, "site")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["MEMBER"], 78, "--input: expected CHANNELSxHEIGHTxWIDTH, or of tables the number of"),
        (["MEMBER", "--input", "1x8x8"], 78, "--classes: expected their names where there is no --data"),
        (["MEMBER", "--input", "8x8", "--classes", "a,b"], 2, "expected CHANNELSxHEIGHTxWIDTH, as in 1x28x28"),
        (["MEMBER", "--input", "0", "--classes", "a,b"], 2, "or of tables the number of features, as in 30"),
        (["MEMBER", "--input", "30", "--model", "cnn_mnist", "--classes", "a,b"], 78, "cnn_mnist"),
        (["MEMBER", "--data", "digits", "--classes", "a,b"], 2, "expected --data, or --classes and --input"),
        (["MEMBER", "MEMBER", "--data", "digits"], 78, "expected one entry per key"),
        (["nobody@a:1", "--data", "digits"], 78, "member 'nobody@a:1': expected [NAME=]ID[@HOST:PORT]"),
        (["MEMBER:1", "--data", "digits"], 78, "expected [NAME=]ID[@HOST:PORT]"),
        (["=MEMBER", "--data", "digits"], 78, "expected a name before the ="),
    ],
)
def test_genesis_new_refuses_what_cannot_be_in_one_place(
    capsys: Captured, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    peer = init(capsys, tmp_path / "alice", "--advertise", "a:1")
    out = tmp_path / "shared" / "genesis.yaml"
    given = [argument.replace("MEMBER", peer) for argument in arguments]
    got, said, err = run(capsys, "genesis", "new", *given, "-o", str(out))
    assert (got, said) == (code, "")
    assert message in err
    assert not out.parent.exists()


def test_federations_of_tables_are_made_beside_one_another(capsys: Captured, tmp_path: Path) -> None:
    peer = init(capsys, tmp_path / "alice", "--advertise", "a:1")
    for name, features in (("genesis", "30"), ("trial", "4")):
        file = tmp_path / f"{name}.yaml"
        code, _, err = run(capsys, "genesis", "new", peer, "--input", features, "--classes", "a,b", "-o", str(file))
        assert code == 0, err
        genesis, model = load_genesis(file)
        assert genesis.run.input["shape"] == [int(features), 1, 1]
        assert genesis.run.input["resize"] is None
        assert f"{file} and {model.name} beside it go to every member" in err
    assert {path.name for path in tmp_path.glob("*.safetensors")} == {INITIAL_MODEL, f"trial.{INITIAL_MODEL}"}


def test_who_has_no_data_may_name_the_columns(capsys: Captured, tmp_path: Path) -> None:
    peer, out = init(capsys, tmp_path / "alice", "--advertise", "a:1"), tmp_path / "genesis.yaml"
    code, _, err = run(capsys, "genesis", "new", peer, "--input", "age, bmi", "--classes", "a,b", "-o", str(out))
    assert code == 0, err
    input_ = load_genesis(out).genesis.run.input
    assert (input_["shape"], input_["columns"]) == ([2, 1, 1], [{"name": "age"}, {"name": "bmi"}])
    unnamed = ("genesis", "new", peer, "--input", "2", "--classes", "a,b")
    code, _, err = run(capsys, *unnamed, "-o", str(tmp_path / "other.yaml"))
    assert (code, "features have no names in genesis" in err) == (0, True)
    code, _, err = run(capsys, *unnamed[:-1], str(tmp_path / "third.yaml"), "--drop", "id")
    assert (code, "--drop: expected --data as well" in err) == (78, True)


def test_a_raw_table_is_refused_when_genesis_is_made(capsys: Captured, tmp_path: Path) -> None:
    peer, out = init(capsys, tmp_path / "alice", "--advertise", "a:1"), tmp_path / "genesis.yaml"
    rows = "".join(f"{900 + i},one,{i % 7},{'' if i % 4 else i % 9},{'fm'[i % 2]},{i % 3 // 2}\n" for i in range(40))
    (tmp_path / "raw.csv").write_text(f"id,dataset,age,ca,sex,label\n{rows}")
    made = ("genesis", "new", peer, "-o", str(out), "--data", f"csv:{tmp_path / 'raw.csv'}")
    code, _, err = run(capsys, *made)
    assert code == 78
    assert "id: another value in each row; dataset: one value" in err
    code, _, err = run(capsys, *made, "--drop", "id,dataset")
    assert code == 78
    assert "add --set input.columns=auto, by which words are categories, and --set input.missing=mean" in err
    settings = ("--set", "input.columns=auto", "--set", "input.missing=mean")
    code, _, err = run(capsys, *made, "--drop", "id,dataset", *settings)
    assert code == 0, err
    assert [column["name"] for column in load_genesis(out).genesis.run.input["columns"]] == ["age", "ca", "sex"]


def test_genesis_new_writes_over_neither_of_its_files(capsys: Captured, tmp_path: Path) -> None:
    peer = init(capsys, tmp_path / "alice", "--advertise", "a:1")
    for taken in ("genesis.yaml", INITIAL_MODEL):
        folder = tmp_path / f"with {taken}"
        folder.mkdir()
        (folder / taken).write_text("mine")
        code, _, err = run(capsys, "genesis", "new", peer, "-o", str(folder / "genesis.yaml"), *SMALL)
        assert code == 78
        assert f"{taken}: expected no file" in err
        assert [path.read_text() for path in folder.iterdir()] == ["mine"]


def test_a_member_is_added_before_the_start_and_not_after(capsys: Captured, tmp_path: Path) -> None:
    site = tmp_path / "alice"
    alice = init(capsys, site, "--advertise", "a:1")
    bob = init(capsys, tmp_path / "bob", "--advertise", "b:1")
    carol = init(capsys, tmp_path / "carol", "--advertise", "c:1")
    file = site / "genesis.yaml"
    assert run(capsys, "genesis", "new", f"alice={alice}", "-o", str(file), *SMALL)[0] == 0
    before = load_genesis(file).genesis
    assert before.state.min_contributions == 1
    code, out, _ = run(capsys, "genesis", "add-member", str(file), f"bob={bob}")
    after = load_genesis(file).genesis
    assert code == 0
    assert after.chain_id.hex() in out
    assert after.chain_id != before.chain_id
    assert {member.name for member in after.founders} == {"alice", "bob"}
    assert after.state.min_contributions == after.state.q == 2
    assert (after.created_at_ms, after.run.initial_model) == (before.created_at_ms, before.run.initial_model)

    SqliteStore.open(load_config(site / "node.yaml").node.data_dir, after).close()
    text = file.read_text()
    code, out, err = run(capsys, "genesis", "add-member", str(file), f"carol={carol}")
    assert (code, out) == (78, "")
    assert f"there is a chain in {site / 'data'}" in err
    assert file.read_text() == text


def test_the_schema_knows_every_key_that_init_writes(capsys: Captured, tmp_path: Path) -> None:
    init(capsys, tmp_path / "alice", "--advertise", "a:1")
    first, *_ = (tmp_path / "alice" / "node.yaml").read_text().splitlines()
    assert first == "# yaml-language-server: $schema=node.schema.json"
    schema = json.loads((tmp_path / "alice" / "node.schema.json").read_text())
    assert schema == json.loads(run(capsys, "config", "schema")[1])
    written = yaml.safe_load((tmp_path / "alice" / "node.yaml").read_text())
    for name, section in written.items():
        known = schema["properties"][name]
        if isinstance(section, dict):
            assert section.keys() <= schema["$defs"][known["$ref"].rsplit("/", 1)[1]]["properties"].keys()


@pytest.mark.parametrize(("method", "says"), [("mpfedcl", True), ("fedavg", False)])
def test_who_makes_a_genesis_of_masked_sums_is_told_what_they_do_not_hide(
    capsys: Captured, tmp_path: Path, method: str, says: bool
) -> None:
    peers = [init(capsys, tmp_path / name, "--advertise", "a:1") for name in "abcd"]
    out = ("-o", str(tmp_path / "genesis.yaml"), "--method", method)
    settings = ("--set", "aggregation=masked_sum", "--set", "input.normalize=none")
    code, _, err = run(capsys, "genesis", "new", *peers, *out, *settings, *SMALL)
    assert code == 0, err
    assert (
        "fednode: masks hide the model alone: everybody sees prototypes, and they tell which classes" in err
    ) is says
