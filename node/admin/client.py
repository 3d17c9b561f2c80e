"""Asks a running node over its admin socket, or over TCP with a token. Synchronous: a command has nothing else to do
meanwhile.

gRPC's codes become the errors of `node.errors` here, so that each ends the command with its own exit code.
"""

from __future__ import annotations

import json
import os
import socket as sockets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from node.addresses import parse_address
from node.errors import InvalidRequest, NodeError, NodeUnreachable, NotFound, PermissionRefused, VerificationFailed
from node.pb import admin_pb2 as pb
from node.pb import admin_pb2_grpc

if TYPE_CHECKING:  # `fednode status` is to answer at once, and needs neither arrays nor signatures
    from chain.audit import ExportedBlock
    from chain.genesis import Genesis
    from node.admin.address import AdminAddress
    from node.ledger.backup import Manifest

CONNECT_S = 5.0
CALL_S = 10.0  # an answer takes milliseconds; a node that needs longer is not well
MODEL_S = 60.0  # for a file to be made of a large one
PROPOSE_S = 60.0  # for this site's labels, or a run's blocks, to be read through
DRAW_S = 360.0  # for a run's first parameters to be drawn, too
METRICS_S = 300.0  # for a long chain to be read through
COMPARE_S = 120.0  # a peer answers four requests for blocks a second
# A watch may hear nothing for hours: whether the node is still there is asked by pings, which its server allows.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # else a ping's own minute counts
    ("grpc.http2.max_pings_without_data", 0),
)
REFUSED = "fednode-refused"  # beside a refusal that is the node's own words, and not gRPC's about the connection

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
    """Whether a process listens there. Raises PermissionRefused when that may not be asked."""
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
    """Raises PermissionRefused where this user may not use a socket. One call asks the kernel, as the socket may go
    away between two."""
    try:
        os.close(os.open(socket, os.O_RDWR))
    except PermissionError as error:
        raise PermissionRefused(f"{socket}: this socket is another user's") from error
    except OSError:  # ENXIO: a socket that this user may connect to cannot be opened; or it is not there
        return


