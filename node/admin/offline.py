"""The offline node: reads a stopped node's data directory and answers as `node.admin.client.AdminClient` does for a
running node. It changes nothing in the directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chain.block import ZERO
from chain.errors import ChainError, StoreCorrupted, StoreForbidden, StoreLocked, StoreMismatch
from chain.genesis import Genesis
from chain.selection import Selection, read_selection
from chain.store.sqlite import SqliteStore
from node.admin.ledger_client import LedgerClient
from node.admin.operations import A, Operation, Q, read_fields
from node.errors import NodeError, NotFound, PermissionRefused, VerificationFailed
from node.ledger.audit import run_audit, show_fault
from node.ledger.backup import OnProgress, Snapshot, take_snapshot
from node.ledger.comparison import Pair, StoredBytes, compare_chains, run_comparison
from node.ledger.ledger_answers import LedgerAnswers
from node.ledger.reader import Ledger
from node.pb import admin_pb2 as pb
from node.runs.specs import RunSpecs


@contextmanager
def _translated(data_dir: Path) -> Iterator[None]:
    """Translates the store's errors into those that the command line ends with."""
    try:
        yield
    except StoreLocked as error:
        raise NodeError(f"{data_dir}: a node is running on it; ask that node, with --socket or --config") from error
    except (StoreCorrupted, StoreMismatch) as error:
        raise VerificationFailed(str(error)) from error
    except StoreForbidden as error:
        raise PermissionRefused(str(error)) from error
    except ChainError as error:
        raise NodeError(str(error)) from error
    except PermissionError as error:
        raise PermissionRefused(f"{error.filename}: {error.strerror}") from error


class OfflineNode(LedgerClient):
    """A stopped node that answers like a running one. Use it as a context manager.

    Raises NotFound when no node has run there, NodeError when one is running, VerificationFailed when the directory is
    too damaged to be opened.
    """

    def __init__(self, data_dir: Path) -> None:
        self.place = f"the data directory {data_dir}"
        self._data_dir = data_dir
        with _translated(data_dir):
            mapping = SqliteStore.stored_genesis(data_dir)
            if mapping is None:
                raise NotFound(f"{data_dir}: expected a node's data directory, but no node has run there")
            genesis = Genesis.from_mapping(mapping)
            self._store = SqliteStore.open(data_dir, genesis, readonly=True)
        self._answers = LedgerAnswers(
            Ledger(genesis, self._store), self._store, lambda: self._runs, lambda: self._selection
        )

    def __repr__(self) -> str:
        return f"OfflineNode({str(self._data_dir)!r})"

    @cached_property
    def _runs(self) -> RunSpecs:
        return RunSpecs.load(self._store)

    @cached_property
    def _selection(self) -> Selection:
        """Returns the choice of the best round in the run in force."""
        return read_selection(self._store.get_state, self._store.read_blocks, self._store.head_height)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def ask(self, operation: Operation[Q, A], request: Q, more_s: float = 0.0) -> A:
        with _translated(self._data_dir):
            reply: A = self._find(operation)(**read_fields(request))
            return reply

    def stream(self, operation: Operation[Q, A], request: Q) -> Iterator[A]:
        with _translated(self._data_dir):
            yield from self._find(operation)(**read_fields(request))

    def _find(self, operation: Operation[Any, Any]) -> Callable[..., Any]:
        if not operation.of_ledger:
            raise NodeError(f"{self._data_dir}: expected a running node, as a stopped one does not answer this")
        function: Callable[..., Any] = getattr(self._answers, operation.function)
        return function

    def take_snapshot(self, folder: Path, on_progress: OnProgress) -> Snapshot:
        """Copies all that belongs to a backup into `folder`."""
        with _translated(self._data_dir):
            return take_snapshot(self._store, self.genesis, folder, on_progress)

    def get_height(self) -> int:
        with _translated(self._data_dir):
            return self._store.head_height

    def read_pair(self, other: OfflineNode, height: int) -> Pair:
        """Returns the block of each chain at a height, and the state that judges both."""
        with _translated(self._data_dir):
            state = self._store.get_state(max(0, height - 1))
        return self._read_block(height), other._read_block(height), state

    def _read_block(self, height: int) -> StoredBytes:
        with _translated(self._data_dir):
            stored = self._store.get_block_bytes(height)
            if stored is None:
                raise StoreCorrupted(f"{self._data_dir}: block {height}: missing from the store")
            return stored

    def verify(
        self,
        first: int = 0,
        *,
        deep: bool = False,
        require_all: bool = False,
        on_progress: Callable[[pb.VerifyProgress], None] = lambda _: None,
    ) -> pb.VerifyReport:
        """Returns the verdict on the chain from `first` on, and on every stored row and blob."""
        try:
            last = self._store.head_height
        except StoreCorrupted:
            last = first

        def on_height(height: int) -> None:
            on_progress(pb.VerifyProgress(height=height, last=last))

        with _translated(self._data_dir):
            return run_audit(
                self.genesis, self._store, deep=deep, first=first, require_all=require_all, on_height=on_height
            )


def compare_data_dirs(data_dir: Path, other: Path) -> pb.ChainComparison:
    """Returns the height where two stopped nodes' chains part. Raises VerificationFailed for chains of two geneses."""
    with OfflineNode(data_dir) as node, OfflineNode(other) as rival:
        if node.genesis != rival.genesis:
            raise VerificationFailed(
                f"{other}: expected chain {node.genesis.chain_id.hex()}, got {rival.genesis.chain_id.hex()}"
            )
        heights = node.get_height(), rival.get_height()
        return run_comparison(compare_chains(node.genesis, *heights), partial(node.read_pair, rival))


def verify_data_dir(
    data_dir: Path,
    first: int = 0,
    *,
    deep: bool = False,
    require_all: bool = False,
    on_progress: Callable[[pb.VerifyProgress], None] = lambda _: None,
) -> pb.VerifyReport:
    """Returns the verdict of `OfflineNode.verify`; a directory too damaged to be opened is a fault in it, too."""
    try:
        node = OfflineNode(data_dir)
    except VerificationFailed as error:
        return pb.VerifyReport(first=first, last=first, head=ZERO.hex(), fault=show_fault(None, str(error)))
    with node:
        return node.verify(first, deep=deep, require_all=require_all, on_progress=on_progress)
