"""The client of a ledger: asks the same questions of a running node or of a stopped node's data directory."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from node.admin import operations as ops
from node.admin.operations import A, Operation, Q
from node.errors import NodeUnreachable
from node.pb import admin_pb2 as pb

if TYPE_CHECKING:  # kept out of `fednode status`, which is to answer at once and needs neither arrays nor signatures
    from chain.audit import ExportedBlock
    from chain.genesis import Genesis

MOST_AT_ONCE = 1 << 20  # items that a request can ask for; a page has fewer

P = TypeVar("P", pb.ListBlocksReply, pb.ListRoundsReply)
T = TypeVar("T")


class LedgerClient(ABC):
    """Asks the questions that any ledger answers, a running node's or a stopped one's. Raises NodeError."""

    place: str

    @abstractmethod
    def ask(self, operation: Operation[Q, A], request: Q, more_s: float = 0.0) -> A:
        """Returns the answer, within the operation's time limit and `more_s`."""

    @abstractmethod
    def stream(self, operation: Operation[Q, A], request: Q) -> Iterator[A]:
        """Yields one answer after the other. Closing the iterator ends the call."""

    @cached_property
    def genesis(self) -> Genesis:
        from chain.genesis import Genesis

        reply = self.ask(ops.GET_GENESIS, pb.GetGenesisRequest())
        return Genesis.from_mapping(json.loads(reply.json))

    def make_join_file(self) -> bytes:
        return self.ask(ops.GET_JOIN_FILE, pb.GetJoinFileRequest()).file

    # ---- the chain

    def get_head(self, *, include_payloads: bool = False) -> pb.Block:
        return self.ask(ops.GET_HEAD, pb.GetHeadRequest(include_payloads=include_payloads))

    def get_block(self, height: int, *, include_payloads: bool = False) -> pb.Block:
        return self.ask(ops.GET_BLOCK, pb.GetBlockRequest(height=height, include_payloads=include_payloads))

    def find_block(self, block_id: str, *, include_payloads: bool = False) -> pb.Block:
        return self.ask(ops.GET_BLOCK, pb.GetBlockRequest(id=block_id, include_payloads=include_payloads))

    def list_blocks(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListBlocksReply:
        """Returns one page; `iterate_blocks` reads all."""
        return self.ask(ops.LIST_BLOCKS, pb.ListRequest(first=first, limit=limit, reverse=reverse))

    def iterate_blocks(
        self, first: int | None = None, limit: int | None = None, *, reverse: bool = False
    ) -> Iterator[pb.BlockSummary]:
        """Yields blocks, page by page and by default the newest first: all, or `limit` of them."""
        return read_pages(partial(self.list_blocks, reverse=reverse), lambda page: page.blocks, first, limit)

    def list_evidence(self) -> pb.ListEvidenceReply:
        return self.ask(ops.LIST_EVIDENCE, pb.ListEvidenceRequest())

    def export(self, first: int, last: int | None) -> Iterator[ExportedBlock]:
        blocks = self.stream(ops.EXPORT_CHAIN, pb.ExportChainRequest(first=first, last=last))
        for height, stored in enumerate(blocks, start=first):
            yield height, stored.block, stored.certificate

    def verify(
        self,
        first: int = 0,
        *,
        deep: bool = False,
        require_all: bool = False,
        on_progress: Callable[[pb.VerifyProgress], None] = lambda _: None,
    ) -> pb.VerifyReport:
        """Returns the verdict on the chain from `first` on, and on every stored row and blob."""
        request = pb.VerifyChainRequest(first=first, deep=deep, require_all=require_all)
        for update in self.stream(ops.VERIFY_CHAIN, request):
            if update.HasField("report"):
                return update.report
            on_progress(update.progress)
        raise NodeUnreachable(f"{self.place} broke the verification off")

    # ---- rounds and runs

    def list_rounds(self, first: int | None, limit: int, *, reverse: bool) -> pb.ListRoundsReply:
        """Returns one page; `iterate_rounds` reads all."""
        return self.ask(ops.LIST_ROUNDS, pb.ListRequest(first=first, limit=limit, reverse=reverse))

    def iterate_rounds(
        self, first: int | None = None, limit: int | None = None, *, reverse: bool = False
    ) -> Iterator[pb.Round]:
        """Yields rounds, page by page, as `iterate_blocks` yields blocks."""
        return read_pages(partial(self.list_rounds, reverse=reverse), lambda page: page.rounds, first, limit)

    def get_round(self, number: int, scores_within_s: float | None = None) -> pb.Round:
        """Returns a round; with `scores_within_s`, with the scores that the node can compute within so many seconds."""
        request = pb.GetRoundRequest(round=number, scores_within_s=scores_within_s)
        return self.ask(ops.GET_ROUND, request, scores_within_s or 0.0)

    def query_metrics(self, request: pb.QueryMetricsRequest) -> pb.Metrics:
        return self.ask(ops.QUERY_METRICS, request)

    def list_runs(self, number: int | None = None) -> Sequence[pb.RunView]:
        """Returns all runs, or one with the members that trained in it; 0 is the newest."""
        return self.ask(ops.LIST_RUNS, pb.ListRunsRequest(run=number)).runs

    def get_statistics(self, run: int = 0) -> pb.StatisticsReply:
        """Returns the statistics that the members of a run agreed on; 0 is the newest run."""
        return self.ask(ops.GET_STATISTICS, pb.GetStatisticsRequest(run=run))

    def list_evaluations(self, run: int | None = None) -> Sequence[pb.EvaluationView]:
        """Returns all evaluations of a model at every site, or that of one run; 0 is the newest."""
        return self.ask(ops.LIST_EVALUATIONS, pb.ListEvaluationsRequest(run=run)).evaluations

    # ---- the model

    def get_model_info(self, round_: str = "") -> pb.ModelInfo:
        return self.ask(ops.GET_MODEL_INFO, pb.GetModelInfoRequest(round=round_))

    def export_model(self, round_: str = "") -> Iterator[pb.ModelChunk]:
        """Yields the description of a model file, then its bytes. `round_` is newest, best or a number."""
        return self.stream(ops.EXPORT_MODEL, pb.ExportModelRequest(round=round_))


def read_pages(
    get_page: Callable[[int | None, int], P],
    get_items: Callable[[P], Sequence[T]],
    first: int | None,
    limit: int | None,
) -> Iterator[T]:
    """Yields items, all or `limit` of them, from pages that each name the beginning of the next one."""
    left = limit
    while left is None or left > 0:
        page = get_page(first, 0 if left is None else min(left, MOST_AT_ONCE))
        items = get_items(page)
        yield from items
        if not page.HasField("next"):
            return
        first, left = page.next, None if left is None else left - len(items)
