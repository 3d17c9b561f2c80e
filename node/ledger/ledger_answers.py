"""The answers of a ledger, about a running node's store or the directory of a stopped one. Each function answers the
operation of its name (`node.admin.operations`).

Reading is synchronous. A long computation reads the store piece by piece through `Call`, since votes wait for the
store's thread too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from chain.audit import export_blocks
from chain.block import Block, Id
from chain.checkpoint import get_marked
from chain.errors import StoreCorrupted
from chain.run import Run
from chain.selection import Selection
from chain.store.sqlite import SqliteStore
from node.errors import InvalidRequest, NotFound
from node.ledger.audit import Call, call_directly
from node.ledger.evaluations import Endings, read_evaluations
from node.ledger.explain import add_work_unit, explain_round, is_explained
from node.ledger.joining import make_join_file
from node.ledger.metrics_query import PAGE, MetricsQuery, RoundPlace
from node.ledger.reader import Ledger
from node.ledger.runs_view import AuthorCount, RunsReader
from node.ledger.scores import add_scores_of_stopped
from node.ledger.selected_view import mark_best, show_selected
from node.ledger.site_statistics import read_statistics
from node.p2p.address_book import AddressBook
from node.pb import admin_pb2 as pb
from node.pb.common_pb2 import FinalisedBlock
from node.runs.chosen_round import choose_round
from node.runs.initial import read_initial
from node.runs.specs import RunSpecs
from node.training.checkpoint import CHECKPOINTS, get_run_dir
from node.training.model_file import ModelFile, find_aggregate, find_run, is_initial_needed, read_chosen
from node.training.own_best import OwnBest


class LedgerAnswers:
    """Answers from one store. `get_selection` returns the selection of the best round in the run in force. Raises
    NotFound, InvalidRequest, NodeError, and StoreCorrupted for damaged data."""

    def __init__(
        self,
        ledger: Ledger,
        store: SqliteStore,
        get_runs: Callable[[], RunSpecs],
        get_selection: Callable[[], Selection],
        call: Call = call_directly,
    ) -> None:
        self._genesis = ledger.genesis
        self._ledger = ledger
        self._store = store
        self._get_runs = get_runs
        self._get_selection = get_selection
        self._call = call
        self._runs = RunsReader(store)
        self._endings: Endings = {}

    # ---- the node

    def get_genesis(self) -> pb.GenesisReply:
        return pb.GenesisReply(chain_id=self._genesis.chain_id.hex(), json=json.dumps(self._genesis.to_mapping()))

    def get_join_file(self, addresses: Mapping[Id, str] | None = None) -> pb.JoinFileReply:
        """Makes the join file of the head, with these addresses of members; by default those that the directory has."""
        if addresses is None:
            addresses = AddressBook.load(self._store.path, {}).get_all()
        head = self._call(lambda: self._store.head().block)
        marks = [self._call(partial(self._get_block, height)).id for height in get_marked(head.height)]
        state = self._call(lambda: self._store.get_state(head.height))
        return pb.JoinFileReply(file=make_join_file(self._genesis, head, marks, state, addresses).encode())

    def _get_block(self, height: int) -> Block:
        if (stored := self._store.get_block(height)) is None:
            raise StoreCorrupted(f"{self._store.path}: block {height}: missing from the store")
        return stored.block

    # ---- the chain

    def get_head(self, include_payloads: bool) -> pb.Block:
        return self._ledger.get_head(include_payloads=include_payloads)

    def get_block(self, height: int | None, id: str | None, include_payloads: bool) -> pb.Block:  # noqa: A002
        if height is not None:
            return self._ledger.get_block(height, include_payloads=include_payloads)
        if id is None:
            raise InvalidRequest("expected a height or an id, got neither")
        return self._ledger.find_block(id, include_payloads=include_payloads)

    def list_blocks(self, first: int | None, limit: int, reverse: bool) -> pb.ListBlocksReply:
        return self._ledger.list_blocks(first, limit, reverse=reverse)

    def list_evidence(self) -> pb.ListEvidenceReply:
        return self._ledger.list_evidence()

    def export_chain(self, first: int, last: int | None) -> Iterator[FinalisedBlock]:
        head = self._store.head_height
        end = head if last is None else last
        if not 0 <= first <= end <= head:
            raise NotFound(f"blocks {first} to {end}: the chain ends at height {head}")
        for _, block, certificate in export_blocks(self._store, first, end):
            yield FinalisedBlock(block=block, certificate=certificate)

    # ---- rounds

    def list_rounds(self, first: int | None, limit: int, reverse: bool) -> pb.ListRoundsReply:
        listed = self._ledger.list_rounds(first, limit, reverse=reverse)
        for shown in listed.rounds:
            add_work_unit(shown, self._get_runs())
        mark_best(listed.rounds, self._get_selection())
        return listed

    def get_round(self, round: int, scores_within_s: float | None = None) -> pb.Round:  # noqa: A002
        """Shows one round. With `scores_within_s`, however long, it adds the scores of a stopped node: the distances
        computed from held payloads, and the effects that were known before."""
        shown, runs = self._call(lambda: self._ledger.get_round(round)), self._get_runs()
        add_work_unit(shown, runs)
        mark_best([shown], self._get_selection())
        round_ = runs.find(round)
        if round_ is None:  # a change, a run of another version, or a model whose module is not here
            return shown
        if is_explained(round_):
            shared = runs.find_shared(round_)
            place = None if shared is None else shared.height
            read = self._call(lambda: self._ledger.read_agreed(round, place))
            state = self._call(lambda: self._store.get_state(max(0, round - 1)))
            shown.MergeFrom(explain_round(state, round_, *read))
        if scores_within_s is not None:
            add_scores_of_stopped(shown, self._genesis, round_, self._store)
        return shown

    def query_metrics(self, series: Sequence[str], first: int, last: int | None, max_points: int) -> pb.Metrics:
        query = MetricsQuery(series, first, last, max_points, head=self._get_head())
        for low, high in query.get_pages():
            query.add(self._call(partial(self._ledger.read_series, low, high, query.picker)))
        heights, places = query.choose(), list[RoundPlace]()
        for i in range(0, len(heights), PAGE):
            places += self._call(partial(self._ledger.read_places, heights[i : i + PAGE]))
        return query.answer(places)

    def _get_head(self) -> int:
        return self._call(lambda: self._store.head_height)

    # ---- runs

    def list_runs(self, run: int | None = None) -> pb.ListRunsReply:
        """Shows all runs, or one with the members that trained in it: 0 is the newest."""
        reader, head = self._runs, self._get_head()
        while self._call(lambda: reader.read_states(head)):
            pass
        shown = [self._call(partial(reader.show, index, head)) for index in reader.choose(run)]
        if reader.newest.select is not None and shown[-1].number == reader.newest.number:
            newest = self._call(lambda: self._store.get_state(head)).run
            shown[-1].selected.CopyFrom(show_selected(newest, self._get_selection()))
        if run is not None:
            count = AuthorCount(shown[0])
            for first, last in count.get_pages():
                count.add(*self._call(partial(reader.read_page, first, last)))
            count.put()
        return pb.ListRunsReply(runs=shown)

    def get_statistics(self, run: int) -> pb.StatisticsReply:
        return read_statistics(self._store, self._get_runs(), run)

    def list_evaluations(self, run: int | None = None) -> pb.ListEvaluationsReply:
        found = read_evaluations(self._store, self._get_runs(), run, self._endings)
        return pb.ListEvaluationsReply(evaluations=found)

    # ---- the model

    def get_model_info(self, round: str) -> pb.ModelInfo:  # noqa: A002
        return self.read_model(round).info

    def export_model(self, round: str) -> Iterator[pb.ModelChunk]:  # noqa: A002
        yield from self.read_model(round).to_messages()

    def read_model(self, asked: str) -> ModelFile:
        """Reads the model after the round that is asked for (`choose_round`), from the last checkpoint."""
        store, runs, data_dir = self._store, self._get_runs(), self._store.path
        run, initial = find_run(data_dir, runs.calendar), None
        if is_initial_needed(run):
            initial = self._call(
                lambda: read_initial(
                    run, [store.locate_blob(each.initial_model) for each in runs.list_origins(run.number)]
                )
            )
        head = self._get_head()
        state = self._call(lambda: store.get_state(head))
        chosen = choose_round(
            asked,
            run,
            self._get_selection(),
            is_over=run.number != state.run.number or not state.has_round(head + 1),
            read_own_best=partial(OwnBest.read, get_run_dir(data_dir / CHECKPOINTS, run.number)),
        )

        def find(run: Run, number: int) -> bytes | None:
            return self._call(lambda: find_aggregate(store, runs.calendar, run, number))

        return read_chosen(data_dir, self._genesis, run, initial, chosen, find)
