"""The client of a running node: asks it over its admin socket, or over TCP with a token. It is synchronous, as a
command has nothing else to do meanwhile.

It translates gRPC's codes into the errors of `node.errors`, so that each ends the command with its own exit code.
"""

from __future__ import annotations

import json
import os
import socket as sockets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from node.addresses import parse_address
from node.admin import operations as ops
from node.admin.ledger_client import LedgerClient
from node.admin.operations import A, Operation, Q
from node.errors import InvalidRequest, NodeError, NodeUnreachable, NotFound, PermissionRefused, VerificationFailed
from node.pb import admin_pb2 as pb

if TYPE_CHECKING:  # kept out of `fednode status`, which is to answer at once and needs neither arrays nor signatures
    from node.admin.address import AdminAddress
    from node.ledger.backup import Manifest

CONNECT_S = 5.0
CALL_S = 10.0  # an answer takes milliseconds; a node that needs longer is in trouble
# A watch may receive nothing for hours: pings, which the server allows, show whether the node is still there.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # else gRPC waits its default of a minute
    ("grpc.http2.max_pings_without_data", 0),
)
REFUSED = "fednode-refused"  # marks a refusal that the node itself wrote, not gRPC about the connection

_CODES: dict[grpc.StatusCode, type[NodeError]] = {
    grpc.StatusCode.UNAVAILABLE: NodeUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: NodeUnreachable,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.DATA_LOSS: VerificationFailed,
    grpc.StatusCode.UNAUTHENTICATED: PermissionRefused,
    grpc.StatusCode.PERMISSION_DENIED: PermissionRefused,
}


def is_served(path: AdminAddress) -> bool:
    """Returns whether a process listens there. Raises PermissionRefused when this user may not connect."""
    if not isinstance(path, Path):
        try:
            sockets.create_connection(parse_address(path.host_port), timeout=CONNECT_S).close()
        except OSError:
            return False
        return True
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except PermissionError as error:
            raise PermissionRefused(f"{path}: this socket is another user's") from error
        except OSError:
            return False
    return True


def _check_access(socket: Path) -> None:
    """Raises PermissionRefused where this user may not use a socket. It asks the kernel in one call, as the socket may
    disappear between two."""
    try:
        os.close(os.open(socket, os.O_RDWR))
    except PermissionError as error:
        raise PermissionRefused(f"{socket}: this socket is another user's") from error
    except OSError:  # ENXIO: a socket cannot be opened, but this user may connect; or there is none
        return


