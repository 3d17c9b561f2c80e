"""A site's decisions for its node: `node.yaml`, checked once into frozen models.

Precedence is `--set` over environment (`FEDNODE__NETWORK__LISTEN`) over file over default. Every problem is collected
and named with its origin; nothing starts from a configuration with one. Relative paths are relative to the file. Only
keys that something reads are accepted. What validators must agree on stands in genesis, never here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from chain.errors import InvalidKey
from chain.signing import decode_id
from node.addresses import ANY_HOSTS, is_on_loopback, parse_address, validate_dialled
from node.config.problems import Problem, describe_error, report
from node.config.yaml_source import Keys, YamlSource, parse_value, read_sections, show_value
from node.errors import ConfigError

if TYPE_CHECKING:
    from chain.genesis import Genesis

ENV_PREFIX = "FEDNODE__"
MAX_SOCKET_PATH_BYTES = 107  # sun_path of unix(7) holds 108 with its closing zero


def _validate_listen(text: str) -> str:
    parse_address(text)
    return text


def _validate_id(text: str) -> str:
    try:
        decode_id(text)
    except InvalidKey as error:
        raise ValueError(f"expected a node id ({error})") from error
    return text


def _validate_peer(text: str) -> str:
    peer, at, address = text.partition("@")
    if not at:
        raise ValueError("expected id@host:port")
    _validate_id(peer)
    validate_dialled(address)
    return text


def _validate_device(text: str) -> str:
    index = text.removeprefix("cuda:")
    if text not in ("auto", "cpu", "cuda") and not (text.startswith("cuda:") and index.isascii() and index.isdigit()):
        raise ValueError("expected auto, cpu, cuda or cuda:N")
    return text


def _validate_threads(value: Any) -> Any:
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError("expected auto or a number of threads, at least 1")
    return value


def _resolve(path: Path, info: ValidationInfo) -> Path:
    if str(path) in ("", ".") or "\0" in str(path):
        raise ValueError("expected a path")
    base: Path = (info.context or {}).get("directory", Path.cwd())
    try:
        return Path(os.path.normpath(base / path.expanduser()))
    except RuntimeError as error:
        raise ValueError("expected a path below a home that is known") from error


def _validate_socket(path: Path) -> Path:
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"expected a socket path of at most {MAX_SOCKET_PATH_BYTES} bytes in full, which {path} is not ({length})"
        )
    return path


def _validate_digest(text: str) -> str:
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise ValueError("expected 64 hexadecimal digits")
    return text


FilePath = Annotated[Path, AfterValidator(_resolve)]
SocketPath = Annotated[Path, AfterValidator(_resolve), AfterValidator(_validate_socket)]
ListenAddress = Annotated[str, AfterValidator(_validate_listen)]
DialledAddress = Annotated[str, AfterValidator(validate_dialled)]
NodeId = Annotated[str, AfterValidator(_validate_id)]
Peer = Annotated[str, AfterValidator(_validate_peer)]
Digest = Annotated[str, AfterValidator(_validate_digest)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
DataFormat = Literal[
    "digits", "npz", "imagefolder", "csv", "parquet", "hf", "idx", "cifar", "svhn", "medmnist", "domains"
]


class Section(BaseModel):
    """A part of node.yaml: unknown keys are errors, text is not taken for numbers, nothing changes once built."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class NodeSection(Section):
    """Who this node is, and where it keeps what it knows. The name is a label; the identity is the key.

    An `observer` is no member: it follows the chain and serves it, and neither trains nor votes.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "node"
    identity_key_file: FilePath
    identity_passphrase_file: FilePath | None = None
    data_dir: FilePath
    observer: bool = False


PerSecond = Annotated[float, Field(ge=0.5, le=1_000_000)]
Seconds = Annotated[float, Field(ge=0.1, le=3600)]


class LimitsSection(Section):
    """What one peer may cost this node. Nobody is refused for more: it is read more slowly, left out or turned away.

    How large a message of each kind may be is the protocol's to say, and a payload genesis', so that all judge alike.
    """

    max_connections: Annotated[int, Field(ge=16, le=100_000)] = 512  # at once, of everybody, strangers too
    max_streams: Annotated[int, Field(ge=4, le=4096)] = 64  # calls at once on one connection
    peer_rate_mib_s: Annotated[float, Field(ge=1, le=100_000)] = 20.0  # of what a peer pushes
    peer_messages_s: Annotated[float, Field(ge=100, le=1_000_000)] = (
        1000.0  # in the long run; at once four times as many
    )
    peer_statuses_s: Annotated[float, Field(ge=1, le=1000)] = 4.0  # an honest peer sends no more than 4
    block_requests_s: PerSecond = 4.0
    block_requests: Annotated[int, Field(ge=1, le=64)] = 2  # at once, either way
    blob_requests_s: PerSecond = 128.0
    blob_streams: Annotated[int, Field(ge=1, le=256)] = 4  # at once, either way
    blob_min_kib_s: Annotated[float, Field(ge=1, le=1_000_000)] = 128.0  # a transfer slower than this ends
    queue_messages: Annotated[int, Field(ge=64, le=1_000_000)] = 1024  # waiting to be sent to one peer
    queue_mib: Annotated[float, Field(ge=1, le=4096)] = 4.0


class TimeoutsSection(Section):
    """How long this node waits for a peer."""

    connect_s: Seconds = 5.0  # for a connection to come about
    handshake_s: Seconds = 10.0  # for a caller to say who it is
    ask_s: Seconds = 10.0  # for a caller to say what it asks
    request_s: Seconds = 30.0  # for blocks asked for
    blob_s: Seconds = 10.0  # that a transfer may lag behind `blob_min_kib_s`
    write_s: Seconds = 10.0  # for a peer to take anything of what is pushed to it


class NetworkSection(Section):
    """Where the node listens, whom it dials. Peers named here override the addresses that genesis hints at.

    `observers` are let in beside the members. One that is to be asked for blocks has to be dialled: among `peers` too.
    """

    listen: ListenAddress
    advertise: DialledAddress | None = None
    tls: Literal["mutual", "off"] = "mutual"
    peers: tuple[Peer, ...] = ()
    observers: tuple[NodeId, ...] = ()
    limits: LimitsSection = LimitsSection()
    timeouts: TimeoutsSection = TimeoutsSection()

    def get_peer_addresses(self) -> dict[bytes, str]:
        """`host:port` by node id."""
        pairs = (peer.split("@", 1) for peer in self.peers)
        return {decode_id(peer): address for peer, address in pairs}

    def get_addresses(self, genesis: Genesis) -> dict[bytes, str]:
        """The address each member is dialled at, by id: as genesis hints, unless `peers` says otherwise."""
        hints = {member.key: member.address for member in genesis.members if member.address}
        return hints | self.get_peer_addresses()

    def get_observer_ids(self) -> tuple[bytes, ...]:
        return tuple(decode_id(observer) for observer in self.observers)

    def find_strangers(self, genesis: Genesis) -> tuple[bytes, ...]:
        """Whom `peers` names though they are neither members nor observers."""
        known = {*genesis.member_ids, *self.get_observer_ids()}
        return tuple(peer for peer in self.get_peer_addresses() if peer not in known)


class TrainingSection(Section):
    """What a site may choose about its training; everything else about it is the method's, in genesis.

    `threads: auto` leaves the number to torch; 1 gives the same bytes whatever the number of cores, on processors of
    one kind. `precision: auto` is bf16 on a GPU made for it, else fp32, and concerns forward passes in training.
    `deterministic` has a GPU train to the same bytes each time; `channels_last` and `compile` may make convolutions
    faster. Checkpoints are written every so many rounds, and on stopping; a node that was killed trains again from the
    last one. With one a round, a worker that dies alone is replaced by one in the same state. Only with `user_models`
    does the node import a Python module that genesis names as its model, and so run its code.

    Where models are drawn of single peers, one that makes the loss on the own test samples more than `max_loss_ratio`
    times as large is not taken, and its sender is not drawn again for `keep_heights` rounds.
    """

    device: Annotated[str, AfterValidator(_validate_device)] = "auto"
    seed: Seed
    threads: Annotated[int | Literal["auto"], BeforeValidator(_validate_threads)] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    deterministic: bool = False
    channels_last: bool = False
    compile: bool = False
    checkpoint_every: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    user_models: bool = False
    max_loss_ratio: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] = 4.0


class FedEdsSection(Section):
    """What a site has to say before a node takes part in FedEDS: that it understands that a learned transformation of
    its samples leaves the node. It is obfuscation, not cryptography."""

    i_understand: bool = False


class PartSection(Section):
    """Which part of a shared data set is this node's: `index` of `of`. For demonstrations; real sites have theirs."""

    index: Annotated[int, Field(ge=0)]
    of: Annotated[int, Field(ge=1, le=10_000)]
    seed: Annotated[int, Field(ge=0, lt=1 << 31)]
    shots: Annotated[int, Field(ge=1)] | None = None  # samples per class, all by default
    sha256: Digest | None = None  # of all parts as they were first dealt, which this node is held to


