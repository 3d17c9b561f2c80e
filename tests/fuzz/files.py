"""Files that operators write: YAML, genesis, a node's configuration and its options."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from chain.errors import GenesisError
from chain.genesis import Genesis
from chain.signing import encode_id
from fuzz.array_bytes import SAMPLE_SHAPE
from fuzz.claims import MAX_TEXT, Seeds, attempt, passes
from fuzz.federation import KEYS, LIAR
from ml.errors import SpecError
from ml.payload import encode_arrays
from ml.specs.architectures import parameter_shapes
from node.config.genesis_file import check_schema, get_genesis_spec, place_error
from node.config.node_config import load_config_source
from node.config.yaml_source import YamlSource, dump_yaml, parse_yaml
from node.errors import ConfigError
from support.data.chains import make_genesis_mapping
from support.data.run_schemas import with_schema

SMALL_MODEL = {"name": "mlp", "hidden": [3]}
SMALL_INITIAL = encode_arrays(
    {
        f"model/{name}": np.zeros(shape, np.float32)
        for name, shape in parameter_shapes(SMALL_MODEL, SAMPLE_SHAPE, 2).items()
    }
)


def make_small_genesis(**overrides: Any) -> dict[str, Any]:
    return with_schema(
        make_genesis_mapping(
            KEYS,
            **{
                "model": SMALL_MODEL,
                "classes": ["cat", "dog"],
                "input": {"shape": list(SAMPLE_SHAPE), "resize": None, "mean": [0.0], "std": [1.0]},
                "initial_model": hashlib.sha256(SMALL_INITIAL).hexdigest(),
                **overrides,
            },
        )
    )


def make_yamls() -> Seeds:
    return {
        "nested": b"a: {b: [1, -2.5e3, 0x7f, true, ~, 'it''s', \"\\u00e9\\n\"]}\nc:\n  - d: e\n  -\n",
        "blocks": b"%YAML 1.2\n---\ntext: |+2\n    two\n   lines\nfolded: >-\n  one\n  line\n? key\n: 2026-11-20\n",
        "breaks": b'a: "\\N\\L\\P text"\n',
    }


def check_yaml(data: bytes) -> bool:
    """Any text; and what is written of it is the same."""
    text = data.decode(errors="replace")
    source = attempt(lambda: parse_yaml(text, Path("node.yaml")), ConfigError)
    if source is None:
        return False
    if _is_plain(source.value):
        assert parse_yaml(dump_yaml(source.value), Path("again.yaml")).value == source.value
    return True


def _is_plain(value: Any) -> bool:
    """Whether YAML can hold every character of it: an escape also makes characters that no text may have."""
    return not re.search("[\ud800-\udfff]", json.dumps(value, ensure_ascii=False))


def make_geneses() -> Seeds:
    uapdfl = {"method": {"name": "uapdfl"}, "waits": {"delta_s": 0.5}, "quorum": "majority"}
    mappings = {"dfpl": make_small_genesis(), "uapdfl": make_small_genesis(**uapdfl)}
    written = {name: json.dumps(mapping).encode() for name, mapping in mappings.items()}
    return {**written, "canonical": Genesis.from_mapping(make_small_genesis()).canonical}


def check_genesis(data: bytes) -> bool:
    """The values of a genesis file, as JSON; and what is written of them is the same chain."""
    try:
        mapping = json.loads(data)
    except (ValueError, RecursionError):
        return False
    source = YamlSource(Path("genesis.yaml"), mapping)
    genesis = attempt(lambda: _read_genesis(source), ConfigError)
    if genesis is None:
        return False
    assert Genesis.from_mapping(json.loads(genesis.canonical)).canonical == genesis.canonical
    assert Genesis.from_mapping(genesis.to_mapping()).chain_id == genesis.chain_id
    assert genesis.block0.id
    return True


def _read_genesis(source: YamlSource) -> Genesis:
    """As `load_genesis` does, without its files."""
    try:
        genesis = Genesis.from_mapping(source.value)
        check_schema(genesis.run, get_genesis_spec(genesis))
    except (GenesisError, SpecError) as error:
        raise ConfigError(place_error(source, error).text[:MAX_TEXT]) from error
    return genesis


CONFIG = """\
node: {name: a, identity_key_file: k, data_dir: d}
genesis_file: g
network: {listen: "127.0.0.1:0"}
training: {seed: 7}
"""
LARGE_CONFIG = """\
version: 1
node:
  name: node3
  identity_key_file: keys/node3.key
  identity_passphrase_file: ~/secret
  data_dir: data/node3
genesis_file: genesis.yaml
network:
  listen: "[::1]:7053"
  advertise: node3:7053
  tls: mutual
  peers:
    - PEER@node0:7050
training: {device: "cuda:1", seed: 7, threads: 1, precision: bf16}
data:
  format: csv
  path: data.csv
  columns: {label: y}
  partition: {scheme: classes, avg: 3, std: 1, index: 3, of: 4, seed: 7, shots: null}
consensus: {mine: true, workers: 1}
admin: {socket: run/node3.sock}
log: {level: info, format: text, file: null}
"""


def make_configs() -> Seeds:
    return {
        "small": CONFIG.encode(),
        "large": LARGE_CONFIG.replace("PEER", encode_id(LIAR)).encode(),
        "options": CONFIG.encode() + b"\0training.seed=5\0network.peers=[]\0data.partition={scheme: iid, index: 0}",
    }


def check_config(data: bytes) -> bool:
    """A file, and options behind it, each after a zero byte."""
    text, *options = data.split(b"\0")
    overrides = [os.fsdecode(option) for option in options]
    with tempfile.NamedTemporaryFile(prefix="fednode-", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return passes(lambda: load_config_source(Path(file.name), overrides), ConfigError)
