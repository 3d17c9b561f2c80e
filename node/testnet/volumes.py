"""The federation of `docker-compose.yml`: each node's files in a volume of its own.

One service writes them and ends before the nodes start. What to make is said by environment variables
(`FEDNODE_METHOD=fedavg`), which Compose takes from the environment or `.env`. What was made is kept: a later start with
the same settings, or with none, changes nothing, and one with others is refused. Only the record says that a volume is
complete, and it is written last.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.errors import ConfigError, NodeError
from node.host.private_file import read_private, write_private

NODES = "FEDNODE_NODES"
PROFILES = "COMPOSE_PROFILES"
METRICS = "metrics"  # the volume of the token that nodes and Prometheus share
RECORD = "made.json"
FEWEST = 4  # nodes that start without a profile
_FORGET = "`docker compose down -v` forgets what was made"

# As in `fednode testnet` without options.
DEFAULTS = {
    "FEDNODE_METHOD": "auto",
    "FEDNODE_MODEL": "auto",
    "FEDNODE_DATA": "digits",
    "FEDNODE_PARTITION": "classes:3,1",
    "FEDNODE_ROUNDS": "10",
    "FEDNODE_SEED": "1",
    "FEDNODE_SET": "",
    "FEDNODE_I_UNDERSTAND": "",
}


@dataclass(frozen=True, slots=True)
class VolumesMade:
    """The volumes' federation, and whether it was made just now."""

    chain_id: str
    num_nodes: int
    settings: Mapping[str, str]
    is_new: bool


def make_volumes(directory: Path, environment: Mapping[str, str]) -> VolumesMade:
    """Writes the files of node i into `directory/node{i}`, where its volume is mounted, unless they are there.

    Raises ConfigError, one line that names the variable; no volume that was incomplete becomes complete then.
    """
    mounted = _find_mounted(directory)
    num_nodes = _count_started(environment, len(mounted))
    asked = {name: value for name in DEFAULTS if (value := environment.get(name, "").strip())}
    records = {volume: _read_record(volume) for volume in mounted}
    made = next((record for record in records.values() if record is not None), None)
    if made is None:
        settings = {**DEFAULTS, **asked}
        chain_id = _make(mounted[:num_nodes], directory / METRICS, settings)
        return VolumesMade(chain_id, num_nodes, settings, is_new=True)
    if made["nodes"] != num_nodes:
        raise ConfigError(
            f"{NODES}: expected {made['nodes']}, as it was made (got {num_nodes}, as many as Compose starts); {_FORGET}"
        )
    for volume in mounted[:num_nodes]:
        if records[volume] != made:
            raise ConfigError(
                f"{volume}: expected the files of chain {made['chain_id']} (got others or none); {_FORGET}"
            )
    for name, value in asked.items():
        if value != made["settings"].get(name, value):
            raise ConfigError(f"{name}: expected {made['settings'][name]!r}, as it was made (got {value!r}); {_FORGET}")
    return VolumesMade(made["chain_id"], num_nodes, made["settings"], is_new=False)


def _find_mounted(directory: Path) -> list[Path]:
    """Finds the volumes of node0, node1 and so on, of which there may be more than nodes that start."""
    found: list[Path] = []
    while (volume := directory / f"node{len(found)}").is_dir():
        found.append(volume)
    if len(found) < FEWEST or not (directory / METRICS).is_dir():
        raise ConfigError(f"{directory}: expected a volume on each of node0 to node{FEWEST - 1} and {METRICS}")
    return found


