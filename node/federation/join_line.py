"""The line by which somebody asks to join: a signed request, or for networks to try things out NAME=ID[@HOST:PORT]."""

from __future__ import annotations

import re
from typing import NamedTuple

from chain import join_request
from chain.block import Digest, Id
from chain.errors import GenesisError
from chain.schema import check_name, quote
from chain.signing import decode_id

_PLAIN = re.compile(r"(?P<name>[^=@]+)=(?P<key>[A-Za-z0-9]+)(?:@(?P<address>\S+))?")


class JoinLine(NamedTuple):
    """A node that asks to join: its key, its name, and the address at which it listens, "" if it only dials."""

    key: Id
    name: str
    address: str


def read_join_line(text: str, chain_id: Digest) -> JoinLine:
    """Reads either kind of line. Raises ChainError if the text is neither, or a request for another chain."""
    text = text.strip()
    if text.startswith(join_request.PREFIX):
        request = join_request.read_join_request(text, chain_id)
        return JoinLine(request.key, request.name, request.address)
    match = _PLAIN.fullmatch(text)
    if match is None:
        raise GenesisError("request", f"expected {join_request.PREFIX}… or NAME=ID, got {quote(text)}")
    check_name("name", match["name"])
    return JoinLine(decode_id(match["key"]), match["name"], match["address"] or "")