class ClassesPartition(PartSection):
    """`avg` classes for each part, give or take `std`."""

    scheme: Literal["classes"]
    avg: Annotated[int, Field(ge=2)]
    std: Annotated[int, Field(ge=0)]
    count: Literal["uniform", "normal"] = "uniform"
    samples: Literal["all", "shots"] | None = None  # by default as `shots` says
    cover: bool = False


class DirichletPartition(PartSection):
    """Classes by a Dirichlet distribution, drawn for each class or for each part."""

    scheme: Literal["dirichlet"]
    alpha: Annotated[float, Field(gt=0)]
    per: Literal["class", "client"] = "class"
    balance: bool = True


class DomainsPartition(PartSection):
    """A domain for each part: of the data's own, where they have some; else equal parts, each seen in another way:
    upright, inverted, noisy, rotated, blurred."""

    scheme: Literal["domains"]


class ShardsPartition(PartSection):
    """Samples sorted by label and cut into shards."""

    scheme: Literal["shards"]
    per_client: Annotated[int, Field(ge=1)] = 2


class IidPartition(PartSection):
    """Equal parts at random."""

    scheme: Literal["iid"]


Part = ClassesPartition | DirichletPartition | DomainsPartition | ShardsPartition | IidPartition


def _validate_part(part: Part) -> Part:
    if part.index >= part.of:
        raise ValueError(f"expected index below of (got part {part.index} of {part.of})")
    if isinstance(part, ClassesPartition) and part.samples == "all" and part.shots is not None:
        raise ValueError(f"expected no shots with samples: all (got {part.shots})")
    if isinstance(part, DirichletPartition) and part.per == "client" and not part.balance:
        raise ValueError("expected no balance: false with per: client, whose parts are equal (got both)")
    return part


