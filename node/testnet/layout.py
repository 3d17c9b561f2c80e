"""The files of a test network, in one directory: keys, genesis, initial model, one configuration per node, and what its
target needs besides.

Keys are random; everything else follows from the seed, so that two test networks of one seed train alike. The
directory appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chain.codec import MAX_MEMBERS
from chain.genesis import Genesis
from chain.signing import SigningKey, encode_id
from ml.clients.build import get_client_seed
from ml.data import open_dataset, open_once
from ml.data.base import ArrayDataset, InputFormat, SampleDomains
from ml.data.checks import check_data, is_quick, log_findings
from ml.data.partition import ClientSplit, hash_splits, make_partition, parse_partition
from ml.data.partition.domain_shift import validate_shape
from ml.errors import DataError
from ml.measures.alone import MIXED
from ml.seeding import get_partition_seed
from ml.tasks import CLASSIFICATION, REGRESSION
from node.addresses import is_on_loopback, parse_address
from node.config.genesis_draft import GenesisSpec, complete_genesis, draft_genesis
from node.config.genesis_file import get_genesis_spec, write_genesis
from node.config.identity import create_identity
from node.config.node_config import load_config
from node.config.plugins import list_names, split_data
from node.config.value_types import MAX_SOCKET_PATH_BYTES
from node.config.yaml_source import YamlSource, dump_yaml
from node.errors import ConfigError
from node.host.procfs import name_listener
from node.testnet.ports import LOOPBACK, find_free_ports, find_taken
from node.testnet.targets import DATA_DIR, KEY_FILE, SOCKET_DIR, TARGETS, Target
from node.testnet.targets.compose import write_compose
from node.testnet.targets.kubernetes import write_kustomization

ANY_HOST = "0.0.0.0"  # noqa: S104 (a node dialled by name listens on every interface; TLS admits members only)
BASE_PORT = 7050
PORTS_STEP = 10  # where a usual port is taken, the ports move on by this much


@dataclass(frozen=True, slots=True, kw_only=True)
class TestnetSpec(GenesisSpec):
    """The options of a test network: a genesis, and nodes for it. Settings may also be those of every node's `data`
    (`data.columns.label=grade`).

    `host` is the address at which nodes are dialled; `{i}` in it stands for the node's number. A `base_port` of 0 takes
    ports that are free now; without one they are the usual ports, or the next free ones. From `http_port` on the nodes
    answer HTTP, each at a port of its own. The `target` of containers sets their names, so `host` and `base_port`
    cannot be chosen for them.

    `gpus` are assigned in turn: node i trains on number i modulo `gpus`, whatever `device` says.
    """

    __test__ = False  # the name is not a test's

    num_nodes: int = 4
    data: str = "digits"
    partition: str = "classes:3,1"
    shots: int | None = None
    host: str = LOOPBACK
    base_port: int | None = None
    http_port: int | None = None
    device: str = "cpu"
    gpus: int | None = None
    target: str = "local"

    def get_device(self, i: int) -> str:
        """Returns the device that node i trains on: a container sees only its own GPU, so there it is the first."""
        if self.gpus is None:
            return self.device
        return "cuda" if _get_target(self).is_container else f"cuda:{i % self.gpus}"


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

    @property
    def data_dir(self) -> Path:
        return load_config(self.config_file).node.data_dir


@dataclass(frozen=True, slots=True)
class Testnet:
    """A test network as written; `pretrained` names the source of the initial model. `taken_port` is the usual port
    that somebody else listens at, for which the nodes have other ports."""

    __test__ = False

    directory: Path
    genesis: Genesis
    nodes: tuple[TestnetNode, ...]
    pretrained: str | None = None
    taken_port: int | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of the files, with one entry for each node. `draft` is genesis without its members, under the settings,
    `data` what every node reads."""

    spec: TestnetSpec
    draft: YamlSource
    data: dict[str, Any]
    names: tuple[str, ...]
    keys: tuple[SigningKey, ...]
    addresses: tuple[str, ...]
    splits: tuple[ClientSplit, ...]
    classes: tuple[tuple[str, ...], ...]
    taken_port: int | None

    @classmethod
    def make(cls, spec: TestnetSpec, directory: Path) -> _Plan:
        """Makes the plan; keys are written to `directory` last, once all else is valid."""
        n = spec.num_nodes
        if not 1 <= n <= MAX_MEMBERS:
            raise ConfigError(f"--nodes: expected 1 to {MAX_MEMBERS} (got {n})")
        target = _get_target(spec)
        names = target.name_nodes(n)
        addresses, taken_port = (target.dial_nodes(n), None) if target.is_container else _choose_addresses(spec)
        if spec.http_port is not None:
            _validate_http_ports(spec, addresses)
        if spec.base_port:
            _validate_untaken("--base-port", addresses)
        draft, data = draft_genesis(spec)
        if spec.target == "k8s" and data.get("path") is not None:
            raise ConfigError(f"--data: expected digits, which the image brings, with --target k8s (got {spec.data!r})")
        known = draft.value["classes"]
        if not isinstance(known, list) or not all(isinstance(name, str) for name in known):
            raise ConfigError(f"--set classes: expected a list of names (got {known!r})")
        try:
            wanted = InputFormat.from_mapping(draft.value["input"])
            train, test = open_dataset(
                data,
                shape=wanted.shape,
                classes=known,
                table=wanted.table,
                task=draft.value.get("task", CLASSIFICATION),
                meaning=draft.value.get("labels"),
            )
            log_findings(check_data(train, test, input_=wanted, thorough=is_quick(train, test)))
            seed, domains = get_partition_seed(spec.seed), SampleDomains.of(train, test)
            splits = make_partition(spec.partition, train.y, test.y, n, seed, spec.shots, domains)
            if splits[0].transform is not None:
                validate_shape(wanted.shape)
        except DataError as error:
            raise ConfigError(str(error)) from error
        return cls(
            spec=spec,
            draft=draft,
            data=data,
            names=names,
            keys=tuple(create_identity(directory / f"{name}.key") for name in names),
            addresses=tuple(addresses),
            splits=tuple(splits),
            classes=tuple(_list_classes(train, split) for split in splits),
            taken_port=taken_port,
        )

    def get_members(self) -> list[dict[str, str]]:
        """Returns the members as genesis lists them."""
        return [
            {"key": encode_id(key.id), "name": name, "address": address}
            for name, key, address in zip(self.names, self.keys, self.addresses, strict=True)
        ]


