"""The composition root: every part of a node is made here, once, and handed to the others.

A node is one asyncio process that never imports torch, a worker process that does, and miner processes. On SIGTERM or
SIGINT it ends its parts and exits with code 0; a failure in any part ends the whole node with an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING

from chain.block import Digest
from chain.checkpoint import Checkpoint
from chain.errors import BlobRowCorrupted, ChainError
from chain.genesis import Genesis
from chain.signing import SigningKey, encode_id
from chain.store.interface import Faults
from chain.store.sqlite import SqliteStore
from chain.store.watermark import WATERMARK
from node.admin.access import RemoteAccess
from node.admin.failures import explain_chain_error, translate
from node.admin.node_answers import NodeAnswers
from node.admin.page_keys import make_keys
from node.admin.peer_control import PeerControl, restore_bans
from node.admin.reload import Load, Reloading
from node.admin.server import AdminServer
from node.admin.shutdown import Deadline, Shutdown
from node.admin.tokens import Tokens
from node.admin.view import NodeView
from node.admin.wiring import make_control, make_predictor, make_view
from node.clock import SystemClock
from node.config.federation import Federation, load_federation
from node.config.genesis_members import read_head_state, validate_membership, was_put_back
from node.config.identity import open_identity, open_spare
from node.config.node_config import NodeConfig
from node.config.node_sections import LimitsSection
from node.config.own_noise import validate_own_noise
from node.consensus.context import NodeContext
from node.consensus.mining.miner import MinerProcess
from node.consensus.service import RoundService
from node.consensus.signing.keys import OtherKeyInForce, choose_key
from node.consensus.signing.restored import RESTORED, Restored
from node.consensus.wiring import make_round_service
from node.errors import ConfigError
from node.host.collector import leave_out_loaded
from node.host.notify import Notifier
from node.host.process import has_terminal, make_room
from node.host.signals import run_until, watch_signals
from node.log import logging_values
from node.offload import ThreadOffload
from node.p2p.address_book import AddressBook
from node.p2p.transport.rate_limits import MIB, RateLimits
from node.p2p.transport.rpc import ConnectionLimits, RpcTransport
from node.p2p.transport.timing import OnCall
from node.payloads.fetcher import Slowness
from node.runs.specs import RunSpecs
from node.telemetry.http_tls import HttpTls
from node.telemetry.http_token import HttpToken
from node.telemetry.monitor import Monitor, make_call_times, make_metrics
from node.telemetry.processes import Processes
from node.telemetry.sinks.opening import open_sinks, validate_sinks
from node.training.observer_trainer import ObserverTrainer
from node.training.trainer import Trainer
from node.training.worker import WorkerProcess
from node.training.worker_config import make_worker_config

if TYPE_CHECKING:
    from node.telemetry.metrics import CallTimes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Holds all that a node is started with, each checked by itself."""

    config: NodeConfig
    federation: Federation
    key: SigningKey
    spare: SigningKey | None
    faults: Faults | None
    notifier: Notifier
    load: Load | None
    after_restore: bool
    origins: Mapping[str, str]
    options: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class _Parts:
    """Holds the parts of a node that takes part in rounds. `calls` is None where nobody reads metrics."""

    context: NodeContext
    service: RoundService
    transport: RpcTransport
    book: AddressBook
    calls: CallTimes | None


