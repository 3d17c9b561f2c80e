"""The view of a change: what it does, who has approved it, and what it still lacks."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from chain.block import Answer, Id
from chain.changes.base import Consent
from chain.changes.change import Change, read_change
from chain.changes.consent import Missing, compute_missing
from chain.proposals import Proposal
from chain.signing import encode_id
from chain.state import State
from chain.tip import Tip
from node.consensus.governance.consent import ExecutedChange
from node.federation.builders import Built, list_warnings, warn_of_key_in_use
from node.federation.diff import compute_differences
from node.ledger.runs_view import show_answer
from node.pb import admin_pb2 as pb


def show_draft(built: Built, tip: Tip, me: Id) -> pb.ProposalView:
    """Shows a change that is not proposed yet, as if this node had signed it."""
    change, state = built.change, tip.state
    missing = compute_missing(change.kind, state, built.after, tip.height + 1, {me: Answer.YES}, ())
    view = _show(change, state, built.after, missing, {}, tip.height, me)
    view.warnings.extend(warn_of_key_in_use(change, tip))
    return view


def show_proposal(proposal: Proposal, missing: Missing, tip: Tip, me: Id) -> pb.ProposalView:
    answers = {approval.voter: approval.answer for approval in proposal.approvals.values()}
    view = _show(proposal.change, tip.state, proposal.after, missing, answers, tip.height, me)
    view.open = True
    view.warnings.extend(warn_of_key_in_use(proposal.change, tip))
    return view


def show_executed(
    executed: ExecutedChange, before: State, after: State, own: Answer | None, tip: Tip, me: Id
) -> pb.ProposalView:
    """Shows a change in a block, by the states before and after it. `own` is this node's latest answer to it."""
    answers = {
        member.key: executed.answers[member.seat] for member in before.members if member.seat in executed.answers
    }
    if own is not None:
        answers[me] = own
    view = _show(read_change(executed.data), before, after, Missing(), answers, tip.height, me)
    view.executed = executed.height
    return view


def _show(
    change: Change, state: State, after: State, missing: Missing, answers: Mapping[Id, Answer], height: int, me: Id
) -> pb.ProposalView:
    """Shows the change that takes `state` to `after`."""
    proposer = state.get_seat(change.by)
    return pb.ProposalView(
        id=change.compute_id(state.chain_id).hex(),
        kind=change.kind.name,
        terms=write_terms(change),
        seat=change.by,
        proposer=f"seat {change.by}" if proposer is None else proposer.name,
        proposer_id=None if proposer is None else encode_id(proposer.key),
        made=change.made,
        first=change.first,
        expires=change.expires,
        note=change.note,
        differences=[
            pb.Difference(path=each.path, old=_show_value(each.old), new=_show_value(each.new))
            for each in compute_differences(state, after)
        ],
        approvals=[show_answer(state, voter, answer) for voter, answer in answers.items()],
        missing=_show_missing(change, missing, state, after, answers.keys() or {me}),
        height=height,
        approved_here=me in answers,
        warnings=list_warnings(change.kind, state, after),
    )


def write_terms(change: Change) -> str:
    """Returns the terms of a change in JSON, as the chain has them."""
    return json.dumps(change.kind.to_terms())


def _show_value(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _show_missing(change: Change, missing: Missing, state: State, after: State, answered: Collection[Id]) -> pb.Missing:
    both = change.kind.consent is Consent.BOTH_QUORUMS and after.member_ids != state.member_ids
    return pb.Missing(
        nothing=missing.is_nothing,
        before=missing.before,
        after=missing.after,
        training=missing.training,
        readiness=None if missing.readiness is None else encode_id(missing.readiness),
        unanswered=[member.name for member in state.members if member.key not in answered],
        unanswered_ids=[encode_id(member.key) for member in state.members if member.key not in answered],
        quorum=f"{state.q} of {state.n}",
        quorum_after=f"{after.q} of {after.n}" if both else None,
    )