class ColumnsSection(Section):
    """Where a table or a Hugging Face data set keeps images and labels; by default they are found by name and type."""

    image: Name | None = None
    label: Name | None = None


class TransformSection(Section):
    """What training does to each batch. Size, channels and normalisation are genesis' `input`, the same for all."""

    augment: Literal["none", "flip", "crop", "flip_crop"] = "none"


class DataSection(Section):
    """The site's samples. Without a `test_split` the source's own is taken, or else a fifth of each class held out.

    `domains` chooses and orders those of format domains, `classes` the classes whose samples are used; all by default.
    """

    format: DataFormat = "digits"
    path: FilePath | None = None
    train_split: Name = "train"
    test_split: Name | None = None
    columns: ColumnsSection = ColumnsSection()
    domains: tuple[Name, ...] | None = None
    classes: tuple[Name, ...] | None = None
    transform: TransformSection = TransformSection()
    partition: Annotated[Part, Field(discriminator="scheme"), AfterValidator(_validate_part)] | None = None


class ConsensusSection(Section):
    """What this node does beyond voting: whether it mines, in how many processes. The rules live in genesis."""

    mine: bool = True
    workers: Annotated[int, Field(ge=1, le=256)] = 1


class AdminSection(Section):
    """Where the operator's commands reach the daemon; null switches it off.

    Whoever can open the socket may do all. At `address` callers need a token (`fednode token new`), and beyond loopback
    they speak TLS with the node's own identity.
    """

    socket: SocketPath | None = None
    address: ListenAddress | None = None


