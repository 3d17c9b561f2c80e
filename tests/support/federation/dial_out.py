"""Test networks some of whose members have no address: they dial, and are dialled by nobody.

directory = hide(make_federation(tmp_path / "net", host=ADDRESS), "node3")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from node.config.node_sections import NetworkSection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.faults.relay import Relay
    from support.federation.real_nodes import Federation

DIAL_OUT = "dial_out"


def hide(directory: Path, *names: str) -> Path:
    """Removes these members' addresses from all files of the test network. The chain stays the same. Returns the
    directory."""
    genesis = _read(directory / "genesis.yaml")
    hidden = {member["key"] for member in genesis["members"] if member["name"] in names}
    assert len(hidden) == len(names), names
    for member in genesis["members"]:
        if member["key"] in hidden:
            del member["address"]
    _write(directory / "genesis.yaml", genesis)
    for file in sorted(directory.glob("node*.yaml")):
        config = _read(file)
        network = config["network"]
        network["peers"] = [peer for peer in network["peers"] if peer.partition("@")[0] not in hidden]
        if config["node"]["name"] in names:
            _let_dial_only(network)
        _write(file, config)
    return directory


def dial_by_relays(net: Federation, name: str, relays: Mapping[str, Relay]) -> None:
    """Has a node that nobody dials reach these others only through their relays, which then carry all traffic between
    them."""
    file = net.nodes[name].node.config_file
    config = _read(file)
    _let_dial_only(config["network"])
    dialled = {net.nodes[other].node.address: relay.address for other, relay in relays.items()}
    peers = [peer.split("@") for peer in config["network"]["peers"]]
    config["network"]["peers"] = [f"{key}@{dialled.pop(address, address)}" for key, address in peers]
    assert not dialled, f"{name} knows no peer at {list(dialled)}"
    _write(file, config)


def _let_dial_only(network: dict[str, Any]) -> None:
    network.pop("advertise", None)
    if DIAL_OUT in NetworkSection.model_fields:
        network[DIAL_OUT] = True
        network.pop("listen")


def _read(file: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return read


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
