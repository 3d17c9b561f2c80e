"""The offline node: reads a stopped node's data directory and answers as `node.admin.client.AdminClient` does for a
running node. It changes nothing in the directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Self

from chain.audit import ExportedBlock, export_blocks
from chain.block import ZERO, Block
from chain.checkpoint import get_marked
from chain.errors import ChainError, StoreCorrupted, StoreForbidden, StoreLocked, StoreMismatch
from chain.genesis import Genesis
from chain.selection import Selection, read_selection
from chain.state import State
from chain.store.sqlite import SqliteStore
from node.errors import NodeError, NotFound, PermissionRefused, VerificationFailed
from node.ledger.audit import run_audit, show_fault
from node.ledger.backup import OnProgress, Snapshot, take_snapshot
from node.ledger.comparison import Pair, StoredBytes, compare_chains, run_comparison
from node.ledger.evaluations import read_evaluations
from node.ledger.explain import add_work_unit, explain_round, is_explained
from node.ledger.joining import make_join_file
from node.ledger.metrics_query import MetricsQuery
from node.ledger.reader import Ledger
from node.ledger.runs_view import AuthorCount, RunsReader
from node.ledger.scores import add_scores_of_stopped
from node.ledger.selected_view import mark_best, show_selected
from node.ledger.site_statistics import read_statistics
from node.p2p.address_book import AddressBook
from node.pb import admin_pb2 as pb
from node.runs.chosen_round import choose_round
from node.runs.initial import read_initial
from node.runs.specs import RunSpecs
from node.training.checkpoint import CHECKPOINTS, get_run_dir
from node.training.model_file import ModelFile, find_aggregate, find_run, is_initial_needed, read_chosen
from node.training.own_best import OwnBest


@contextmanager
def _translated(data_dir: Path) -> Iterator[None]:
    """The store's errors, as the command line ends with them."""
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


