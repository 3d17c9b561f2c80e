"""The join file: what a joiner needs to find a federation's true chain and its members (FEDERATION §2).

It holds genesis, a checkpoint with the state after it, and addresses. The checkpoint's header commits to that state.
Nobody can prove to a stranger that this block is final, so the maker of the file reads a hash over all of it to the
joiner.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from chain.block import Digest, Id, SealedHeader
from chain.checkpoint import LEG_HEIGHTS, Checkpoint, get_marked
from chain.codec import decode_sealed_header, encode_sealed_header
from chain.errors import ChainError, InvalidJoinFile
from chain.genesis import Genesis
from chain.run import encode_canonical
from chain.schema import Section, describe, quote, read_digest
from chain.signing import decode_id, encode_id, tag
from chain.state import State

JOIN_FILE_TAG = tag("join-file")
VERSION = 1
MAX_JOIN_FILE_BYTES = 3 * 1024 * 1024  # a million heights have 0.6 MiB of marks
GROUP_CHARS = 4  # of the hash, as it is read out

_KEYS = ("fednode_join", "genesis", "header", "marks", "state", "addresses")


@dataclass(frozen=True, eq=False)
class JoinFile:
    """The content of a join file. Valid once read; not slotted, because its bytes are cached.

    `header` is that of the checkpoint, `state` the state after it, `addresses` host:port by key.
    """

    genesis: Genesis
    header: SealedHeader
    marks: tuple[Id, ...]
    state: State
    addresses: Mapping[Id, str] = field(default_factory=dict)

    @classmethod
    def at_genesis(cls, genesis: Genesis) -> Self:
        """Returns the join file of a chain's founders: its checkpoint is block 0."""
        block = genesis.block0
        header = SealedHeader(block.header, block.nonce, block.signature, block.id)
        return cls(genesis, header, (), genesis.state)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.header.header.height, self.header.id, self.marks)

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that are hashed."""
        return encode_canonical(self._to_mapping())

    @property
    def digest(self) -> Digest:
        return hashlib.sha256(JOIN_FILE_TAG + self.canonical).digest()

    def describe_digest(self) -> str:
        """Returns the hash in groups of characters, for two people to compare by voice."""
        text = self.digest.hex()
        return " ".join(text[i : i + GROUP_CHARS] for i in range(0, len(text), GROUP_CHARS))

    def _to_mapping(self) -> dict[str, Any]:
        return {
            "fednode_join": VERSION,
            "genesis": self.genesis.to_mapping(),
            "header": encode_sealed_header(self.header).hex(),
            "marks": [mark.hex() for mark in self.marks],
            "state": json.loads(self.state.canonical),
            "addresses": {encode_id(key): address for key, address in self.addresses.items()},
        }

    def encode(self) -> bytes:
        """Returns the file as indented JSON. Raises InvalidJoinFile if it would be too large to be read again."""
        data = json.dumps(self._to_mapping(), indent=1, sort_keys=True).encode("ascii") + b"\n"
        if len(data) > MAX_JOIN_FILE_BYTES:
            raise InvalidJoinFile.differs("size", f"at most {MAX_JOIN_FILE_BYTES} bytes", len(data))
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Returns the content of a join file. Raises InvalidJoinFile, whatever is wrong with it."""
        if len(data) > MAX_JOIN_FILE_BYTES:
            raise InvalidJoinFile.differs("size", f"at most {MAX_JOIN_FILE_BYTES} bytes", len(data))
        try:
            return cls._from_mapping(json.loads(data, object_pairs_hook=_read_pairs))
        except (ValueError, RecursionError) as error:
            raise InvalidJoinFile(f"expected JSON, got {quote(data[:40])}") from error
        except InvalidJoinFile:
            raise
        except ChainError as error:
            raise InvalidJoinFile(describe(error)) from error

    @classmethod
    def _from_mapping(cls, obj: object) -> Self:
        top = Section("", obj, _KEYS)
        if top.integer("fednode_join") != VERSION:
            raise InvalidJoinFile.differs("fednode_join", VERSION, top.integer("fednode_join"))
        genesis = Genesis.from_mapping(top.value("genesis"))
        header = decode_sealed_header(genesis.chain_id, _read_hex(top, "header"))
        state = State.decode(genesis.chain_id, encode_canonical(top.value("state")))
        marks = tuple(read_digest(f"marks[{i}]", mark) for i, mark in enumerate(top.texts("marks")))
        addresses = _read_addresses(top)
        joined = cls(genesis, header, marks, state, addresses)
        joined._check()
        return joined

    def _check(self) -> None:
        header = self.header.header
        if header.height == 0 and self.header.id != self.genesis.block0.id:
            raise InvalidJoinFile.differs("block 0", self.genesis.block0.id, self.header.id)
        if header.state_next != self.state.digest:
            raise InvalidJoinFile.differs("state after the checkpoint", header.state_next, self.state.digest)
        if len(self.marks) != len(get_marked(header.height)):
            expected = f"{len(get_marked(header.height))}, one in {LEG_HEIGHTS} heights"
            raise InvalidJoinFile.differs("number of marks", expected, len(self.marks))


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a mapping that names each key once. Raises InvalidJoinFile for a key that comes twice: two readers might
    take different values."""
    read = dict(pairs)
    if len(read) != len(pairs):
        raise InvalidJoinFile("expected each key once")
    return read


def _read_hex(top: Section, name: str) -> bytes:
    text = top.text(name)
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InvalidJoinFile(f"{name}: expected hex, got {quote(text)}") from error


def _read_addresses(top: Section) -> dict[Id, str]:
    mapping = top.tree("addresses")
    section = Section("addresses", mapping, tuple(mapping))
    return {decode_id(key): section.text(key) for key in mapping}