def _list_classes(train: ArrayDataset, split: ClientSplit) -> tuple[str, ...]:
    """Lists the classes among a node's training samples, or the labels; for a regression all targets."""
    if train.task == CLASSIFICATION:
        return tuple(train.classes[int(label)] for label in sorted(set(train.y[split.train].tolist())))
    if train.task == REGRESSION:
        return train.classes
    counts = train.y[split.train].sum(0).tolist()
    return tuple(name for name, count in zip(train.classes, counts, strict=True) if count)


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
            genesis, initial_model, pretrained = complete_genesis(plan.draft, plan.get_members(), spec)
            write_genesis(temp / "genesis.yaml", genesis, initial_model)
            is_container = _get_target(spec).is_container
            socket_dir = Path(SOCKET_DIR) if is_container else _choose_socket_dir(out, plan.names, undo)
            for i, name in enumerate(plan.names):
                config = dump_yaml(_make_config(plan, i, socket_dir, genesis))
                start = "its container" if is_container else f"fednode --config {name}.yaml"
                text = f"# {name} of a test network. Start it with: {start}\n{config}"
                (temp / f"{name}.yaml").write_text(text, encoding="utf-8")
            if is_container:
                _write_target(temp, plan)
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
    return Testnet(out, genesis, nodes, None if pretrained is None else pretrained.describe(), plan.taken_port)


def _get_target(spec: TestnetSpec) -> Target:
    target = TARGETS.get(spec.target)
    if target is None:
        raise ConfigError(f"--target: expected one of {', '.join(TARGETS)} (got {spec.target!r})")
    if target.is_container and (spec.host, spec.base_port) != (LOOPBACK, None):
        raise ConfigError(f"--target {spec.target}: expected no --host and no --base-port: containers have their own")
    if target.is_container and spec.http_port is not None:
        raise ConfigError(f"--target {spec.target}: expected no --http-port: containers have one of their own")
    if spec.gpus is not None and spec.gpus < 1:
        raise ConfigError(f"--gpus: expected at least 1 (got {spec.gpus})")
    if spec.target == "k8s" and spec.gpus is not None and spec.gpus < spec.num_nodes:
        raise ConfigError(
            f"--gpus: expected at least {spec.num_nodes} with --target k8s, as each pod has one of its own "
            f"(got {spec.gpus})"
        )
    return target


def _write_target(directory: Path, plan: _Plan) -> None:
    """Writes what the target needs, and lets the containers' user read all but secrets, whatever this process' umask
    is."""
    for file in directory.iterdir():
        if file.is_file():
            file.chmod(0o644)
    if plan.spec.target == "compose":
        path = plan.data.get("path")
        write_compose(directory, plan.names, None if path is None else Path(path), plan.spec.gpus)
    else:
        write_kustomization(directory, plan.names, has_gpus=plan.spec.gpus is not None)


