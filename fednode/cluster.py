"""`fednode.LocalCluster`: real nodes on this machine, for as long as a `with` block lasts."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fednode._arguments import read_whole, require_kind
from fednode._objects import check_importable, choose_sites, is_written, name_model, reading_data
from fednode.client import Client, connect
from node.errors import ConfigError, NodeError, NodeUnreachable
from node.testnet.cluster import POLL_S, NodeProcess
from node.testnet.cluster import LocalCluster as Processes
from node.testnet.layout import Testnet, TestnetSpec, make_testnet

PREFIX = "fednode-cluster-"
BESIDE = "-data"  # suffix of the directory that holds the files of an object

T = TypeVar("T")


class LocalCluster:
    """A federation of real `fednode` processes: each with a key, a chain, a worker that trains, and ports of its own.

        with fednode.LocalCluster(4, method="dfpl", rounds=5, partition="dirichlet:0.3") as cluster:
            cluster.wait(2)                              # until every node has applied round 2
            cluster.status()["node0"]["accuracy"]        # what fednode status --json says of each node
            cluster.wait()                               # until the last round
            [record["accuracy"] for record in cluster.rounds("node0")]
            with cluster.connect("node0") as node:       # as fednode.connect
                node.propose("set_rounds", rounds=9)

    Entering the block makes keys, genesis and configurations and starts the nodes; leaving it, also by an error or
    Ctrl-C, stops them all. They run in `directory`, which must be new or empty and is kept, so that it can be read and
    the nodes started again (`fednode --config DIR/node0.yaml`); or in a temporary one, which is removed.

    - `nodes` are how many there are, named node0, node1 and so on; `rounds` are how many they do (0: without end).
    - `method`, `data`, `partition`, `shots`, `model`, `size`, `seed` and `settings` are as `fednode.simulate` has them;
      settings may also be genesis', as in `{"waits.collect_s": 1}`. Data that are an object are written beside the
      directory, into one that is called like it with `-data` behind. A model's module must be where other processes
      find it: installed, on PYTHONPATH, or in the working directory.
    - `device` is what every node trains on.
    - `i_understand` is asked for by methods that share samples in a transformed form, such as fededs.

    It works from any thread and beside a running event loop, as in a notebook. Every call outside of the block raises
    NodeError. Entering raises ConfigError for what cannot be made.
    """

    def __init__(
        self,
        nodes: int = 4,
        *,
        method: str = "auto",
        data: object = "digits",
        rounds: int = 10,
        partition: str = "classes:3,1",
        shots: int | None = None,
        model: object = "auto",
        size: int | None = None,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        device: str = "cpu",
        directory: str | PathLike[str] | None = None,
        i_understand: bool = False,
    ) -> None:
        require_kind("a text", method=method, partition=partition, device=device)
        require_kind("a whole number", or_none=True, shots=shots, size=size)
        require_kind("a dictionary", or_none=True, settings=settings)
        nodes, rounds, seed = (read_whole(*one) for one in (("nodes", nodes), ("rounds", rounds), ("seed", seed)))
        nodes, partition = choose_sites(data, nodes, partition, (4, "classes:3,1"))
        self._data, self._settings = data, settings
        self._spec = TestnetSpec(
            num_nodes=nodes,
            method=method,
            rounds=rounds,
            partition=partition,
            shots=shots,
            model=name_model(model),
            size=size,
            seed=seed,
            device=device,
            base_port=0,
            i_understand=i_understand,
        )
        self._directory = None if directory is None else Path(directory)
        self._open: _Open | None = None
        self._closing = ExitStack()

    def __repr__(self) -> str:
        place = "not running" if self._open is None else str(self._open.testnet.directory)
        return f"<LocalCluster of {self._spec.num_nodes} nodes, {self._spec.method}: {place}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Does what entering the block does, for a notebook, where a block cannot span cells. Call `stop` afterwards; a
        cluster that is not stopped is stopped at the end of the program."""
        if self._open is not None:
            raise NodeError("this cluster runs already")
        with ExitStack() as undo:
            directory = self._directory
            if directory is None:
                temporary = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
                directory = Path(undo.enter_context(temporary)) / "cluster"
            testnet = self._make_testnet(directory)
            loop = undo.enter_context(_running_loop())
            processes = Processes(testnet)
            self._open = _Open(testnet, processes, loop)
            undo.callback(self._close)
            self._open.do(processes.start())
            atexit.register(self.stop)
            undo.callback(atexit.unregister, self.stop)
            self._closing = undo.pop_all()

    def _make_testnet(self, directory: Path) -> Testnet:
        """Writes the files of the nodes, and those of data that are an object, which stay with the directory."""
        check_importable(self._spec.model)
        beside = directory.absolute().with_name(directory.name + BESIDE)
        with ExitStack() as undo:
            if is_written(self._data):
                try:
                    beside.mkdir(mode=0o700, parents=True)
                except OSError as error:
                    raise ConfigError(f"{beside}: expected no such file, for data ({error.strerror})") from error
                undo.callback(shutil.rmtree, beside, ignore_errors=True)
            with reading_data(self._data, beside, self._settings, self._spec.seed) as options:
                spec = replace(self._spec, data=options.data, settings=options.settings)
                testnet = make_testnet(directory, spec)
            undo.pop_all()
        return testnet

    def stop(self) -> None:
        """Stops all nodes, and removes a temporary directory. It does nothing where they are stopped already."""
        self._closing.close()

    def _close(self) -> None:
        cluster, self._open = self._get(), None
        cluster.do(cluster.processes.__aexit__())

    def _get(self) -> _Open:
        if self._open is None:
            raise NodeError("expected a cluster that runs, within `with fednode.LocalCluster(...) as cluster:`")
        return self._open

    @property
    def directory(self) -> Path:
        """The directory of the nodes' configurations, keys, data and logs: node0.yaml, keys/node0.key, data/node0/,
        node0.log."""
        return self._get().testnet.directory

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes, in order."""
        return tuple(node.name for node in self._get().testnet.nodes)

    def wait(self, round: int | None = None, timeout_s: float = 600.0) -> None:  # noqa: A002 - what a user calls it
        """Returns once every node has finalised and applied `round`, by default the last.

        Raises NodeError with the ends of the nodes' logs where that takes longer than `timeout_s`, or a node ends.
        """
        cluster = self._get()
        last = cluster.testnet.genesis.run.rounds
        if round is None and not last:
            raise NodeError("expected a round to wait for, as this cluster goes on without end")
        if round is not None and (round < 1 or (last and round > last)):
            raise NodeError(f"round: expected 1 to {last or 'any'} (got {round})")
        cluster.do(cluster.processes.wait_for_height(last if round is None else round, timeout_s))

    def connect(self, name: str, timeout_s: float = 120.0) -> Client:
        """Returns a client of one node, as `fednode.connect` does, once the node answers.

        Raises NodeUnreachable where that takes longer than `timeout_s`, NodeError with the end of its log where the
        node has ended.
        """
        cluster = self._get()
        process = cluster.find(name)
        deadline = time.monotonic() + timeout_s
        while cluster.do(process.get_status()) is None:
            if time.monotonic() > deadline:
                raise NodeUnreachable(f"{name} has not answered within {timeout_s:g} s\n{process.read_log_tail()}")
            time.sleep(POLL_S)
        return connect(process.socket)

    def status(self) -> dict[str, dict[str, Any] | None]:
        """Returns the status of each node, by name, as `fednode status --json`; None for a node that does not answer
        yet.

        Raises NodeError, with the end of its log, where a node has ended by itself.
        """
        cluster = self._get()
        return {process.name: cluster.do(process.get_status()) for process in cluster.processes.processes}

    def rounds(self, name: str) -> list[dict[str, Any]]:
        """Returns the records of all rounds that the node took part in, oldest first, as `fednode rounds show R
        --json`: who contributed, who was rejected and why, seconds by phase, bytes, accuracy before and after."""
        cluster = self._get()
        return cluster.do(cluster.find(name).get_rounds())

    def read_log(self, name: str) -> str:
        """Returns all that the node has logged so far."""
        return self._get().find(name).log_file.read_text(errors="replace")


class _Open:
    """The state between entering and leaving: the files, the processes, and the event loop that runs them."""

    def __init__(self, testnet: Testnet, processes: Processes, loop: asyncio.AbstractEventLoop) -> None:
        self.testnet = testnet
        self.processes = processes
        self._loop = loop

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the loop that the processes belong to, and waits for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C, too
            future.cancel()
            raise

    def find(self, name: str) -> NodeProcess:
        processes = {process.name: process for process in self.processes.processes}
        if name not in processes:
            raise NodeError(f"expected one of {', '.join(processes)}, got {name!r}")
        return processes[name]


@contextmanager
def _running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Runs an event loop in a thread of its own, until the context is left."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fednode-cluster", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
