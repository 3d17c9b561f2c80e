"""The consent that a change needs: too few is refused, and whom nobody should ask does not count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chain.block import Answer
from chain.changes.base import Kind, Place
from chain.changes.consent import Missing, compute_missing, validate_consent
from chain.changes.execution import execute_change
from chain.changes.members import (
    AddMember,
    AddObserver,
    Convict,
    Pardon,
    RemoveMember,
    RemoveObserver,
    ReplaceKey,
)
from chain.changes.rules import SetRules, Upgrade
from chain.changes.runs import EndRun, SetRounds, StartRun
from chain.errors import LacksConsent
from chain.signing import encode_id
from chain.state import Observer, State
from support.data.chains import make_genesis, make_keys
from support.data.changes import MODEL, execute, propose

KEYS = [key.id for key in make_keys(7)]
NEW = make_keys(1, "newcomer")[0].id
YES, NO_TRAINING = Answer.YES, Answer.YES_WITHOUT_TRAINING


def make_state(n: int, **rules: object) -> State:
    return make_genesis(make_keys(7)[:n] if n < 7 else make_keys(7), **rules).state


def lacks(
    state: State,
    kind: Kind,
    voters: Sequence[int],
    *,
    ready: bool = False,
    height: int = 1,
    without_training: Sequence[int] = (),
) -> Missing:
    """What lacks when the members at these indices say yes."""
    after = execute_change(state, propose(kind, made=height - 1), Place(height, MODEL))
    answers = dict.fromkeys([state.member_ids[i] for i in voters], YES)
    answers |= dict.fromkeys([state.member_ids[i] for i in without_training], NO_TRAINING)
    return compute_missing(kind, state, after, height, answers, {NEW} if ready else set())


def suspend(state: State, index: int) -> State:
    members = tuple(replace(m, is_suspended=i == index) for i, m in enumerate(state.members))
    return replace(state, members=members)


def make_run() -> StartRun:
    terms = make_state(4).run.to_terms()
    del terms["initial_model"]
    return StartRun(2, terms, MODEL)


# A quorum


@pytest.mark.parametrize(
    "kind",
    [
        AddObserver(NEW, "archive"),
        RemoveObserver(KEYS[6]),
        SetRounds(1, 10, 20),
        EndRun(1),
        Upgrade(3),
        Pardon(0),
        SetRules({"keep_heights": (2, 3)}),
    ],
)
def test_a_quorum_is_enough_and_one_less_is_not(kind: Kind) -> None:
    state = replace(suspend(make_state(4), 0), observers=(Observer(KEYS[6], "old"),))
    assert lacks(state, kind, []).before == 3
    assert lacks(state, kind, [0, 1]).before == 1
    assert lacks(state, kind, [0, 1, 2]) == Missing()  # the suspended vote, too
    assert lacks(state, kind, [], without_training=[1, 2, 3]) == Missing()


def test_majority_federations_decide_by_majority() -> None:
    state = make_state(4, quorum="majority")
    assert lacks(state, EndRun(1), [0, 1]).before == 1
    assert make_state(5, quorum="majority").q == 3
    assert lacks(make_state(5, quorum="majority"), EndRun(1), [2, 3, 4]) == Missing()


def test_what_lacks_is_said_in_words() -> None:
    state = make_state(4)
    after = execute(state, AddMember(NEW, "node4"))
    with pytest.raises(LacksConsent) as caught:
        validate_consent(AddMember(NEW, "node4"), state, after, 1, {KEYS[0]: YES}, set())
    assert str(caught.value) == (
        "add_member: lacks 2 more of the members, 3 more of the members that there will be, "
        f"the readiness of {encode_id(NEW)}"
    )
    assert str(Missing()) == "nothing"
    assert str(Missing(training=2)) == "2 more that will train"


# Joins: a quorum before (q) and after (q'), where the joiner's readiness counts


@pytest.mark.parametrize(("n", "needed"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (6, 5)])
def test_a_join_needs_both_quorums_and_the_readiness(n: int, needed: int) -> None:
    """q of 1..7 is 1, 2, 3, 3, 4, 5, 5."""
    state, kind = make_state(n), AddMember(NEW, "node9")
    assert lacks(state, kind, range(needed), ready=True) == Missing()
    assert not lacks(state, kind, range(needed - 1), ready=True).is_nothing
    assert lacks(state, kind, range(n), ready=False).readiness == NEW


def test_two_become_three_by_both_and_the_joiner() -> None:
    assert lacks(make_state(2), AddMember(NEW, "node9"), [0], ready=True) == Missing(before=1, after=1)
    assert lacks(make_state(2), AddMember(NEW, "node9"), [0, 1], ready=True) == Missing()


def test_four_become_five_by_three_and_the_joiner() -> None:
    """q goes from 3 to 4: without the joiner's readiness three are too few for the five."""
    state, kind = make_state(4), AddMember(NEW, "node9")
    assert lacks(state, kind, [0, 1, 2], ready=True) == Missing()
    assert lacks(state, kind, [0, 1, 2], ready=False) == Missing(after=1, readiness=NEW)


def test_readiness_of_another_key_is_nobodys_yes() -> None:
    state, kind = make_state(4), AddMember(NEW, "node9")
    answers = dict.fromkeys(KEYS[:3], YES)
    missing = compute_missing(kind, state, execute(state, kind), 1, answers, {KEYS[6]})
    assert missing == Missing(after=1, readiness=NEW)


