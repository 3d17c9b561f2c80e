"""Seeded hostile schedules of a federation that changes (FEDERATION §5), and proof that the checker can fail.

After every step I1, I2, I4, I5, I6, I9, I11, I12, I13 and I15 hold for whoever moved; when the network has settled,
I16. A failure names its schedule and its plan; `run_schedule` with that seed shows it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from chain.block import Answer, Id
from chain.changes import consent, execution, members
from chain.changes.base import Kind as ChangeKind
from chain.changes.consent import Missing
from chain.state import State
from support.faults.changing_world import Habits, Outcome, make_key, run_schedule
from support.faults.plans import Fate, Kind, Plan, Step
from support.faults.starving_world import StarvingWorld
from support.federation.history import PlainBlock, follow
from support.federation.invariants import InvariantBroken

SETTINGS = [(n, f) for n in (1, 2, 3, 4, 7) for f in range((n - 1) // 3 + 1)]
CHUNK, LONG_CHUNK = 25, 2_500  # schedules in one test

LIVE, DEAD, FADING, LYING = Fate.LIVE, Fate.DEAD, Fate.FADING, Fate.LYING


def make_chunks(schedules: int, first: int = 0, chunk: int = CHUNK) -> list[tuple[int, int, range]]:
    """Disjoint seeds, dealt evenly over the settings."""
    last = first + schedules // len(SETTINGS)
    starts = range(first, last, chunk)
    return [(n, f, range(start, min(start + chunk, last))) for n, f in SETTINGS for start in starts]


def name(value: object) -> str:
    return f"{value.start}-{value.stop - 1}" if isinstance(value, range) else str(value)


@pytest.mark.parametrize(("n", "f", "seeds"), make_chunks(80), ids=name)
def test_no_change_of_members_forks_or_gets_stuck(n: int, f: int, seeds: range) -> None:
    for seed in seeds:
        run_schedule(seed, n, f)


@pytest.mark.outer
@pytest.mark.parametrize(("n", "f", "seeds"), make_chunks(800, first=1_000), ids=name)
def test_no_change_of_many_forks_or_gets_stuck(n: int, f: int, seeds: range) -> None:
    for seed in seeds:
        run_schedule(seed, n, f)


@pytest.mark.long
@pytest.mark.parametrize(("n", "f", "seeds"), make_chunks(100_000, first=10_000, chunk=LONG_CHUNK), ids=name)
def test_no_change_of_very_many_forks_or_gets_stuck(n: int, f: int, seeds: range) -> None:
    for seed in seeds:
        run_schedule(seed, n, f)


def test_one_seed_is_one_schedule() -> None:
    assert run_schedule(11, 4, 1, calm=False) == run_schedule(11, 4, 1, calm=False)


def test_schedules_execute_changes_of_every_kind_they_plan() -> None:
    outcomes = [run_schedule(seed, 4, f) for seed in range(15) for f in (0, 1)]
    kinds = Counter(kind for outcome in outcomes for kind in outcome.executed)
    assert {"add_member", "remove_member", "replace_key", "convict", "set_rules"} <= kinds.keys()
    assert max(len(outcome.executed) for outcome in outcomes) >= 3


def test_votes_of_a_removed_member_are_not_needed_once_it_is_out() -> None:
    """Five with one dead, of whom one goes: its own vote is needed to be rid of it, and no longer."""
    for seed in range(20):
        assert run_schedule(seed, 5, 0, plan=FIVE_LOSE_ONE).executed in ((), ("remove_member",))


def test_rotation_proposed_with_a_key_since_replaced_puts_nobody_back() -> None:
    """Its seat was given to another site meanwhile, and the old one has stopped."""
    assert run_schedule(10_335, 1, 0).executed == ("replace_key", "add_member")


# Canaries: what must go wrong, each with a seed that was seen to. Any change in what sites send shifts the schedules,
# so the search goes on from there if it must.

SHORT_S = 300.0  # how long those have who will be stuck


def find_breach(
    first: int,
    n: int,
    f: int,
    *,
    plan: Plan,
    habits: Habits | None = None,
    invariant: str,
    calm: bool | None = None,
    leaves_out: Sequence[str] = (),
) -> int:
    for seed in range(first, first + 200):
        try:
            run_schedule(seed, n, f, plan=plan, habits=habits, calm=calm, leaves_out=leaves_out, patience_s=SHORT_S)
        except InvariantBroken as broken:
            if broken.invariant == invariant:
                return seed
    pytest.fail(f"no schedule from {first} on broke {invariant}")


class FoundersForEver(Habits):
    """Counts the votes of those who founded the federation, whoever is in force."""

    def choose_electorate(self, states: Sequence[State]) -> State:
        return states[0]


class SetOfTheBlockItself(Habits):
    """Checks the certificate of a change against the members that the change makes."""

    def choose_judge(self, states: Sequence[State], block: PlainBlock) -> State:
        return follow(states[-1], block)


KEYS_OF_TWO_STOLEN = Plan(
    num_founders=4,
    rule="bft",
    fates=(LIVE,) * 4,
    steps=(Step(Kind.ROTATE, proposer=0, at=0, site=0), Step(Kind.ROTATE, proposer=1, at=0, site=1)),
    target=7,
    ghosts=frozenset({0, 1}),
)


def test_stolen_keys_that_are_in_force_no_more_count_for_nothing() -> None:
    for seed in range(10):
        assert len(run_schedule(seed, 4, 0, plan=KEYS_OF_TWO_STOLEN).executed) == 2


@pytest.mark.parametrize("seed", [0, 4])
def test_certificates_of_the_founding_set_are_caught(seed: int) -> None:
    find_breach(seed, 4, 0, plan=KEYS_OF_TWO_STOLEN, habits=FoundersForEver(), invariant="I12")


@pytest.mark.parametrize("seed", [21, 33, 67])
def test_certificates_of_the_founding_set_fork(seed: int) -> None:
    """Nobody looks at the set: two keys that have been replaced and stolen are two liars of four."""
    habits, leaves_out = FoundersForEver(), ("I12",)
    find_breach(seed, 4, 0, plan=KEYS_OF_TWO_STOLEN, habits=habits, leaves_out=leaves_out, invariant="I1")


def make_plan_of_five_with_a_liar() -> Plan:
    """The last by key goes, so that all other indices stay; then three decide instead of four, and the first lies."""
    order = sorted(range(5), key=lambda address: make_key(address, 0).id)
    fates = tuple(LYING if address == order[0] else LIVE for address in range(5))
    return Plan(5, "bft", fates, (Step(Kind.REMOVE, proposer=order[1], at=0, site=order[-1]),), target=3)


@pytest.mark.parametrize("seed", [6, 12])
def test_three_of_five_pass_for_a_quorum_where_the_set_of_the_block_itself_judges(seed: int) -> None:
    plan = make_plan_of_five_with_a_liar()
    find_breach(seed, 5, 1, plan=plan, habits=SetOfTheBlockItself(), invariant="I12")


FOUR_WITH_ONE_DEAD = Plan(
    num_founders=4,
    rule="bft",
    fates=(LIVE, LIVE, LIVE, DEAD, DEAD),
    steps=(Step(Kind.JOIN, proposer=0, at=0, site=4),),
    target=4,
)


@pytest.mark.parametrize("seed", [0, 1])
def test_who_is_behind_gets_stuck_where_the_set_of_the_block_itself_judges(seed: int) -> None:
    plan = replace(FOUR_WITH_ONE_DEAD, fates=(LIVE,) * 5, target=3)
    find_breach(seed, 4, 0, plan=plan, habits=SetOfTheBlockItself(), invariant="I16")


BLIND = Habits(looks_for_joiner=False)


def test_both_quorums_keep_out_a_joiner_that_is_never_ready() -> None:
    for seed in range(20):
        assert run_schedule(seed, 4, 0, plan=FOUR_WITH_ONE_DEAD, habits=BLIND).executed == ()


def ask_old_quorum(
    kind: ChangeKind, before: State, after: State, height: int, answers: Mapping[Id, Answer], ready: Collection[Id]
) -> Missing:
    return Missing(max(0, before.q - len(answers)))


@pytest.mark.parametrize("seed", [0, 2])
def test_quorum_of_the_old_set_alone_gets_stuck(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four with one dead take in a fifth that never speaks: four must decide, and three live."""
    monkeypatch.setattr(consent, "compute_missing", ask_old_quorum)
    find_breach(seed, 4, 0, plan=FOUR_WITH_ONE_DEAD, habits=BLIND, invariant="I16")


