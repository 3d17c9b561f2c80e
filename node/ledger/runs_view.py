"""The runs of a chain, as `fednode runs` shows them: read from the states and blocks of a running node's store or a
stopped one's.

Each state is read once, as the chain grows only at its head. States and blocks are read a page at a time, and runs one
by one, since votes wait for the store's thread too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chain.block import Answer, ApprovedChange, Block, Id
from chain.changes.change import Change, read_change
from chain.errors import StoreCorrupted
from chain.run import Run
from chain.signing import encode_id
from chain.state import Member, State
from chain.store.sqlite import SqliteStore
from node.errors import NotFound
from node.finite import to_finite
from node.ledger.names import get_name
from node.pb import admin_pb2 as pb

NEWEST_RECORDS = 64  # how far below its end the accuracy of a run may be
COUNTED = 1000  # the newest heights of a run, whose authors are counted
PAGE = 64


@dataclass(slots=True)
class _Span:
    """A run as states show it: the height of the block that started it, `began`, and the run in the last state that has
    it."""

    began: int
    run: Run  # in the last state that has it


class RunsReader:
    """Reads one store, on its thread: `read_states` until it returns False, then `show` for each chosen run."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._spans: list[_Span] = []
        self._read_to = -1  # the height up to which states are in the spans

    def read_states(self, head: int) -> bool:
        """Reads a page of the states added since the last call, on a chain that ends at `head`. Returns whether there
        are more."""
        changes = self._store.get_change_heights(self._read_to + 1, head)
        unread = [height for height in (0, *changes) if height > self._read_to]
        for height in unread[:PAGE]:
            state = self._store.get_state(height)
            self._read_to = height
            if not self._spans or self._spans[-1].run.number != state.run.number:
                self._spans.append(_Span(height, state.run))
            self._spans[-1].run = state.run
        return len(unread) > PAGE

    @property
    def newest(self) -> Run:
        """Returns the last run that was read."""
        return self._spans[-1].run

    def choose(self, number: int | None = None) -> Sequence[int]:
        """Returns the indices of all runs that were read, or of one: 0 is the newest. Reads nothing. Raises
        NotFound."""
        count = len(self._spans)
        if number is None:
            return range(count)
        index = count - 1 if number == 0 else number - 1
        if not 0 <= index < count:
            raise NotFound(f"run {number}: there were runs 1 to {count}")
        return [index]

    def read_page(self, first: int, last: int) -> tuple[list[Block], State]:
        """Returns blocks and the state that judges the first of them, as `AuthorCount` takes them. Blocks that close a
        run that selects are left out, as nobody trains for them."""
        blocks, state = list(self._store.read_blocks(first, last)), self._store.get_state(first - 1)
        if state.run.select is not None:
            blocks = [b for b in blocks if not self._store.get_state(b.height - 1).run.is_closing(b.height)]
        return blocks, state

    def read_change(self, height: int) -> tuple[Change, ApprovedChange]:
        """Returns the change in the block at `height`, and the answers to it. Raises StoreCorrupted."""
        stored = self._store.get_block(height)
        if stored is None or stored.block.change is None:
            raise StoreCorrupted(f"{self._store.path}: block {height}: expected a change, got none")
        return read_change(stored.block.change.change), stored.block.change

    def show(self, index: int, head: int) -> pb.RunView:
        """Shows the run at this index, without its authors."""
        span = self._spans[index]
        is_over = index + 1 < len(self._spans)
        last = self._spans[index + 1].began - 1 if is_over else max(head, span.began)
        run = span.run if span.run.select is None else self._store.get_state(last).run  # patience may have ended it
        planned = run.num_heights if run.select is None else run.last_round  # the height that closes it is no round
        made = max(0, run.get_trained(last))
        terms = {key: value for key, value in run.to_terms().items() if key != "schema"}
        shown = pb.RunView(
            number=run.number,
            method=run.method["name"],
            model=run.model["name"],
            terms=json.dumps(terms),
            rounds=planned,
            made=min(made, planned) if run.last_round else made,
            phase=_get_phase(run, last, is_over=is_over),
            began=span.began,
            last=last,
        )
        if span.began:
            self._add_origin(shown)
        self._add_accuracy(shown)
        return shown

    def _add_origin(self, shown: pb.RunView) -> None:
        """Adds the change that started the run, and who approved it."""
        change, approved = self.read_change(shown.began)
        before = self._store.get_state(shown.began - 1)
        shown.change, shown.note = change.compute_id(before.chain_id).hex(), change.note
        shown.approvals.extend(
            show_answer(before, before.members[index].key, answer) for index, answer, _ in approved.answers
        )

    def _add_accuracy(self, shown: pb.RunView) -> None:
        first = max(shown.began + 1, shown.last - NEWEST_RECORDS + 1)
        for height, record in self._store.rounds(first, shown.last):
            accuracy = to_finite(record.get("accuracy"))
            if accuracy is not None:
                shown.accuracy, shown.measured = accuracy, height


class AuthorCount:
    """Counts the contributors to the newest heights of a run. `get_pages` lists what to read, `add` takes it, and `put`
    adds the counts to the run."""

    def __init__(self, run: pb.RunView) -> None:
        self._run = run
        self._counts = Counter[Id]()
        self._num_rounds = 0
        self._members: dict[Id, Member] = {}

    def get_pages(self) -> Iterator[tuple[int, int]]:
        """Yields the heights to read, first and last of each page."""
        last = self._run.last
        for first in range(max(self._run.began + 1, last - COUNTED + 1), last + 1, PAGE):
            yield first, min(first + PAGE - 1, last)

    def add(self, blocks: Sequence[Block], state: State) -> None:
        self._members |= {member.key: member for member in state.members}
        for block in blocks:
            self._num_rounds += block.change is None
            self._counts.update(contribution.author for contribution in block.contributions)

    def put(self) -> None:
        self._run.counted = self._num_rounds
        self._run.authors.extend(
            pb.RunAuthor(id=encode_id(author), name=name, rounds=count)
            for author, (name, count) in sorted(self._merge_keys().items(), key=lambda item: (-item[1][1], item[0]))
        )

    def _merge_keys(self) -> dict[Id, tuple[str, int]]:
        """Returns name and count of each seat by the newest of its keys; a key of unknown seat is counted by itself."""
        newest = {member.seat: member for member in self._members.values()}
        merged: dict[Id, tuple[str, int]] = {}
        for author, count in self._counts.items():
            known = self._members.get(author)
            key, name = (author, encode_id(author)[:8]) if known is None else (newest[known.seat].key, known.name)
            merged[key] = (name, merged.get(key, ("", 0))[1] + count)
        return merged


def show_answer(state: State, voter: Id, answer: Answer) -> pb.ApprovalView:
    return pb.ApprovalView(id=encode_id(voter), name=get_name(state, voter), trains=answer is Answer.YES)


def _get_phase(run: Run, last: int, *, is_over: bool) -> str:
    if is_over:
        return "over"
    if run.is_ended:
        return "ended"
    return "running" if run.has_round(last + 1) else "done"
