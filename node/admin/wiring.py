"""Wiring: makes the parts of the control plane of one node, each with its own few collaborators."""

from __future__ import annotations

from typing import Any

from ml.measures.alone import FEDERATION
from node.admin.changes import ChangeControl
from node.admin.federation_view import FederationView
from node.admin.page_keys import PageKeys
from node.admin.peer_view import PeerView
from node.admin.predictor import Predictor
from node.admin.process_view import ProcessView
from node.admin.reload import Reloading
from node.admin.round_control import Control
from node.admin.scorer import Scorer
from node.admin.shutdown import Shutdown
from node.admin.status_view import StatusView
from node.admin.stored_chain import StoredChain
from node.admin.view import NodeView
from node.config.node_config import NodeConfig
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.ledger.reader import Ledger
from node.p2p.address_book import AddressBook
from node.telemetry.processes import Processes
from node.training.lending import explain_not_lent


def make_view(service: RoundService, c: NodeContext, config: NodeConfig, book: AddressBook) -> NodeView:
    """Makes the view of a node that is starting."""
    ledger, started_ms = Ledger(c.genesis, c.store, c.runs.calendar), c.clock.now_ms()
    peers = PeerView(service, book, transport=c.transport, bans=c.bans, boundary=c.boundary, clock=c.clock)
    processes, chain = Processes(c.trainer, c.miner), make_stored_chain(service, c)
    process = ProcessView(c.genesis, c.me, processes, c.transport, c.store.path, clock=c.clock, started_ms=started_ms)
    return NodeView(
        service,
        config,
        chain,
        ledger,
        c.transport,
        peers=peers,
        status=StatusView(
            service,
            process,
            peers,
            ledger,
            c.disk,
            runs=c.runs,
            me=c.me,
            clock=c.clock,
            read_own_best=chain.read_own_best,
        ),
        scorer=make_scorer(service, c),
        federation=FederationView(service, chain, peers, config.node.get_display_names()),
        trainer=c.trainer,
        clock=c.clock,
        started_ms=started_ms,
    )


def make_scorer(service: RoundService, c: NodeContext) -> Scorer:
    return Scorer(make_stored_chain(service, c), c.me, c.trainer, service.learner, c.boundary)


def make_predictor(service: RoundService, c: NodeContext, answer_by: str = FEDERATION) -> Predictor:
    return Predictor(make_stored_chain(service, c), c.me, c.trainer, service.learner, c.arithmetic, answer_by)


def make_control(
    service: RoundService,
    c: NodeContext,
    shutdown: Shutdown,
    reloading: Reloading,
    name: str,
    page: PageKeys | None = None,
) -> Control:
    def get_data() -> dict[str, Any] | None:
        return None if reloading.config.data is None else reloading.config.get_data()

    changes = ChangeControl(
        service,
        c.store,
        c.disk,
        c.runs,
        get_data=get_data,
        get_plugins=lambda: reloading.config.plugins,
        get_min_samples=lambda: reloading.config.training.publish_min_samples,
        explain_not_lent=lambda place: explain_not_lent(reloading.config, place),
    )
    return Control(service, shutdown, reloading, changes, me=c.me, name=name, disk=c.disk, clock=c.clock, page=page)


def make_stored_chain(service: RoundService, c: NodeContext) -> StoredChain:
    return StoredChain(c.genesis, c.runs, c.store, c.disk, lambda: service.tip.state, lambda: service.tip)
