"""Whether a node is what its configuration says: a member that genesis names, or an observer that it does not."""

from __future__ import annotations

from chain.block import Id
from chain.genesis import Genesis
from chain.signing import encode_id
from node.config.node_config import NodeConfig
from node.errors import ConfigError


def validate_membership(config: NodeConfig, genesis: Genesis, key: Id, place: str = "network.peers") -> None:
    """Raises ConfigError for a key that genesis does not name, unless it observes, and for peers that nobody knows.
    `place` is where those are named."""
    members = f"{config.genesis_file}: members"
    shown = f"{encode_id(key)} ({config.node.identity_key_file})"
    is_member = genesis.index_of(key) is not None
    if not is_member and not config.node.observer:
        raise ConfigError(
            f"{members}: expected this node's key {shown}; one that only observes says node.observer: true"
        )
    if is_member and config.node.observer:
        raise ConfigError(f"node.observer: expected a key that is no member's (got {shown})")
    for peer in config.network.find_strangers(genesis):
        raise ConfigError(f"{members}: expected {encode_id(peer)}, which {place} names and network.observers does not")
