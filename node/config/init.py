"""The files that an organisation begins with (`fednode init`): a directory with its node's identity key and a
configuration to review.

Only the key has to be kept; the site may change everything in the configuration. Existing files are never overwritten.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chain.errors import ChainError
from chain.join_file import JoinFile
from chain.join_request import JoinRequest
from chain.signing import SigningKey, encode_id
from ml.measures.alone import MIXED
from node.addresses import ANY_HOSTS, parse_address
from node.config.federation import read_join_file
from node.config.genesis_file import load_genesis
from node.config.identity import create_identity, open_key, read_passphrase
from node.config.json_schema import SCHEMA_HINT, make_schema
from node.config.node_config import NodeConfig
from node.config.plugins import split_data
from node.config.problems import describe_error
from node.config.settings import complete_data, make_data, set_label
from node.config.yaml_source import Keys, YamlSource, dump_yaml
from node.errors import ConfigError, NodeError

CONFIG, SCHEMA, JOIN_FILE = "node.yaml", "node.schema.json", "federation.join"
ANY_HOST, DEFAULT_PORT = ANY_HOSTS[0], 7050

_OPTIONS: dict[Keys, str] = {
    ("node", "name"): "--name",
    ("network", "listen"): "--listen",
    ("network", "advertise"): "--advertise",
    ("data",): "--data",
    ("admin", "socket"): "DIR",
}
_HEADER = """\
{hint}
# The configuration of {name}; every key and its default: fednode config schema. Before it starts, see that
{federation}
#   - data is what this node has: digits come with the program, fednode data inspect FORMAT:PATH looks at others
#   - fednode doctor --config node.yaml has nothing to complain of
"""
_FOOTER = "# http: {listen: 127.0.0.1:8080}  # a page of this node, for this machine: fednode open --config node.yaml\n"

_FOUNDS = "#   - genesis.yaml and its initial model, which all members share, lie where genesis_file says"
_JOINS = f"#   - a member has the same {JOIN_FILE}: fednode doctor shows its hash, to be compared by voice"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSpec:
    """Holds the options of a new `node.yaml`. Without `listen` the node listens at the port of `advertise`; with
    `dial_out` it has no address, and does not listen. `data` is `digits` or `FORMAT:PATH`, `label` the column of a
    table that holds its labels. `key_file` is an existing identity, which `passphrase_file` opens; without it a new one
    is made with that passphrase. With a `join_file` the site joins an existing chain."""

    name: str
    genesis_file: Path | None = None
    join_file: Path | None = None
    listen: str | None = None
    advertise: str | None
    dial_out: bool = False
    data: str = "digits"
    label: tuple[str, ...] | None = None
    key_file: Path | None = None
    passphrase_file: Path | None = None

    def get_listen(self) -> str:
        if self.listen is not None:
            return self.listen
        try:
            port = DEFAULT_PORT if self.advertise is None else parse_address(self.advertise)[1]
        except ValueError:  # reported for --advertise
            port = DEFAULT_PORT
        return f"{ANY_HOST}:{port}"


@dataclass(frozen=True, slots=True)
class Site:
    """Names the files that were made. `peer` is `id@host:port`, for the others' configurations and for genesis; the id
    alone for a node that nobody dials. A site that joins has a `request` for the members, and the join file in
    `joined`."""

    config_file: Path
    key_file: Path
    id: str
    address: str | None
    request: str | None = None
    joined: JoinFile | None = None

    @property
    def peer(self) -> str:
        return self.id if self.address is None else f"{self.id}@{self.address}"


def make_site(directory: Path, spec: SiteSpec, made_ms: int = 0) -> Site:
    """Writes the key and `node.yaml` into `directory`, which is made, and a copy of the join file. `made_ms` is the
    time of its request to join. Raises ConfigError or KeyFileError; where a file exists already, before anything is
    written."""
    directory = Path(os.path.abspath(directory))
    config_file, schema_file, join_file = directory / CONFIG, directory / SCHEMA, directory / JOIN_FILE
    key_file = directory / "keys" / f"{spec.name}.key" if spec.key_file is None else spec.key_file
    joined = None if spec.join_file is None else read_join_file(spec.join_file)
    new = [config_file, schema_file]
    new += [key_file] if spec.key_file is None else []
    new += [] if joined is None else [join_file]
    for path in new:
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path}: expected no file, as nothing is written over; move it away or name another DIR")
    mapping = _make_config(directory, key_file, spec)
    config = _validate(mapping, directory)
    passphrase = read_passphrase(spec.passphrase_file) if spec.passphrase_file else None
    key = None if spec.key_file is None else open_key(spec.key_file, spec.passphrase_file)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        key = key or create_identity(key_file, passphrase)
        _write(schema_file, json.dumps(make_schema(), indent=2) + "\n")
        if joined is not None:
            _write(join_file, joined.encode().decode("ascii"))
        hint, federation = SCHEMA_HINT.format(SCHEMA), _FOUNDS if joined is None else _JOINS
        header = _HEADER.format(hint=hint, name=spec.name, federation=federation)
        _write(config_file, header + dump_yaml(mapping) + _FOOTER)
    except OSError as error:
        raise NodeError(f"{error.filename or directory}: cannot be written ({error.strerror})") from error
    address = None if spec.dial_out else config.network.advertise or config.network.listen
    if joined is None:
        return Site(config_file, key_file, encode_id(key.id), address)
    request = _make_request(key, joined, spec, made_ms)
    return Site(config_file, key_file, encode_id(key.id), address, request, joined)


def _make_request(key: SigningKey, joined: JoinFile, spec: SiteSpec, made_ms: int) -> str:
    try:
        request = JoinRequest.sign(
            key, joined.genesis.chain_id, name=spec.name, address=spec.advertise or "", made_ms=made_ms
        )
    except ChainError as error:
        raise ConfigError(f"--advertise: {error}") from error
    return request.encode()


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _make_config(directory: Path, key_file: Path, spec: SiteSpec) -> dict[str, Any]:
    data = make_data(spec.data)
    data = complete_data(data if spec.label is None else set_label(data, spec.label))
    data, plugins = split_data(data)
    federation = {"join_file": JOIN_FILE}
    if spec.join_file is None:
        if spec.genesis_file is not None:
            load_genesis(spec.genesis_file)
        named = "genesis.yaml" if spec.genesis_file is None else _show_path(spec.genesis_file, directory)
        federation = {"genesis_file": named}
    reach = {"dial_out": True} if spec.dial_out else {"listen": spec.get_listen(), "advertise": spec.advertise}
    node: dict[str, Any] = {"name": spec.name, "identity_key_file": _show_path(key_file, directory)}
    if spec.passphrase_file is not None:
        node["identity_passphrase_file"] = _show_path(spec.passphrase_file, directory)
    return {
        "version": 1,
        "node": {**node, "data_dir": "data"},
        **federation,
        "network": {**reach, "tls": "mutual", "peers": []},
        "training": {"device": "auto", "seed": secrets.randbelow(1 << 31), "compare_local": True, "answer_by": MIXED}
        | ({"plugins": plugins} if plugins else {}),
        "data": data,
        "consensus": {"join_runs": "ask"},
        "admin": {"socket": "run/node.sock"},
        "log": {"level": "info"},
    }


def _show_path(path: Path, directory: Path) -> str:
    """Returns the path relative to the configuration where it is below it, so that the directory can be moved."""
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(directory) if absolute.is_relative_to(directory) else absolute)


def _validate(mapping: dict[str, Any], directory: Path) -> NodeConfig:
    """Returns the configuration as a node will read it. Raises ConfigError, naming the option behind each problem."""
    source = YamlSource(directory / CONFIG, mapping, dict(_OPTIONS))
    try:
        return NodeConfig.model_validate_json(json.dumps(mapping), context={"directory": directory})
    except ValidationError as error:
        problems = [describe_error(details, source, NodeConfig).text for details in error.errors(include_url=False)]
        raise ConfigError("; ".join(problems)) from error
