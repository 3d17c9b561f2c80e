"""The step from one state to the next, and what must hold for a change to make it (FEDERATION §1, §2).

A block without a change leaves the state as it is. `execute_change` is the rule itself; `validate_approved` checks
what the body of a change block claims, signatures last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chain.approvals import compute_change_id, verify_approval, verify_readiness
from chain.block import Answer, Approval, ApprovedChange, Block, Body, Digest, Id, Readiness
from chain.changes.base import Place
from chain.changes.change import Change, read_change
from chain.changes.consent import validate_consent
from chain.changes.members import ReplaceKey
from chain.changes.runs import StartRun
from chain.errors import ChainError, InvalidChange, InvalidSignature
from chain.schema import describe
from chain.state import State

READY_HEIGHTS = 100  # a readiness names a final block at most so far below the change's
# A retired key is kept for so many heights at least: its node may still ask what happened to it.
RETIRED_HEIGHTS = 1000


def compute_next_state(state: State, block: Block, parent_aggregate: Digest) -> State:
    """Returns the state after `block`, which `state` judges: the same state, unless the block holds a change, or its
    header says that patience has ended the run. `chain.tip`, which has followed the run, checks that last claim.

    Raises InvalidChange for a block that was not validated.
    """
    is_last = state.run.select is not None and block.change is None and block.header.state_next != state.digest
    return compute_state_after(state, block.body, Place(block.height, parent_aggregate), is_last=is_last)


def compute_state_after(state: State, body: Body, place: Place, *, is_last: bool = False) -> State:
    """Returns the state after a body that is not in a block yet, as `compute_next_state` does; `is_last`: patience ends
    the run with it."""
    if body.change is not None:
        return execute_change(state, read_change(body.change.change), place)
    return replace(state, run=replace(state.run, stopped=state.run.get_round(place.height))) if is_last else state


def execute_change(state: State, change: Change, place: Place) -> State:
    """Returns the state after a change in the block at this place. Raises InvalidChange with the reason if there can be
    none."""
    height = place.height
    if not change.made < height:
        raise InvalidChange.differs("height of the change", f"more than {change.made}, where it was made", height)
    if not change.first <= height <= change.expires:
        raise InvalidChange.differs("height of the change", f"{change.first} to {change.expires}", height)
    if not 0 <= change.by < state.num_seats:
        raise InvalidChange(f"by: there is no seat {change.by}")
    _check_key_of_proposer(state, change)
    change_id = change.compute_id(state.chain_id)
    if change_id in state.executed:
        raise InvalidChange(f"change {change_id.hex()[:8]} was executed before")
    try:
        after = _settle(state, change.kind.apply(state, place), place)
        after = replace(after, executed={**after.executed, change_id: change.expires})
    except InvalidChange:
        raise
    except ChainError as error:
        raise InvalidChange(f"{change.kind.name}: {describe(error)}") from error
    if len(after.active_ids) < after.q:
        raise InvalidChange.differs("members not suspended", f"at least {after.q}", len(after.active_ids))
    return after


def _check_key_of_proposer(state: State, change: Change) -> None:
    """Raises InvalidChange if the key that proposed a rotation of its own seat has been replaced. Else the thief of a
    key could use earlier approvals to get the seat back after the others have replaced the key. A change that others
    propose for a seat stays valid whatever its key."""
    if not isinstance(change.kind, ReplaceKey) or change.kind.seat != change.by:
        return
    member = state.get_seat(change.by)
    if member is not None and member.key_since > change.made:
        expected = f"at least {member.key_since}, since when {member.name} has its key"
        raise InvalidChange.differs("height at which the rotation was made", expected, change.made)


def _settle(before: State, after: State, place: Place) -> State:
    """Applies what follows from any change: the run moves on by the height that the change took, and entries that have
    expired are dropped."""
    height, run = place.height, after.run
    leaves_out = before.run.is_of_inputs(height) and before.has_round(height) and run.has_round(height)
    if run.number == before.run.number and not leaves_out:
        run = replace(run, first_height=run.first_height + 1)
    kept = max(RETIRED_HEIGHTS, after.rules.evidence_heights)
    return replace(
        after,
        run=run,
        pow_since=height if after.rules.pow != before.rules.pow else after.pow_since,
        retired=tuple(old for old in after.retired if old.last + kept >= height),
        executed={change_id: expires for change_id, expires in after.executed.items() if expires > height},
    )


def get_aggregate(change: Change, parent_aggregate: Digest) -> Digest:
    """Returns the aggregate of a change's block: the parent's, unless a run starts from a model of its own."""
    kind = change.kind
    return kind.initial if isinstance(kind, StartRun) and kind.initial is not None else parent_aggregate


def validate_approved(
    state: State,
    approved: ApprovedChange,
    place: Place,
    get_block_id: Callable[[int], Id | None],
    is_known: Callable[[Approval], bool] | None = None,
) -> State:
    """Returns the state after an approved change. `get_block_id` returns the ids of the newest final blocks.

    `is_known(approval)` says whether this very approval, with this signature, was verified before. Raises
    InvalidChange, LacksConsent or InvalidSignature.
    """
    change = read_change(approved.change)
    after = execute_change(state, change, place)
    change_id = compute_change_id(state.chain_id, approved.change)
    approvals = _get_approvals(state, change_id, approved)
    readiness = [Readiness(change_id, *entry) for entry in approved.readiness]
    for ready in readiness:
        validate_readiness(ready, change, place.height, get_block_id)
    answers: dict[Id, Answer] = {approval.voter: approval.answer for approval in approvals}
    validate_consent(change.kind, state, after, place.height, answers, {ready.key for ready in readiness})
    for approval in approvals:
        if is_known is None or not is_known(approval):
            _verify(state, approval)
    for ready in readiness:
        verify_readiness(state.chain_id, ready)
    return after


def _verify(state: State, approval: Approval) -> None:
    try:
        verify_approval(state.chain_id, approval)
    except InvalidSignature as error:
        member = state.get_member(approval.voter)
        raise InvalidSignature(f"approval of {member.name if member else 'a stranger'}: {error}") from error


def _get_approvals(state: State, change_id: Digest, approved: ApprovedChange) -> list[Approval]:
    for index, _, _ in approved.answers:
        if index >= state.n:
            raise InvalidChange.differs("member index of an answer", f"0 to {state.n - 1}", index)
    return [
        Approval(change_id, answer, state.member_ids[index], signature) for index, answer, signature in approved.answers
    ]


def validate_readiness(ready: Readiness, change: Change, height: int, get_block_id: Callable[[int], Id | None]) -> None:
    """Raises InvalidChange unless the readiness is of the change's new key, and names a final block at most
    READY_HEIGHTS below `height`. Its signature is not checked."""
    if ready.key != change.kind.get_new_key():
        raise InvalidChange(f"{change.kind.name}: readiness of a key that it does not bring")
    lowest = max(0, height - READY_HEIGHTS)
    if not lowest <= ready.height < height:
        raise InvalidChange.differs("height of readiness", f"{lowest} to {height - 1}", ready.height)
    block_id = get_block_id(ready.height)
    if ready.block_id != block_id:
        raise InvalidChange.differs("block of readiness", block_id or "none known", ready.block_id)
