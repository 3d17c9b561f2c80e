"""Identifies one peer from outside a running node: first TCP, then whose TLS answers, then whether it admits this node.

The handshake is tried twice. The first checks nothing, so that the probe can say who answers there instead of the peer.
The second dials as a node does, and trusts that one peer alone. Blocking; each step is bounded by `STEP_S`.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from chain.block import Digest, Id
from chain.signing import SigningKey, encode_id
from node.p2p.proxy import ProxyFailed, dial
from node.p2p.tls import MutualTls, UnknownCaller, get_server_name, identify
from node.p2p.transport.channel import PEER_KEY, get_target
from node.pb import peer_pb2 as pb
from node.pb import peer_pb2_grpc

STEP_S = 5.0


class ProbeFailed(Exception):
    """No peer can be probed there. `advice` says what to do about it."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


class NotReached(ProbeFailed):
    """There is no connection: the peer is down, or something between blocks it."""


class WrongPeer(ProbeFailed):
    """Another node answers, or the peer does not know this node: waiting will not help."""


class NotLetIn(WrongPeer):
    """The right peer answers, and does not know this node's key."""


class Refused(ProbeFailed):
    """The peer knows this node and refuses to answer now."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Holds a peer's answer about itself. `skew_s`: how many seconds its clock is ahead of this one, give or take half
    of `rtt_s`."""

    version: str
    protocol: int
    chain_id: Digest
    skew_s: float
    rtt_s: float


def probe_peer(
    key: SigningKey, peer: Id, address: str, *, tls: bool = True, proxy: str | None = None
) -> Greeting | None:
    """Returns the greeting of `peer` at `address`, dialled through `proxy` if there is one; None where the peer runs a
    version without greetings. Raises ProbeFailed.

    Without `tls` whoever answers is taken for the peer.
    """
    _reach(address, proxy)
    if tls:
        found = identify_server(address, proxy)
        if found is None:
            raise WrongPeer(
                f"{address}: something answers that is no fednode", "correct the address, or what listens there"
            )
        if found != peer:
            raise WrongPeer(
                f"{address}: expected {encode_id(peer)}, {encode_id(found)} answers",
                "correct id or address under network.peers (fednode id --peer prints them on the peer's machine)",
            )
    return _greet(key, peer, address, tls=tls, proxy=proxy)


def _reach(address: str, proxy: str | None) -> None:
    try:
        dial(address, proxy, STEP_S).close()
    except ProxyFailed as error:
        raise NotReached(str(error), error.advice) from error
    except ConnectionRefusedError as error:
        raise NotReached(f"{address}: nobody listens there", "start the peer, or correct its address") from error
    except TimeoutError as error:
        raise NotReached(
            f"{address}: no answer within {STEP_S:g} s", "start its machine, or open its port in the firewalls between"
        ) from error
    except socket.gaierror as error:
        raise NotReached(
            f"{address}: the name cannot be resolved ({error.strerror})", "correct the address, or the name service"
        ) from error
    except OSError as error:
        raise NotReached(f"{address}: {error.strerror or error}", "look at routes and firewalls") from error


def identify_server(address: str, proxy: str | None = None) -> Id | None:
    """Returns the id of the node that answers at `address` under TLS; None where no node does. Raises NotReached."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # anyone may answer: `identify` checks the signature
    context.set_alpn_protocols(["h2"])
    try:
        with (
            dial(address, proxy, STEP_S) as raw,
            context.wrap_socket(raw) as secured,
        ):
            certificate = secured.getpeercert(binary_form=True)
    except ssl.SSLError:
        return None
    except ProxyFailed as error:
        raise NotReached(str(error), error.advice) from error
    except OSError as error:  # closed or silent in the middle of a handshake: no node
        if isinstance(error, ConnectionRefusedError):
            raise NotReached(f"{address}: nobody listens there", "start the peer, or correct its address") from error
        return None
    try:
        return None if certificate is None else identify(ssl.DER_cert_to_PEM_cert(certificate).encode())
    except UnknownCaller:
        return None


def find_twin(key: SigningKey, addresses: Iterable[str], proxy: str | None = None) -> str | None:
    """Returns the first of `addresses` at which a node answers under this node's own key, None where none does."""
    for address in addresses:
        try:
            if identify_server(address, proxy) == key.id:
                return address
        except NotReached:
            continue
    return None


def _greet(key: SigningKey, peer: Id, address: str, *, tls: bool, proxy: str | None) -> Greeting | None:
    dialled, way = get_target(address, proxy)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), *way]
    metadata: tuple[tuple[str, str], ...] = ()
    if tls:
        named = [*options, ("grpc.ssl_target_name_override", get_server_name(peer))]
        credentials = MutualTls(key, {peer}).make_channel_credentials(peer)
        channel = grpc.secure_channel(dialled, credentials, options=named)
    else:
        channel = grpc.insecure_channel(dialled, options=options)
        metadata = ((PEER_KEY, encode_id(key.id)),)
    with channel:
        stub: peer_pb2_grpc.PeerStub = peer_pb2_grpc.PeerStub(channel)
        try:
            grpc.channel_ready_future(channel).result(timeout=STEP_S)
            began_s, before_s = time.monotonic(), time.time()
            reply = stub.Hello(pb.HelloRequest(), timeout=STEP_S, metadata=metadata)
        except grpc.FutureTimeoutError as error:
            raise NotLetIn(
                f"{address}: it is the right peer, and it does not let this node in",
                "both need the same genesis, with this node among its members",
            ) from error
        except grpc.RpcError as error:
            _refuse(error, address)
            return None
        rtt_s = time.monotonic() - began_s
    skew_s = reply.time_ms / 1000 - (before_s + rtt_s / 2)
    return Greeting(reply.version, reply.protocol, reply.chain_id, skew_s, rtt_s)


def _refuse(error: grpc.RpcError, address: str) -> None:
    """Returns for a peer of a version that has no such call. Raises ProbeFailed for any other error."""
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call) else None) or code.name.lower()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED):
        raise Refused(f"{address}: it refuses this node now ({details})", "its log says why; it ends by itself")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE):
        raise NotLetIn(
            f"{address}: it is the right peer, and it does not let this node in ({details})",
            "both need the same genesis, with this node among its members",
        )
    raise NotReached(f"{address}: {details}", "look at the peer's log")
