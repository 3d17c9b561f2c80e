"""A real node that ends itself with SIGKILL at a durable step, and one that writes down what it receives.

    doomed_node --config node3.yaml --die-at append.written --times 2 --after justification.committed
    doomed_node --config node0.yaml --tap node0.tap

It is `fednode start` with a `Faults` that kills, and a transport that takes notes. A step of a checkpoint happens in
the worker, and ends the node with it, as if the machine had failed; with `--alone` only the worker.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from chain.block import Id
from chain.store.interface import Faults
from node import daemon
from node.config.node_config import load_config
from node.errors import NodeError
from node.log import setup_logging
from node.p2p.transport.base import Handler, Message, MessageKind
from node.p2p.transport.rpc import RpcTransport
from node.training import worker_child, worker_config
from node.training.checkpoint import STEPS, Phase
from node.training.worker_config import WorkerConfig

CHECKPOINT_STEPS = tuple(f"{phase.value}.{step}" for phase in Phase for step in STEPS)
SPENT = ".spent"  # marks that a worker has died of a checkpoint: the next one lives


def kill_at(step: str, times: int = 1, after: str | None = None, end: Callable[[], None] = lambda: None) -> Faults:
    """Returns faults that kill when `step` is reached for the n-th time, counted from when `after` was reached; they
    call `end` just before."""
    lock = threading.Lock()
    seen, counts = 0, after is None

    def reach(reached: str) -> None:
        nonlocal seen, counts
        with lock:
            counts = counts or reached == after
            seen += counts and reached == step
            if seen == times:
                end()
                os.kill(os.getpid(), signal.SIGKILL)

    return reach


class Heard(NamedTuple):
    """A pushed message as its receiver got it."""

    peer: Id
    message: Message


def write_heard(fd: int, heard: Heard) -> None:
    """Writes in one call: a killed process has written all of it or nothing."""
    kind, data = heard.message.kind, heard.message.data
    os.write(fd, heard.peer + bytes([kind]) + len(data).to_bytes(4, "big") + data)


def read_heard(path: Path) -> Iterator[Heard]:
    data = path.read_bytes() if path.exists() else b""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 33 : at + 37], "big")
        yield Heard(data[at : at + 32], Message(MessageKind(data[at + 32]), data[at + 37 : at + 37 + size]))
        at += 37 + size


class _Tap:
    """A handler that notes each message before the node's own handler receives it, and passes all else on unchanged."""

    def __init__(self, handler: Handler, fd: int) -> None:
        self._handler = handler
        self._fd = fd

    def on_message(self, peer: Id, message: Message) -> None:
        write_heard(self._fd, Heard(peer, message))
        self._handler.on_message(peer, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)


class _TappedTransport(RpcTransport):
    tap: int

    async def run(self, handler: Handler) -> None:
        await super().run(_Tap(handler, self.tap))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--die-at", default="")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--after")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--tap", type=Path)
    asked = parser.parse_args()
    if asked.tap is not None:
        _TappedTransport.tap = os.open(asked.tap, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        vars(daemon)["RpcTransport"] = _TappedTransport
    config = load_config(asked.config)
    faults = None
    if asked.die_at in CHECKPOINT_STEPS:
        spent = config.node.data_dir / SPENT
        asked_of_worker = (asked.die_at, str(asked.times), str(spent), str(asked.alone))
        arguments = ("-m", "support.faults.doomed_node", "worker", *asked_of_worker)
        vars(worker_config)["WorkerConfig"] = partial(WorkerConfig, arguments=("-P", *arguments))
    elif asked.die_at:
        faults = kill_at(asked.die_at, asked.times, asked.after)
    setup_logging("info", "text", None)
    try:
        return daemon.run_daemon(config, faults)
    except NodeError as error:
        print(error.describe(), file=sys.stderr)
        return error.exit_code


def be_worker(step: str, times: str, spent: str, alone: str) -> None:
    """Runs `node.training.worker_child` so that it dies at its checkpoint, once."""

    def end() -> None:
        if alone == "True":
            Path(spent).touch()
        else:
            os.kill(os.getppid(), signal.SIGKILL)

    worker_child.main(faults=None if Path(spent).exists() else kill_at(step, int(times), end=end))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        be_worker(*sys.argv[2:])
        os._exit(0)
    sys.exit(main())
