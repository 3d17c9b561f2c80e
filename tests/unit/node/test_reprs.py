"""Reprs of objects with state, for a debugger or a failed test: their state in one line, and no secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from chain.block import ZERO, Phase
from chain.codec import sign_vote
from chain.finality import Voting
from chain.store.sqlite import SqliteStore
from chain.store.watermark import Mark, Watermark
from chain.votes import VoteSet
from ml.guard import LeftOut
from node.admin.address import RemoteAddress
from node.admin.tokens import Role, Tokens
from node.boundary import Boundary
from node.clock import SystemClock
from node.config.genesis_file import get_genesis_spec
from node.events import Events
from node.p2p.address_book import AddressBook
from node.p2p.bans import Bans
from node.p2p.peers import Peers
from node.p2p.tls import issue_leaf
from node.p2p.transport.base import Message, MessageKind, TrafficCounters
from node.p2p.transport.outbox import Outbox, TokenBucket
from node.p2p.transport.rate_limits import Intake, RateLimits
from node.p2p.transport.rpc import RpcTransport
from node.p2p.transport.sender import Sender
from node.payloads.checks import RoundPayloads
from node.payloads.chunks import Chunks
from node.payloads.fetcher import BlobFetcher
from node.payloads.on_demand import OnDemand
from node.payloads.partial_files import Partial, PartialFiles
from node.payloads.pushed import PushedPayloads
from node.payloads.retention import Retention
from node.payloads.shared_sets import SharedSets
from node.payloads.transfers import Transfers
from node.payloads.waiting_blobs import WaitingBlobs
from node.testnet.cluster import LocalCluster
from node.testnet.layout import TestnetSpec, make_testnet
from node.training.checkpoint import Checkpoints
from node.training.learner import Learner
from node.training.local_work import LocalWork
from node.training.worker import WorkerProcess
from node.training.worker_config import WorkerConfig
from support.data.chains import make_chain, make_genesis, make_keys
from support.federation.fixed_specs import FixedSpecs
from support.federation.inline import InlineOffload
from support.federation.memory_transport import MemoryNetwork
from support.federation.simulated import make_digit_clients

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
ALICE, BOB = KEYS[0].id, KEYS[1].id
ANY = cast(Any, None)  # a collaborator that no repr looks at

SPEC = get_genesis_spec(GENESIS)
RUNS = FixedSpecs(GENESIS, SPEC)


def open_store(path: Path) -> SqliteStore:
    """A store with two blocks."""
    store = SqliteStore.open(path, GENESIS)
    for block, certificate in make_chain(GENESIS, KEYS, 2):
        store.append(block, certificate)
    return store


def make_voting() -> Voting:
    return Voting(
        height=4, members=GENESIS.state.member_ids, quorum=GENESIS.state.q, me=ALICE, waits=GENESIS.rules.waits
    )


def make_votes() -> VoteSet:
    votes = VoteSet()
    votes.add(sign_vote(KEYS[0], GENESIS.chain_id, phase=Phase.PREVOTE, height=1, view=0, block_id=ZERO))
    return votes


def make_left_out() -> LeftOut:
    left_out = LeftOut()
    left_out.add(BOB, 3, "its loss")
    return left_out


def make_boundary() -> Boundary:
    boundary = Boundary()
    boundary.takes(RuntimeError("a bug"), "audit", BOB)
    return boundary


def make_events() -> Events:
    events = Events(SystemClock())
    events.publish("block", height=1)
    return events


def make_bans() -> Bans:
    bans = Bans(lambda: 5.0)
    bans.add_fault(ALICE)
    bans.ban(BOB, 60.0)
    return bans


def make_peers() -> Peers:
    peers = Peers(GENESIS.state, ALICE, SystemClock())
    peers.on_up(BOB)
    return peers


def make_outbox() -> Outbox:
    outbox = Outbox(0.0)
    outbox.put(Message(MessageKind.VOTE, b"12345"))
    outbox.put(Message(MessageKind.STATUS, b"1"))
    return outbox


def make_sender() -> Sender:
    sender = Sender(TrafficCounters(), RateLimits())
    sender.open()
    sender.post(Message(MessageKind.VOTE, b"12345"))
    return sender


def make_network() -> MemoryNetwork:
    network = MemoryNetwork(loss=0.25)
    network.transport(ALICE)
    network.cut(ALICE, BOB)
    return network


def make_fetcher(path: Path) -> BlobFetcher:
    store = open_store(path)
    transfers = Transfers(SystemClock(), lambda peer: "bob")
    return BlobFetcher(ANY, store, InlineOffload(), PartialFiles(store, InlineOffload()), transfers)


def make_payloads(path: Path) -> RoundPayloads:
    return RoundPayloads(SPEC, round_number=3, parent=ANY, blobs=make_fetcher(path), arithmetic=InlineOffload())


def make_on_demand() -> OnDemand:
    on_demand = OnDemand(
        RUNS,
        ALICE,
        ANY,
        InlineOffload(),
        is_alone=lambda: False,
        get_patience=lambda authors: 1.0,
        on_loss=lambda missing: None,
    )
    on_demand.leave_out(BOB, 1, "its loss")
    return on_demand


def make_shared_sets() -> SharedSets:
    return SharedSets(
        RUNS,
        ALICE,
        ANY,
        ANY,
        InlineOffload(),
        InlineOffload(),
        is_alone=lambda: False,
        on_loss=lambda missing: None,
    )


def make_tokens(path: Path) -> Tokens:
    Tokens(path).add("grafana", Role.READ, "2026-01-01T00:00:00Z")
    return Tokens(path)


def make_local_work() -> LocalWork:
    local_work = LocalWork(10.0)
    local_work.add(0.5, 2.0)
    return local_work


def make_worker(path: Path) -> WorkerProcess:
    return WorkerProcess(
        lambda task: WorkerConfig(
            method={"name": "dfpl"},
            model={"name": "mlp"},
            classes=("a", "b"),
            input={},
            data={},
            seed=1,
            initial_model=b"",
            checkpoint_dir=path,
            outgoing_dir=path,
        )
    )


def make_cluster(path: Path) -> LocalCluster:
    settings = ("local_iterations=2", "model.hidden=[8]")
    return LocalCluster(make_testnet(path / "net", TestnetSpec(num_nodes=1, rounds=3, seed=1, settings=settings)))


def make_partial_files(path: Path) -> PartialFiles:
    return PartialFiles(open_store(path), InlineOffload())


NAME = ALICE.hex()[:8]
CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "voting": (lambda path: make_voting(), "Voting(height=4, view=0, step=PREVOTE, locked=False, finalised=False)"),
    "votes": (lambda path: make_votes(), "VoteSet(view=0, voters=1, slots=1, strays=0)"),
    "store": (open_store, "SqliteStore('PATH', head=2, readonly=False)"),
    "watermark": (lambda path: Watermark(path, Mark(5, 6, 9)), "Watermark(height=5, signed_height=6, lost=False)"),
    "left out": (lambda path: make_left_out(), "LeftOut(peers=1)"),
    "boundary": (lambda path: make_boundary(), "Boundary(failures={'audit': 1}, peers=1)"),
    "events": (lambda path: make_events(), "Events(cursor=1, kept=1)"),
    "tokens": (make_tokens, "Tokens('PATH/tokens.json', known=0)"),
    "addresses": (
        lambda path: AddressBook(path, {ALICE: "a:1"}, {BOB: "b:2"}),
        "AddressBook(configured=1, added=1, hints=0)",
    ),
    "bans": (lambda path: make_bans(), "Bans(refused=2, by_hand=1, known=1)"),
    "peers": (lambda path: make_peers(), "Peers(known=3, up=1)"),
    "bucket": (lambda path: TokenBucket(2.0, 8.0, 0.0), "TokenBucket(rate=2.0, burst=8.0, tokens=8.0)"),
    "outbox": (lambda path: make_outbox(), "Outbox(messages=1, bytes=5, status=True)"),
    "network": (lambda path: make_network(), "MemoryNetwork(transports=1, down=0, cuts=2, loss=0.25)"),
    "memory transport": (
        lambda path: MemoryNetwork().transport(ALICE),
        f"MemoryTransport({NAME}, running=False, connected=0)",
    ),
    "rpc transport": (
        lambda path: RpcTransport(KEYS[0], "127.0.0.1:7000", {BOB: "127.0.0.1:7001"}),
        f"RpcTransport({NAME}, listen=127.0.0.1:7000, connected=0)",
    ),
    "payloads": (make_payloads, "RoundPayloads(round=3, checked=0, files=0, ensured=0, aggregates=0)"),
    "fetcher": (make_fetcher, "BlobFetcher(wanted=0, pulled_bytes=0, received_bytes=0)"),
    "on demand": (
        lambda path: make_on_demand(),
        "OnDemand(left_out=LeftOut(peers=1))",
    ),
    "partial files": (make_partial_files, "PartialFiles([])"),
    "waiting": (lambda path: WaitingBlobs(), "WaitingBlobs(0, bytes=0)"),
    "pushed": (lambda path: PushedPayloads(ANY), "PushedPayloads(height=0, expected=0, held=0)"),
    "retention": (
        lambda path: Retention(open_store(path), RUNS, ALICE),
        "Retention(newest=2, old=0, left_out=0, ownerless=0)",
    ),
    "shared sets": (lambda path: make_shared_sets(), "SharedSets(checked=0)"),
    "transfers": (lambda path: Transfers(SystemClock(), lambda peer: "bob"), "Transfers(under_way=0, named=0)"),
    "cluster": (make_cluster, "LocalCluster([NodeProcess(node0, running=False)])"),
    "checkpoints": (Checkpoints, "Checkpoints('PATH', saved=None)"),
    "learner": (
        lambda path: Learner(ANY, ANY, ANY),
        "Learner(target=None, run=None, applied=-1, trained=-1, work=None, trouble=None, failure=None)",
    ),
    "local work": (lambda path: make_local_work(), "LocalWork(budget_s=10.0, alpha_s=0.5, beta_s=2.0)"),
    "worker": (make_worker, "WorkerProcess(pid=None, deaths=0, unsaved=0)"),
    "client": (
        lambda path: make_digit_clients({"name": "fedavg"})[0],
        "Client(fedavg, seed=2480281597504885934, train=210, arrays=[])",
    ),
    "state": (lambda path: make_digit_clients({"name": "fedavg"})[0].state, "State(Mlp, train=210, arrays={})"),
    "sender": (lambda path: make_sender(), "Sender(open=True, waiting=1)"),
    "intake": (
        lambda path: Intake(ALICE, RateLimits(), make_bans(), TrafficCounters()),
        f"Intake({NAME}, refused=True, awaited=0, blob_streams=0)",
    ),
    "partial": (
        lambda path: Partial(ANY, InlineOffload(), b"\x01" * 32, Chunks(5, b"\x02" * 32)),
        "Partial(01010101, good=None, chunks=1)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_object_shows_its_state_in_one_line(tmp_path: Path, name: str) -> None:
    make, expected = CASES[name]
    made = make(tmp_path)
    assert repr(made) == expected.replace("PATH", str(tmp_path))


@pytest.mark.parametrize("name", ["key", "leaf", "tls", "token address"])
def test_no_secret_is_shown(name: str) -> None:
    leaf = issue_leaf(KEYS[0], 0.0)
    address = RemoteAddress("127.0.0.1:7000", None, "fednode_a_secret")
    shown, secret = {
        "key": (KEYS[0], KEYS[0].private_key.private_bytes_raw()),
        "leaf": (leaf, leaf.private_key),
        "tls": (RpcTransport(KEYS[0], "127.0.0.1:7000", {}).tls, KEYS[0].private_key.private_bytes_raw()),
        "token address": (address, address.token.encode()),
    }[name]
    text = repr(shown)
    assert secret.decode("latin-1") not in text
    assert secret.hex() not in text
    assert repr(secret)[2:-1] not in text
