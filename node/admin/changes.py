"""The operator's control over changes of the federation: proposes them, approves them, and shows those that wait.

Nothing is signed that was not checked here first: that the chain would accept it, and that this site could comply with
it (FEDERATION §4, I14). Raises ChangeRefused with the reason.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from chain.block import Answer, Digest, Id
from chain.calendar import Place
from chain.changes.base import Kind
from chain.changes.change import Change
from chain.changes.members import AddMember
from chain.changes.runs import SetRounds, StartRun
from chain.errors import ChainError
from chain.proposals import Proposal
from chain.schema import describe, quote
from chain.state import State
from chain.store.sqlite import SqliteStore
from ml.errors import SpecError
from ml.plugins import NO_PLUGINS, Plugins
from node.admin.change_view import show_draft, show_executed, show_proposal, write_terms
from node.consensus.governance.consent import ExecutedChange
from node.consensus.governance.lending import Lending, get_lendable
from node.consensus.service import RoundService
from node.errors import ChangeRefused, InvalidRequest, NodeError
from node.federation.builders import ChangeContext, ChangeRequest, build_change, check_site
from node.federation.drawn_model import NEW, DrawnModel
from node.federation.measured_model import check_measured_model, check_min_samples, find_trained, read_measured_model
from node.federation.run_terms import check_run
from node.offload import Offload
from node.pb import admin_pb2 as pb
from node.runs.specs import RunSpecs

ID_DIGITS = 64  # hexadecimal digits
MIN_DIGITS = 4  # of an id, to show a change
MAX_LISTED = 8  # changes that one refusal names
OF_TRAINING = (StartRun, SetRounds, AddMember)  # a site may approve these and not train


class ChangeControl:
    """Proposes and approves changes for one node, whose runs are `runs`. `get_data` returns the configuration's current
    `data`, None without any; `get_plugins` the plugins that it allows; `get_min_samples` the least number of test
    samples about which this site publishes measures; `explain_not_lent` why it cannot lend its own model of a round.
    `disk` is the store's thread."""

    def __init__(
        self,
        service: RoundService,
        store: SqliteStore,
        disk: Offload,
        runs: RunSpecs,
        *,
        get_data: Callable[[], Mapping[str, Any] | None],
        get_plugins: Callable[[], Plugins] = lambda: NO_PLUGINS,
        get_min_samples: Callable[[], int] = lambda: 1,
        explain_not_lent: Callable[[Place], str | None] = lambda place: None,
    ) -> None:
        self._service = service
        self._book = service.proposals
        self._store = store
        self._disk = disk
        self._runs = runs
        self._get_data = get_data
        self._get_plugins = get_plugins
        self._get_min_samples = get_min_samples
        self._explain_not_lent = explain_not_lent
        self._lending = Lending(store)
        self._drawn = DrawnModel()

    @property
    def _me(self) -> Id:
        """Returns the key in force, which a rotation changes."""
        return self._service.signer.id

    # ---- what waits

    def list_proposals(self) -> pb.ListProposalsReply:
        return pb.ListProposalsReply(proposals=[self._show(proposal) for proposal in self._book])

    async def get_proposal(self, change: str) -> pb.ProposalView:
        """Returns the change with this id, or the only known one whose id begins so: an open one, or one in a block
        that may still be approved for this site's own training. Raises NotFound and InvalidRequest."""
        digits = _read_digits(change)
        known = self._book.list_known(digits)
        if len(known) > 1:
            raise InvalidRequest(f"change {digits}: expected the whole id, as {_list(known)} begin so")
        found = self._book.find(digits)
        return self._show(found) if isinstance(found, Proposal) else await self._show_executed(found)

    def _show(self, proposal: Proposal) -> pb.ProposalView:
        view = show_proposal(proposal, self._book.compute_missing(proposal), self._service.tip, self._me)
        view.lends_here = proposal.id in self._lending
        return view

    async def _show_executed(self, executed: ExecutedChange) -> pb.ProposalView:
        before, after = await self._disk.run(
            lambda: (self._store.get_state(executed.height - 1), self._store.get_state(executed.height))
        )
        own = self._service.consent.get_own_answer(executed.id)
        view = show_executed(executed, before, after, own, self._service.tip, self._me)
        view.lends_here = executed.id in self._lending
        return view

    # ---- what the operator signs

    async def propose(
        self,
        kind: str,
        terms: str,
        note: str = "",
        first: int | None = None,
        heights: int | None = None,
        dry_run: bool = False,
        shown: str | None = None,
        lend: bool = False,
    ) -> pb.ProposalView:
        """Signs and sends the change that is asked for, or with `dry_run` shows what it would do. Where `shown` is set,
        the change must still have the terms that were shown. Raises ChangeRefused and InvalidRequest."""
        wish = ChangeRequest(kind, _read_terms(terms), note, first, heights)
        tip, model = self._service.tip, None
        if wish.kind == "evaluation":
            model = await self._disk.run(read_measured_model, self._store, self._runs, wish.terms)
        trained = find_trained(self._runs.calendar)
        ground = ChangeContext(tip, self._me, self._get_data(), self._get_plugins(), trained, model)
        is_shown = shown is not None
        if wish.kind == StartRun.name and wish.terms.get("initial") == NEW:
            built = await self._drawn.build(wish, ground, is_shown=is_shown, dry_run=dry_run)
        else:
            built = await asyncio.to_thread(build_change, wish, ground)
        if is_shown and shown != write_terms(built.change):
            raise ChangeRefused("by now it would be another change than the one that was shown; look at it again")
        check_min_samples(built.change.kind, self._get_min_samples())
        if lend:
            await self._check_lent(built.change.kind)
        try:
            self._book.check(built.change)
            if dry_run:
                return show_draft(built, tip, self._me)
            if built.blob is not None:
                await self._disk.run(self._store.put_blob, built.blob)
            proposal = await self._propose(built.change, lends=lend)
        except ChainError as error:
            raise ChangeRefused(describe(error)) from error
        self._service.events.publish("operator", proposed=proposal.id.hex())
        return self._show(proposal)

    async def approve(self, change: str, no_train: bool = False, lend: bool = False) -> pb.ProposalView:
        """Signs this node's yes: to an open change, or for its own training to a change that was executed without it.
        It takes a whole id, as others can make an id with the same beginning. Raises ChangeRefused, NotFound and
        InvalidRequest."""
        change_id, state = self._read_id(change), self._service.tip.state
        found = self._book.find(change_id.hex())
        after, kind = (found.after, found.change.kind) if isinstance(found, Proposal) else (state, found.kind)
        if no_train and not isinstance(kind, OF_TRAINING):
            raise InvalidRequest(f"{kind.name}: nothing is trained by it that a site could stay away from")
        await asyncio.to_thread(self._check, kind, after, state, trains=not no_train)
        if lend:
            if no_train or not isinstance(found, Proposal):
                why = "a site that lends takes part" if no_train else "this evaluation has begun"
                raise InvalidRequest(f"lend: expected none, as {why}")
            await self._check_lent(kind)
        if isinstance(kind, StartRun) and kind.number == after.run.number:
            await self._disk.run(check_measured_model, self._store, self._runs, kind)
            if not no_train:
                check_min_samples(kind, self._get_min_samples())
        answer = Answer.YES_WITHOUT_TRAINING if no_train else Answer.YES
        if isinstance(found, Proposal) and get_lendable(kind) is not None:
            await self._note_lending(change_id, lends=lend)
        try:
            approved = await self._book.approve(change_id, answer)
            await self._service.resume()  # the current round may wait for this site's consent
        except ChainError as error:
            raise ChangeRefused(describe(error)) from error
        self._service.events.publish("operator", approved=change_id.hex())
        return self._show(approved) if isinstance(found, Proposal) else await self._show_executed(found)

    async def _check_lent(self, kind: Kind) -> None:
        """Raises ChangeRefused where this site could not lend the model of its own that a change asks for."""
        if (place := get_lendable(kind)) is None:
            raise ChangeRefused("lend: expected none: nothing is lent by this change")
        if (why := await asyncio.to_thread(self._explain_not_lent, place)) is not None:
            raise ChangeRefused(f"lend: {why}")

    async def _propose(self, change: Change, *, lends: bool) -> Proposal:
        """Signs and sends a change, and notes whether this site lends its own model for it. A refused change leaves
        that note as it was."""
        if get_lendable(change.kind) is None:
            return await self._book.propose(change)
        change_id = change.compute_id(self._service.tip.state.chain_id)
        before = change_id in self._lending
        await self._note_lending(change_id, lends=lends)
        try:
            return await self._book.propose(change)
        except (ChainError, NodeError):
            await self._note_lending(change_id, lends=before)
            raise

    async def _note_lending(self, change_id: Digest, *, lends: bool) -> None:
        await self._disk.run(partial(self._lending.note, change_id, lends=lends))

    def _read_id(self, text: str) -> Digest:
        """Reads a whole id. Raises InvalidRequest for anything else, and names the known ids that begin so."""
        if len(digits := _read_digits(text)) == ID_DIGITS:
            return bytes.fromhex(digits)
        found = self._book.list_known(digits)
        told = f"; {_list(found)} begin{'s' if len(found) == 1 else ''} so" if found else ""
        raise InvalidRequest(f"change {digits}: expected its whole id, {ID_DIGITS} hex digits{told}")

    def _check(self, kind: Kind, after: State, before: State, *, trains: bool) -> None:
        """Raises ChangeRefused where this site could not comply with the change that it signs."""
        if isinstance(kind, StartRun) and not trains:
            return  # a site that does not train need not understand the run: it only votes on its blocks
        try:
            check_site(kind, before, after, self._get_data())
        except SpecError as error:
            raise ChangeRefused(str(error)) from error
        if isinstance(kind, StartRun) and kind.number == after.run.number:
            check_run(after)


def _read_digits(text: str) -> str:
    digits = text.lower()
    if not re.fullmatch(f"[0-9a-f]{{{MIN_DIGITS},{ID_DIGITS}}}", digits):
        raise InvalidRequest(f"change {quote(text)}: expected its id, or at least {MIN_DIGITS} of its first hex digits")
    return digits


def _list(found: Mapping[Digest, str]) -> str:
    """Lists the newest changes found, with whole ids."""
    told = [f"{change_id.hex()} ({words})" for change_id, words in list(found.items())[-MAX_LISTED:]]
    return ", ".join([*([f"{len(found) - len(told)} more"] if len(found) > len(told) else []), *told])


def _read_terms(text: str) -> Mapping[str, Any]:
    try:
        terms = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"terms: expected a JSON object, got {quote(text)}") from error
    if not isinstance(terms, dict):
        raise InvalidRequest(f"terms: expected a JSON object, got {quote(terms)}")
    return terms