# Leaves: the leaver counts before and not after


@pytest.mark.parametrize(
    ("n", "gone", "voters", "missing"),
    [
        (3, 2, [0, 1, 2], Missing()),  # q 3 -> 2
        (3, 2, [0, 2], Missing(before=1, after=1)),
        (4, 3, [0, 1, 2], Missing()),  # q 3 -> 3, of three others
        (4, 3, [0, 1, 3], Missing(after=1)),
        (4, 3, [0, 1], Missing(before=1, after=1)),
        (5, 4, [0, 1, 2, 4], Missing()),  # q 4 -> 3
        (5, 4, [0, 1, 2], Missing(before=1)),
        (5, 4, [0, 1, 4], Missing(before=1, after=1)),
        (7, 6, [0, 1, 2, 3, 4], Missing()),  # q 5 -> 5
        (7, 6, [0, 1, 2, 3, 6], Missing(after=1)),
    ],
)
def test_a_leave_needs_both_quorums(n: int, gone: int, voters: list[int], missing: Missing) -> None:
    assert lacks(make_state(n), RemoveMember(gone), voters) == missing


def test_a_member_that_was_removed_meanwhile_approves_nothing() -> None:
    state = execute(make_state(5), RemoveMember(4))
    kind = Upgrade(3)
    after = execute(state, kind, 2)
    answers = {key: YES for key in KEYS[:3] if state.index_of(key) is not None}
    validate_consent(kind, state, after, 2, answers, set())
    assert state.index_of(KEYS[4]) is None  # so that no body can hold its answer: indices are of this state


# set_rules: both rules of quorum


def test_a_change_of_the_quorum_rule_needs_the_quorum_of_both() -> None:
    bft, majority = make_state(7), make_state(7, quorum="majority")  # 5 and 4 of 7
    assert lacks(bft, SetRules({"quorum": ("bft", "majority")}), range(4)) == Missing(before=1)
    assert lacks(bft, SetRules({"quorum": ("bft", "majority")}), range(5)) == Missing()
    assert lacks(majority, SetRules({"quorum": ("majority", "bft")}), range(4)) == Missing(before=1)
    assert lacks(majority, SetRules({"quorum": ("majority", "bft")}), range(5)) == Missing()


# start_run: enough that train


def test_a_run_needs_a_quorum_of_which_enough_train() -> None:
    state, kind = make_state(4), make_run()
    assert lacks(state, kind, [0, 1, 2]) == Missing()
    assert lacks(state, kind, [0, 1], without_training=[2]) == Missing(training=1)
    assert lacks(state, kind, [0, 1], without_training=[2, 3]) == Missing(training=1)
    assert lacks(state, kind, [], without_training=[0, 1, 2, 3]) == Missing(training=3)
    assert lacks(state, kind, [0, 1]) == Missing(before=1, training=1)


def test_where_one_contribution_is_enough_one_that_trains_is() -> None:
    state = make_state(4, min_contributions=1)
    assert lacks(state, make_run(), [0], without_training=[1, 2]) == Missing()
    assert lacks(state, make_run(), [], without_training=[0, 1, 2]) == Missing(training=1)


def test_who_is_suspended_approves_a_run_and_is_not_counted_as_training_in_it() -> None:
    state = suspend(make_state(4), 0)
    assert lacks(state, make_run(), [0, 1, 2]) == Missing(training=1)
    assert lacks(state, make_run(), [0, 1, 2, 3]) == Missing()
    assert lacks(state, make_run(), [1, 2, 3]) == Missing()


# replace_key: the old key and the new, or a quorum and the new


def test_a_rotation_needs_the_two_keys_and_nobody_else() -> None:
    state = make_state(4)
    assert lacks(state, ReplaceKey(0, NEW), [0], ready=True) == Missing()
    assert lacks(state, ReplaceKey(0, NEW), [0]) == Missing(readiness=NEW)
    assert lacks(state, ReplaceKey(0, NEW), [1], ready=True) == Missing(before=2)


def test_a_second_rotation_waits_a_thousand_heights() -> None:
    old = make_keys(1, "second key")[0].id
    rotated = execute(make_state(4), ReplaceKey(0, old), 7)
    mine = rotated.index_of(old)
    assert mine is not None
    others = [i for i in range(4) if i != mine]
    assert lacks(rotated, ReplaceKey(0, NEW), [mine], ready=True, height=1006) == Missing(before=2)
    assert lacks(rotated, ReplaceKey(0, NEW), [mine], ready=True, height=1007) == Missing()
    assert lacks(rotated, ReplaceKey(0, NEW), others, ready=True, height=8) == Missing()


def test_a_lost_key_is_replaced_by_a_quorum_and_the_new_key() -> None:
    state = make_state(4)
    assert lacks(state, ReplaceKey(0, NEW), [1, 2, 3], ready=True) == Missing()
    assert lacks(state, ReplaceKey(0, NEW), [1, 2, 3]) == Missing(readiness=NEW)
    assert lacks(state, ReplaceKey(0, NEW), [1, 2], ready=True) == Missing(before=1)


# convict


def test_a_conviction_needs_nobody() -> None:
    state = make_state(4)
    assert compute_missing(Convict(b""), state, suspend(state, 0), 9, {}, set()) == Missing()
