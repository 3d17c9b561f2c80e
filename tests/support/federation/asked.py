"""A federation in one process whose first member can be asked over its admin socket.

async with running(tmp_path, rounds=3) as one:
    status = await one.ask(lambda node: node.get_status())
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from chain.block import Id
from node.admin import wiring
from node.admin.client import AdminClient
from node.admin.node_answers import NodeAnswers
from node.admin.peer_control import PeerControl
from node.admin.reload import Load, Reloading
from node.admin.round_control import Control
from node.admin.server import AdminServer
from node.admin.shutdown import Deadline, Shutdown
from node.admin.view import NodeView
from node.cli import main
from node.config.node_config import NodeConfig
from node.consensus.context import NodeContext
from node.consensus.service import RoundService
from node.consensus.wiring import make_round_service
from node.p2p.address_book import ADDRESSES, AddressBook
from node.training.trainer import Trainer
from support.federation.cluster import Cluster, cluster

WAITS = {"delta_s": 0.01, "status_s": 5.0}  # a member silent for four statuses counts as away

CALLERS = ThreadPoolExecutor(64, thread_name_prefix="caller")  # so callers block no thread of the node's

T = TypeVar("T")


@dataclass
class Running:
    """The federation, and the address of its first member."""

    net: Cluster
    context: NodeContext
    view: NodeView
    path: Path
    stopped: asyncio.Event  # set once the first member has been asked to end

    async def ask(self, question: Callable[[AdminClient], T]) -> T:
        """Asks as a command does: from another thread here, where a command is another process."""

        def run() -> T:
            with AdminClient(self.path) as client:
                return question(client)

        return await asyncio.get_running_loop().run_in_executor(CALLERS, run)


def make_config(path: Path) -> NodeConfig:
    tree = {
        "node": {"name": "hospital-a", "identity_key_file": "keys/a.key", "data_dir": "data"},
        "genesis_file": "genesis.yaml",
        "network": {"listen": "127.0.0.1:7050"},
        "training": {"seed": 1},
    }
    return NodeConfig.model_validate_json(json.dumps(tree), context={"directory": path})


def make_book(path: Path = Path("nowhere")) -> AddressBook:
    """Returns the address book of a node without configured addresses."""
    return AddressBook(path, {}, {})


def make_operator(context: NodeContext, service: RoundService, book: AddressBook, path: Path) -> PeerControl:
    """Makes the peer control of a node on the memory transport, which neither dials nor disconnects."""

    async def redial(peer: Id, address: str | None) -> None:
        pass

    return PeerControl(context.bans, book, service.peers, path, context.clock, context.disk, lambda _: None, redial)


def make_control(
    context: NodeContext,
    service: RoundService,
    *,
    view: NodeView,
    book: AddressBook,
    stopped: asyncio.Event | None = None,
    load: Load | None = None,
) -> Control:
    """Makes the control of a node that runs on when it is asked to end; only `stopped` is set."""

    async def redial(peer: Id, address: str | None) -> None:
        pass

    config = make_config(Path("nowhere")) if load is None else load()
    told, me = view.on_config, context.me
    reloading = Reloading(
        config, load, service, context.genesis, book, me=me, redial=redial, http=None, tls=None, on_config=told
    )
    shutdown = Shutdown(service, stopped or asyncio.Event(), Deadline(), lambda: None)
    return wiring.make_control(service, context, shutdown, reloading, config.node.name)


@asynccontextmanager
async def running(
    tmp_path: Path,
    rounds: int = 0,
    n: int = 3,
    waits: Mapping[str, float] = WAITS,
    trainers: Sequence[Trainer] | None = None,
    load: Load | None = None,
) -> AsyncIterator[Running]:
    contexts: list[NodeContext] = []

    def make_service(context: NodeContext) -> RoundService:
        contexts.append(context)
        return make_round_service(context)

    async with cluster(
        tmp_path / "nodes",
        n,
        rounds=rounds,
        train_s=0.001,
        hash_rate=1e6,
        start=(),
        waits=waits,
        trainers=trainers,
    ) as net:
        for name in net.nodes:
            net.start(name, make_service)
        service = net["node0"].service
        assert service is not None
        book = make_book(tmp_path / ADDRESSES)
        view = wiring.make_view(service, contexts[0], make_config(tmp_path), book)
        path = tmp_path / "run" / "node0.sock"
        operator = make_operator(contexts[0], service, book, tmp_path)
        stopped = asyncio.Event()
        control = make_control(contexts[0], service, view=view, book=book, stopped=stopped, load=load)
        answers = NodeAnswers(view, wiring.make_predictor(service, contexts[0]), operator, control)
        async with AdminServer(path, answers):
            yield Running(net, contexts[0], view, path, stopped)


async def run_command(capsys: pytest.CaptureFixture[str], one: Running, *arguments: str, code: int = 0) -> str:
    """Runs a command about the node. Returns its stdout if it ends well, else its stderr."""
    got = await asyncio.to_thread(main, [*arguments, "--socket", str(one.path)])
    said = capsys.readouterr()
    assert got == code, said
    return said.err if code else said.out


async def ask_json(capsys: pytest.CaptureFixture[str], one: Running, *arguments: str) -> Any:
    return json.loads(await run_command(capsys, one, *arguments, "--json"))
