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
    """The collaborators of one node. `disk` is the one thread of the store, `arithmetic` decodes and aggregates arrays,
    `bulk` reads the blobs that peers ask for and takes in those on demand, so that none waits for another. `slowness`
    is how slowly a peer may give them. `boundary` is the transport's too. `asks_to_train` and `approves_genesis` are
    `Consent`'s."""

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
    random: Random  # where nonces begin: nothing that has to be secret
    mines: bool = True
    asks_to_train: bool = False
    approves_genesis: bool = False
    book: AddressBook | None = None  # what is dialled; None: that of the store's directory
    advertise: str | None = None  # where others may dial this node
    publish_from: int | None = None  # of so many test samples on, measures of rounds are published; None: never
    keep_models: str = "best"  # all, best or newest K: whose models are kept of a run's rounds
    measure_from: int = 1  # of so many val or test samples on, measures are signed where a run selects its best round
    bans: Bans = field(default_factory=lambda: Bans(time.monotonic))  # the transport's
    slowness: Slowness = USUAL_SLOWNESS
    own_noise: Mapping[str, float] = field(default_factory=dict)  # of the site, by key
    mesh_max: int = MESH_MAX  # members, up to which this node keeps connections with all
    boundary: Boundary = field(default_factory=Boundary)
    spare: SigningKey | None = None  # the other key of a node that rotates
    checkpoint: Checkpoint | None = None  # of a node that has joined: it adopts no other history

    @property
    def me(self) -> Id:
        return self.key.id


@dataclass(frozen=True, slots=True, eq=False)
class RoundContext:
    """Holds what every room of one node's rounds stands on: the node's collaborators, the chain's tip with the round on
    top of it, and those that sign, are told and keep records."""

    node: NodeContext
    current: CurrentRound
    peers: Peers
    events: Events
    signer: Signer
    records: Records

    def get_status_s(self) -> float:
        """Returns the time between two statuses, by the rules in force."""
        return self.current.tip.state.rules.waits.status_s
