"""The admin server: gRPC on a unix socket of mode 0600 in a directory of mode 0700, and over TCP for callers that show
a token (SECURITY §4).

Python gRPC cannot say who is calling on a socket, so the directory is the control: it is made private, and one that is
not is refused. Over TCP every method asks for a role. Health and reflection are served beside it in both.
"""

# ruff: noqa: N802 (gRPC names the methods of a servicer)

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from chain.errors import ChainError, StoreCorrupted
from node.admin.access import RemoteAccess
from node.admin.client import REFUSED, is_served
from node.admin.decoding import Decoding
from node.admin.page_keys import NoPage
from node.admin.peer_control import Operator
from node.admin.predictor import NoModel, NotInTime, NotReady, Predictor, TooManyPredictions
from node.admin.round_control import Control
from node.admin.samples import MAX_BYTES
from node.admin.view import NodeView
from node.errors import (
    ChangeRefused,
    ConfigError,
    InvalidRequest,
    NodeError,
    NodeUnreachable,
    NotFound,
    PermissionRefused,
    VerificationFailed,
)
from node.p2p.transport.timing import CallTiming, OnCall
from node.pb import admin_pb2 as pb
from node.pb import admin_pb2_grpc
from node.pb.common_pb2 import FinalisedBlock

log = logging.getLogger(__name__)

