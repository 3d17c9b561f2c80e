"""The view of a change: what it does, who has approved it, and what it still lacks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from chain.block import Answer, Approval, Id
from chain.changes.base import Consent
from chain.changes.change import Change
from chain.changes.consent import Missing, compute_missing
from chain.proposals import Proposal
from chain.signing import encode_id
from chain.state import State
from chain.tip import Tip
from node.federation.builders import Built, list_warnings
from node.federation.diff import compute_differences
from node.ledger.runs_view import show_answer
from node.pb import admin_pb2 as pb


def show_draft(built: Built, tip: Tip, me: Id) -> pb.ProposalView:
    """A change that is not proposed yet, as if this node had signed it."""
    change, state = built.change, tip.state
    missing = compute_missing(change.kind, state, built.after, tip.height + 1, {me: Answer.YES}, ())
    return _show(change, tip, built.after, missing, (), me, is_open=False)


def show_proposal(proposal: Proposal, missing: Missing, tip: Tip, me: Id) -> pb.ProposalView:
    return _show(proposal.change, tip, proposal.after, missing, proposal.approvals.values(), me, is_open=True)


def show_executed(proposal: Proposal, tip: Tip, me: Id) -> pb.ProposalView:
    """A change that is in force, which this node has approved for itself."""
    return _show(proposal.change, tip, tip.state, Missing(), proposal.approvals.values(), me, is_open=False)


def _show(
    change: Change, tip: Tip, after: State, missing: Missing, approvals: Iterable[Approval], me: Id, *, is_open: bool
) -> pb.ProposalView:
    state, given = tip.state, list(approvals)
    proposer = state.get_seat(change.by)
    return pb.ProposalView(
        id=change.compute_id(state.chain_id).hex(),
        kind=change.kind.name,
        terms=json.dumps(change.kind.to_terms()),
        seat=change.by,
        proposer=f"seat {change.by}" if proposer is None else proposer.name,
        proposer_id=None if proposer is None else encode_id(proposer.key),
        made=change.made,
        first=change.first,
        expires=change.expires,
        note=change.note,
        open=is_open,
        differences=[
            pb.Difference(path=each.path, old=_show_value(each.old), new=_show_value(each.new))
            for each in compute_differences(state, after)
        ],
        approvals=[show_answer(state, approval.voter, approval.answer) for approval in given],
        missing=_show_missing(change, missing, state, after, {approval.voter for approval in given} or {me}),
        height=tip.height,
        approved_here=any(approval.voter == me for approval in given),
        warnings=list_warnings(change.kind, state, after),
    )


def _show_value(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _show_missing(change: Change, missing: Missing, state: State, after: State, answered: set[Id]) -> pb.Missing:
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