@pytest.mark.parametrize("seed", [2, 3])
def test_joiner_that_falls_silent_once_it_is_ready_can_still_cost_the_quorum(seed: int) -> None:
    """What the rules cannot see: its readiness counted, and it was seen alive a moment ago. I16 does not promise this:
    no quorum of the new set is live."""
    plan = replace(FOUR_WITH_ONE_DEAD, fates=(LIVE, LIVE, LIVE, DEAD, FADING))
    find_breach(seed, 4, 0, plan=plan, invariant="I16")


FIVE_LOSE_ONE = Plan(
    num_founders=5,
    rule="bft",
    fates=(LIVE, LIVE, LIVE, LIVE, DEAD),
    steps=(Step(Kind.REMOVE, proposer=0, at=0, site=1),),
    target=4,
)


@pytest.mark.parametrize("seed", [89, 558])
def test_removed_member_that_is_gone_at_once_leaves_the_others_stuck(seed: int) -> None:
    """It alone has the certificate, and its vote was needed."""
    habits = Habits(serves_when_out=False)
    find_breach(seed, 5, 0, plan=FIVE_LOSE_ONE, habits=habits, calm=False, invariant="I16")


@pytest.mark.parametrize("seed", [2, 4])
def test_change_whose_id_is_forgotten_is_executed_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To `bft` and back to `majority`: the old value stands again, and nothing else speaks against the first change."""

    def forget(obj: Any, **values: Any) -> Any:
        values.pop("executed", None)
        return replace(obj, **values)

    monkeypatch.setattr(execution, "replace", forget)
    steps = (Step(Kind.QUORUM, proposer=0, at=0), Step(Kind.QUORUM, proposer=1, at=2))
    find_breach(seed, 4, 0, plan=Plan(4, "majority", (LIVE,) * 4, steps, target=8), invariant="I13")


def starve(seed: int, target: int) -> Outcome:
    return StarvingWorld(seed, target=target).run()


def test_removal_is_executed_against_a_liar_that_mines_faster_than_all_others() -> None:
    """It has one rotation, and no other change to put in the way."""
    for seed in range(10):
        assert "remove_member" in starve(seed, 6).executed


@pytest.mark.parametrize("seed", [0, 1])
def test_rotations_without_a_limit_starve_a_removal(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "ROTATION_HEIGHTS", 1)
    assert starve(seed, 12).executed == ("replace_key",) * 12
