"""Mining out of the event loop: one warm child process per slot, each with a bounded range of nonces (PROTOCOL §10).

A child is stopped by a message, for which it looks every 1024 hashes. So it is idle 0.2 ms after a cancellation (0.8 ms
and a new process with SIGKILL), while `mine` itself returns at once. A child that dies, whoever killed it, is replaced,
and its range is searched from the start; `miner_child` documents the messages between the two.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chain.pow import compute_highest_id, is_valid_work, search
from node.consensus.mining import miner_child
from node.errors import NodeError

_log = logging.getLogger(__name__)

MINER_MAIN = Path(miner_child.__file__)
MAX_NONCE = 2**64
MAX_CRASHES = 5  # in a row: children that died before their first answer
BACKOFF_S = 0.05  # doubles with each crash after the first
SHORT_SEARCH = 128  # hashes that take less time here than a message to a child


class MinerFailed(NodeError):
    """Mining is not possible here: one child after the other died before its first answer."""


class Miner(Protocol):
    """Searches for nonces, one range at a time. `hashes` counts the tries since the start."""

    @property
    def hashes(self) -> int: ...

    async def start(self) -> None:
        """Prepares the miner, so that the first `mine` need not. Raises MinerFailed only from `mine`."""
        ...

    async def mine(self, seal: bytes, difficulty: int, start_nonce: int, count: int) -> int | None:
        """Returns a nonce of start_nonce .. start_nonce + count - 1 with int(SHA256(seal || nonce)) * difficulty <
        2**256, or None if there is none in that range. Cancelling ends the search. Raises MinerFailed, or ValueError
        for a range outside 64 bits or a difficulty below 1."""
        ...

    async def close(self) -> None: ...


class MinerProcess:
    """Mines in `workers` child processes, each with a part of the range. Children wait between calls at no cost. A
    search that takes a few hashes is done without them."""

    def __init__(self, workers: int = 1, *, python: str = sys.executable) -> None:
        if workers < 1:
            raise ValueError(f"workers: expected at least 1, got {workers}")
        self._slots = [_Slot(python) for _ in range(workers)]
        self._tasks: list[asyncio.Task[None]] = []
        self._mining = asyncio.Lock()
        self._jobs = 0
        self._own_hashes = 0

    @property
    def hashes(self) -> int:
        return self._own_hashes + sum(slot.hashes for slot in self._slots)

    @property
    def pids(self) -> tuple[int, ...]:
        """Returns the process ids of the children that are alive."""
        return tuple(slot.process.pid for slot in self._slots if slot.process is not None)

    async def start(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(slot.run(), name="miner") for slot in self._slots]

    async def mine(self, seal: bytes, difficulty: int, start_nonce: int, count: int) -> int | None:
        validate_range(difficulty, start_nonce, count)
        await self.start()
        if difficulty <= SHORT_SEARCH:
            size = min(count, SHORT_SEARCH)
            nonce = search(seal, difficulty, start_nonce, size)
            self._own_hashes += size if nonce is None else nonce - start_nonce + 1
            if nonce is not None or size == count:
                return nonce
            start_nonce, count = start_nonce + size, count - size
        async with self._mining:
            pending = set(self._share_out(seal, difficulty, start_nonce, count))
            try:
                while pending:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    found = [nonce for result in done if (nonce := result.result()) is not None]
                    if found:
                        return min(found)
                return None
            finally:
                for slot in self._slots:
                    slot.stop()

    def _share_out(
        self, seal: bytes, difficulty: int, start_nonce: int, count: int
    ) -> list[asyncio.Future[int | None]]:
        loop = asyncio.get_running_loop()
        results = []
        first = start_nonce
        for position, slot in enumerate(self._slots, start=1):
            end = start_nonce + count * position // len(self._slots)
            if end > first:
                self._jobs += 1
                result: asyncio.Future[int | None] = loop.create_future()
                slot.give(_Job(self._jobs, seal, difficulty, first, end - first, result))
                results.append(result)
            first = end
        return results

    async def close(self) -> None:
        """Ends the children. A `mine` that still runs is cancelled."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Job:
    number: int
    seal: bytes
    difficulty: int
    start: int
    count: int
    result: asyncio.Future[int | None]

    def encode(self) -> bytes:
        highest = compute_highest_id(self.difficulty)
        return miner_child.REQUEST.pack(self.number, self.seal, highest, self.start, self.count)

    def is_solved_by(self, nonce: int) -> bool:
        block_id = hashlib.sha256(self.seal + nonce.to_bytes(8, "big")).digest()
        return self.start <= nonce < self.start + self.count and is_valid_work(block_id, self.difficulty)


