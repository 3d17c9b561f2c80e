"""The operator's hand on changes of the federation: proposes them, approves them, and shows those that wait.

Nothing is signed that was not checked here first: that the chain would take it, and that this site could live with it
(FEDERATION §4, I14). Raises ChangeRefused with the reason.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from chain.block import Answer, Id
from chain.changes.base import Kind
from chain.changes.change import read_change
from chain.changes.members import AddMember
from chain.changes.runs import SetRounds, StartRun
from chain.errors import ChainError
from chain.proposals import Proposal
from chain.schema import describe, quote
from chain.state import State
from chain.store.sqlite import SqliteStore
from ml.errors import SpecError
from ml.plugins import NO_PLUGINS, Plugins
from node.admin.change_view import show_draft, show_executed, show_proposal
from node.consensus.consent import ExecutedChange
from node.consensus.service import RoundService
from node.errors import ChangeRefused, InvalidRequest, NotFound
from node.federation.builders import Ground, Wish, build_change, check_site
from node.federation.run_terms import check_run
from node.offload import Offload
from node.pb import admin_pb2 as pb

T = TypeVar("T")

MIN_DIGITS = 4  # of an id that stands for the whole
OF_TRAINING = (StartRun, SetRounds, AddMember)  # to these a site may agree and not train


class ChangeControl:
    """One node's. `get_data` gives the configuration's `data` of now, None without any, `get_plugins` the plugins that
    it allows; `disk` is the store's thread."""

    def __init__(
        self,
        service: RoundService,
        store: SqliteStore,
        disk: Offload,
        *,
        get_data: Callable[[], Mapping[str, Any] | None],
        get_plugins: Callable[[], Plugins] = lambda: NO_PLUGINS,
    ) -> None:
        self._service = service
        self._book = service.proposals
        self._store = store
        self._disk = disk
        self._get_data = get_data
        self._get_plugins = get_plugins

    @property
    def _me(self) -> Id:
        """The key in force, which a rotation changes."""
        return self._service.signer.id

    # ---- what waits

    def list_open(self) -> pb.ListProposalsReply:
        return pb.ListProposalsReply(proposals=[self._show(proposal) for proposal in self._book])

    def get(self, text: str) -> pb.ProposalView:
        """The open change of this id, or beginning of one. Raises NotFound and InvalidRequest."""
        digits = _read_digits(text)
        return self._show(_choose(digits, self._find(digits), self._book))

    def _find(self, digits: str) -> list[Proposal]:
        return [proposal for proposal in self._book if proposal.id.hex().startswith(digits)]

    def _show(self, proposal: Proposal) -> pb.ProposalView:
        return show_proposal(proposal, self._book.compute_missing(proposal), self._service.tip, self._me)

    # ---- what the operator signs

    async def propose(self, request: pb.ProposeRequest) -> pb.ProposalView:
        """Signs and sends the change that is asked for, or with `dry_run` shows what it would do. Raises ChangeRefused
        and InvalidRequest."""
        wish = Wish(
            request.kind,
            _read_terms(request.terms),
            request.note,
            request.first if request.HasField("first") else None,
            request.heights if request.HasField("heights") else None,
        )
        tip = self._service.tip
        built = await asyncio.to_thread(
            build_change, wish, Ground(tip, self._me, self._get_data(), self._get_plugins())
        )
        try:
            self._book.check(built.change)
            if request.dry_run:
                return show_draft(built, tip, self._me)
            if built.blob is not None:
                await self._disk.run(self._store.put_blob, built.blob)
            proposal = await self._book.propose(built.change)
        except ChainError as error:
            raise ChangeRefused(describe(error)) from error
        self._service.events.publish("operator", proposed=proposal.id.hex())
        return self._show(proposal)

    async def approve(self, request: pb.ApproveRequest) -> pb.ProposalView:
        """Signs this node's yes: to an open change, or for its own training to one that was executed without it. Raises
        ChangeRefused, NotFound and InvalidRequest."""
        digits, state = _read_digits(request.change), self._service.tip.state
        found: list[Proposal | ExecutedChange] = [*self._find(digits), *self._service.consent.find_all(digits)]
        chosen = _choose(digits, found, self._book)  # of both: an id that begins like another's can be made
        is_open, after = (True, chosen.after) if isinstance(chosen, Proposal) else (False, state)
        change_id, kind = chosen.id, read_change(chosen.data).kind
        if request.no_train and not isinstance(kind, OF_TRAINING):
            raise InvalidRequest(f"{kind.name}: nothing is trained by it that a site could stay away from")
        await asyncio.to_thread(self._check, kind, after, state, trains=not request.no_train)
        answer = Answer.YES_WITHOUT_TRAINING if request.no_train else Answer.YES
        try:
            proposal = await self._book.approve(change_id, answer)
            await self._service.resume()  # a round that waits for this site's consent may be in hand
        except ChainError as error:
            raise ChangeRefused(describe(error)) from error
        self._service.events.publish("operator", approved=change_id.hex())
        return self._show(proposal) if is_open else show_executed(proposal, self._service.tip, self._me)

    def _check(self, kind: Kind, after: State, before: State, *, trains: bool) -> None:
        """Raises ChangeRefused where this site could not keep to what it says."""
        if isinstance(kind, StartRun) and not trains:
            return  # it votes on what it may not understand, and follows the others
        try:
            check_site(kind, before, after, self._get_data())
        except SpecError as error:
            raise ChangeRefused(str(error)) from error
        if isinstance(kind, StartRun) and kind.number == after.run.number:
            check_run(after)


def _read_digits(text: str) -> str:
    digits = text.lower()
    if not re.fullmatch(f"[0-9a-f]{{{MIN_DIGITS},64}}", digits):
        raise InvalidRequest(f"change {quote(text)}: expected its id, or at least {MIN_DIGITS} of its first hex digits")
    return digits


def _choose(digits: str, found: Sequence[T], known: Iterable[Proposal]) -> T:
    """The only one of `found`. Raises NotFound and InvalidRequest."""
    if not found:
        names = ", ".join(proposal.id.hex()[:8] for proposal in known) or "none"
        raise NotFound(f"change {digits[:8]}: no such change is open here. Open: {names}")
    if len(found) > 1:
        raise InvalidRequest(f"change {digits}: {len(found)} changes begin with it; expected more digits")
    return found[0]


def _read_terms(text: str) -> Mapping[str, Any]:
    try:
        terms = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"terms: expected a JSON object, got {quote(text)}") from error
    if not isinstance(terms, dict):
        raise InvalidRequest(f"terms: expected a JSON object, got {quote(terms)}")
    return terms
