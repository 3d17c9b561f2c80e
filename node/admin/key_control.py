"""The operator's control over the node's own keys: proposes that a key made beforehand replaces the one in force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from chain.signing import encode_id
from node.config.identity import open_spare
from node.config.node_config import NodeConfig
from node.consensus.service import RoundService
from node.consensus.signing.keys import make_rotation
from node.errors import InvalidRequest
from node.pb import admin_pb2 as pb


class KeyControl:
    """Rotates the key of one node, whose configuration may be reloaded."""

    def __init__(self, service: RoundService, get_config: Callable[[], NodeConfig]) -> None:
        self._service = service
        self._get_config = get_config

    def __repr__(self) -> str:
        return f"<KeyControl of {self._service.signer.id.hex()[:8]}>"

    async def rotate_key(self) -> pb.RotateKeyReply:
        """Proposes the key in `node.next_key_file`, or returns the open proposal of that key. Raises NodeError or
        ChainError."""
        service, config = self._service, self._get_config()
        key = await asyncio.to_thread(open_spare, config)
        if key is None:
            raise InvalidRequest(f"{config.node.spare_key_file}: expected the new key, which fednode key rotate makes")
        signer, tip = service.signer, service.tip
        change = make_rotation(tip, signer.id, key.id)
        service.signer.take_spare(key)
        for proposal in service.proposals:
            kind = proposal.change.kind
            if kind.get_new_key() == key.id and proposal.change.by == change.by:
                return pb.RotateKeyReply(change=proposal.id.hex(), id=encode_id(key.id))
        proposal = await service.proposals.propose(change)
        return pb.RotateKeyReply(change=proposal.id.hex(), id=encode_id(key.id))