def run_daemon(
    config: NodeConfig,
    faults: Faults | None = None,
    notifier: Notifier | None = None,
    load: Load | None = None,
    *,
    after_restore: bool = False,
    origins: Mapping[str, str] | None = None,
    options: Sequence[str] | None = None,
) -> int:
    """Runs the node of `config` until it is stopped, and returns 0. Raises NodeError for faults that the operator can
    correct.

    `faults` is called at every durable step of the store; nothing in production uses it. `notifier` notifies systemd.
    `load` reloads the configuration. `after_restore`: the data directory was restored from a backup
    (`node.consensus.signing.restored`). `origins` gives the origin of each value of `config` by dotted key, and
    `options` the command-line options by which it was read, both for the page.
    """
    identity = open_identity(config)
    federation = load_federation(config)
    genesis = federation.genesis
    validate_membership(config, genesis, identity.id)
    is_behind = after_restore or was_put_back(config, genesis)
    validate_own_noise(config, read_head_state(config, genesis) or genesis.state, is_behind=is_behind)
    validate_sinks(config.sinks)
    leave_out_loaded()
    try:
        with logging_values(lambda: {"node": config.node.name}):
            while True:
                key, spare = _open_keys(config, genesis)
                start = _Start(
                    config=config,
                    federation=federation,
                    key=key,
                    spare=spare,
                    faults=faults,
                    notifier=notifier or Notifier(),
                    load=load,
                    after_restore=after_restore,
                    origins=origins or {},
                    options=options,
                )
                try:
                    return asyncio.run(_run(start))
                except OtherKeyInForce as change:  # every part acts for one key: all are made again
                    log.warning("this node goes on with its other key: %s", change)
                    after_restore = False
    except ChainError as error:
        if isinstance(error, BlobRowCorrupted):
            _drop_blob(config, genesis, bytes.fromhex(error.expected))
        raise explain_chain_error(error, config) from error


def _drop_blob(config: NodeConfig, genesis: Genesis, digest: Digest) -> None:
    """Deletes a damaged blob from the database, as an operator can only delete files."""
    with SqliteStore.open(config.node.data_dir, genesis) as store:
        store.delete_blob(digest)


def _open_keys(config: NodeConfig, genesis: Genesis) -> tuple[SigningKey, SigningKey | None]:
    """Returns the key in force, and the other key of a node that rotates its keys."""
    identity, spare = open_identity(config), open_spare(config)
    key, other = choose_key(read_head_state(config, genesis) or genesis.state, identity, spare)
    if key is not identity:
        where = config.node.spare_key_file
        log.warning("the key in force is that in %s: put it in the place of %s", where, config.node.identity_key_file)
    return key, other


def _open_store(start: _Start) -> SqliteStore:
    config, federation = start.config, start.federation
    store = SqliteStore.open(config.node.data_dir, federation.genesis, faults=start.faults)
    _validate_checkpoint(store, federation.checkpoint)
    if federation.initial_model is not None:
        store.put_blob(federation.initial_model.read_bytes())
    if start.after_restore:
        store.put_meta(RESTORED, {"until": None})
    if (silence := Restored(store.get_meta(RESTORED)).describe()) is not None:
        log.warning("%s", silence)
    loss = store.describe_loss()
    if loss is not None:
        log.warning(
            "%s. Nothing is signed up to height %d, so that this node cannot contradict itself; the others bring it "
            "there. Where no quorum of others is left, delete %s to sign regardless",
            loss,
            store.silent_until,
            config.node.data_dir / WATERMARK,
        )
    return store


def _validate_checkpoint(store: SqliteStore, checkpoint: Checkpoint | None) -> None:
    """Raises OffTheWay where the stored chain does not lead to the checkpoint of the join file configured now."""
    height = 0 if checkpoint is None else checkpoint.get_last(store.head_height)
    stored = store.get_block(height)
    if checkpoint is not None and height > 0 and stored is not None:
        checkpoint.validate(height, stored.block.id)