def _count_started(environment: Mapping[str, str], most: int) -> int:
    """Counts the nodes that Compose starts, according to its profiles."""
    profiles = [name.strip() for name in environment.get(PROFILES, "").split(",")]
    sizes = [name for name in profiles if name.startswith("nodes-")]
    known = [f"nodes-{n}" for n in range(FEWEST + 1, most + 1)]
    if len(sizes) > 1 or not set(sizes) <= set(known):
        raise ConfigError(f"{PROFILES}: expected one of {', '.join(known)}, or none of them (got {', '.join(sizes)})")
    started = int(sizes[0].removeprefix("nodes-")) if sizes else FEWEST
    asked = environment.get(NODES, "").strip()
    if asked in ("", str(started)):
        return started
    if f"nodes-{asked}" in known:
        raise ConfigError(
            f"{NODES}: Compose starts {started} nodes (got {asked}): set {PROFILES}=nodes-{asked} as well"
        )
    raise ConfigError(f"{NODES}: expected {FEWEST} to {most} (got {asked!r})")


def _make(volumes: list[Path], metrics: Path, settings: Mapping[str, str]) -> str:
    """Makes the files and returns the new chain's id."""
    # imported here, as other starts do not need it
    from node.testnet.layout import TestnetSpec, make_testnet
    from node.testnet.targets.compose import TOKEN_FILE

    spec = TestnetSpec(
        num_nodes=len(volumes),
        method=settings["FEDNODE_METHOD"],
        model=settings["FEDNODE_MODEL"],
        data=settings["FEDNODE_DATA"],
        partition=settings["FEDNODE_PARTITION"],
        rounds=_read_number(settings, "FEDNODE_ROUNDS"),
        seed=_read_number(settings, "FEDNODE_SEED"),
        settings=tuple(settings["FEDNODE_SET"].split()),
        i_understand=_read_flag(settings, "FEDNODE_I_UNDERSTAND"),
        target="compose",
    )
    with tempfile.TemporaryDirectory() as temporary:
        try:
            made = make_testnet(Path(temporary) / "testnet", spec)
        except ConfigError as error:
            raise ConfigError(_name_variables(next(iter(error.problems), str(error)))) from error
        source = made.directory
        for volume in volumes:
            copy_to = {
                "node.yaml": source / f"{volume.name}.yaml",
                "genesis.yaml": source / "genesis.yaml",
                "initial_model.safetensors": source / "initial_model.safetensors",
                "identity.key": source / "keys" / f"{volume.name}.key",
            }
            for name, file in copy_to.items():
                write_private(volume / name, file.read_bytes())
        write_private(metrics / "token", (source / TOKEN_FILE).read_bytes())
        (metrics / "token").chmod(0o640)  # also for Prometheus, by its group
    chain_id = made.genesis.chain_id.hex()
    record = {"chain_id": chain_id, "nodes": len(volumes), "settings": dict(settings)}
    for volume in volumes:
        write_private(volume / RECORD, f"{json.dumps(record)}\n".encode())
    return chain_id


def _read_record(volume: Path) -> dict[str, Any] | None:
    try:
        data = read_private(volume / RECORD)
        record = None if data is None else json.loads(data)
    except (NodeError, ValueError) as error:
        raise ConfigError(f"{volume / RECORD}: cannot be read ({error}); {_FORGET}") from error
    match record:
        case None | {"chain_id": str(), "nodes": int(), "settings": dict()}:
            return record
    raise ConfigError(f"{volume / RECORD}: cannot be read (expected a chain, nodes and settings); {_FORGET}")


def _read_number(settings: Mapping[str, str], name: str) -> int:
    text = settings[name]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ConfigError(f"{name}: expected a number from 0 to 999999999 (got {text!r})")
    return int(text)


def _read_flag(settings: Mapping[str, str], name: str) -> bool:
    text = settings[name]
    if text not in ("", "true", "false"):
        raise ConfigError(f"{name}: expected true or false (got {text!r})")
    return text == "true"


def _name_variables(text: str) -> str:
    """Rewrites a message about options so that it names the variables instead."""
    text = re.sub(r"^partition: ", "FEDNODE_PARTITION: ", text).replace("--i-understand", "FEDNODE_I_UNDERSTAND=true")

    def name(option: re.Match[str]) -> str:
        variable = f"FEDNODE_{option[1].upper().replace('-', '_')}"
        return variable if variable in DEFAULTS else option[0]

    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", name, text)
