"""genesis.yaml and the initial model beside it: read back as written, refused by place."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chain.genesis import Genesis
from chain.signing import SigningKey, encode_id
from ml.payload import decode_arrays, encode_arrays
from ml.specs.architectures import parameter_shapes
from node.config.genesis_file import INITIAL_MODEL, get_genesis_spec, load_genesis, refuse_existing, write_genesis
from node.errors import ConfigError

MODEL = {"name": "mlp", "hidden": [3]}
SHAPE = (1, 2, 2)
CLASSES = ["cat", "dog"]
INITIAL = encode_arrays(
    {f"model/{name}": np.zeros(shape, np.float32) for name, shape in parameter_shapes(MODEL, SHAPE, 2).items()}
)
KEYS = [encode_id(SigningKey.from_private_bytes(bytes([i]) * 32).id) for i in (1, 2, 3, 4)]

WITHOUT_SCHEMA = f"""\
protocol: 2
chain_name: demo
created_at: 2026-11-20T14:00:00Z
members:
  - {{key: {KEYS[0]}, name: node0, address: "127.0.0.1:7050"}}
  - {{key: {KEYS[1]}, name: node1}}
  - {{key: {KEYS[2]}, name: node2}}
  - {{key: {KEYS[3]}, name: node3}}
method: {{name: dfpl, lambda: 1.0, local_iterations: 20}}
model: {{name: mlp, hidden: [3]}}
classes: [cat, dog]
input: {{shape: [1, 2, 2], resize: null, mean: [0.0], std: [1.0]}}
initial_model: {hashlib.sha256(INITIAL).hexdigest()}
rounds: 10
quorum: bft
profile: local
pow: {{difficulty: 65536, min: 65536, max: 4294967296, target_ms: 1000}}
limits: {{max_weight: 1000000, payload_mib: 512}}
"""
SCHEMA = {
    "aggregate": {"prototypes/classes": "int64[n]", "prototypes/prototypes": "float32[n,3]"},
    "rounds": {
        "1..": {
            "prototypes": {
                "arrays": "aggregate",
                "rule": "class_mean",
                "max_bytes": 176,
                "bounds": {"n": "0..2"},
                "ranges": {"classes": "0..1"},
            }
        }
    },
}
TEXT = f"{WITHOUT_SCHEMA}schema: {json.dumps(SCHEMA)}\n"


def write(tmp_path: Path, text: str = TEXT, model: bytes | None = INITIAL) -> Path:
    path = tmp_path / "genesis.yaml"
    path.write_text(text, encoding="utf-8")
    if model is not None:
        (tmp_path / INITIAL_MODEL).write_bytes(model)
    return path


def complain(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_genesis(path)
    assert caught.value.exit_code == 78
    return caught.value.describe().replace(f"{path.parent}/", "")


def test_the_readable_form_is_read_with_the_model_beside_it(tmp_path: Path) -> None:
    genesis, model = load_genesis(write(tmp_path))
    assert (genesis.state.n, genesis.state.q, genesis.run.rounds) == (4, 3, 10)
    assert model == tmp_path / INITIAL_MODEL
    assert get_genesis_spec(genesis).name == "dfpl"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (WITHOUT_SCHEMA, "dfpl on mlp as this version of fednode describes them, got none (fednode genesis new"),
        (
            TEXT.replace("hidden: [3]", "hidden: [4]"),
            "fednode describes them, got others",
        ),
        (TEXT.replace("name: dfpl, lambda: 1.0", "name: local"), "the payloads of local on mlp as this version"),
    ],
)
def test_a_schema_that_is_not_that_of_the_method_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in complain(write(tmp_path, text))


def test_what_is_written_reads_back_as_the_same_chain(tmp_path: Path) -> None:
    genesis, _ = load_genesis(write(tmp_path))
    (tmp_path / "again").mkdir()
    write_genesis(tmp_path / "again" / "genesis.yaml", genesis, INITIAL)
    again, _ = load_genesis(tmp_path / "again" / "genesis.yaml")
    assert isinstance(again, Genesis)
    assert again.chain_id == genesis.chain_id
    assert "127.0.0.1:7050" in [member.address for member in again.founders]


def test_a_genesis_is_never_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path)
    genesis, _ = load_genesis(path)
    with pytest.raises(FileExistsError):
        write_genesis(path, genesis, INITIAL)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("difficulty: 65536", "difficulty: 0", "genesis.yaml:17:7: pow.difficulty: expected 1 to "),
        ("difficulty:", "dificulty:", "genesis.yaml:17:7: pow.dificulty: "),
        ("rounds: 10", "rounds: ten", "genesis.yaml:14:1: rounds: "),
        ("payload_mib: 512", "payload_mib: 512, max_abs: 0", "genesis.yaml:18:"),
        (f"key: {KEYS[1]}", "key: abc", "genesis.yaml:6:6: members.1.key: node id: expected 52 characters"),
        ("name: node2", "name: node1", "genesis.yaml:7:"),
        ("lambda: 1.0", "lamda: 1.0", "genesis.yaml:9:22: method.lamda: unknown key: did you mean 'lambda'?"),
        ("local_iterations: 20", "local_iterations: 0", "genesis.yaml:9:35: method.local_iterations: "),
        ("name: dfpl", "name: dfpi", "genesis.yaml:9:10: method.name: unknown method 'dfpi'"),
        ("hidden: [3]", "hidden: []", "genesis.yaml:10:20: model.hidden: "),
        ("quorum: bft", "quorum: all", "genesis.yaml:15:1: quorum: "),
        ("profile: local\n", "", "genesis.yaml: profile: "),
    ],
)
def test_each_wrong_value_names_its_place(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in TEXT
    first, last = complain(write(tmp_path, TEXT.replace(old, new))).splitlines()
    assert first.startswith(problem)
    assert last == "fednode: 1 problem in genesis.yaml; nothing was started"


@pytest.mark.parametrize("key", ["²", "9" * 5000])
def test_a_key_of_unusual_digits_is_refused_by_its_place(tmp_path: Path, key: str) -> None:
    first, _ = complain(write(tmp_path, TEXT + f"? '{key}'\n: 1\n")).splitlines()
    assert first.startswith(f"genesis.yaml:20:3: {key}: unknown key")


def test_the_initial_model_must_be_the_one_that_genesis_names(tmp_path: Path) -> None:
    changed = bytearray(INITIAL)
    changed[-1] ^= 1
    assert complain(write(tmp_path, model=bytes(changed))) == (
        f"fednode: {INITIAL_MODEL}: expected the initial model that genesis.yaml:13:1 names, "
        f"{hashlib.sha256(INITIAL).hexdigest()} (got {hashlib.sha256(changed).hexdigest()})"
    )


def test_several_genesis_files_in_one_directory_have_a_model_each(tmp_path: Path) -> None:
    path, others = write(tmp_path), []
    for name in ("trial.yaml", "pilot.v2.yaml"):
        others.append(tmp_path / name)
        model = encode_arrays(
            {key: array + np.float32(len(others)) for key, array in decode_arrays(INITIAL, len(INITIAL)).items()}
        )
        genesis = load_genesis(path).genesis
        digest = hashlib.sha256(model).digest()
        refuse_existing(others[-1])
        write_genesis(others[-1], replace(genesis, run=replace(genesis.run, initial_model=digest)), model)
        with pytest.raises(ConfigError, match=f"{name}: expected no file"):
            refuse_existing(others[-1])
    assert [load_genesis(each).initial_model.name for each in (path, *others)] == [
        INITIAL_MODEL,
        f"trial.{INITIAL_MODEL}",
        f"pilot.v2.{INITIAL_MODEL}",
    ]
    others[1].unlink()
    with pytest.raises(ConfigError, match=f"pilot.v2.{INITIAL_MODEL}: expected no file"):
        refuse_existing(others[1])


def test_a_genesis_of_another_name_may_have_the_model_that_is_there_alone(tmp_path: Path) -> None:
    renamed = write(tmp_path).rename(tmp_path / "trial.yaml")
    assert load_genesis(renamed).initial_model == tmp_path / INITIAL_MODEL
    (tmp_path / INITIAL_MODEL).write_bytes(b"of another genesis")
    assert complain(renamed).endswith(
        f"; if that is another genesis' model, put this one's beside it as trial.{INITIAL_MODEL}"
    )
    (tmp_path / INITIAL_MODEL).unlink()
    assert complain(renamed) == (
        f"fednode: trial.{INITIAL_MODEL}: no such file (trial.yaml needs its initial model beside it)"
    )


def test_a_missing_initial_model_is_one_line(tmp_path: Path) -> None:
    assert complain(write(tmp_path, model=None)) == (
        f"fednode: {INITIAL_MODEL}: no such file (genesis.yaml needs its initial model beside it)"
    )


@pytest.mark.parametrize(
    "model",
    [
        b"not arrays",
        encode_arrays({"model/fc1.weight": np.zeros((3, 4), np.float32)}),
        encode_arrays({"prototypes/classes": np.zeros(3, np.int64)}),
    ],
)
def test_a_model_that_fits_another_network_is_refused_though_its_digest_is_right(tmp_path: Path, model: bytes) -> None:
    text = TEXT.replace(hashlib.sha256(INITIAL).hexdigest(), hashlib.sha256(model).hexdigest())
    assert complain(write(tmp_path, text, model)).startswith(
        f"fednode: {INITIAL_MODEL}: not the initial parameters of mlp: "
    )


@pytest.mark.parametrize(("limit", "is_taken"), [("", True), (", max_abs: 2.5", True), (", max_abs: 2.25", False)])
def test_the_initial_model_too_is_held_to_the_limit_on_floats(tmp_path: Path, limit: str, is_taken: bool) -> None:
    arrays = {name: array + np.float32(2.5) for name, array in decode_arrays(INITIAL, len(INITIAL)).items()}
    model = encode_arrays(arrays)
    text = TEXT.replace(hashlib.sha256(INITIAL).hexdigest(), hashlib.sha256(model).hexdigest())
    path = write(tmp_path, text.replace("payload_mib: 512", f"payload_mib: 512{limit}"), model)
    if is_taken:
        assert get_genesis_spec(load_genesis(path).genesis).task.max_abs == (2.5 if limit else 1e6)
    else:
        assert complain(path).endswith("expected numbers from -2.25 to 2.25, got 2.5")


def test_a_file_that_is_no_mapping_or_not_there_is_one_line(tmp_path: Path) -> None:
    assert complain(write(tmp_path, "- a\n")) == "fednode: genesis.yaml: expected keys and values (got a list)"
    assert complain(tmp_path / "nope.yaml").startswith("fednode: nope.yaml: no such file (take the other ")