class LogSection(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"
    file: FilePath | None = None


class HttpSection(Section):
    """Where the node answers HTTP: metrics for Prometheus, and probes. Off without a port, as in `127.0.0.1:0`.

    With a `token_file` metrics need the token that it holds (`Authorization: Bearer …`), which beyond loopback they
    must; the probes say no more than yes or no to whoever comes without.
    """

    listen: ListenAddress | None = None
    metrics: bool = True
    token_file: FilePath | None = None

    @property
    def is_on(self) -> bool:
        return self.listen is not None and parse_address(self.listen)[1] != 0


class SinksSection(Section):
    """Where what a round was like is written besides the store: `metrics.jsonl` in the data directory, and what others
    read. OTLP goes where the standard variables say (OTEL_EXPORTER_OTLP_ENDPOINT), or to this machine."""

    jsonl: bool = True
    tensorboard: bool = False
    mlflow_uri: Annotated[str, Field(min_length=1)] | None = None
    otlp: bool = False


class NodeConfig(Section):
    """The whole of node.yaml."""

    version: Literal[1] = 1
    node: NodeSection
    genesis_file: FilePath
    network: NetworkSection
    training: TrainingSection
    fededs: FedEdsSection = FedEdsSection()
    data: DataSection = DataSection()
    consensus: ConsensusSection = ConsensusSection()
    admin: AdminSection = AdminSection()
    http: HttpSection = HttpSection()
    log: LogSection = LogSection()
    sinks: SinksSection = SinksSection()


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid configuration and where each of its values came from."""

    config: NodeConfig
    source: YamlSource

    def get_origin(self, keys: Sequence[str]) -> str:
        """`file:line:col`, an option, a variable, or `default`."""
        return self.source.origins.get(tuple(keys), "default")


def load_config(
    path: Path,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> NodeConfig:
    """The configuration in `path` under `overrides` (`key=value`) and `env`. Raises ConfigError with every problem."""
    return load_config_source(path, overrides, env).config


def load_config_source(
    path: Path,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """As `load_config`, keeping the origin of each value."""
    source = read_sections(path, may_be_empty=True)
    if {"members", "chain_name"} <= (source.value or {}).keys():
        raise ConfigError(f"{path}: expected a node's configuration, which names its genesis_file (got a genesis)")
    for name, text in sorted((env or {}).items()):
        if name.startswith(ENV_PREFIX):
            keys = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            source = source.with_value(keys, parse_value(text, name), name)
    for override in overrides:
        key, equals, text = override.partition("=")
        origin = f"--set {key}"
        if not equals or not all(key.split(".")):
            raise ConfigError(f"--set {override}: expected KEY=VALUE with a dotted key, as in training.seed=5")
        source = source.with_value(tuple(key.split(".")), parse_value(text, origin), origin)
    directory = Path(os.path.abspath(path)).parent
    tree = json.dumps(source.value if source.value is not None else {})
    try:
        # As JSON, so that lists are taken for tuples and text for paths, and nothing else for anything else.
        config = NodeConfig.model_validate_json(tree, context={"directory": directory})
    except ValidationError as error:
        problems = [describe_error(details, source, NodeConfig) for details in error.errors(include_url=False)]
        raise report(problems, path) from error
    problems = [Problem.at(source, keys, message) for keys, message in _find_conflicts(config)]
    if problems:
        raise report(problems, path)
    return LoadedConfig(config, source)


def _find_shared_ports(config: NodeConfig) -> list[tuple[Keys, str]]:
    """Where the node would listen twice, and so be in its own way."""
    listeners = {"network.listen": config.network.listen, "admin.address": config.admin.address}
    listeners["http.listen"] = config.http.listen
    found: list[tuple[Keys, str]] = []
    for (first, at), (second, address) in combinations(listeners.items(), 2):
        if at is not None and address is not None and _are_the_same(parse_address(at), parse_address(address)):
            found.append((tuple(second.split(".")), f"expected another port than that of {first} (got {address!r})"))
    return found


def _are_the_same(one: tuple[str, int], other: tuple[str, int]) -> bool:
    hosts = {one[0], other[0]}
    return one[1] == other[1] != 0 and (len(hosts) == 1 or not hosts.isdisjoint(ANY_HOSTS))


def _find_conflicts(config: NodeConfig) -> list[tuple[Keys, str]]:
    """What is wrong between keys that are each right."""
    found: list[tuple[Keys, str]] = []
    data = config.data
    if (data.path is None) != (data.format == "digits"):
        needs = "no path, which digits have not" if data.path is not None else f"a path, which {data.format} needs"
        found.append((("data", "path"), f"expected {needs} (got {show_value(data.path and str(data.path))})"))
    if data.train_split == data.test_split:
        found.append((("data", "test_split"), f"expected another split than train_split (got {data.test_split!r})"))
    network = config.network
    if network.tls == "off":
        places: dict[Keys, str] = {("network", "listen"): network.listen}
        places |= {("network", "peers", i): peer.split("@", 1)[1] for i, peer in enumerate(network.peers)}
        for keys, address in places.items():
            if not is_on_loopback(address):
                found.append((keys, f"expected a loopback address, since network.tls is off (got {address!r})"))
    http = config.http
    is_open = http.listen is not None and http.is_on and not is_on_loopback(http.listen)
    if is_open and http.token_file is None:
        said = f"expected a loopback address, or http.token_file as well (got {http.listen!r})"
        found.append((("http", "listen"), said))
    found += _find_shared_ports(config)
    limits = network.limits
    needed = limits.block_requests + limits.blob_streams
    if limits.max_streams < needed:
        said = f"expected at least {needed}, block_requests and blob_streams together (got {limits.max_streams})"
        found.append((("network", "limits", "max_streams"), said))
    seen: dict[str, int] = {}
    for index, peer in enumerate(network.peers):
        first = seen.setdefault(peer.split("@", 1)[0], index)
        if first != index:
            found.append((("network", "peers", index), f"expected one address per id (also network.peers.{first})"))
    return found