class AdminClient:
    """One node's answers, read through `socket`, or over TCP. Reads the ledger as `node.ledger.offline.OfflineNode`
    does, and more."""

    def __init__(self, socket: AdminAddress) -> None:
        self.place = f"the node at {socket}"
        if isinstance(socket, Path):
            _check_access(socket)
        self._socket = socket
        self._channel = _open_channel(socket)
        self._admin: admin_pb2_grpc.AdminStub = admin_pb2_grpc.AdminStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._genesis: Genesis | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends what is asked in other threads, too."""
        self._channel.close()

    # ---- the node

    def get_status(self) -> pb.NodeStatus:
        with self._translated():
            return self._admin.GetStatus(pb.GetStatusRequest(), timeout=CALL_S)

    def get_version(self) -> pb.Version:
        with self._translated():
            return self._admin.GetVersion(pb.GetVersionRequest(), timeout=CALL_S)

    def get_config(self) -> dict[str, Any]:
        """The configuration in effect, without its secrets."""
        with self._translated():
            reply = self._admin.GetConfig(pb.GetConfigRequest(), timeout=CALL_S)
        config: dict[str, Any] = json.loads(reply.json)
        return config

    def list_peers(self) -> Sequence[pb.PeerView]:
        with self._translated():
            return self._admin.ListPeers(pb.ListPeersRequest(), timeout=CALL_S).peers

    def is_serving(self, service: str) -> bool:
        """The word of the node's health service about `service`."""
        request = health_pb2.HealthCheckRequest(service=service)
        with self._translated():
            reply = self._health.Check(request, timeout=CALL_S)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def watch(self, kinds: Sequence[str], since: str) -> Iterator[pb.Event]:
        """Until the caller stops, or the node does: NodeUnreachable then."""
        with self._translated():
            events = self._admin.WatchEvents(pb.WatchEventsRequest(kinds=kinds, since=since))
            try:
                yield from events
            finally:
                events.cancel()  # type: ignore[no-untyped-call]  # so the stubs leave it

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
        """The model's predictions for encoded samples, once the node's worker has come to them within `wait_s`; and
        those of the model trained `alone` and of both mixed, where there is one. With `prior` they lean to the classes'
        shares there. `round_` is newest, best or a number: of which round the model is. `calibrated`, probabilities are
        by val samples. `answer_by` is federation, alone or mixed; empty, as the node has it."""
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
        with self._translated(timeout_s := wait_s + CALL_S):
            return self._admin.Predict(request, timeout=timeout_s)

    def open_page(self, *, read_only: bool) -> pb.PageKey:
        with self._translated():
            return self._admin.OpenPage(pb.OpenPageRequest(read_only=read_only), timeout=CALL_S)

    def rotate_key(self) -> pb.RotateKeyReply:
        with self._translated():
            return self._admin.RotateKey(pb.RotateKeyRequest(), timeout=CALL_S)

    # ---- the ledger

    def make_join_file(self) -> bytes:
        with self._translated():
            return self._admin.GetJoinFile(pb.GetJoinFileRequest(), timeout=CALL_S).file

    @property
    def genesis(self) -> Genesis:
        if self._genesis is None:
            with self._translated():
                reply = self._admin.GetGenesis(pb.GetGenesisRequest(), timeout=CALL_S)
            from chain.genesis import Genesis

            self._genesis = Genesis.from_mapping(json.loads(reply.json))
        return self._genesis

    def get_head(self, *, include_payloads: bool = False) -> pb.Block:
        with self._translated():
            return self._admin.GetHead(pb.GetHeadRequest(include_payloads=include_payloads), timeout=CALL_S)

    def get_block(self, height: int, *, include_payloads: bool = False) -> pb.Block:
        request = pb.GetBlockRequest(height=height, include_payloads=include_payloads)
        with self._translated():
            return self._admin.GetBlock(request, timeout=CALL_S)

    def find_block(self, block_id: str, *, include_payloads: bool = False) -> pb.Block:
        request = pb.GetBlockRequest(id=block_id, include_payloads=include_payloads)
        with self._translated():
            return self._admin.GetBlock(request, timeout=CALL_S)

    def list_blocks(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListBlocksReply:
        with self._translated():
            return self._admin.ListBlocks(_make_list_request(first, limit, reverse), timeout=CALL_S)

    def list_rounds(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListRoundsReply:
        with self._translated():
            return self._admin.ListRounds(_make_list_request(first, limit, reverse), timeout=CALL_S)

    def get_round(self, number: int, scores_within_s: float | None = None) -> pb.Round:
        """With the scores that the node can work out within so many seconds, if it is to."""
        request = pb.GetRoundRequest(round=number, scores_within_s=scores_within_s)
        with self._translated(timeout_s := CALL_S + (scores_within_s or 0.0)):
            return self._admin.GetRound(request, timeout=timeout_s)

    def query_metrics(self, request: pb.QueryMetricsRequest) -> pb.Metrics:
        with self._translated(METRICS_S):
            return self._admin.QueryMetrics(request, timeout=METRICS_S)

    def list_evidence(self) -> pb.ListEvidenceReply:
        with self._translated():
            return self._admin.ListEvidence(pb.ListEvidenceRequest(), timeout=CALL_S)

    def add_peer(self, place: str) -> pb.PeerView:
        """Has the node dial a member at `ID@host:port`. Returns how things stand with it then."""
        with self._translated():
            return self._admin.AddPeer(pb.AddPeerRequest(peer=place), timeout=CALL_S)

    def remove_peer(self, peer: str) -> pb.PeerView:
        with self._translated():
            return self._admin.RemovePeer(pb.RemovePeerRequest(peer=peer), timeout=CALL_S)

    def compare(self, peer: str) -> pb.ChainComparison:
        """The height where the node's chain and its peer's part. NodeUnreachable when the peer has no answer."""
        with self._translated(COMPARE_S):
            return self._admin.CompareChain(pb.CompareChainRequest(peer=peer), timeout=COMPARE_S)

    def ban_peer(self, peer: str, minutes: float) -> pb.PeerView:
        with self._translated():
            return self._admin.BanPeer(pb.BanPeerRequest(peer=peer, minutes=minutes), timeout=CALL_S)

    def unban_peer(self, peer: str) -> pb.PeerView:
        with self._translated():
            return self._admin.UnbanPeer(pb.UnbanPeerRequest(peer=peer), timeout=CALL_S)

    # ---- the federation

    def propose(self, request: pb.ProposeRequest) -> pb.ProposalView:
        """Has the node check, sign and send a change; or with `dry_run` only say what it would change."""
        with self._translated(DRAW_S):
            return self._admin.Propose(request, timeout=DRAW_S)

    def approve(self, change: str, *, no_train: bool = False, lend: bool = False) -> pb.ProposalView:
        request = pb.ApproveRequest(change=change, no_train=no_train, lend=lend)
        with self._translated(PROPOSE_S):
            return self._admin.Approve(request, timeout=PROPOSE_S)

    def list_proposals(self) -> Sequence[pb.ProposalView]:
        with self._translated():
            return self._admin.ListProposals(pb.ListProposalsRequest(), timeout=CALL_S).proposals

    def get_proposal(self, change: str) -> pb.ProposalView:
        with self._translated():
            return self._admin.GetProposal(pb.GetProposalRequest(change=change), timeout=CALL_S)

    def list_runs(self, number: int | None = None) -> Sequence[pb.RunView]:
        """All runs, or one with those who trained in it: 0 is the newest."""
        with self._translated(PROPOSE_S):
            return self._admin.ListRuns(pb.ListRunsRequest(run=number), timeout=PROPOSE_S).runs

    def get_statistics(self, run: int = 0) -> pb.StatisticsReply:
        """What the members of a run agreed on; 0 is the newest."""
        with self._translated():
            return self._admin.GetStatistics(pb.GetStatisticsRequest(run=run), timeout=CALL_S)

    def list_evaluations(self, run: int | None = None) -> Sequence[pb.EvaluationView]:
        """All evaluations of a model at every site, or that of one run; 0 is the newest."""
        with self._translated():
            return self._admin.ListEvaluations(pb.ListEvaluationsRequest(run=run), timeout=CALL_S).evaluations

    def list_members(self) -> pb.ListMembersReply:
        with self._translated():
            return self._admin.ListMembers(pb.ListMembersRequest(), timeout=CALL_S)

    # ---- what it does

    def pause(self) -> pb.TakingPart:
        with self._translated():
            return self._admin.PauseTraining(pb.PauseTrainingRequest(), timeout=CALL_S)

    def resume(self) -> pb.TakingPart:
        with self._translated():
            return self._admin.ResumeTraining(pb.ResumeTrainingRequest(), timeout=CALL_S)

    def stop_after(self, number: int) -> pb.TakingPart:
        """Ends the daemon after round `number`, 0 for the one in hand."""
        with self._translated():
            return self._admin.StopAfterRound(pb.StopAfterRoundRequest(round=number), timeout=CALL_S)

    def withdraw_stop(self) -> pb.TakingPart:
        with self._translated():
            return self._admin.StopAfterRound(pb.StopAfterRoundRequest(withdraw=True), timeout=CALL_S)

    def shut_down(self, grace_s: float | None = None) -> pb.TakingPart:
        """Ends the daemon, cutting off what has not ended after `grace_s`."""
        with self._translated():
            return self._admin.Shutdown(pb.ShutdownRequest(grace_s=grace_s), timeout=CALL_S)

    def set_log_level(self, level: str) -> pb.LogLevel:
        with self._translated():
            return self._admin.SetLogLevel(pb.SetLogLevelRequest(level=level), timeout=CALL_S)

    def reload(self) -> pb.ReloadReply:
        """Has the node read its configuration again; `problems` say why nothing of it was applied."""
        with self._translated():
            return self._admin.Reload(pb.ReloadRequest(), timeout=CALL_S)

    def verify(
        self,
        first: int = 0,
        *,
        deep: bool = False,
        require_all: bool = False,
        on_progress: Callable[[pb.VerifyProgress], None] = lambda _: None,
    ) -> pb.VerifyReport:
        request = pb.VerifyChainRequest(first=first, deep=deep, require_all=require_all)
        with self._translated():
            for update in self._admin.VerifyChain(request):
                if update.HasField("report"):
                    return update.report
                on_progress(update.progress)
        raise NodeUnreachable(f"{self._socket}: the node broke the verification off")

    def export(self, first: int, last: int | None) -> Iterator[ExportedBlock]:
        request = pb.ExportChainRequest(first=first, last=last)
        with self._translated():
            blocks = self._admin.ExportChain(request)
            try:
                for height, stored in enumerate(blocks, start=first):
                    yield height, stored.block, stored.certificate
            finally:
                blocks.cancel()  # type: ignore[no-untyped-call]  # so the stubs leave it

    def backup(self) -> tuple[Manifest, Iterator[bytes]]:
        """The manifest of a backup, and the files that it names, as they lie in an archive."""
        from node.ledger.backup import Manifest

        chunks = self._read_backup()
        manifest, first = bytearray(), b""
        for chunk in chunks:
            manifest += chunk.manifest
            if chunk.data:
                first = chunk.data
                break
        return Manifest.decode(bytes(manifest)), chain((first,), (chunk.data for chunk in chunks))

    def _read_backup(self) -> Iterator[pb.BackupChunk]:
        with self._translated():
            chunks = self._admin.Backup(pb.BackupRequest())
            try:
                yield from chunks
            finally:
                chunks.cancel()  # type: ignore[no-untyped-call]  # so the stubs leave it

    # ---- the model

    def get_model_info(self, round_: str = "") -> pb.ModelInfo:
        with self._translated(MODEL_S):
            return self._admin.GetModelInfo(pb.GetModelInfoRequest(round=round_), timeout=MODEL_S)

    def export_model(self, round_: str = "") -> Iterator[pb.ModelChunk]:
        """The description of a model file, then its bytes. `round_` is as `predict` has it."""
        with self._translated():
            chunks = self._admin.ExportModel(pb.ExportModelRequest(round=round_))
            try:
                yield from chunks
            finally:
                chunks.cancel()  # type: ignore[no-untyped-call]  # so the stubs leave it

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


def _make_list_request(first: int | None, limit: int, reverse: bool) -> pb.ListRequest:
    return pb.ListRequest(first=first, limit=limit, reverse=reverse)
