"""The errors that a daemon ends with, in words for its operator: whose fault it is, and what to do about it."""

from __future__ import annotations

from chain.errors import (
    BlobCorrupted,
    BlobRowCorrupted,
    ChainError,
    OffTheWay,
    StoreCorrupted,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreLocked,
    StoreMismatch,
)
from node.addresses import parse_address
from node.config.node_config import NodeConfig
from node.consensus.height.halted import Halted
from node.consensus.signing.keys import OtherKeyInForce
from node.errors import ConfigError, NodeError, PermissionRefused
from node.host.procfs import name_listener
from node.p2p.transport.base import AddressInUse, CannotListen


class StorageFailed(NodeError):
    """The store cannot be trusted or written any more: the node signs nothing, and what is stored can still be read."""


def explain_chain_error(error: ChainError, config: NodeConfig) -> NodeError:
    """Returns the error of a store with words for the operator: what went wrong, and what to do about it."""
    directory = config.node.data_dir
    match error:
        case StoreMismatch() | StoreLocked():
            return ConfigError(str(error))
        case OffTheWay():
            return ConfigError(
                f"{error}; the chain in {directory} is another history than the join file's. Compare that file's hash "
                "with a member by voice; if it is right, take the chain anew: fednode unsafe-reset"
            )
        case StoreForbidden():
            return PermissionRefused(f"{error} (node.data_dir: expected a directory that this node can write)")
        case StoreFull():
            return StorageFailed(f"{error}; make room and start again: what was signed and finalised is kept")
        case BlobRowCorrupted():  # before BlobCorrupted, of which it is a kind
            return StorageFailed(f"{error}; it was deleted: start again, as other members hold the same bytes")
        case BlobCorrupted():
            return StorageFailed(f"{error}; delete the file and start again: other members hold the same bytes")
        case StoreCorrupted():
            return StorageFailed(
                f"{error}; restore {directory} from a copy, or take the chain from the other members again: "
                "fednode unsafe-reset, which keeps what this node signed"
            )
        case StoreError():
            return StorageFailed(f"{error} (node.data_dir)")
    return StorageFailed(f"{type(error).__name__}: {error}")


def translate(error: BaseException) -> BaseException:
    """Returns the first error of a group that an operator can act on, else the group itself."""
    for one in _flatten(error):
        if isinstance(one, AddressInUse):
            who = name_listener(parse_address(str(one.filename))[1])
            return ConfigError(
                f"network.listen: {one.filename} is in use by {who}; choose another port, or stop what is there"
            )
        if isinstance(one, CannotListen):
            return ConfigError(f"network.listen: {one.filename}: cannot listen there ({one.strerror})")
        if isinstance(one, ChainError | OtherKeyInForce):
            return one
        if isinstance(one, Halted):
            return StorageFailed(f"{type(one).__name__}: {one}")
        if isinstance(one, NodeError):
            return one
    return error


def _flatten(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _flatten(one)]
    return [error]
