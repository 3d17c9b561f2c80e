"""The configuration of a node: `node.yaml`, read once into frozen models, and the rules between its sections.

Precedence is `--set` over environment (`FEDNODE__NETWORK__LISTEN`) over file over default. Every problem is collected
and named with its origin, and any problem prevents the start. Relative paths are relative to the file. Only keys that
something reads are accepted. What validators must agree on is in genesis, never here.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from ml.errors import suggest
from ml.plugins import Plugins, list_offered
from node.addresses import ANY_HOSTS, is_on_loopback, parse_address
from node.config.http_section import HttpSection
from node.config.node_sections import (
    AdminSection,
    ConsensusSection,
    DataSection,
    LogSection,
    NetworkSection,
    NodeSection,
    Section,
    SinksSection,
    TrainingSection,
)
from node.config.plugins import add_plugins
from node.config.problems import Problem, describe_error, report
from node.config.value_types import DataFormat, FilePath
from node.config.yaml_source import Keys, YamlSource, parse_value, read_sections, show_value
from node.errors import ConfigError

log = logging.getLogger(__name__)

ENV_PREFIX = "FEDNODE__"

# Keys below `network` that are constants now. Release 0.3 ignores them; the next release is to refuse them.
REMOVED = {
    "limits": (
        *("max_streams", "peer_statuses_s", "block_requests_s", "block_requests"),
        *("blob_requests_s", "blob_streams", "queue_messages", "queue_mib"),
    ),
    "timeouts": ("connect_s", "handshake_s", "ask_s", "request_s", "blob_s", "write_s"),
}


class NodeConfig(Section):
    """The whole of node.yaml."""

    version: Literal[1] = 1
    node: NodeSection
    genesis_file: FilePath | None = None
    join_file: FilePath | None = None
    network: NetworkSection
    training: TrainingSection
    data: DataSection = DataSection()
    consensus: ConsensusSection = ConsensusSection()
    admin: AdminSection = AdminSection()
    http: HttpSection = HttpSection()
    log: LogSection = LogSection()
    sinks: SinksSection = SinksSection()

    @property
    def federation_file(self) -> Path:
        """Returns the file that names the chain: the join file, else genesis. A configuration has one of the two."""
        path = self.join_file or self.genesis_file
        if path is None:
            raise ConfigError("genesis_file: expected a genesis or a join_file (got neither)")
        return path

    @property
    def plugins(self) -> Plugins:
        """Returns the plugins whose code this node may import."""
        return Plugins.of(self.training.plugins)

    def get_data(self) -> dict[str, Any]:
        """Returns `data` as plain values, with the plugins that may be imported for it."""
        return add_plugins(self.data.model_dump(mode="json"), self.training.plugins)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Holds a valid configuration, and the origin of each of its values."""

    config: NodeConfig
    source: YamlSource

    def get_origin(self, keys: Sequence[str]) -> str:
        """Returns `file:line:col`, an option, a variable, or `default`."""
        return self.source.origins.get(tuple(keys), "default")

    def list_origins(self) -> dict[str, str]:
        """Returns the origin of every value by its dotted key."""
        values = self.config.model_dump(mode="json")
        return {".".join(keys): self.get_origin(keys) for keys, _ in walk_values(values)}


