"""The parts of a node, handed in by the composition root."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from chain.block import Id
from chain.checkpoint import Checkpoint
from chain.genesis import Genesis
from chain.signing import SigningKey
from chain.store.sqlite import SqliteStore
from node.boundary import Boundary
from node.clock import Clock
from node.consensus.height.current import CurrentRound
from node.consensus.mining.miner import Miner
from node.consensus.record.record import Records
from node.consensus.signing.signer import Signer
from node.events import Events
from node.offload import Offload
from node.p2p.address_book import AddressBook
from node.p2p.bans import Bans
from node.p2p.overlay import MESH_MAX
from node.p2p.peers import Peers
from node.p2p.transport.base import Transport
from node.payloads.fetcher import USUAL_SLOWNESS, Slowness
from node.runs.specs import RunSpecs
from node.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Holds the collaborators of one node. `disk` is the store's only thread. `arithmetic` decodes and aggregates
    arrays. `bulk` reads the blobs that peers request and fetches blobs on demand, so that none of the three waits for
    another. `slowness` says how slowly a peer may send blobs. `boundary` is shared with the transport. `asks_to_train`
    and `approves_genesis` are for `Consent`."""

    genesis: Genesis
    runs: RunSpecs
    key: SigningKey
    store: SqliteStore
    transport: Transport
    trainer: Trainer
    miner: Miner
    clock: Clock
    disk: Offload
    arithmetic: Offload
    bulk: Offload
    random: Random  # draws the first nonces, which need not be secret
    mines: bool = True
    asks_to_train: bool = False
    approves_genesis: bool = False
    book: AddressBook | None = None  # addresses of peers; None: those in the store's directory
    advertise: str | None = None  # the address under which others may dial this node
    publish_from: int | None = None  # test samples needed to publish a round's measures; None: never
    keep_models: str = "best"  # the rounds of a run whose models are kept: all, best or newest K
    measure_from: int = 1  # val or test samples needed to sign measures if a run selects its best round
    bans: Bans = field(default_factory=lambda: Bans(time.monotonic))  # the transport's
    slowness: Slowness = USUAL_SLOWNESS
    own_noise: Mapping[str, float] = field(default_factory=dict)  # the site's own noise settings, by key
    mesh_max: int = MESH_MAX  # up to so many members this node keeps connections with all
    boundary: Boundary = field(default_factory=Boundary)
    spare: SigningKey | None = None  # the other key of a node that rotates
    checkpoint: Checkpoint | None = None  # of a node that has joined: it adopts only a history through it

    @property
    def me(self) -> Id:
        return self.key.id


@dataclass(frozen=True, slots=True, eq=False)
class RoundContext:
    """Holds what all rooms of one node's rounds use: the node's collaborators, the chain's tip with the round on top of
    it, the peers, the events, the signer and the records."""

    node: NodeContext
    current: CurrentRound
    peers: Peers
    events: Events
    signer: Signer
    records: Records

    def get_status_s(self) -> float:
        """Returns the seconds between two statuses, by the rules in force."""
        return self.current.tip.state.rules.waits.status_s
