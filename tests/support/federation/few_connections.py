"""Test networks whose nodes keep connections with neighbours alone, though they are not many.

directory = keep_few(make_federation(tmp_path / "net", num_nodes=12))
async with Federation(directory) as net:
    near = get_neighbours(net)["node0"]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from node.p2p.overlay import Overlay

if TYPE_CHECKING:
    from support.federation.real_nodes import Federation

MESH_MAX = 4  # up to so many members, a node of such a network connects with all


def keep_few(directory: Path, mesh_max: int = MESH_MAX) -> Path:
    """Sets this as the `network.mesh_max` of each node of the test network. Returns the directory."""
    for file in sorted(directory.glob("node*.yaml")):
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
        config["network"]["mesh_max"] = mesh_max
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return directory


def get_neighbours(net: Federation) -> dict[str, set[str]]:
    """Returns the neighbours of each node, by name, while no node is silent."""
    state = net.genesis.state
    names = {member.key: member.name for member in state.members}
    overlays = {name: Overlay(state.chain_id, state.member_ids, key) for key, name in names.items()}
    return {name: {names[key] for key in one.choose(lambda _: False)[0]} for name, one in overlays.items()}


def get_strangers(net: Federation, name: str) -> set[str]:
    """Returns the other members that are no neighbours of this one."""
    return set(net.names) - get_neighbours(net)[name] - {name}


async def read_connected(net: Federation, name: str) -> set[str]:
    """Returns the members that a running node is connected with."""
    peers = await net.ask(name, lambda admin: admin.list_peers())
    return {peer.name for peer in peers if peer.connected}
