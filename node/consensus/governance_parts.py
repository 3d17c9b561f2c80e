"""Governance's parts: changes of the federation, and this node's place in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.consensus.context import RoundContext
from node.consensus.gossip_parts import GossipParts
from node.consensus.governance.admissions import Admissions
from node.consensus.governance.consent import Consent
from node.consensus.governance.convictions import Convictions
from node.consensus.governance.initial_models import InitialModels
from node.consensus.governance.own_membership import OwnMembership
from node.consensus.governance.proposals import ProposalBook, load_proposals
from node.consensus.governance.readiness import ReadinessSigner
from node.payloads.fetcher import BlobFetcher


@dataclass(frozen=True, slots=True, eq=False)
class GovernanceParts:
    """Holds the parts of governance of one node; `make_governance` makes them."""

    proposals: ProposalBook
    consent: Consent
    admissions: Admissions
    own_membership: OwnMembership
    initial_models: InitialModels
    stands_ready: ReadinessSigner
    convictions: Convictions


def make_governance(
    context: RoundContext, gossip: GossipParts, blobs: BlobFetcher, prepare: Callable[[], bool]
) -> GovernanceParts:
    """Makes the parts from what the store holds. `blobs` fetches initial models, and `prepare` starts the worker.
    Raises StoreCorrupted."""
    c, current, peers, events, signer = context.node, context.current, context.peers, context.events, context.signer
    held = load_proposals(current, c.store)
    admissions = Admissions(current, held, c.me, c.store, peers=peers, transport=c.transport)
    consent = Consent(signer, c.store, c.disk, events, asks=c.asks_to_train, approves_genesis=c.approves_genesis)
    initial_models = InitialModels(
        current, c.store, blobs, c.arithmetic, c.boundary, on_judged=lambda: proposals.follow_up()
    )
    proposals = ProposalBook(
        current,
        held,
        signer,
        c.store,
        c.disk,
        consent=consent,
        admissions=admissions,
        gossip=gossip.gossip,
        peers=peers,
        events=events,
        clock=c.clock,
        boundary=c.boundary,
        is_ready=initial_models.is_ready,
    )
    return GovernanceParts(
        proposals,
        consent,
        admissions,
        OwnMembership(c.me, current.tip.state, held, c.store, events),
        initial_models,
        ReadinessSigner(current, proposals, signer, c.transport, peers, gossip.sync, prepare),
        Convictions(current, gossip.evidence, proposals, signer, c.store, c.disk),
    )
