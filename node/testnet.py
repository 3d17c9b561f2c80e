"""A federation to try things on: keys, genesis, initial model and one configuration per node, in one directory.

Keys are random; everything else follows from the seed, so that two test networks of one seed train alike. The
directory appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.codec import MAX_MEMBERS
from chain.errors import GenesisError
from chain.genesis import Genesis
from chain.signing import SigningKey, encode_id
from ml.clients import get_client_seed, make_initial_aggregate
from ml.data import get_classes, open_dataset, open_once
from ml.data.base import InputFormat, SampleDomains
from ml.data.checks import check_data, is_quick, log_findings
from ml.data.domains import validate_shape
from ml.data.partition import ClientSplit, hash_splits, make_partition, parse_partition
from ml.errors import DataError, SpecError
from ml.models import Pretrained, load_pretrained, resolve_model
from ml.payload import encode_arrays
from ml.seeding import get_partition_seed
from ml.specs.architectures import is_user_model
from node.config import MAX_SOCKET_PATH_BYTES, is_loopback
from node.errors import ConfigError
from node.genesis_file import WHAT_LEAVES, get_genesis_spec, place_error, write_genesis
from node.identity import create_identity
from node.settings import apply_settings, complete_data, make_data, make_input, make_model
from node.yaml_source import YamlSource, dump_yaml

# How long mining should take, by profile; the first difficulty is some tens of milliseconds of one core's work.
TARGET_MS = {"local": 50, "site": 1000, "wide": 1000}
DIFFICULTY = 65_536
MAX_DIFFICULTY = 4_294_967_296
ANY_HOST = "0.0.0.0"  # noqa: S104 (a node dialled by name listens on every interface; TLS admits members only)
SETTABLE = (
    *("method", "model", "data", "input", "classes", "waits", "pow", "limits"),
    *("quorum", "chain_name", "min_contributions", "keep_heights", "evidence_heights"),
)


@dataclass(frozen=True, slots=True)
class TestnetSpec:
    """What to make. `data` is `digits` or `FORMAT:PATH`. `settings` are `KEY=VALUE` of the method (`lr=0.05`), of a
    genesis section (`waits.collect_s=1`) or of every node's `data` (`data.columns.label=grade`).

    `host` is where the nodes are dialled; `{i}` in it stands for the node's number. A `base_port` of 0 takes ports that
    are free now. A `difficulty` keeps proof of work at just that. `pretrained` is a file that the initial model is
    taken from. Only with `i_understand` are nodes made whose method shares samples in a transformed form.
    """

    __test__ = False  # the name is not a test's

    num_nodes: int = 4
    method: str = "dfpl"
    model: str = "mlp"
    data: str = "digits"
    size: int | None = None
    partition: str = "classes:3,1"
    shots: int | None = None
    rounds: int = 10
    seed: int = 1
    settings: tuple[str, ...] = ()
    profile: str = "local"
    difficulty: int | None = None
    host: str = "127.0.0.1"
    base_port: int = 7050
    device: str = "cpu"
    pretrained: Path | None = None
    i_understand: bool = False


@dataclass(frozen=True, slots=True)
class TestnetNode:
    """One node of a test network: its files, and the samples it was dealt."""

    __test__ = False

    name: str
    key: bytes
    address: str
    config_file: Path
    num_train: int
    num_test: int
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Testnet:
    """A test network as written; `pretrained` says what the initial model was taken from."""

    __test__ = False

    directory: Path
    genesis: Genesis
    nodes: tuple[TestnetNode, ...]
    pretrained: str | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the files are written from: one entry of each per node. `asked` is genesis but for its members, under the
    settings, `data` what every node reads."""

    spec: TestnetSpec
    asked: YamlSource
    data: dict[str, Any]
    names: tuple[str, ...]
    keys: tuple[SigningKey, ...]
    addresses: tuple[str, ...]
    splits: tuple[ClientSplit, ...]
    classes: tuple[tuple[str, ...], ...]

    @classmethod
    def make(cls, spec: TestnetSpec, directory: Path) -> _Plan:
        """Decides all but the keys first; those are written to `directory` as they are made."""
        n = spec.num_nodes
        if not 1 <= n <= MAX_MEMBERS:
            raise ConfigError(f"--nodes: expected 1 to {MAX_MEMBERS} (got {n})")
        names = tuple(f"node{i}" for i in range(n))
        addresses = _choose_addresses(spec)
        asked, data = _ask(spec)
        known = asked.value["classes"]
        if not isinstance(known, list) or not all(isinstance(name, str) for name in known):
            raise ConfigError(f"--set classes: expected a list of names (got {known!r})")
        try:
            shape = InputFormat.from_mapping(asked.value["input"]).shape
            train, test = open_dataset(data, shape=shape, classes=known)
            log_findings(check_data(train, test, thorough=is_quick(train, test)))
            seed, domains = get_partition_seed(spec.seed), SampleDomains.of(train, test)
            splits = make_partition(spec.partition, train.y, test.y, n, seed, spec.shots, domains)
            if splits[0].transform is not None:
                validate_shape(shape)
        except DataError as error:
            raise ConfigError(str(error)) from error
        return cls(
            spec=spec,
            asked=asked,
            data=data,
            names=names,
            keys=tuple(create_identity(directory / f"{name}.key") for name in names),
            addresses=tuple(addresses),
            splits=tuple(splits),
            classes=tuple(
                tuple(train.classes[label] for label in sorted(set(train.y[split.train].tolist()))) for split in splits
            ),
        )


