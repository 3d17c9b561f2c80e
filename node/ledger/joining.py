"""Join files: each holds the head of a store, with the addresses at which this node knows the members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chain.block import Block, Id, SealedHeader
from chain.genesis import Genesis
from chain.join_file import JoinFile
from chain.state import State


def make_join_file(
    genesis: Genesis, head: Block, marks: Iterable[Id], state: State, addresses: Mapping[Id, str]
) -> JoinFile:
    """Makes the file whose checkpoint is `head`, with the state after it. `marks` are the ids of the blocks at the
    marked heights below it (`get_marked`). Only members' addresses are used, with those in genesis for founders where
    no newer one is known."""
    header = SealedHeader(head.header, head.nonce, head.signature, head.id)
    hints = {founder.key: founder.address for founder in genesis.founders if founder.address}
    known = {key: address for key, address in (hints | dict(addresses)).items() if state.index_of(key) is not None}
    return JoinFile(genesis, header, tuple(marks), state, known)