class OfflineNode:
    """A stopped node, asked like a running one. Use it as a context manager.

    Raises NotFound when no node has run there, NodeError when one is running, VerificationFailed when the directory
    cannot even be opened for what is broken in it.
    """

    def __init__(self, data_dir: Path) -> None:
        self.place = f"the data directory {data_dir}"
        self._data_dir = data_dir
        with _translated(data_dir):
            mapping = SqliteStore.stored_genesis(data_dir)
            if mapping is None:
                raise NotFound(f"{data_dir}: expected a node's data directory, but no node has run there")
            self.genesis = Genesis.from_mapping(mapping)
            self._store = SqliteStore.open(data_dir, self.genesis, readonly=True)
        self._ledger = Ledger(self.genesis, self._store)

    def __repr__(self) -> str:
        return f"OfflineNode({str(self._data_dir)!r})"

    @cached_property
    def _runs(self) -> RunSpecs:
        return RunSpecs.load(self._store)

    @cached_property
    def _selection(self) -> Selection:
        """What the run in force has come to."""
        return read_selection(self._store.get_state, self._store.read_blocks, self._store.head_height)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def get_head(self, *, include_payloads: bool = False) -> pb.Block:
        with _translated(self._data_dir):
            return self._ledger.get_head(include_payloads=include_payloads)

    def get_block(self, height: int, *, include_payloads: bool = False) -> pb.Block:
        with _translated(self._data_dir):
            return self._ledger.get_block(height, include_payloads=include_payloads)

    def find_block(self, block_id: str, *, include_payloads: bool = False) -> pb.Block:
        with _translated(self._data_dir):
            return self._ledger.find_block(block_id, include_payloads=include_payloads)

    def list_blocks(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListBlocksReply:
        with _translated(self._data_dir):
            return self._ledger.list_blocks(first, limit, reverse=reverse)

    def list_rounds(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListRoundsReply:
        with _translated(self._data_dir):
            listed = self._ledger.list_rounds(first, limit, reverse=reverse)
            for shown in listed.rounds:
                add_work_unit(shown, self._runs)
            mark_best(listed.rounds, self._selection)
            return listed

    def get_round(self, number: int, scores_within_s: float | None = None) -> pb.Round:
        """With scores, if asked for in whatever time: the distances that what is held gives, and effects that were
        known before."""
        with _translated(self._data_dir):
            shown, runs = self._ledger.get_round(number), self._runs
            add_work_unit(shown, runs)
            mark_best([shown], self._selection)
            round_ = runs.find(number)
            if round_ is None:  # a change, or of another version, or with a model's module that is not here
                return shown
            if is_explained(round_):
                shared = runs.find_shared(round_)
                read = self._ledger.read_agreed(number, None if shared is None else shared.height)
                shown.MergeFrom(explain_round(self.read_state(number - 1), round_, *read))
            if scores_within_s is not None:
                add_scores_of_stopped(shown, self.genesis, round_, self._store)
            return shown

    def query_metrics(self, request: pb.QueryMetricsRequest) -> pb.Metrics:
        with _translated(self._data_dir):
            query = MetricsQuery(request, self._store.head_height)
            for first, last in query.get_pages():
                query.add(self._ledger.read_series(first, last, query.picker))
            return query.answer(self._ledger.read_places(query.choose()))

    def list_runs(self, number: int | None = None) -> Sequence[pb.RunView]:
        """As `AdminClient.list_runs`."""
        with _translated(self._data_dir):
            reader, head = RunsReader(self._store), self._store.head_height
            while reader.read_states(head):
                pass
            runs = [reader.show(index, head) for index in reader.choose(number)]
            run = self._store.get_state(head).run
            if run.select is not None and runs[-1].number == run.number:
                runs[-1].selected.CopyFrom(show_selected(run, self._selection))
            if number is not None:
                count = AuthorCount(runs[0])
                for first, last in count.get_pages():
                    count.add(*reader.read_page(first, last))
                count.put()
            return runs

    def get_statistics(self, run: int = 0) -> pb.StatisticsReply:
        """As `AdminClient.get_statistics`."""
        with _translated(self._data_dir):
            return read_statistics(self._store, self._runs, run)

    def list_evaluations(self, run: int | None = None) -> Sequence[pb.EvaluationView]:
        """As `AdminClient.list_evaluations`."""
        with _translated(self._data_dir):
            return read_evaluations(self._store, self._runs, run)

    def take_snapshot(self, folder: Path, on_progress: OnProgress) -> Snapshot:
        """All that is to be in a backup, put into `folder`."""
        with _translated(self._data_dir):
            return take_snapshot(self._store, self.genesis, folder, on_progress)

    def get_model_info(self, round_: str = "") -> pb.ModelInfo:
        return self._read_model(round_).info

    def export_model(self, round_: str = "") -> Iterator[pb.ModelChunk]:
        yield from self._read_model(round_).to_messages()

    def _read_model(self, asked: str) -> ModelFile:
        with _translated(self._data_dir):
            run = find_run(self._data_dir, self._runs.calendar)
            blobs = [self._store.locate_blob(each.initial_model) for each in self._runs.list_origins(run.number)]
            initial = read_initial(run, blobs) if is_initial_needed(run) else None
            head = self._store.head_height
            state = self.read_state(head)
            is_over = run.number != state.run.number or not state.has_round(head + 1)
            read_own_best = partial(OwnBest.read, get_run_dir(self._data_dir / CHECKPOINTS, run.number))
            chosen = choose_round(asked, run, self._selection, is_over=is_over, read_own_best=read_own_best)
            find = partial(find_aggregate, self._store, self._runs.calendar)
            return read_chosen(self._data_dir, self.genesis, run, initial, chosen, find)

    def get_height(self) -> int:
        with _translated(self._data_dir):
            return self._store.head_height

    def read_block(self, height: int) -> StoredBytes:
        with _translated(self._data_dir):
            stored = self._store.get_block_bytes(height)
            if stored is None:
                raise StoreCorrupted(f"{self._data_dir}: block {height}: missing from the store")
            return stored

    def read_state(self, height: int) -> State:
        """The state after `height`."""
        with _translated(self._data_dir):
            return self._store.get_state(max(0, height))

    def make_join_file(self) -> bytes:
        """With the addresses that the founders had, and those an operator has told this node since."""
        with _translated(self._data_dir):
            store = self._store
            head = store.head().block
            marks = [_get_block(store, height).id for height in get_marked(head.height)]
            addresses = AddressBook.load(self._data_dir, {}).get_all()
            return make_join_file(self.genesis, head, marks, store.get_state(head.height), addresses).encode()

    def list_evidence(self) -> pb.ListEvidenceReply:
        with _translated(self._data_dir):
            return self._ledger.list_evidence()

    def export(self, first: int, last: int | None) -> Iterator[ExportedBlock]:
        with _translated(self._data_dir):
            head = self._store.head_height
            end = head if last is None else last
            if not 0 <= first <= end <= head:
                raise NotFound(f"blocks {first} to {end}: the chain ends at height {head}")
            yield from export_blocks(self._store, first, end)

    def verify(
        self,
        first: int = 0,
        *,
        deep: bool = False,
        require_all: bool = False,
        on_progress: Callable[[pb.VerifyProgress], None] = lambda _: None,
    ) -> pb.VerifyReport:
        """The verdict on the chain from `first` on, and on every stored row and blob."""
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


def _get_block(store: SqliteStore, height: int) -> Block:
    stored = store.get_block(height)
    if stored is None:
        raise StoreCorrupted(f"{store.path}: block {height}: missing from the store")
    return stored.block


def compare_data_dirs(data_dir: Path, other: Path) -> pb.ChainComparison:
    """The height where two stopped nodes' chains part. Raises VerificationFailed for chains of two geneses."""
    with OfflineNode(data_dir) as node, OfflineNode(other) as rival:
        if node.genesis != rival.genesis:
            raise VerificationFailed(
                f"{other}: expected chain {node.genesis.chain_id.hex()}, got {rival.genesis.chain_id.hex()}"
            )

        def get_pair(height: int) -> Pair:
            return node.read_block(height), rival.read_block(height), node.read_state(height - 1)

        heights = node.get_height(), rival.get_height()
        return run_comparison(compare_chains(node.genesis, *heights), get_pair)


def verify_data_dir(
    data_dir: Path,
    first: int = 0,
    *,
    deep: bool = False,
    require_all: bool = False,
    on_progress: Callable[[pb.VerifyProgress], None] = lambda _: None,
) -> pb.VerifyReport:
    """As `OfflineNode.verify`, also where the directory cannot be opened for what is broken in it: a fault too."""
    try:
        node = OfflineNode(data_dir)
    except VerificationFailed as error:
        return pb.VerifyReport(first=first, last=first, head=ZERO.hex(), fault=show_fault(None, str(error)))
    with node:
        return node.verify(first, deep=deep, require_all=require_all, on_progress=on_progress)