def _validate_out(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ConfigError(f"{out}: expected a new directory (got something else of that name)")
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"{out}: expected a new or empty directory (got one with files in it)")
    if out.is_dir() and out.samefile(Path.cwd()):
        raise ConfigError(f"{out}: expected a new directory (got the current one); name one below it")


def _choose_addresses(spec: TestnetSpec) -> tuple[list[str], int | None]:
    """Returns the nodes' addresses, and the first usual port that is taken."""
    n = spec.num_nodes
    if spec.base_port == 0:
        return _name_addresses(spec, find_free_ports(n)[0]), None
    if spec.base_port is not None:
        if not 1 <= spec.base_port <= 65536 - n:
            raise ConfigError(f"--base-port: expected 0, or 1 to {65536 - n} for {n} nodes (got {spec.base_port})")
        return _name_addresses(spec, spec.base_port), None
    taken_port = None
    for first in range(BASE_PORT, 65536 - n, PORTS_STEP * (1 + (n - 1) // PORTS_STEP)):
        addresses = _name_addresses(spec, first)
        if (taken := find_taken(addresses)) is None:
            return addresses, taken_port
        taken_port = taken_port or parse_address(taken)[1]
    raise ConfigError(f"--base-port: expected {n} free ports in a row from {BASE_PORT} on; 0 looks elsewhere, too")


def _name_addresses(spec: TestnetSpec, first: int) -> list[str]:
    host = f"[{spec.host}]" if ":" in spec.host and not spec.host.startswith("[") else spec.host
    return [f"{host.replace('{i}', str(i))}:{first + i}" for i in range(spec.num_nodes)]


def _validate_untaken(option: str, addresses: Sequence[str]) -> None:
    if taken := find_taken(addresses):
        raise ConfigError(f"{option}: {taken} is in use by {name_listener(parse_address(taken)[1])}")


def _validate_http_ports(spec: TestnetSpec, addresses: Sequence[str]) -> None:
    first = spec.http_port or 0
    ports = range(first, first + spec.num_nodes)
    if ports.start < 1 or ports.stop > 65536:
        raise ConfigError(f"--http-port: expected 1 to {65536 - len(ports)} for {len(ports)} nodes (got {ports.start})")
    if "{i}" in spec.host:  # a separate host for each node
        return
    for address in addresses:
        if parse_address(address)[1] in ports:
            raise ConfigError(
                f"--http-port: expected {len(ports)} ports of their own (got {ports.start} to {ports.stop - 1}, and a "
                f"node listens at {address})"
            )
    if addresses and is_on_loopback(addresses[0]):  # the nodes are to run on this machine
        _validate_untaken("--http-port", [f"{LOOPBACK}:{port}" for port in ports])


def _choose_socket_dir(out: Path, names: Sequence[str], undo: ExitStack) -> Path:
    """Returns `run` beside the configurations, or a short private directory where the path would be too long for a
    socket."""
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
    key_file, data_dir = f"keys/{name}.key", f"data/{name}"
    if _get_target(spec).is_container:
        key_file, data_dir = KEY_FILE, DATA_DIR
    part: dict[str, Any] = {"index": i, "of": spec.num_nodes, "seed": get_partition_seed(spec.seed)}
    part |= {"shots": spec.shots, "sha256": hash_splits(plan.splits)}
    plugins, (data, _) = list_names(genesis.run, plan.data), split_data(plan.data)
    return {
        "version": 1,
        "node": {"name": name, "identity_key_file": key_file, "data_dir": data_dir},
        "genesis_file": "genesis.yaml",
        "network": {
            "listen": f"{host if is_on_loopback(address) else ANY_HOST}:{port}",
            "advertise": address,
            "tls": "mutual",
            "peers": [f"{encode_id(plan.keys[j].id)}@{plan.addresses[j]}" for j in others],
        },
        "training": {
            "device": spec.get_device(i),
            "precision": "auto",
            "seed": get_client_seed(spec.seed, i),
            "threads": 1,
            **({"compare_local": True, "answer_by": MIXED} if "columns" in genesis.run.input else {}),
            **({"plugins": plugins} if plugins else {}),  # whoever made the network asked for them
        },
        "data": {**data, "partition": parse_partition(spec.partition).to_mapping() | part},
        "consensus": {
            "mine": True,
            "join_runs": "always",
            **({"approves_genesis": True} if get_genesis_spec(genesis).shares_samples else {}),  # likewise
        },
        "admin": {"socket": str(socket_dir / f"{name}.sock")},
        **({} if spec.http_port is None else {"http": {"listen": f"127.0.0.1:{spec.http_port + i}"}}),
        "log": {"level": "info", "format": "text"},
    }