def make_testnet(out: Path, spec: TestnetSpec) -> Testnet:
    """Writes the test network into `out`, which must be new or empty. Raises ConfigError; then `out` is as it was."""
    out = Path(os.path.abspath(out))
    try:
        _validate_out(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            temp = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
            undo.callback(shutil.rmtree, temp, ignore_errors=True)
            (temp / "keys").mkdir(mode=0o700)
            with open_once():
                plan = _Plan.make(spec, temp / "keys")
            genesis, initial_model, pretrained = _make_genesis(plan)
            write_genesis(temp / "genesis.yaml", genesis, initial_model)
            socket_dir = _choose_socket_dir(out, plan.names, undo)
            for i, name in enumerate(plan.names):
                config = dump_yaml(_make_config(plan, i, socket_dir, genesis))
                text = f"# {name} of a test network. Start it with: fednode --config {name}.yaml\n{config}"
                (temp / f"{name}.yaml").write_text(text, encoding="utf-8")
            temp.chmod(0o755)
            temp.rename(out)
            undo.pop_all()
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror})") from error
    nodes = tuple(
        TestnetNode(name, key.id, address, out / f"{name}.yaml", len(split.train), len(split.test), classes)
        for name, key, address, split, classes in zip(
            plan.names, plan.keys, plan.addresses, plan.splits, plan.classes, strict=True
        )
    )
    return Testnet(out, genesis, nodes, None if pretrained is None else pretrained.describe())


def _validate_out(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ConfigError(f"{out}: expected a new directory (got something else of that name)")
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"{out}: expected a new or empty directory (got one with files in it)")
    if out.is_dir() and out.samefile(Path.cwd()):
        raise ConfigError(f"{out}: expected a new directory (got the current one); name one below it")


def _choose_addresses(spec: TestnetSpec) -> list[str]:
    n = spec.num_nodes
    if spec.base_port == 0:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
            for free in sockets:
                free.bind(("127.0.0.1", 0))
            ports = [free.getsockname()[1] for free in sockets]
    elif 1 <= spec.base_port <= 65536 - n:
        ports = [spec.base_port + i for i in range(n)]
    else:
        raise ConfigError(f"--base-port: expected 0, or 1 to {65536 - n} for {n} nodes (got {spec.base_port})")
    return [f"{spec.host.replace('{i}', str(i))}:{port}" for i, port in enumerate(ports)]


def _ask(spec: TestnetSpec) -> tuple[YamlSource, dict[str, Any]]:
    """Genesis as `spec` and its settings have it, yet without members, and the nodes' `data`. Raises ConfigError."""
    work = {"difficulty": DIFFICULTY, "min": DIFFICULTY, "max": MAX_DIFFICULTY}
    if spec.difficulty is not None:
        work = dict.fromkeys(work, spec.difficulty)
    mapping: dict[str, Any] = {
        "protocol": 1,
        "chain_name": "testnet",
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "members": [],
        "method": {"name": spec.method},
        "model": make_model(spec.model),
        "classes": None,
        "input": {},
        "initial_model": "0" * 64,  # until the model is known to be one
        "rounds": spec.rounds,
        "quorum": "bft",
        "profile": spec.profile,
        "pow": {**work, "target_ms": TARGET_MS.get(spec.profile, TARGET_MS["wide"])},
        "limits": {"max_weight": 1_000_000, "payload_mib": 512},
    }
    source = apply_settings(mapping | {"data": make_data(spec.data)}, spec.settings, SETTABLE)
    asked = dict(source.value)
    data = complete_data(asked.pop("data"))
    asked["input"] = make_input(data, asked["model"], spec.size, asked["input"])
    try:
        asked["classes"] = list(get_classes(data)) if asked["classes"] is None else asked["classes"]
    except DataError as error:
        raise ConfigError(f"--data: {error}") from error
    return YamlSource(source.path, asked, source.origins), data