class _Slot:
    """Keeps one child alive, and hands a job over to the next child when one dies."""

    def __init__(self, python: str) -> None:
        self.hashes = 0
        self.process: Process | None = None
        self._python = python
        self._socket: socket.socket | None = None
        self._job: _Job | None = None
        self._failure: Exception | None = None

    def give(self, job: _Job) -> None:
        """Starts `job` in place of the running one."""
        if self._failure is not None:
            job.result.set_exception(self._failure)
            return
        self._job = job
        self._send(job.encode())

    def stop(self) -> None:
        """Drops the job; its future stays as it is."""
        if self._job is not None:
            number, self._job = self._job.number, None
            self._send(miner_child.REQUEST.pack(number, bytes(32), bytes(32), 0, 0))

    async def run(self) -> None:
        """Keeps a child alive until cancelled. Gives up after MAX_CRASHES and after an unforeseen error; then this job
        and all later ones fail."""
        try:
            await self._keep_alive()
        except asyncio.CancelledError:
            if self._job is not None:
                self._job.result.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # raised from `mine`
            self._failure = error
            if self._job is not None:
                self._job.result.set_exception(error)

    async def _keep_alive(self) -> None:
        """Restarts the child whenever it dies. Raises MinerFailed."""
        crashes = 0
        while crashes < MAX_CRASHES:
            if crashes > 1:
                await asyncio.sleep(BACKOFF_S * 2 ** (crashes - 2))
            if await self._live():
                crashes = 0
            else:
                crashes += 1
        raise MinerFailed(f"the miner process {self._python} {MINER_MAIN} died {crashes} times before its first answer")

    async def _live(self) -> bool:
        """Runs one child from its start to its death. Returns whether it gave a correct answer, or lived for a
        while."""
        born = time.monotonic()
        answered = False
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    self.process = await asyncio.create_subprocess_exec(
                        self._python,
                        *("-I", "-S", str(MINER_MAIN)),
                        stdin=theirs.fileno(),
                        stdout=DEVNULL,
                        process_group=0,  # Ctrl-C is the daemon's to handle
                    )
                except OSError as error:
                    _log.warning("Miner process could not be started: %s", error)
                    return False
            process = self.process
            self._socket = ours
            try:
                if self._job is not None:
                    self._send(self._job.encode())
                while reply := await self._receive(ours):
                    if not self._on_reply(*miner_child.REPLY.unpack(reply)):
                        return False
                    answered = True
            finally:
                self._socket = self.process = None
                with suppress(ProcessLookupError):
                    process.kill()
                code = await process.wait()
        _log.warning("Miner process %d died (exit status %s) and is replaced", process.pid, code)
        return answered or time.monotonic() - born > 1

    async def _receive(self, ours: socket.socket) -> bytes:
        """Returns one reply; empty once the child is gone."""
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < miner_child.REPLY.size:
            try:
                chunk = await loop.sock_recv(ours, miner_child.REPLY.size - len(data))
            except ConnectionError:
                return b""
            if not chunk:
                return b""
            data += chunk
        return data

    def _on_reply(self, number: int, outcome: int, nonce: int, hashes: int) -> bool:
        """Handles an answer. Returns False if it is wrong, which no working child sends."""
        self.hashes += hashes
        job = self._job
        if job is None or job.number != number:
            return True  # an answer to a job that was dropped meanwhile
        if outcome == miner_child.FOUND and not job.is_solved_by(nonce):
            _log.error("Miner process gave nonce %d, which does not meet difficulty %d", nonce, job.difficulty)
            return False
        self._job = None
        if not job.result.done():
            job.result.set_result(nonce if outcome == miner_child.FOUND else None)
        return True

    def _send(self, data: bytes) -> None:
        if self._socket is None:
            return  # between two children: the next one gets the job when it starts
        try:
            self._socket.send(data)
        except OSError:  # gone, or has not read for hundreds of messages: the next child takes over
            if self.process is not None:
                with suppress(ProcessLookupError):
                    self.process.kill()


def validate_range(difficulty: int, start_nonce: int, count: int) -> None:
    """Raises ValueError for a range outside 64 bits or a difficulty below 1."""
    if difficulty < 1:
        raise ValueError(f"difficulty: expected at least 1, got {difficulty}")
    if start_nonce < 0 or count < 0 or start_nonce + count > MAX_NONCE:
        raise ValueError(f"nonces: expected a range within 64 bits, got {start_nonce} and {count} more")
