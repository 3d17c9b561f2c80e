"""Lines and files that people pass on to join: whoever made them is a stranger."""

from __future__ import annotations

import json

from chain.block import SealedHeader
from chain.errors import InvalidJoinFile, InvalidJoinRequest
from chain.join_file import JoinFile
from chain.join_request import JoinRequest
from fuzz.claims import Seeds, attempt
from fuzz.federation import CANDIDATE, GENESIS, KEYS, NEWCOMER


def make_requests() -> Seeds:
    addressed = JoinRequest.sign(NEWCOMER, GENESIS.chain_id, name="node4", address="d.example:7050", made_ms=1)
    hidden = JoinRequest.sign(NEWCOMER, GENESIS.chain_id, name="Süd", address="", made_ms=0)
    return {"addressed": addressed.encode().encode(), "hidden": hidden.encode().encode()}


def check_request(data: bytes) -> bool:
    text = data.decode("utf-8", "replace")
    request = attempt(lambda: JoinRequest.decode(text, GENESIS.chain_id), InvalidJoinRequest)
    if request is None:
        return False
    assert request.encode() == text.strip()
    return True


def make_files() -> Seeds:
    block = CANDIDATE
    header = SealedHeader(block.header, block.nonce, block.signature, block.id)
    joined = JoinFile(GENESIS, header, (), GENESIS.state, {KEYS[0].id: "a.example:7050"})
    return {"founders": JoinFile.at_genesis(GENESIS).encode(), "joined": joined.encode()}


def check_file(data: bytes) -> bool:
    """What is taken says the same when it is written, and has the same hash."""
    joined = attempt(lambda: JoinFile.decode(data), InvalidJoinFile)
    if joined is None:
        return False
    again = JoinFile.decode(joined.encode())
    assert again.digest == joined.digest
    assert json.loads(again.canonical) == json.loads(joined.canonical)
    return True
