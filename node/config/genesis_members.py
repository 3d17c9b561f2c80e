"""The members of a genesis: written as an operator does, and one more added before any node has started. Also checks
that a node is what its configuration says, a member that genesis names or an observer that it does not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chain.block import Id
from chain.errors import ChainError, GenesisError, InvalidKey
from chain.genesis import Genesis
from chain.signing import decode_id, encode_id
from chain.state import State
from chain.store.interface import RESTORED
from chain.store.rows import DATABASE
from chain.store.sqlite import SqliteStore
from node.addresses import parse_address
from node.config.genesis_file import GENESIS_HEADER, load_genesis
from node.config.node_config import NodeConfig, load_config
from node.config.yaml_source import dump_yaml
from node.errors import ConfigError
from node.host.whole_file import writing_whole

log = logging.getLogger(__name__)


def parse_member(text: str, default_name: str) -> dict[str, Any]:
    """Returns an entry of genesis' `members` from `[NAME=]ID[@HOST:PORT]`; `fednode id --peer` prints the part after
    NAME=. Raises ConfigError."""
    name, equals, rest = text.rpartition("=")
    key, at, address = rest.partition("@")
    try:
        decode_id(key)
        if at and parse_address(address)[1] == 0:
            raise ValueError("expected host:port with a port of at least 1")
    except (InvalidKey, ValueError) as error:
        raise ConfigError(f"member {text!r}: expected [NAME=]ID[@HOST:PORT] ({error})") from error
    if equals and not name:
        raise ConfigError(f"member {text!r}: expected a name before the =")
    return {"key": key, "name": name or default_name} | ({"address": address} if at else {})


def parse_members(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns entries of genesis' `members`; those without a name are called node0, node1 and so on by their place."""
    return [parse_member(text, f"node{i}") for i, text in enumerate(texts)]


def parse_observers(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns entries of genesis' `observers` from `[NAME=]ID`, in the given order. Raises ConfigError."""
    found = []
    for i, text in enumerate(texts):
        entry = parse_member(text, f"observer{i}")
        if "address" in entry:
            raise ConfigError(f"observer {text!r}: expected [NAME=]ID; where it is dialled is for each node to say")
        found.append(entry)
    return found


def add_member(path: Path, text: str) -> Genesis:
    """Adds one more member to the genesis in `path`, which then begins another chain.

    Raises ConfigError and leaves the file as it was, also where a node whose configuration is beside it has run on it.
    """
    old, _ = load_genesis(path)
    if (started := find_started(path, old)) is not None:
        raise ConfigError(
            f"{path}: expected a genesis that no node has started from, but there is a chain in {started}; another "
            "member makes it another federation's"
        )
    mapping = old.to_mapping()
    mapping["members"] = [*mapping["members"], parse_member(text, f"node{old.state.n}")]
    try:
        genesis = Genesis.from_mapping(mapping)
    except GenesisError as error:
        raise ConfigError(f"{path}: {error}") from error
    with writing_whole(path, over=True) as file:
        file.write((GENESIS_HEADER + dump_yaml(genesis.to_mapping())).encode())
    return genesis


def find_started(path: Path, genesis: Genesis) -> Path | None:
    """Returns the data directory of a node that has run on this genesis, among those whose configurations are in its
    folder; None where there is none."""
    for config_file in sorted(path.parent.glob("*.yaml")):
        if config_file.name == path.name:
            continue
        try:
            config = load_config(config_file)
        except ConfigError:  # another kind of file, or an invalid configuration
            continue
        if not config.federation_file.exists() or not config.federation_file.samefile(path):
            continue
        try:
            stored = SqliteStore.stored_genesis(config.node.data_dir)
        except ChainError:  # in use, or damaged: a node has run
            return config.node.data_dir
        if stored is not None and Genesis.from_mapping(stored) == genesis:
            return config.node.data_dir
    return None


def read_head_state(config: NodeConfig, genesis: Genesis) -> State | None:
    """Returns the state in force of the chain in the data directory of a node that does not run; None where there is no
    chain, or it cannot be read: opening the store reports that with more detail."""
    if not (config.node.data_dir / DATABASE).is_file():
        return None
    try:
        with SqliteStore.open(config.node.data_dir, genesis, readonly=True) as store:
            return store.get_state(store.head_height)
    except ChainError:
        return None


def was_put_back(config: NodeConfig, genesis: Genesis) -> bool:
    """Says whether the chain in the data directory of a node that does not run is from a backup, and has not caught
    up."""
    if not (config.node.data_dir / DATABASE).is_file():
        return False
    try:
        with SqliteStore.open(config.node.data_dir, genesis, readonly=True) as store:
            return store.get_meta(RESTORED) is not None
    except ChainError:
        return False


def _has_joined(config: NodeConfig, genesis: Genesis, key: Id) -> bool:
    """Says whether the chain in the data directory has this key as a member's, now or lately, or cannot be read."""
    state = read_head_state(config, genesis)
    if state is None:
        return (config.node.data_dir / DATABASE).is_file()
    return state.index_of(key) is not None or any(old.key == key for old in state.retired)


def validate_membership(
    config: NodeConfig, genesis: Genesis, key: Id, place: str = "network.peers", state: State | None = None
) -> None:
    """Raises ConfigError for a key that genesis does not name, unless it observes, has joined or is to join, and for
    unknown peers. `place` is the setting that names those; `state` is the state in force where the node runs. The chain
    here may be behind: for peers that it does not name, only a warning is logged."""
    members = f"{config.federation_file}: members"
    shown = f"{encode_id(key)} ({config.node.identity_key_file})"
    is_member = genesis.state.index_of(key) is not None
    if config.join_file is not None or (not is_member and _has_joined(config, genesis, key)):
        return  # the chain says who the node is, and whom it dials
    if not is_member and not config.node.observer:
        raise ConfigError(
            f"{members}: expected this node's key {shown}; one that only observes says node.observer: true"
        )
    if is_member and config.node.observer:
        raise ConfigError(f"node.observer: expected a key that is no member's (got {shown})")
    for peer in config.network.find_strangers(genesis, state or read_head_state(config, genesis)):
        if not (config.node.data_dir / DATABASE).is_file():
            raise ConfigError(f"{members}: expected {encode_id(peer)}, which {place} names, or among its observers")
        log.warning("%s: %s is neither a member nor an observer, as far as the chain is here", place, encode_id(peer))
