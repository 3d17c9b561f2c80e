"""A federation of real nodes of which any can be made to die at a durable step, while all others write down what they
receive; and the checks of a node that has died (PROTOCOL §8, §11.5)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Hashable
from pathlib import Path

from chain import codec
from chain.approvals import compute_change_id, decode_readiness
from chain.block import Digest, Id
from chain.genesis import Genesis
from chain.store.consent_rows import StoredChange
from chain.store.sqlite import SqliteStore
from node.host.forking import ForkServer
from node.ledger.audit import run_audit
from node.p2p.status import status_from_bytes
from node.p2p.transport.base import Message, MessageKind
from node.testnet.cluster import NodeProcess
from node.testnet.layout import TestnetNode
from support.faults.doomed_node import Heard, read_heard
from support.federation.real_nodes import WAIT_S, Federation, run_command
from support.federation.wiretap import read_approval, read_slot

ROOT = Path(__file__).parents[3]
# kinds by which no node can contradict itself
_SLOTLESS = (MessageKind.STATUS, MessageKind.EVIDENCE, MessageKind.HINT, MessageKind.PAYLOAD)


class KillableProcess(NodeProcess):
    """A node that is started once with the options of `support.faults.doomed_node`; without options, as a plain
    `fednode`."""

    options: tuple[str, ...] = ()

    async def start(self, fork_server: ForkServer | None = None) -> None:
        options, self.options = self.options, ()
        if not options:
            await super().start(fork_server)
            return
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "support.faults.doomed_node", "--config", str(self.node.config_file), *options),
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )


class Killable(Federation):
    """A federation whose `start` makes every node record messages unless it is to die."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        for name, node in self.nodes.items():
            self.nodes[name] = KillableProcess(node.node)

    def add(self, node: TestnetNode) -> None:
        """Adds a site that is set up to join."""
        self.nodes[node.name] = KillableProcess(node)

    def get_tap(self, name: str) -> Path:
        return self.directory / f"{name}.tap"

    async def start(self, *names: str) -> None:
        for name in names or self.names:
            self._set_options(name, "--tap", str(self.get_tap(name)))
        await super().start(*names)

    async def start_plain(self, name: str) -> None:
        """Starts a node as an operator would, without any test code in it."""
        await super().start(name)

    async def start_doomed(
        self, name: str, step: str, *, times: int = 1, after: str | None = None, is_alone: bool = False
    ) -> None:
        """Starts a node that will die, and returns at once: it may be dead before it could answer. `is_alone` kills
        only the worker and spares the daemon."""
        options = ["--die-at", step, "--times", str(times), *(["--alone"] if is_alone else ())]
        options += ["--after", after] if after is not None else []
        self._set_options(name, "--tap", str(self.get_tap(name)), *options)
        await self.nodes[name].start()

    async def wait_until_killed(self, name: str, what: str) -> None:
        """Waits until the node has died by itself, with all that it had started."""
        process = self.nodes[name].process
        assert process is not None
        try:
            code = await asyncio.wait_for(process.wait(), WAIT_S)
        except TimeoutError:
            raise AssertionError(f"{name} never came to {what}\n{self._describe({})}") from None
        assert code == -signal.SIGKILL, f"{name} ended with {code} before {what}\n{self._describe({})}"
        await self.wait_until_unlocked(name)

    async def wait_until_unlocked(self, name: str) -> None:
        """Waits until the directory is unlocked: a worker may outlive its daemon by a moment."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                SqliteStore.stored_genesis(self.get_data_dir(name))
            except Exception:  # noqa: BLE001 - whatever it is, it stays or it goes
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.05)
            else:
                return

    def _set_options(self, name: str, *options: str) -> None:
        node = self.nodes[name]
        assert isinstance(node, KillableProcess)
        if not node.is_running:
            node.options = options

    async def stop_one(self, name: str) -> int:
        """Starts the others, which record, and stops this one. Returns their height."""
        if name in self.running:
            assert await self.stop(name) == 0
        others = [other for other in self.names if other != name]
        await self.start(*others)
        await self.wait_until_ready(*others)
        return await self.get_greatest_height()

    async def get_greatest_height(self) -> int:
        """Returns the greatest height of all running nodes."""
        heights: list[int] = [status["height"] for status in (await self.get_statuses()).values()]
        return max(heights)

    async def bring_back(self, name: str) -> float:
        """Starts a dead node again, after checking that what it left is whole, as an operator would. Returns the
        seconds until it contributes."""
        height = self.check_dead(name)
        began_s = time.monotonic()
        await self.start_plain(name)
        await self.wait_for_contribution(name, max(height, await self.get_greatest_height()))
        took_s = round(time.monotonic() - began_s, 1)
        print(f"{name} contributes again after {took_s} s")
        assert await self.check_agreement() >= height
        self.check_nothing_contradicted()
        return took_s

    async def stop_and_check_all(self) -> None:
        """Ends a story: checks that no node has contradicted itself, and that every directory is whole."""
        for name in self.running:
            assert await self.stop(name) == 0
        assert self.check_nothing_contradicted() > 0
        for name in self.names:
            self.check_dead(name)
            verify = ("chain", "verify", "--deep", "--data-dir", self.get_data_dir(name))
            verified = await asyncio.to_thread(run_command, *verify)
            assert verified.code == 0, verified.err

    # ---- what must hold

    def get_id(self, name: str) -> Id:
        founders = {member.name: member.key for member in self.genesis.state.members}
        return founders.get(name) or self.nodes[name].node.key

    def read_all_heard(self) -> list[Heard]:
        return [heard for name in self.names for heard in read_heard(self.get_tap(name))]

    def check_nothing_contradicted(self) -> int:
        """Checks that no node was seen to sign, in any of its lives, two contents for one slot. Returns the number of
        slots."""
        said: dict[Hashable, bytes] = {}
        for _, message in self.read_all_heard():
            assert message.kind is not MessageKind.EVIDENCE, "somebody was convicted"
            if message.kind in _SLOTLESS:
                continue
            slot, content, _ = read_slot(message)
            assert said.setdefault(slot, content) == content, f"two contents for {slot}"
        return len(said)

    def check_dead(self, name: str) -> int:
        """Checks that what a stopped node left is whole, and holds everything that others received from it. Returns its
        head's height."""
        genesis, me = self.genesis, self.get_id(name)
        with SqliteStore.open(self.get_data_dir(name), genesis, readonly=True) as store:
            report = run_audit(genesis, store, deep=True)
            assert report.ok, f"{name}: {report.fault}"
            for sender, message in self.read_all_heard():
                if message.kind is MessageKind.STATUS:
                    if sender == me:
                        status = status_from_bytes(message.data)
                        stored = store.get_block(status.head_height)
                        assert stored is not None, f"{name} has lost block {status.head_height}, which it had told of"
                        assert stored.block.id == status.head_id
                elif message.kind not in _SLOTLESS and read_slot(message)[2] == me:
                    check_stored(store, genesis, message)
            return store.head_height


