"""The view of a running node: reads its state and changes nothing, except that it keeps the scores that were computed
on request. No round waits for it.

The answers are the messages of admin.proto. The store is read on the store's thread. An audit computes on a thread of
its own and pauses after each block, so that the event loop gets its turn.
"""

from __future__ import annotations

import asyncio
import json
import platform
import re
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, suppress
from functools import partial
from itertools import islice
from typing import Any

from chain.genesis import PROTOCOL_VERSION
from chain.schema import format_time, quote
from chain.signing import decode_id, encode_id
from node.admin.backups import Backups
from node.admin.federation_view import FederationView
from node.admin.operations import GET_JOIN_FILE, GET_ROUND, A, Operation
from node.admin.own_measures import OwnMeasures
from node.admin.peer_view import PeerView
from node.admin.scorer import Scorer
from node.admin.status_view import StatusView
from node.admin.stored_chain import StoredChain
from node.clock import Clock
from node.config.node_config import NodeConfig
from node.config.redaction import redact
from node.consensus.service import RoundService
from node.errors import InvalidRequest, NodeUnreachable, NotFound
from node.ledger.audit import run_audit
from node.ledger.comparison import Pair, await_comparison, compare_chains
from node.ledger.ledger_answers import LedgerAnswers
from node.ledger.reader import Ledger
from node.offload import run_on_thread
from node.p2p.peers import Peer
from node.p2p.transport.base import PeerUnavailable, Transport
from node.pb import admin_pb2 as pb
from node.pb.common_pb2 import FinalisedBlock
from node.training.model_file import ModelFile
from node.training.trainer import Trainer
from node.version import get_version

EVENT_KINDS = (
    "block",
    "round",
    "training",
    "spoiled",
    "peer",
    "rejected",
    "evidence",
    "stall",
    "operator",
    "proposal",
    "approval",
    "change",
    "consent",
    "standing",
    "divergence",
)
LIBRARIES = ("torch", "numpy", "grpcio", "protobuf", "cryptography")
PROGRESS_S = 0.25  # between two messages about an audit under way
PAUSE_S = 0.0005  # an audit's pause after each block, without which its thread would hold the interpreter
EXPORT_BATCH = 16

_ID_KEYS = ("author", "miner", "peer")  # in an event's data


class _Abandoned(Exception):
    """Ends an audit whose caller has gone."""


