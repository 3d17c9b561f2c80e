"""A memory network that remembers what every member signed and sent, over all its lives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from chain import codec
from chain.approvals import decode_approval, decode_proposal, decode_readiness
from chain.block import Approval, Id
from node.p2p.transport.base import Message, MessageKind
from support.federation.memory_transport import MemoryNetwork, MemoryTransport

SLOTLESS = (MessageKind.STATUS, MessageKind.EVIDENCE, MessageKind.PAYLOAD)  # nothing signed for a slot

Watcher = Callable[[Id, Message], None]


class TappedTransport(MemoryTransport):
    """Reports every message to its network before it is queued."""

    def __init__(self, network: TappedNetwork, me: Id) -> None:
        super().__init__(network, me)
        self._tapped = network

    def post(self, peer: Id, message: Message) -> None:
        self._tapped.note(self.me, message)
        super().post(peer, message)


class TappedNetwork(MemoryNetwork):
    """Raises AssertionError from `check` if anybody ever signed two contents for one slot (I4).

    It calls `watch` with each signed object the first time its own author sends it.
    """

    def __init__(self, seed: int = 0, **weather: Any) -> None:
        super().__init__(seed, **weather)
        self.watch: Watcher | None = None
        self.slots: dict[Hashable, bytes] = {}
        self.broken: list[str] = []
        self.approvals: list[Approval] = []  # those sent by their own voters, proposers included
        self._seen: set[bytes] = set()

    def transport(self, me: Id) -> MemoryTransport:
        transport = TappedTransport(self, me)
        self._transports[me] = transport
        self.settle()
        return transport

    def note(self, sender: Id, message: Message) -> None:
        if message.kind in SLOTLESS or message.data in self._seen:
            return
        self._seen.add(message.data)
        slot, content, signer = read_slot(message)
        if (approval := read_approval(message)) is not None and approval.voter == sender:
            self.approvals.append(approval)
        if self.slots.setdefault(slot, content) != content:
            self.broken.append(f"two contents for {slot}")
        if self.watch is not None and sender == signer:
            self.watch(sender, message)

    def check(self) -> None:
        assert not self.broken, self.broken


def read_slot(message: Message) -> tuple[Hashable, bytes, Id]:
    """Returns the slot an object fills, its content there, and who signed it."""
    if message.kind is MessageKind.CONTRIBUTION:
        contribution = codec.decode_contribution(message.data)
        slot = ("contribution", contribution.height, contribution.author)
        return slot, codec.contribution_fields(contribution), contribution.author
    if message.kind is MessageKind.VOTE:
        vote = codec.decode_vote(message.data)
        return vote.slot, vote.block_id, vote.voter
    if (approval := read_approval(message)) is not None:
        return ("approval", approval.change_id, approval.voter), bytes([approval.answer]), approval.voter
    if message.kind is MessageKind.READINESS:
        ready = decode_readiness(message.data)
        return ("readiness", ready.change_id, ready.key, ready.height), ready.block_id, ready.key
    block = codec.decode_block(bytes(32), message.data)
    header = codec.encode_header(block.header) + block.nonce.to_bytes(8, "big")
    return ("candidate", block.height, block.header.miner), header, block.header.miner


def read_approval(message: Message) -> Approval | None:
    """Returns the approval in a message; a change carries that of its proposer."""
    match message.kind:
        case MessageKind.PROPOSAL:
            return decode_proposal(message.data)[1]
        case MessageKind.APPROVAL:
            return decode_approval(message.data)
    return None
