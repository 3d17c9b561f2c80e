"""The federation that a node belongs to, as its configuration names it: by the founders' genesis with the initial model
beside it, or, for a node that joins an existing chain, by a join file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chain.block import Id
from chain.checkpoint import Checkpoint
from chain.errors import InvalidJoinFile
from chain.genesis import Genesis
from chain.join_file import MAX_JOIN_FILE_BYTES, JoinFile
from ml.errors import SpecError
from node.addresses import validate_dialled
from node.config.genesis_file import find_initial_model, get_genesis_spec, load_genesis, read_genesis
from node.config.node_config import NodeConfig
from node.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Federation:
    """Holds what a node starts from. `initial_model` is a file; a joiner need not have it, and fetches it from members.
    `checkpoint` is None for a founder, who saw the chain begin; `addresses` are the join file's hints."""

    genesis: Genesis
    initial_model: Path | None
    checkpoint: Checkpoint | None = None
    addresses: Mapping[Id, str] = field(default_factory=dict)


def load_federation(config: NodeConfig) -> Federation:
    """Loads and checks what the configuration names. Raises ConfigError."""
    if config.join_file is None:
        genesis, initial_model = load_genesis(config.federation_file)
        return Federation(genesis, initial_model)
    joined = read_join_file(config.join_file)
    model = find_initial_model(config.join_file)
    return Federation(joined.genesis, model if model.exists() else None, joined.checkpoint, joined.addresses)


def read_join_file(path: Path) -> JoinFile:
    """Returns the join file in `path`; for a genesis, the join file whose checkpoint is block 0. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JOIN_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); a member makes one: fednode join-file"
        ) from error
    if not data.lstrip().startswith(b"{"):
        _, genesis, _ = read_genesis(path)
        return JoinFile.at_genesis(genesis)
    try:
        joined = JoinFile.decode(data)
        get_genesis_spec(joined.genesis)
        for address in joined.addresses.values():
            validate_dialled(address)
    except (InvalidJoinFile, SpecError, ValueError) as error:
        raise ConfigError(f"{path}: not a join file that can be used: {error}") from error
    return joined