async def _run(start: _Start) -> int:
    config = start.config
    began_s = time.monotonic()
    stopped, hung_up = watch_signals()
    had_terminal = has_terminal()
    async with AsyncExitStack() as stack:
        deadline = Deadline()
        stack.callback(deadline.close)  # last, after everything that may take time
        parts = _make_parts(start, stack)
        context, service = parts.context, parts.service
        shutdown = Shutdown(service, stopped, deadline, partial(_cut_off, Processes(context.trainer, context.miner)))
        stack.enter_context(logging_values(partial(_describe_position, service)))
        metrics = None if parts.calls is None else make_metrics(parts.calls, service, context, config.node.name)
        sinks = open_sinks(config, start.federation.genesis, start.key.id)
        for sink in sinks:
            stack.callback(sink.close)
        monitor = Monitor(service.events, metrics, sinks, config.node.name, context.boundary)
        view = make_view(service, context, config, parts.book)
        token = HttpToken.read(config.http.token_file) if config.http.is_on else None
        tls = HttpTls.read(config.http.tls) if config.http.is_on else None
        reloading = Reloading(
            config,
            start.load,
            service,
            context.genesis,
            parts.book,
            me=context.me,
            redial=parts.transport.redial,
            http=token,
            tls=tls,
            on_config=view.on_config,
        )
        keys = make_keys(config.http, context.clock)
        control = make_control(service, context, shutdown, reloading, config.node.name, keys)
        predictor = make_predictor(service, context, config.training.answer_by)
        answers = NodeAnswers(view, predictor, _make_operator(config, parts), control)
        if token is not None:
            from node.web.serving import make_http  # not imported where HTTP is off

            http = make_http(
                config,
                answers,
                clock=context.clock,
                keys=keys,
                token=token,
                tls=tls,
                metrics=metrics,
                origins=start.origins,
                options=start.options,
                describe_unready=partial(_describe_unready, stopped, view),
            )
            await stack.enter_async_context(http)
        if config.admin.socket is not None or config.admin.address is not None:
            await stack.enter_async_context(_make_admin(start, parts, answers))
        await stack.enter_async_context(start.notifier.telling(parts.transport.ready, partial(_describe, service)))
        _greet(config, start.federation.genesis, start.key, service, time.monotonic() - began_s)
        hangups = _follow_hangups(hung_up, stopped, reloading, had_terminal=had_terminal)
        failure = await run_until(stopped, service.run(), monitor.run(), shutdown.run(), hangups)
        if failure is not None:
            raise translate(failure)
        log.info("stopped at height %d", service.tip.height)
    return 0


def _make_parts(start: _Start, stack: AsyncExitStack) -> _Parts:
    """Makes the store, the worker, the miners, the transport and the service over them; `stack` closes them."""
    config, federation, key = start.config, start.federation, start.key
    genesis, store = federation.genesis, _open_store(start)
    disk, arithmetic, bulk = ThreadOffload("disk"), ThreadOffload("arithmetic"), ThreadOffload("bulk")
    stack.callback(store.close)
    stack.callback(disk.close)
    stack.callback(arithmetic.close)
    stack.callback(bulk.close)
    trainer: Trainer = ObserverTrainer()
    if not config.node.observer:
        trainer = WorkerProcess(partial(make_worker_config, config))
    stack.push_async_callback(trainer.close)
    miner = MinerProcess(config.consensus.workers)
    stack.push_async_callback(miner.close)
    calls = make_call_times(config)
    book = AddressBook.load(config.node.data_dir, {**federation.addresses, **config.network.get_addresses(genesis)})
    transport = _make_transport(config, genesis, key, book, None if calls is None else calls.observe)
    restore_bans(transport.bans, config.node.data_dir, SystemClock().now_ms())
    context = NodeContext(
        genesis=genesis,
        runs=RunSpecs.load(store),
        key=key,
        store=store,
        transport=transport,
        trainer=trainer,
        miner=miner,
        clock=SystemClock(),
        disk=disk,
        arithmetic=arithmetic,
        bulk=bulk,
        random=SystemRandom(),
        mines=config.consensus.mine,
        asks_to_train=config.consensus.join_runs == "ask",
        approves_genesis=config.consensus.approves_genesis,
        book=book,
        advertise=config.network.advertise,
        keep_models=config.training.keep_models,
        measure_from=config.training.publish_min_samples,
        publish_from=config.training.publish_min_samples if config.training.publish_metrics else None,
        bans=transport.bans,
        boundary=transport.boundary,
        spare=start.spare,
        checkpoint=federation.checkpoint,
        own_noise=config.training.privacy.get_own(),
        mesh_max=config.network.mesh_max,
        slowness=Slowness(bytes_per_s=config.network.limits.blob_min_kib_s * 1024),
    )
    return _Parts(context, make_round_service(context), transport, book, calls)