class AdminClient(LedgerClient):
    """Asks one node about its ledger, its state and its work, through `socket` or over TCP."""

    def __init__(self, socket: AdminAddress) -> None:
        self.place = f"the node at {socket}"
        if isinstance(socket, Path):
            _check_access(socket)
        self._socket = socket
        self._channel = _open_channel(socket)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, which also ends calls in other threads."""
        self._channel.close()

    def ask(self, operation: Operation[Q, A], request: Q, more_s: float = 0.0) -> A:
        timeout_s = (operation.timeout_s or CALL_S) + more_s
        call = self._channel.unary_unary(
            operation.method, operation.request.SerializeToString, operation.reply.FromString
        )
        with self._translated(timeout_s):
            reply: A = call(request, timeout=timeout_s)
            return reply

    def stream(self, operation: Operation[Q, A], request: Q) -> Iterator[A]:
        call = self._channel.unary_stream(
            operation.method, operation.request.SerializeToString, operation.reply.FromString
        )
        with self._translated():
            replies = call(request)
            try:
                yield from replies
            finally:
                replies.cancel()  # type: ignore[no-untyped-call]  # the stubs leave it untyped

    # ---- the node

    def get_status(self) -> pb.NodeStatus:
        return self.ask(ops.GET_STATUS, pb.GetStatusRequest())

    def get_version(self) -> pb.Version:
        return self.ask(ops.GET_VERSION, pb.GetVersionRequest())

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration in effect, without its secrets."""
        config: dict[str, Any] = json.loads(self.ask(ops.GET_CONFIG, pb.GetConfigRequest()).json)
        return config

    def is_serving(self, service: str) -> bool:
        """Returns whether the node's health service reports `service` as serving."""
        request = health_pb2.HealthCheckRequest(service=service)
        with self._translated():
            reply = self._health.Check(request, timeout=CALL_S)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def watch(self, kinds: Sequence[str], since: str) -> Iterator[pb.Event]:
        """Yields events until the caller stops. Raises NodeUnreachable when the node stops."""
        return self.stream(ops.WATCH_EVENTS, pb.WatchEventsRequest(kinds=kinds, since=since))

    def predict(
        self,
        samples: bytes,
        top: int,
        wait_s: float,
        *,
        alone: bool = False,
        prior: float | None = None,
        round_: str = "",
        calibrated: bool = False,
        answer_by: str = "",
    ) -> pb.PredictReply:
        """Returns the model's predictions for encoded samples, if the node's worker is free within `wait_s`.

        With `alone` the reply also has those of the model trained on this site only and of both mixed, where there is
        one. `prior` is kappa: how far answers lean to the shares that classes have at that site. `round_`, newest, best
        or a number, chooses the model. `calibrated` corrects probabilities by a temperature from the site's val
        samples. `answer_by` is federation, alone or mixed; empty, it is as the node's configuration says.
        """
        request = pb.PredictRequest(
            samples=samples,
            top=top,
            wait_s=wait_s,
            alone=alone,
            prior=prior,
            round=round_,
            calibrated=calibrated,
            answer_by=answer_by,
        )
        return self.ask(ops.PREDICT, request, wait_s)

    def backup(self) -> tuple[Manifest, Iterator[bytes]]:
        """Returns the manifest of a backup, and the files that it names, as they lie in an archive."""
        from node.ledger.backup import Manifest

        chunks = self.stream(ops.BACKUP, pb.BackupRequest())
        manifest, first = bytearray(), b""
        for chunk in chunks:
            manifest += chunk.manifest
            if chunk.data:
                first = chunk.data
                break
        return Manifest.decode(bytes(manifest)), chain((first,), (chunk.data for chunk in chunks))

    # ---- peers

    def list_peers(self) -> Sequence[pb.PeerView]:
        return self.ask(ops.LIST_PEERS, pb.ListPeersRequest()).peers

    def add_peer(self, place: str) -> pb.PeerView:
        """Has the node dial a member at `ID@host:port`. Returns the state of that peer then."""
        return self.ask(ops.ADD_PEER, pb.AddPeerRequest(peer=place))

    def remove_peer(self, peer: str) -> pb.PeerView:
        return self.ask(ops.REMOVE_PEER, pb.RemovePeerRequest(peer=peer))

    def compare(self, peer: str) -> pb.ChainComparison:
        """Returns the height where the node's chain and its peer's part. Raises NodeUnreachable when the peer does not
        answer."""
        return self.ask(ops.COMPARE_CHAIN, pb.CompareChainRequest(peer=peer))

    def ban_peer(self, peer: str, minutes: float) -> pb.PeerView:
        return self.ask(ops.BAN_PEER, pb.BanPeerRequest(peer=peer, minutes=minutes))

    def unban_peer(self, peer: str) -> pb.PeerView:
        return self.ask(ops.UNBAN_PEER, pb.UnbanPeerRequest(peer=peer))

    # ---- the federation

    def list_members(self) -> pb.ListMembersReply:
        return self.ask(ops.LIST_MEMBERS, pb.ListMembersRequest())

    def propose(self, request: pb.ProposeRequest) -> pb.ProposalView:
        """Has the node check, sign and send a change; or with `dry_run` only show what it would change."""
        return self.ask(ops.PROPOSE, request)

    def approve(self, change: str, *, no_train: bool = False, lend: bool = False) -> pb.ProposalView:
        return self.ask(ops.APPROVE, pb.ApproveRequest(change=change, no_train=no_train, lend=lend))

    def list_proposals(self) -> Sequence[pb.ProposalView]:
        return self.ask(ops.LIST_PROPOSALS, pb.ListProposalsRequest()).proposals

    def get_proposal(self, change: str) -> pb.ProposalView:
        return self.ask(ops.GET_PROPOSAL, pb.GetProposalRequest(change=change))

    # ---- what it does

    def pause(self) -> pb.TakingPart:
        return self.ask(ops.PAUSE_TRAINING, pb.PauseTrainingRequest())

    def resume(self) -> pb.TakingPart:
        return self.ask(ops.RESUME_TRAINING, pb.ResumeTrainingRequest())

    def stop_after(self, number: int) -> pb.TakingPart:
        """Ends the daemon after round `number`, 0 for the current one."""
        return self.ask(ops.STOP_AFTER_ROUND, pb.StopAfterRoundRequest(round=number))

    def withdraw_stop(self) -> pb.TakingPart:
        return self.ask(ops.STOP_AFTER_ROUND, pb.StopAfterRoundRequest(withdraw=True))

    def shut_down(self, grace_s: float | None = None) -> pb.TakingPart:
        """Ends the daemon, and cuts off what has not ended after `grace_s`."""
        return self.ask(ops.SHUTDOWN, pb.ShutdownRequest(grace_s=grace_s))

    def set_log_level(self, level: str) -> pb.LogLevel:
        return self.ask(ops.SET_LOG_LEVEL, pb.SetLogLevelRequest(level=level))

    def reload(self) -> pb.ReloadReply:
        """Has the node reload its configuration; `problems` says why none of it was applied."""
        return self.ask(ops.RELOAD, pb.ReloadRequest())

    def rotate_key(self) -> pb.RotateKeyReply:
        return self.ask(ops.ROTATE_KEY, pb.RotateKeyRequest())

    def open_page(self, *, read_only: bool) -> pb.PageKey:
        return self.ask(ops.OPEN_PAGE, pb.OpenPageRequest(read_only=read_only))

    @contextmanager
    def _translated(self, timeout_s: float | None = None) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            self._refuse(error, CALL_S if timeout_s is None else timeout_s)

    def _refuse(self, error: grpc.RpcError, timeout_s: float) -> NoReturn:
        code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
        details = (error.details() if isinstance(error, grpc.Call) else None) or code.name
        kind = _CODES.get(code, NodeError)
        if isinstance(error, grpc.Call) and REFUSED in dict(error.trailing_metadata() or ()):
            raise kind(details) from error
        if code is grpc.StatusCode.UNAVAILABLE:
            hint = "" if isinstance(self._socket, Path) else f" ({details})"
            raise kind(f"{self._socket}: no node answers there; is it running?{hint}") from error
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise kind(f"{self._socket}: the node has not answered for {timeout_s:g} s") from error
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise kind(f"{self._socket}: the node there does not know this request ({details})") from error
        if kind is PermissionRefused:
            raise kind(f"{self._socket}: {details}") from error
        raise kind(details) from error


class _WithToken(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """Sends the token with every call."""

    def __init__(self, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._add(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._add(client_call_details), request)

    def _add(self, details: Any) -> Any:
        return details._replace(metadata=(*(details.metadata or ()), *self._metadata))


def _open_channel(place: AdminAddress) -> grpc.Channel:
    if isinstance(place, Path):
        return grpc.insecure_channel(f"unix:{place.absolute()}")
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0), *KEEPALIVE]
    if place.id is None:
        channel = grpc.insecure_channel(place.host_port, options=options)
    else:
        from node.p2p.tls import get_server_name, make_anchor

        options.append(("grpc.ssl_target_name_override", get_server_name(place.id)))
        credentials = grpc.ssl_channel_credentials(make_anchor(place.id))
        channel = grpc.secure_channel(place.host_port, credentials, options=options)
    return grpc.intercept_channel(channel, _WithToken(place.token))