ADMIN_SERVICE = "fednode.v1.Admin"
HEALTH_ADMIN = "fednode.admin.v1"
HEALTH_READINESS = "readiness"
READINESS_S = 0.25  # how often readiness is looked at
STOP_GRACE_S = 0.2
# A caller that watches may ask by pings whether this node is still there; one that has gone is noticed.
KEEPALIVE = (
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
MAX_REQUEST_BYTES = MAX_BYTES + 64 * 1024
MAX_REASON_CHARS = 600  # it goes percent-encoded into a trailer, of which a caller takes 8 KiB

T = TypeVar("T")
Context = aio.ServicerContext[Any, Any]

_CODES: dict[type[Exception], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    StoreCorrupted: grpc.StatusCode.DATA_LOSS,
    VerificationFailed: grpc.StatusCode.DATA_LOSS,
    NoModel: grpc.StatusCode.FAILED_PRECONDITION,
    NoPage: grpc.StatusCode.FAILED_PRECONDITION,
    ChangeRefused: grpc.StatusCode.FAILED_PRECONDITION,
    NotReady: grpc.StatusCode.UNAVAILABLE,
    NotInTime: grpc.StatusCode.DEADLINE_EXCEEDED,
    TooManyPredictions: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NodeUnreachable: grpc.StatusCode.UNAVAILABLE,  # after the kinds of it that are above
}


class AdminServer:
    """Serves `view`, the answers of `predictor` and the changes of `operator` and `control` on `socket`, and to
    `remote` callers, while it is entered. `on_call` hears of every call that has ended.

    Raises PermissionRefused when others could reach the socket, ConfigError when the place is taken.
    """

    def __init__(
        self,
        socket: Path | None,
        view: NodeView,
        predictor: Predictor,
        operator: Operator,
        control: Control,
        remote: RemoteAccess | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        self._socket = socket
        self._remote = remote
        self._timing = () if on_call is None else (CallTiming(on_call),)
        self._view = view
        self._servicer = _Admin(view, predictor, operator, control)
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack aio
        self._stack = AsyncExitStack()
        self.port = 0  # where remote callers are served, once entered

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._socket is not None:
                await self._serve_socket(stack, self._socket)
            if self._remote is not None:
                server = self._make_server([self._remote.guard])
                self.port = self._remote.listen(server)
                await server.start()
                stack.push_async_callback(server.stop, STOP_GRACE_S)
            await self._health.set(HEALTH_ADMIN, health_pb2.HealthCheckResponse.SERVING)
            await self._set_readiness(self._view.is_ready)
            stack.push_async_callback(self._health.enter_graceful_shutdown)
            watching = asyncio.create_task(self._watch_readiness(), name="readiness")
            stack.push_async_callback(_end, watching)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _make_server(self, interceptors: Sequence[aio.ServerInterceptor[Any, Any]] = ()) -> aio.Server:
        server = aio.server(
            interceptors=(*self._timing, *interceptors, Decoding()),
            options=[
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", 64),
                ("grpc.so_reuseport", 0),
                *KEEPALIVE,
            ],
        )
        admin_pb2_grpc.add_AdminServicer_to_server(self._servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((ADMIN_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    async def _serve_socket(self, stack: AsyncExitStack, socket: Path) -> None:
        prepare_place(socket)
        server = self._make_server()
        try:
            server.add_insecure_port(f"unix:{socket}")
        except RuntimeError as error:
            raise ConfigError(f"admin.socket: {socket}: cannot listen there ({error})") from error
        stack.callback(_remove, socket)
        socket.chmod(0o600)  # noqa: ASYNC240 (a system call)
        await server.start()
        stack.push_async_callback(server.stop, STOP_GRACE_S)

    async def _watch_readiness(self) -> None:
        known = self._view.is_ready
        while True:
            if self._view.is_ready != known:
                known = not known
                await self._set_readiness(known)
            await asyncio.sleep(READINESS_S)

    async def _set_readiness(self, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self._health.set(HEALTH_READINESS, status.SERVING if is_ready else status.NOT_SERVING)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):  # gRPC has been there
        path.unlink()


# ---- the place of the socket


def prepare_place(path: Path) -> None:
    """Make the directory of a socket private, and clear away what a killed daemon left there."""
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ConfigError(f"admin.socket: {directory}: cannot be used as a directory ({error.strerror})") from error
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise PermissionRefused(
            f"admin.socket: {directory}: expected a directory of user {os.geteuid()}, got one of user {status.st_uid}"
        )
    if mode & 0o077:
        raise PermissionRefused(
            f"admin.socket: {directory}: expected a directory of mode 0700, got {mode:04o}; "
            f"chmod 700 it, or let the socket lie in another"
        )
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"admin.socket: {path}: expected a socket or nothing there, got something else")
    except FileNotFoundError:
        return
    if is_served(path):
        raise ConfigError(f"admin.socket: {path}: another process is listening there")
    log.info("a socket left behind by an earlier daemon was removed: %s", path)
    path.unlink(missing_ok=True)


# ---- the service


async def _refuse(context: Context, error: Exception) -> NoReturn:
    """The one place where our errors become gRPC's, marked as ours."""
    codes = (code for kind, code in _CODES.items() if isinstance(error, kind))
    code, text = next(codes, grpc.StatusCode.INTERNAL), str(error)
    if not isinstance(error, NodeError | ChainError):
        log.exception("an admin call failed")
        text = f"{type(error).__name__}; the node's log says more"
    await context.abort(code, text[:MAX_REASON_CHARS], ((REFUSED, "1"),))


async def _answer(context: Context, work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except Exception as error:  # noqa: BLE001 (the servicer edge)
        await _refuse(context, error)


@asynccontextmanager
async def _refusing(context: Context) -> AsyncIterator[None]:
    """For answers that come in a stream."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (the servicer edge)
        await _refuse(context, error)


class _Admin(admin_pb2_grpc.AdminServicer):
    """Requests in, views out."""

    def __init__(self, view: NodeView, predictor: Predictor, operator: Operator, control: Control) -> None:
        self._view = view
        self._predictor = predictor
        self._operator = operator
        self._control = control

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.NodeStatus:
        return await _answer(context, self._view.get_status())

    async def GetVersion(self, request: pb.GetVersionRequest, context: Context) -> pb.Version:
        return self._view.get_version()

    async def GetConfig(self, request: pb.GetConfigRequest, context: Context) -> pb.ConfigReply:
        return self._view.get_config()

    async def GetGenesis(self, request: pb.GetGenesisRequest, context: Context) -> pb.GenesisReply:
        return self._view.get_genesis()

    async def GetJoinFile(self, request: pb.GetJoinFileRequest, context: Context) -> pb.JoinFileReply:
        return pb.JoinFileReply(file=await _answer(context, self._view.make_join_file()))

    async def ListPeers(self, request: pb.ListPeersRequest, context: Context) -> pb.ListPeersReply:
        return self._view.list_peers()

    async def GetHead(self, request: pb.GetHeadRequest, context: Context) -> pb.Block:
        return await _answer(context, self._view.get_head(include_payloads=request.include_payloads))

    async def GetBlock(self, request: pb.GetBlockRequest, context: Context) -> pb.Block:
        payloads = request.include_payloads
        which = request.WhichOneof("which")
        if which is None:
            await _refuse(context, InvalidRequest("expected a height or an id, got neither"))
        if which == "height":
            return await _answer(context, self._view.get_block(request.height, include_payloads=payloads))
        return await _answer(context, self._view.find_block(request.id, include_payloads=payloads))

    async def ListBlocks(self, request: pb.ListRequest, context: Context) -> pb.ListBlocksReply:
        first = request.first if request.HasField("first") else None
        return await _answer(context, self._view.list_blocks(first, request.limit, reverse=request.reverse))

    async def ListRounds(self, request: pb.ListRequest, context: Context) -> pb.ListRoundsReply:
        first = request.first if request.HasField("first") else None
        return await _answer(context, self._view.list_rounds(first, request.limit, reverse=request.reverse))

    async def GetRound(self, request: pb.GetRoundRequest, context: Context) -> pb.Round:
        within_s = request.scores_within_s if request.HasField("scores_within_s") else None
        return await _answer(context, self._view.get_round(request.round, within_s))

    async def QueryMetrics(self, request: pb.QueryMetricsRequest, context: Context) -> pb.Metrics:
        return await _answer(context, self._view.query_metrics(request))

    async def ListEvidence(self, request: pb.ListEvidenceRequest, context: Context) -> pb.ListEvidenceReply:
        return await _answer(context, self._view.list_evidence())

    async def CompareChain(self, request: pb.CompareChainRequest, context: Context) -> pb.ChainComparison:
        return await _answer(context, self._view.compare(request.peer))

    async def BanPeer(self, request: pb.BanPeerRequest, context: Context) -> pb.PeerView:
        return self._view.show_peer(await _answer(context, self._operator.ban(request.peer, request.minutes)))

    async def UnbanPeer(self, request: pb.UnbanPeerRequest, context: Context) -> pb.PeerView:
        return self._view.show_peer(await _answer(context, self._operator.unban(request.peer)))

    async def AddPeer(self, request: pb.AddPeerRequest, context: Context) -> pb.PeerView:
        return self._view.show_peer(await _answer(context, self._operator.add(request.peer)))

    async def RemovePeer(self, request: pb.RemovePeerRequest, context: Context) -> pb.PeerView:
        return self._view.show_peer(await _answer(context, self._operator.remove(request.peer)))

    async def PauseTraining(self, request: pb.PauseTrainingRequest, context: Context) -> pb.TakingPart:
        return await _answer(context, self._control.pause())

    async def ResumeTraining(self, request: pb.ResumeTrainingRequest, context: Context) -> pb.TakingPart:
        return await _answer(context, self._control.resume())

    async def StopAfterRound(self, request: pb.StopAfterRoundRequest, context: Context) -> pb.TakingPart:
        if request.withdraw:
            return await _answer(context, self._control.withdraw_stop())
        return await _answer(context, self._control.stop_after(request.round))

    async def Shutdown(self, request: pb.ShutdownRequest, context: Context) -> pb.TakingPart:
        asked_s = request.grace_s if request.HasField("grace_s") else None
        try:
            grace_s = self._control.order_end(asked_s)
        except InvalidRequest as error:
            await _refuse(context, error)

        def end(done: object) -> None:
            self._control.end(grace_s)

        context.add_done_callback(end)  # type: ignore[arg-type]  # once the answer is out, or nobody waits for it
        return self._control.show()

    async def SetLogLevel(self, request: pb.SetLogLevelRequest, context: Context) -> pb.LogLevel:
        try:
            return self._control.set_log_level(request.level)
        except InvalidRequest as error:
            await _refuse(context, error)

    async def Reload(self, request: pb.ReloadRequest, context: Context) -> pb.ReloadReply:
        return await _answer(context, self._control.reload())

    async def RotateKey(self, request: pb.RotateKeyRequest, context: Context) -> pb.RotateKeyReply:
        return await _answer(context, self._control.keys.rotate())

    async def VerifyChain(self, request: pb.VerifyChainRequest, context: Context) -> AsyncIterator[pb.VerifyUpdate]:
        updates = self._view.verify(request.first, deep=request.deep, require_all=request.require_all)
        async with _refusing(context), aclosing(updates):
            async for update in updates:
                yield update

    async def ExportChain(self, request: pb.ExportChainRequest, context: Context) -> AsyncIterator[FinalisedBlock]:
        blocks = self._view.export(request.first, request.last if request.HasField("last") else None)
        async with _refusing(context), aclosing(blocks):
            async for block in blocks:
                yield block

    async def Backup(self, request: pb.BackupRequest, context: Context) -> AsyncIterator[pb.BackupChunk]:
        chunks = self._view.backups.stream()
        async with _refusing(context), aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def Predict(self, request: pb.PredictRequest, context: Context) -> pb.PredictReply:
        return await _answer(context, self._predictor.predict(request))

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.ModelInfo:
        return (await _answer(context, self._view.read_model(request.round))).info

    async def ExportModel(self, request: pb.ExportModelRequest, context: Context) -> AsyncIterator[pb.ModelChunk]:
        model = await _answer(context, self._view.read_model(request.round))
        for message in model.to_messages():
            yield message

    async def Propose(self, request: pb.ProposeRequest, context: Context) -> pb.ProposalView:
        return await _answer(context, self._control.changes.propose(request))

    async def Approve(self, request: pb.ApproveRequest, context: Context) -> pb.ProposalView:
        return await _answer(context, self._control.changes.approve(request))

    async def ListProposals(self, request: pb.ListProposalsRequest, context: Context) -> pb.ListProposalsReply:
        return self._control.changes.list_open()

    async def GetProposal(self, request: pb.GetProposalRequest, context: Context) -> pb.ProposalView:
        return await _answer(context, self._control.changes.get(request.change))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsReply:
        number = request.run if request.HasField("run") else None
        return await _answer(context, self._view.federation.list_runs(number))

    async def GetStatistics(self, request: pb.GetStatisticsRequest, context: Context) -> pb.StatisticsReply:
        return await _answer(context, self._view.federation.get_statistics(request.run))

    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersReply:
        return await _answer(context, self._view.federation.list_members())

    async def OpenPage(self, request: pb.OpenPageRequest, context: Context) -> pb.PageKey:
        try:
            return self._control.open_page(read_only=request.read_only)
        except NoPage as error:
            await _refuse(context, error)

    async def WatchEvents(self, request: pb.WatchEventsRequest, context: Context) -> AsyncIterator[pb.Event]:
        events = self._view.watch(request.kinds, request.since)
        async with _refusing(context), aclosing(events):
            async for event in events:
                yield event