def check_stored(store: SqliteStore, genesis: Genesis, message: Message) -> None:
    """Checks that its store has the message that a node sent in the message's slot."""
    match message.kind:
        case MessageKind.CONTRIBUTION:
            contribution = codec.decode_contribution(message.data)
            assert store.get_contribution(contribution.height) == contribution
        case MessageKind.BLOCK:
            block = codec.decode_block(genesis.chain_id, message.data)
            assert store.get_candidate(block.height) == block
        case MessageKind.VOTE:
            vote = codec.decode_vote(message.data)
            assert vote in store.get_votes(vote.height)
        case MessageKind.PROPOSAL | MessageKind.APPROVAL:
            approval = read_approval(message)
            assert approval is not None
            assert store.get_own_answers()[approval.change_id] == approval.answer
            held = find_open(store, genesis, approval.change_id)
            assert held is None or approval in held.approvals
        case MessageKind.READINESS:
            ready = decode_readiness(message.data)
            held = find_open(store, genesis, ready.change_id)
            assert held is None or (held.readiness is not None and held.readiness.height >= ready.height)


def find_open(store: SqliteStore, genesis: Genesis, change_id: Digest) -> StoredChange | None:
    """Finds a change as a store keeps it; None once it is on its chain, which then has its approvals."""
    if change_id in store.get_state(store.head_height).executed:
        return None
    held = {compute_change_id(genesis.chain_id, each.change): each for each in store.get_changes()}
    assert change_id in held, f"change {change_id.hex()[:8]} is lost"
    return held[change_id]
