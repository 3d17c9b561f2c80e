"""Channels to peers: how they are opened, and how gRPC's errors are translated. Two channels to a peer never share a
connection."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from chain.block import Id
from chain.signing import encode_id
from node.addresses import is_on_loopback
from node.p2p.tls import Leaf, MutualTls, get_server_name
from node.p2p.transport.base import PeerUnavailable

PEER_KEY = "fednode-peer"  # metadata: the caller's id, believed only where TLS is off
MAX_REPLY_BYTES = 2 << 20

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0
LAST_RETRY_LOOPBACK_S = 0.25
CONNECT_S = 5.0
RESOLVE_AGAIN_S = 2.0  # a host name that led nowhere is resolved again after this; gRPC's default is 30 s

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # else a ping's own timeout of a minute applies
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # the identity alone
    ("grpc.initial_reconnect_backoff_ms", int(FIRST_RETRY_S * 1000)),
    ("grpc.dns_min_time_between_resolutions_ms", int(RESOLVE_AGAIN_S * 1000)),
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Dials peers under this node's identity. `tls` is None where TLS is off. `connect_s` bounds the time until a
    connection is made. With a `proxy`, `host:port`, every peer is dialled through it, by HTTP CONNECT."""

    me: Id
    tls: MutualTls | None
    connect_s: float = CONNECT_S
    proxy: str | None = None

    def get_leaf(self) -> Leaf | None:
        return None if self.tls is None else self.tls.get_leaf()

    def get_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((PEER_KEY, encode_id(self.me)),) if self.tls is None else ()

    def open_channel(self, peer: Id, address: str) -> grpc.aio.Channel:
        """Returns a channel on which only `peer` can answer. It connects with the first call, and reconnects by
        itself."""
        dialled, way = get_target(address, self.proxy)
        options: list[tuple[str, str | int]] = [
            *_OPTIONS,
            *way,
            ("grpc.max_reconnect_backoff_ms", int(get_last_retry_s(address) * 1000)),
            ("grpc.min_reconnect_backoff_ms", int(self.connect_s * 1000)),
        ]
        if self.tls is None:
            return grpc.aio.insecure_channel(dialled, options=options)
        options.append(("grpc.ssl_target_name_override", get_server_name(peer)))
        return grpc.aio.secure_channel(dialled, self.tls.make_channel_credentials(peer), options=options)


def get_target(address: str, proxy: str | None) -> tuple[str, tuple[tuple[str, str | int], ...]]:
    """Returns the target to dial for `address`, and the gRPC options that belong to it. gRPC's own proxy option would
    obey environment variables that name exceptions; here no variable changes how peers are dialled."""
    plain = ("grpc.enable_http_proxy", 0)
    if proxy is None:
        return address, (plain,)
    return proxy, (plain, ("grpc.http_connect_server", address))


def get_last_retry_s(address: str) -> float:
    """Returns the longest pause between two attempts to reach `address`, in seconds."""
    return LAST_RETRY_LOOPBACK_S if is_on_loopback(address) else LAST_RETRY_S


def translate(error: grpc.aio.AioRpcError) -> PeerUnavailable:
    details = error.details()
    return PeerUnavailable(f"{error.code().name.lower()}: {details}" if details else error.code().name.lower())