def _make_operator(config: NodeConfig, parts: _Parts) -> PeerControl:
    context, transport = parts.context, parts.transport
    return PeerControl(
        transport.bans,
        parts.book,
        parts.service.peers,
        config.node.data_dir,
        context.clock,
        context.disk,
        transport.hang_up,
        transport.redial,
    )


def _make_admin(start: _Start, parts: _Parts, answers: NodeAnswers) -> AdminServer:
    config = start.config
    remote = None
    if config.admin.address is not None:
        remote = RemoteAccess(config.admin.address, Tokens(config.node.data_dir), start.key)
    on_call = None if parts.calls is None else parts.calls.observe
    return AdminServer(config.admin.socket, answers, remote, on_call)


async def _follow_hangups(
    hung_up: asyncio.Event, stopped: asyncio.Event, reloading: Reloading, *, had_terminal: bool
) -> None:
    while True:
        await hung_up.wait()
        hung_up.clear()
        if had_terminal and not has_terminal():
            log.warning("the terminal was closed; the node ends")
            stopped.set()
        else:
            await reloading.reload()


def _cut_off(processes: Processes) -> None:
    """Kills what is left of the node when a shutdown takes longer than it may. Durable data stay whole."""
    log.warning("the node did not end in time and was cut off")
    for pid in (*processes.miner_pids, processes.worker_pid):
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    logging.shutdown()
    os._exit(0)  # the stop was requested: a supervisor that restarts failures must not restart this


def _describe(service: RoundService) -> str:
    """Returns a line for `systemctl status`."""
    return f"height {service.tip.height}" + (f", {service.stall}" if service.stall else "")


def _describe_unready(stopped: asyncio.Event, view: NodeView) -> str | None:
    return "the node is stopping" if stopped.is_set() else view.describe_unready()


def _describe_position(service: RoundService) -> dict[str, int]:
    """Returns height and round, for each line of the log."""
    height, machine = service.tip.height, service.machine
    return {"height": height, "round": height if machine is None else machine.height}


def _make_transport(
    config: NodeConfig, genesis: Genesis, key: SigningKey, book: AddressBook, on_call: OnCall | None
) -> RpcTransport:
    network = config.network
    try:
        return RpcTransport(
            key,
            listen=network.listen,
            peers=book.get_all(),
            dial_out=network.dial_out,
            proxy=network.proxy,
            tls=network.tls,
            limits=make_limits(network.limits),
            connections=ConnectionLimits(max_connections=make_room(network.limits.max_connections)),
            chain_id=genesis.chain_id,
            on_call=on_call,
        )
    except ValueError as error:
        raise ConfigError(f"network: {error}") from error


def make_limits(limits: LimitsSection) -> RateLimits:
    """Returns the transport's limits for the operator's settings."""
    usual = RateLimits()
    return RateLimits(
        messages_per_s=limits.peer_messages_s,
        messages_burst=limits.peer_messages_s * usual.messages_burst / usual.messages_per_s,
        bytes_per_s=limits.peer_rate_mib_s * MIB,
        blob_bytes_per_s=limits.blob_min_kib_s * 1024,
    )


def _greet(config: NodeConfig, genesis: Genesis, key: SigningKey, service: RoundService, seconds: float) -> None:
    chain = f"{genesis.chain_name} (genesis {genesis.chain_id.hex()[:8]})"
    log.info("fednode %s  id %s  chain %s", config.node.name, encode_id(key.id)[:8], chain)
    network, state = config.network, service.tip.state
    place = "dials out" if network.dial_out else network.listen
    log.info("peer %s  tls %s  %d members, quorum %d", place, network.tls, state.n, state.q)
    log.info("chain height %d  head %s  opened in %.2f s", service.tip.height, service.tip.id.hex()[:8], seconds)
    if service.participation.is_paused:
        log.warning("training was paused before this start; nothing is contributed until fednode resume")