def _make_genesis(plan: _Plan) -> tuple[Genesis, bytes, Pretrained | None]:
    """Genesis, the initial model's blob, and what that was taken from."""
    spec = plan.spec
    members = [
        {"key": encode_id(key.id), "name": name, "address": address}
        for name, key, address in zip(plan.names, plan.keys, plan.addresses, strict=True)
    ]
    source = YamlSource(plan.asked.path, plan.asked.value | {"members": members}, plan.asked.origins)
    try:
        draft = Genesis.from_mapping(source.value)
        shape, num_classes = draft.input["shape"], len(draft.classes)
        model = resolve_model(draft.model, shape, num_classes)
        method = get_genesis_spec(Genesis.from_mapping(source.value | {"model": model}))
        if method.shares_samples and not spec.i_understand:
            raise ConfigError(f"--method: {method.name} {WHAT_LEAVES}. Say --i-understand if that may be")
        pretrained = None
        if spec.pretrained is not None:
            pretrained = load_pretrained(spec.pretrained, model, shape, num_classes)
        aggregate = make_initial_aggregate(model, shape, num_classes, spec.seed, pretrained=pretrained)
        initial_model = encode_arrays(aggregate)
        digest = hashlib.sha256(initial_model).hexdigest()
        final = source.value | {"method": method.to_mapping(), "model": model, "initial_model": digest}
        return Genesis.from_mapping(final), initial_model, pretrained
    except (GenesisError, SpecError) as error:
        raise ConfigError(place_error(source, error).text) from error


def _choose_socket_dir(out: Path, names: Sequence[str], undo: ExitStack) -> Path:
    """`run` beside the configurations, or a short private directory where that would be too long for a socket."""
    longest = f"{names[-1]}.sock"
    if len(os.fsencode(out / "run" / longest)) <= MAX_SOCKET_PATH_BYTES:
        return Path("run")
    short = Path(tempfile.mkdtemp(prefix="fednode-"))
    undo.callback(shutil.rmtree, short, ignore_errors=True)
    if len(os.fsencode(short / longest)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{out}: expected a directory short enough for a unix socket below it, of at most {MAX_SOCKET_PATH_BYTES} "
            f"bytes in full (and {short.parent} is no shorter)"
        )
    return short


def _make_config(plan: _Plan, i: int, socket_dir: Path, genesis: Genesis) -> dict[str, Any]:
    spec, name, address = plan.spec, plan.names[i], plan.addresses[i]
    host, _, port = address.rpartition(":")
    others = (j for j in range(spec.num_nodes) if j != i)
    part: dict[str, Any] = {"index": i, "of": spec.num_nodes, "seed": get_partition_seed(spec.seed)}
    part |= {"shots": spec.shots, "sha256": hash_splits(plan.splits)}
    return {
        "version": 1,
        "node": {"name": name, "identity_key_file": f"keys/{name}.key", "data_dir": f"data/{name}"},
        "genesis_file": "genesis.yaml",
        "network": {
            "listen": f"{host if is_loopback(host) else ANY_HOST}:{port}",
            "advertise": address,
            "tls": "mutual",
            "peers": [f"{encode_id(plan.keys[j].id)}@{plan.addresses[j]}" for j in others],
        },
        "training": {
            "device": spec.device,
            "precision": "auto",
            "seed": get_client_seed(spec.seed, i),
            "threads": 1,
            **({"user_models": True} if is_user_model(genesis.model) else {}),  # who made the network asked for it
        },
        **({"fededs": {"i_understand": True}} if get_genesis_spec(genesis).shares_samples else {}),  # likewise
        "data": {**plan.data, "partition": parse_partition(spec.partition).to_mapping() | part},
        "consensus": {"mine": True},
        "admin": {"socket": str(socket_dir / f"{name}.sock")},
        "log": {"level": "info", "format": "text"},
    }
