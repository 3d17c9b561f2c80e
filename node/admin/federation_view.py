"""The view of a federation over its life: its members by the newest state, and the runs there were by all states.

Each state is read once, as the chain grows at its head alone; blocks are read a page at a time, since votes wait for
the store's thread too.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from chain.block import ApprovedChange, Block, Id
from chain.changes.change import Change, read_change
from chain.errors import StoreCorrupted
from chain.run import Run
from chain.signing import encode_id
from chain.state import Member, State
from node.admin.change_view import show_answer
from node.admin.peer_view import PeerView
from node.admin.stored_chain import StoredChain
from node.consensus.service import RoundService
from node.errors import NotFound
from node.finite import to_finite
from node.pb import admin_pb2 as pb

NEWEST_RECORDS = 64  # how far below its end the accuracy of a run is looked for
COUNTED = 1000  # newest heights of a run whose authors are counted
PAGE = 64


@dataclass(slots=True)
class _Span:
    """A run as states show it: from the block that started it, `began`, to the last state that holds it."""

    began: int
    run: Run  # as that last state has it


class FederationView:
    """Reads one node's tip, store and peers."""

    def __init__(self, service: RoundService, chain: StoredChain, peers: PeerView) -> None:
        self._service = service
        self._chain = chain
        self._peers = peers
        self._spans: list[_Span] = []
        self._read_to = -1  # the height up to which states are in the spans

    @property
    def _me(self) -> Id:
        """The key in force, which a rotation changes."""
        return self._service.signer.id

    # ---- members

    async def list_members(self) -> pb.ListMembersReply:
        tip = self._service.tip
        members = sorted(tip.state.members, key=lambda member: member.seat)
        return pb.ListMembersReply(
            height=tip.height,
            quorum=tip.state.q,
            min_contributions=tip.state.min_contributions,
            members=[await self._show_member(member) for member in members],
            observers=[
                pb.ObserverView(
                    id=encode_id(observer.key),
                    name=observer.name,
                    connected=self._service.peers.is_connected(observer.key),
                    alive=self._service.peers.is_alive(observer.key),
                )
                for observer in tip.state.observers
            ],
        )

    async def _show_member(self, member: Member) -> pb.MemberView:
        shown = pb.MemberView(
            id=encode_id(member.key),
            name=member.name,
            seat=member.seat,
            since=member.since,
            key_since=member.key_since,
            suspended=member.is_suspended,
            me=member.key == self._me,
        )
        if member.pardoned_at:
            shown.pardoned_at = member.pardoned_at
        if member.since:
            change, _ = await self._read_change(member.since)
            shown.change = self._compute_id(change)
        if member.key == self._me:
            shown.connected = shown.alive = True
            shown.height = self._service.tip.height
        elif (peer := self._service.peers.get(member.key)) is not None:
            view = self._peers.show(peer)
            shown.connected, shown.alive = view.connected, view.alive
            shown.through.extend(view.through)
            for name in ("silent_s", "height", "address", "version"):
                if view.HasField(name):
                    setattr(shown, name, getattr(view, name))
        if (ahead_s := self._service.clocks.get_skews_s().get(member.key)) is not None:
            shown.clock_ahead_s = ahead_s
        return shown

    async def _read_change(self, height: int) -> tuple[Change, ApprovedChange]:
        """The change in the block at `height`, and the answers to it. Raises StoreCorrupted."""
        block = await self._chain.get_block(height)
        if block.change is None:
            raise StoreCorrupted(f"{self._chain.store.path}: block {height}: expected a change, got none")
        return read_change(block.change.change), block.change

    def _compute_id(self, change: Change) -> str:
        return change.compute_id(self._service.tip.state.chain_id).hex()

    # ---- runs

    async def list_runs(self, number: int | None = None) -> pb.ListRunsReply:
        """All runs, or one: 0 is the newest. Raises NotFound."""
        await self._read_states()
        spans = self._spans
        if number is None:
            return pb.ListRunsReply(runs=[await self._show_run(i) for i in range(len(spans))])
        index = len(spans) - 1 if number == 0 else number - 1
        if not 0 <= index < len(spans):
            raise NotFound(f"run {number}: there were runs 1 to {len(spans)}")
        shown = await self._show_run(index)
        await self._count_authors(shown)
        return pb.ListRunsReply(runs=[shown])

    async def _read_states(self) -> None:
        """Adds what states have come since the last time."""
        store, disk = self._chain.store, self._chain.disk
        changes = await disk.run(store.get_change_heights, self._read_to + 1, self._service.tip.height)
        for height in (0, *changes):
            if height <= self._read_to:
                continue
            state: State = await disk.run(store.get_state, height)
            if height <= self._read_to:  # another call was faster
                continue
            self._read_to = height
            if not self._spans or self._spans[-1].run.number != state.run.number:
                self._spans.append(_Span(height, state.run))
            self._spans[-1].run = state.run

    async def _show_run(self, index: int) -> pb.RunView:
        span, tip = self._spans[index], self._service.tip
        is_over = index + 1 < len(self._spans)
        last = self._spans[index + 1].began - 1 if is_over else max(tip.height, span.began)
        run = span.run
        made = max(0, run.get_round(last))
        terms = {key: value for key, value in run.to_terms().items() if key != "schema"}
        shown = pb.RunView(
            number=run.number,
            method=run.method["name"],
            model=run.model["name"],
            terms=json.dumps(terms),
            rounds=run.rounds,
            made=min(made, run.rounds) if run.rounds else made,
            phase=_get_phase(run, last, is_over=is_over),
            began=span.began,
            last=last,
        )
        if span.began:
            await self._add_origin(shown)
        await self._add_accuracy(shown)
        return shown

    async def _add_origin(self, shown: pb.RunView) -> None:
        """The change that started it, and who agreed to that."""
        change, approved = await self._read_change(shown.began)
        before = await self._chain.disk.run(self._chain.store.get_state, shown.began - 1)
        shown.change, shown.note = self._compute_id(change), change.note
        shown.approvals.extend(
            show_answer(before, before.members[index].key, answer) for index, answer, _ in approved.answers
        )

    async def _add_accuracy(self, shown: pb.RunView) -> None:
        first = max(shown.began + 1, shown.last - NEWEST_RECORDS + 1)
        for height, record in await self._chain.disk.run(lambda: list(self._chain.store.rounds(first, shown.last))):
            accuracy = to_finite(record.get("accuracy"))
            if accuracy is not None:
                shown.accuracy, shown.measured = accuracy, height

    async def _count_authors(self, shown: pb.RunView) -> None:
        """Of the run's newest heights."""
        first = max(shown.began + 1, shown.last - COUNTED + 1)
        counts, num_rounds = Counter[Id](), 0
        names: dict[Id, str] = {}
        for page in range(first, shown.last + 1, PAGE):
            last = min(page + PAGE - 1, shown.last)
            blocks, state = await self._chain.disk.run(self._read_page, page, last)
            names |= {member.key: member.name for member in state.members}
            for block in blocks:
                num_rounds += block.change is None
                counts.update(contribution.author for contribution in block.contributions)
        shown.counted = num_rounds
        shown.authors.extend(
            pb.RunAuthor(id=encode_id(author), name=names.get(author, encode_id(author)[:8]), rounds=count)
            for author, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        )

    def _read_page(self, first: int, last: int) -> tuple[list[Block], State]:
        """Blocks, and the state that judges the first of them. On the store's thread."""
        store = self._chain.store
        return [stored.block for stored in store.blocks(first, last)], store.get_state(first - 1)


def _get_phase(run: Run, last: int, *, is_over: bool) -> str:
    if is_over:
        return "over"
    if run.is_ended:
        return "ended"
    return "running" if run.has_round(last + 1) else "done"
