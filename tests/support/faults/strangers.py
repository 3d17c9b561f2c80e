"""Raw gRPC callers and certificates of every wrong kind, for tests of what a node refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from chain.block import Id
from chain.signing import SigningKey, encode_id
from node.p2p.tls import Leaf, get_server_name, issue_leaf, make_anchor
from node.p2p.transport.link import ACCEPTED_KEY
from node.pb import peer_pb2 as pb
from node.pb import peer_pb2_grpc as rpc
from support.federation.recording import PATIENCE_S


def open_channel(port: int, server: Id, leaf: Leaf | None) -> grpc.aio.Channel:
    """Opens a channel that pins `server` and shows `leaf`, or no certificate at all."""
    credentials = grpc.ssl_channel_credentials(
        make_anchor(server), leaf.private_key if leaf else None, leaf.certificate if leaf else None
    )
    options = [("grpc.ssl_target_name_override", get_server_name(server)), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)


def own_leaf(key: SigningKey) -> Leaf:
    return issue_leaf(key, time.time())


def forge_leaf(claimed: Id, signer: SigningKey, *, subject: str = "leaf", days: int = 7) -> Leaf:
    """Forges a leaf that names `claimed` as its issuer and server, signed by another key."""
    now = datetime.now(UTC)
    tls_key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, encode_id(claimed))]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]),
            public_key=tls_key.public_key(),
            serial_number=1,
        )
        .not_valid_before(now - timedelta(days=30))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(get_server_name(claimed))]), critical=False)
        .sign(signer.private_key, None)
    )
    private_key = tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Leaf(certificate.public_bytes(Encoding.PEM), private_key, 0.0, 0.0)


async def try_blocks(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """Returns the status with which a call for block 0 ends."""
    try:
        await rpc.PeerStub(channel).Blocks(pb.BlocksRequest(first=0, count=1), timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def pushing(channel: grpc.aio.Channel, *batches: pb.Batch) -> AsyncIterator[None]:
    """Opens a Push stream on which `batches` have been sent, and which is still open when the body is done."""
    call = rpc.PeerStub(channel).Push(None)
    try:
        assert ACCEPTED_KEY in await asyncio.wait_for(call.initial_metadata(), PATIENCE_S)
        for batch in batches:
            await call.write(batch)
        yield
        assert not call.done(), f"the stream has ended with {await call.code()}"
    finally:
        call.cancel()


async def push_to_the_end(channel: grpc.aio.Channel, *batches: pb.Batch) -> grpc.StatusCode:
    """Sends `batches` on a Push stream. Returns the status with which the other side ends it."""
    call = rpc.PeerStub(channel).Push(None)
    try:
        async with asyncio.timeout(PATIENCE_S):
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it has ended, as it should
                if ACCEPTED_KEY in await call.initial_metadata():
                    for batch in batches:
                        await call.write(batch)
                    await read_to_the_end(call)
            return await call.code()
    except TimeoutError:
        raise AssertionError(f"the stream is still open after {PATIENCE_S:g} s") from None
    finally:
        call.cancel()


async def read_to_the_end(call: grpc.aio.StreamStreamCall[pb.Batch, pb.Batch]) -> None:
    while await call.read():
        pass