def walk_values(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Returns the leaves of nested sections, each under its keys."""
    leaves: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        keys = (*above, key)
        leaves += walk_values(value, keys) if isinstance(value, dict) and value else [(keys, value)]
    return leaves


def load_config(
    path: Path,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> NodeConfig:
    """Returns the configuration in `path` under `overrides` (`key=value`) and `env`. Raises ConfigError with every
    problem."""
    return load_config_source(path, overrides, env).config


def load_config_source(
    path: Path,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Loads the configuration as `load_config` does, with the origin of each value."""
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
    _leave_out_removed(source)
    directory = Path(os.path.abspath(path)).parent
    tree = json.dumps(source.value if source.value is not None else {})
    try:
        # As JSON, so that lists become tuples and text becomes paths, and no other type is converted.
        config = NodeConfig.model_validate_json(tree, context={"directory": directory})
    except ValidationError as error:
        problems = [describe_error(details, source, NodeConfig) for details in error.errors(include_url=False)]
        raise report(problems, path) from error
    problems = [Problem.at(source, keys, message) for keys, message in _find_conflicts(config)]
    if problems:
        raise report(problems, path)
    return LoadedConfig(config, source)


def _leave_out_removed(source: YamlSource) -> None:
    """Removes the removed keys from the source's value, and warns of each."""
    network = (source.value or {}).get("network")
    if not isinstance(network, dict):
        return
    for section, removed in REMOVED.items():
        given = network.get(section)
        if not isinstance(given, dict):
            continue
        for key in [key for key in removed if key in given]:
            keys = ("network", section, key)
            log.warning("%s", Problem.at(source, keys, "has no effect, as it is a constant now; leave it out").text)
            del given[key]
        if section == "timeouts" and not given:  # all keys of that section are removed
            del network[section]


def _find_shared_ports(config: NodeConfig) -> list[tuple[Keys, str]]:
    """Returns the keys whose address the node would listen at twice."""
    listen = None if config.network.dial_out else config.network.listen
    listeners = {"network.listen": listen, "admin.address": config.admin.address}
    listeners["http.listen"] = config.http.listen
    found: list[tuple[Keys, str]] = []
    for (first, at), (second, address) in combinations(listeners.items(), 2):
        if at is not None and address is not None and _are_the_same(parse_address(at), parse_address(address)):
            found.append((tuple(second.split(".")), f"expected another port than that of {first} (got {address!r})"))
    return found


def _are_the_same(one: tuple[str, int], other: tuple[str, int]) -> bool:
    hosts = {one[0], other[0]}
    return one[1] == other[1] != 0 and (len(hosts) == 1 or not hosts.isdisjoint(ANY_HOSTS))


def _find_unknown_format(config: NodeConfig) -> list[tuple[Keys, str]]:
    """Returns a problem where the format is neither fednode's own nor one of a plugin that may be imported."""
    name, own = config.data.format, get_args(DataFormat)
    offered = [entry.plugin for entry in list_offered("data") if entry.name == name] if name not in own else []
    if name in own or config.plugins.allows(*offered):
        return []
    if offered:
        expected = f"training.plugins to name {' or '.join(offered)}, whose code reads it"
        return [(("data", "format"), f"expected {expected} (got {list(config.training.plugins)})")]
    return [(("data", "format"), f"unknown format {name!r}: {suggest(name, own)}")]


_NOISES = (
    ("dp_noise", "dp_clip", "dp_prototype_noise", "dp_prototype_clip"),
    ("dp_update_noise", "dp_update_clip"),
)  # each with the keys that need it


def _find_useless_noise(config: NodeConfig) -> list[tuple[Keys, str]]:
    """Returns a problem for each clip without its noise, and for noise of both samples and updates."""
    own, at = config.training.privacy.get_own(), ("training", "privacy")
    found: list[tuple[Keys, str]] = []
    for noise, *others in _NOISES:
        if noise not in own:
            found += [((*at, key), f"expected none without {noise} (got {own[key]:g})") for key in others if key in own]
    if "dp_noise" in own and "dp_update_noise" in own:
        said = "expected none with dp_noise: whose site is hidden, its samples are"
        found.append(((*at, "dp_update_noise"), f"{said} (got {own['dp_update_noise']:g})"))
    return found


def _find_conflicts(config: NodeConfig) -> list[tuple[Keys, str]]:
    """Returns the problems between keys that are each valid."""
    found: list[tuple[Keys, str]] = _find_unknown_format(config)
    if (config.genesis_file is None) == (config.join_file is None):
        got = "neither" if config.genesis_file is None else "both"
        found.append((("genesis_file",), f"expected a genesis_file or a join_file (got {got})"))
    data = config.data
    if data.format in get_args(DataFormat) and (data.path is None) != (data.format == "digits"):
        needs = "no path, which digits have not" if data.path is not None else f"a path, which {data.format} needs"
        found.append((("data", "path"), f"expected {needs} (got {show_value(data.path and str(data.path))})"))
    if data.train_split == data.test_split:
        found.append((("data", "test_split"), f"expected another split than train_split (got {data.test_split!r})"))
    given = [key for key in ("test", "split", "test_split") if getattr(data, key) is not None]
    if len(given) > 1:
        found.append((("data", given[1]), f"expected none with data.{given[0]}, which says what tests already"))
    if data.group is not None and data.id is not None:
        found.append((("data", "id"), "expected none with data.group, by which samples are known already"))
    network = config.network
    if network.dial_out and network.advertise is not None:
        said = f"expected none, as network.dial_out says that nobody dials this node (got {network.advertise!r})"
        found.append((("network", "advertise"), said))
    if network.tls == "off":
        places: dict[Keys, str] = {("network", "listen"): network.listen}
        places |= {("network", "peers", i): peer.split("@", 1)[1] for i, peer in enumerate(network.peers)}
        if network.proxy is not None:
            places["network", "proxy"] = network.proxy
        for keys, address in places.items():
            if not is_on_loopback(address):
                found.append((keys, f"expected a loopback address, since network.tls is off (got {address!r})"))
    http = config.http
    is_open = http.listen is not None and http.is_on and not is_on_loopback(http.listen)
    if is_open and http.token_file is None:
        said = f"expected a loopback address, or http.token_file as well (got {http.listen!r})"
        found.append((("http", "listen"), said))
    named = http.tls.certificate_file, http.tls.key_file
    if http.tls.files is None and any(named):
        key = "key_file" if named[1] is None else "certificate_file"
        found.append((("http", "tls", key), "expected a file, as the other of certificate_file and key_file is set"))
    found += _find_useless_noise(config)
    found += _find_shared_ports(config)
    seen: dict[str, int] = {}
    for index, peer in enumerate(network.peers):
        first = seen.setdefault(peer.split("@", 1)[0], index)
        if first != index:
            found.append((("network", "peers", index), f"expected one address per id (also network.peers.{first})"))
    return found