class NodeView:
    """Shows one node, which started at `started_ms`: its service, its chain, and its configuration."""

    def __init__(
        self,
        service: RoundService,
        config: NodeConfig,
        chain: StoredChain,
        ledger: Ledger,
        transport: Transport,
        *,
        peers: PeerView,
        status: StatusView,
        scorer: Scorer,
        federation: FederationView,
        trainer: Trainer,
        clock: Clock,
        started_ms: int,
    ) -> None:
        self.federation = federation
        self._service = service
        self._config = config
        self.chain = chain
        self._transport = transport
        self._peers = peers
        self._status = status
        self._scorer = scorer
        self._started_ms = started_ms
        self.own_measures = OwnMeasures(chain, trainer, clock)
        self.backups = Backups(chain.genesis, chain.store)
        make_answers = partial(LedgerAnswers, ledger, chain.store, lambda: chain.runs, lambda: service.tip.selection)
        self._at_once, self._in_pages = make_answers(), make_answers(chain.make_call())
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by the function's name

    def on_config(self, config: NodeConfig) -> None:
        """Takes the configuration that is in effect from now on."""
        self._config = config

    # ---- the node

    @property
    def is_ready(self) -> bool:
        return self.describe_unready() is None

    def describe_unready(self) -> str | None:
        """Returns why this node takes no part in finalising blocks now, or None."""
        return self._status.describe_unready()

    async def get_status(self) -> pb.NodeStatus:
        return await self._status.show(self._config.node.name)

    def get_curves(self) -> dict[str, Any]:
        """Returns the curves of the newest round that was measured since this node started. Raises NotFound."""
        curves = self._service.records.curves
        if curves is None:
            raise NotFound("no curves yet: they are drawn once this node has measured a round of classes or labels")
        run = self.chain.runs.calendar.get_span(curves["height"]).run
        return {**curves, "run": run.number, "round": run.get_round(curves["height"]), "classes": list(run.classes)}

    def get_version(self) -> pb.Version:
        return pb.Version(
            version=get_version(),
            protocol=PROTOCOL_VERSION,
            python=platform.python_version(),
            libraries={name: get_version(name) for name in LIBRARIES},
        )

    def get_config(self) -> pb.ConfigReply:
        """Returns the effective configuration without its secrets (SECURITY §4)."""
        return pb.ConfigReply(json=json.dumps(redact(self._config.model_dump(mode="json"))))

    async def get_join_file(self) -> pb.JoinFileReply:
        """Returns the file from which a joining site starts, as of this node's head."""
        network, addresses = self._config.network, self._peers.get_addresses()
        if network.advertise is not None:
            addresses[self._service.signer.id] = network.advertise
        return await self.read(GET_JOIN_FILE, addresses=addresses)

    def list_peers(self) -> pb.ListPeersReply:
        return pb.ListPeersReply(peers=[self._peers.show(peer) for peer in self._service.peers])

    def show_peer(self, peer: Peer) -> pb.PeerView:
        return self._peers.show(peer)

    # ---- the chain

    async def read(self, operation: Operation[Any, A], **asked: Any) -> A:
        """Has the ledger answer: at once on the store's thread, or `in_pages` on another thread, one call of that
        operation at a time. Raises NotFound, InvalidRequest, NodeError and StoreCorrupted."""
        if operation.in_pages:
            answer: A = await self._read_in_pages(operation.function, **asked)
        else:
            answer = await self.chain.disk.run(getattr(self._at_once, operation.function), **asked)
        return answer

    async def _read_in_pages(self, name: str, **asked: Any) -> Any:
        async with self._turns[name]:
            return await run_on_thread(getattr(self._in_pages, name), **asked)

    async def get_round(self, round: int, scores_within_s: float | None = None) -> pb.Round:  # noqa: A002
        """Returns a round; scores that are not known yet are computed only with `scores_within_s`. Raises NotFound and
        InvalidRequest."""
        shown = await self.read(GET_ROUND, round=round)
        if scores_within_s is not None:
            await self._scorer.add_scores(shown, scores_within_s)
        return shown

    async def compare_chain(self, peer: str) -> pb.ChainComparison:
        """Returns the height where this chain and a peer's part. Raises NotFound, InvalidRequest, NodeUnreachable,
        VerificationFailed."""
        other = self._service.peers.look_up(peer)
        if other.status is None:
            raise NodeUnreachable(f"{other.name} has not said yet where its chain ends; is it up?")

        async def get_pair(height: int) -> Pair:
            ours = await self.chain.disk.run(self.chain.store.get_block_bytes, height)
            if ours is None:
                raise self.chain.describe_missing(height)
            try:
                theirs = await self._transport.request_blocks(other.id, height, 1)
            except PeerUnavailable as error:
                raise NodeUnreachable(f"{other.name}: {error}") from error
            if not theirs:
                raise NodeUnreachable(f"{other.name} did not give its block {height}")
            return ours, theirs[0], await self.chain.get_judge(height)

        heights = self._service.tip.height, other.status.head_height
        shown = await await_comparison(compare_chains(self.chain.genesis, *heights), get_pair)
        shown.peer, shown.peer_name = encode_id(other.id), other.name
        return shown

    async def export_chain(self, first: int, last: int | None) -> AsyncGenerator[FinalisedBlock, None]:
        """Yields the blocks of these heights. Raises NotFound for heights that are not there."""
        blocks = self._at_once.export_chain(first, last)
        while batch := await self.chain.disk.run(lambda: list(islice(blocks, EXPORT_BATCH))):
            for block in batch:
                yield block

    async def verify_chain(self, first: int, deep: bool, require_all: bool) -> AsyncGenerator[pb.VerifyUpdate, None]:
        """Yields progress, then the report; one audit at a time. Closing the generator ends the audit. Raises
        NotFound."""
        if require_all and not deep:
            raise InvalidRequest("require_all: expected deep as well, since only that recomputes anything")
        gone = threading.Event()
        reached = first

        def on_height(height: int) -> None:
            nonlocal reached
            if gone.is_set():
                raise _Abandoned
            reached = height
            time.sleep(PAUSE_S)

        async with self._turns["verify_chain"]:
            audit = asyncio.ensure_future(
                asyncio.to_thread(
                    partial(
                        run_audit,
                        self.chain.genesis,
                        self.chain.store,
                        deep=deep,
                        first=first,
                        require_all=require_all,
                        call=self.chain.make_call(),
                        on_height=on_height,
                    )
                )
            )
            try:
                while not (await asyncio.wait({audit}, timeout=PROGRESS_S))[0]:
                    progress = pb.VerifyProgress(height=reached, last=self._service.tip.height)
                    yield pb.VerifyUpdate(progress=progress)
                yield pb.VerifyUpdate(report=audit.result())
            finally:
                gone.set()
                if not audit.done():  # its thread still reads this store
                    await asyncio.wait({audit})
                    with suppress(_Abandoned):
                        audit.result()

    # ---- the model

    async def read_model(self, asked: str = "") -> ModelFile:
        """Returns the model after the round that is asked for (`choose_round`); one at a time. Raises NotFound,
        VerificationFailed, InvalidRequest and NodeError."""
        model: ModelFile = await self._read_in_pages("read_model", asked=asked)
        return model

    async def get_model_info(self, round: str) -> pb.ModelInfo:  # noqa: A002
        return (await self.read_model(round)).info

    async def export_model(self, round: str) -> AsyncGenerator[pb.ModelChunk, None]:  # noqa: A002
        for message in (await self.read_model(round)).to_messages():
            yield message

    # ---- events

    async def watch_events(self, kinds: Collection[str], since: str) -> AsyncGenerator[pb.Event, None]:
        """Yields events of these kinds (all, if empty) after a cursor, then new ones as they happen. Raises
        InvalidRequest.

        A cursor is valid until the node restarts. After one from before a restart, watching begins with the first event
        since.
        """
        last = self.read_start(kinds, since)
        async with aclosing(self._service.events.follow(last)) as events:  # type: ignore[type-var]  # a generator
            async for event in events:
                missed = event.cursor - last - 1 if last is not None else 0
                last = event.cursor
                if not kinds or event.kind in kinds:
                    yield pb.Event(
                        cursor=f"{self._started_ms:x}-{event.cursor}",
                        time=format_time(event.at_ms),
                        kind=event.kind,
                        data=json.dumps(self._show_data(event.data)),
                        missed=missed,
                    )

    def read_start(self, kinds: Collection[str], since: str) -> int | None:
        """Returns the number of the event after which watching begins, None for new ones only. Raises
        InvalidRequest."""
        unknown = sorted(set(kinds) - set(EVENT_KINDS))
        if unknown:
            raise InvalidRequest(f"event kind {quote(unknown[0])}: expected one of {', '.join(EVENT_KINDS)}")
        return self._read_cursor(since) if since else None

    def _read_cursor(self, text: str) -> int:
        life, dash, number = text.partition("-")
        if not dash or not re.fullmatch("[0-9]{1,19}", number):
            raise InvalidRequest(f"cursor {quote(text)}: expected one that an event came with, as in 19a3c1f2b00-17")
        return int(number) if life == f"{self._started_ms:x}" else 0

    def _show_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Shows node ids as everywhere in this interface, each with its name."""
        shown: dict[str, Any] = {}
        for key, value in data.items():
            if key in _ID_KEYS and isinstance(value, str):
                node_id = bytes.fromhex(value) if len(value) == 64 else decode_id(value)
                shown[key], shown[f"{key}_name"] = encode_id(node_id), self._peers.get_name(node_id)
            else:
                shown[key] = value
            if key == "by" and isinstance(value, int):  # a seat
                proposer = self._service.tip.state.get_seat(value)
                shown["by_name"] = f"seat {value}" if proposer is None else proposer.name
        return shown
