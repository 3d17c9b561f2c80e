"""Real connections under a `cluster`: gRPC over mutual TLS on loopback, all members in one loop and in real time.

async with cluster(tmp_path, 13, network_class=SocketNetwork, network={"num_members": 13}) as net:
    await net.wait_for_height(3)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from chain.block import Id
from node.p2p.admission import Admission
from node.p2p.transport.rpc import RpcTransport
from support.data.chains import make_keys
from support.federation.memory_transport import MemoryNetwork, MemoryTransport
from support.federation.ports import find_free_ports


class SocketNetwork(MemoryNetwork):
    """The addresses of the members that `make_keys` makes. Those in `dial_out`, by their number, do not listen and are
    not dialled. Delays are those of loopback, and links cannot be cut."""

    def __init__(self, seed: int = 0, *, num_members: int, dial_out: Collection[int] = ()) -> None:
        super().__init__(seed)
        keys = make_keys(num_members)
        ports = find_free_ports(num_members)
        self._keys = {key.id: key for key in keys}
        self._dial_out = {keys[number].id for number in dial_out}
        self._addresses = {key.id: f"127.0.0.1:{port}" for key, port in zip(keys, ports, strict=True)}
        self._newest: dict[Id, RpcTransport] = {}

    def transport(self, me: Id) -> MemoryTransport:
        """Returns a new transport, also for a node that restarts: the one before has ended with the node."""
        dialled = {peer: address for peer, address in self._addresses.items() if peer not in self._dial_out}
        transport = self._newest[me] = RpcTransport(
            self._keys[me],
            self._addresses[me],
            dialled,
            dial_out=me in self._dial_out,
            admission=Admission(self._addresses),
        )
        return cast("MemoryTransport", transport)

    def find(self, peer: Id) -> MemoryTransport | None:
        return cast("MemoryTransport | None", self._newest.get(peer))
