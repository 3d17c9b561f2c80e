"""A site's consent, read from a chain: answers by seat, rounds in their order, and who has joined since it did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from chain.approvals import compute_change_id, sign_approval
from chain.block import Answer, Body, Digest
from chain.changes.base import Kind
from chain.changes.members import AddMember, ReplaceKey
from chain.changes.runs import SetRounds, StartRun
from chain.signing import SigningKey
from chain.store.sqlite import SqliteStore
from node.consensus.governance.consent import Consent
from node.consensus.signing.signer import Signer
from node.events import Events
from support.data.chains import make_genesis, make_keys
from support.data.changes import LivingChain, extend_with, make_approved, propose
from support.federation.inline import InlineOffload

KEYS = make_keys(4)
NEW, OTHER = make_keys(2, "new")
EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}
ALL, OTHERS = KEYS, KEYS[1:]


class Site:
    """The node of KEYS[0], which asks, on a chain that others may extend without it."""

    def __init__(self, path: Path) -> None:
        self.chain = LivingChain(make_genesis(KEYS, pow=EASY, rounds=5, quorum="majority"), [*KEYS, NEW, OTHER])
        self.store = SqliteStore.open(path, self.chain.genesis)
        self.consent = self.make_consent(KEYS[0])

    def make_consent(self, key: SigningKey, *, asks: bool = True) -> Consent:
        disk = InlineOffload()
        signer = Signer(key, self.chain.genesis, self.store, disk, disk)
        events = Events(cast(Any, self))
        return Consent(signer, self.store, disk, events, asks=asks, approves_genesis=False)

    def now_ms(self) -> int:
        return 0

    def change(self, kind: Kind, by: Sequence[SigningKey] = ALL) -> Digest:
        """A change that these have approved is final. Its id."""
        tip, new_key = self.chain.tip, kind.get_new_key()
        change = propose(kind, by=1, made=tip.height)
        approved = make_approved(tip, change, by, ready=[key for key in (NEW, OTHER) if key.id == new_key])
        self.chain.add(extend_with(tip, Body(change=approved), self.chain.get_active()[0]))
        self.store.append(*self.chain.blocks[-1])
        return compute_change_id(tip.state.chain_id, change.data)

    def make_rounds(self, count: int) -> None:
        for _ in range(count):
            self.chain.add_rounds()
            self.store.append(*self.chain.blocks[-1])

    def ask(self, consent: Consent | None = None) -> str | None:
        consent = consent or self.consent
        asyncio.run(consent.on_tip(self.chain.tip))
        return consent.reason

    def approve(self, change_id: Digest, answer: Answer = Answer.YES) -> None:
        approval = sign_approval(KEYS[0], self.chain.genesis.chain_id, change_id, answer)
        self.store.put_own_answer(approval)
        self.consent.note(approval)

    def make_run(self, rounds: int = 5) -> StartRun:
        run = self.chain.state.run
        terms = {name: value for name, value in run.to_terms().items() if name != "initial_model"} | {"rounds": rounds}
        return StartRun(run.number + 1, terms, run.initial_model)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.store.close()


def test_genesis_with_its_rounds_is_agreed_on(site: Site) -> None:
    site.make_rounds(4)
    assert site.ask() is None


def test_an_answer_in_a_block_counts_for_the_seat_whatever_its_key(site: Site) -> None:
    site.change(site.make_run())
    site.change(ReplaceKey(_get_seat(site), NEW.id))
    assert site.ask(site.make_consent(NEW)) is None


def _get_seat(site: Site) -> int:
    member = site.chain.state.get_member(KEYS[0].id)
    assert member is not None
    return member.seat


def test_a_run_that_was_not_approved_is_named_with_what_to_type(site: Site) -> None:
    change_id = site.change(site.make_run(), OTHERS)
    assert site.ask() == f"run 2 is not approved here: fednode approve {change_id.hex()}"
    assert site.ask(site.make_consent(KEYS[1])) is None
    assert site.ask(site.make_consent(KEYS[0], asks=False)) is None


def test_an_approval_that_comes_while_a_round_waits_for_it_counts_at_once(site: Site) -> None:
    change_id = site.change(site.make_run(), OTHERS)
    assert site.ask() is not None
    site.approve(change_id)
    assert site.consent.reason is None


def test_an_answer_that_came_late_is_there_after_a_restart(site: Site) -> None:
    site.approve(site.change(site.make_run(), OTHERS))
    assert site.ask() is None
    assert site.ask(site.make_consent(KEYS[0])) is None


def test_the_last_word_of_the_operator_counts(site: Site) -> None:
    change_id = site.change(site.make_run())
    assert site.ask() is None
    site.approve(change_id, Answer.YES_WITHOUT_TRAINING)
    assert site.ask() == "run 2 was approved here without training in it"
    site.approve(change_id)
    assert site.ask() is None


def test_rounds_are_trained_up_to_those_approved_in_their_order(site: Site) -> None:
    first = site.change(SetRounds(1, 5, 7), OTHERS)
    second = site.change(SetRounds(1, 7, 9), OTHERS)
    site.make_rounds(4)
    assert site.ask() is None  # the fifth is genesis'
    site.make_rounds(1)
    assert site.ask() == f"run 1 is approved here up to round 5: fednode approve {first.hex()}"
    site.approve(first)
    assert site.ask() is None
    site.make_rounds(2)
    assert site.ask() == f"run 1 is approved here up to round 7: fednode approve {second.hex()}"
    site.approve(second)
    assert site.ask() is None


def test_fewer_rounds_that_were_approved_are_not_added_again_unasked(site: Site) -> None:
    site.change(SetRounds(1, 5, 2))
    site.change(SetRounds(1, 2, 5), OTHERS)
    site.make_rounds(2)
    reason = site.ask()
    assert reason is not None
    assert reason.startswith("run 1 is approved here up to round 2: ")


def test_a_member_counts_only_while_it_is_one(site: Site) -> None:
    change_id = site.change(AddMember(NEW.id, "new"), OTHERS)
    assert site.ask() == f"the joining of new is not approved here: fednode approve {change_id.hex()}"
    seat = next(member.seat for member in site.chain.state.members if member.key == NEW.id)
    site.change(ReplaceKey(seat, OTHER.id), OTHERS)  # the seat is the same
    assert site.ask() is not None
    site.approve(change_id)
    assert site.ask() is None


def test_who_joins_has_agreed_to_whom_it_joins_and_approves_the_run(site: Site) -> None:
    site.change(AddMember(NEW.id, "new"))
    change_id = site.change(site.make_run(), OTHERS)
    site.change(SetRounds(2, 5, 6), OTHERS)
    site.change(AddMember(OTHER.id, "other"), OTHERS)
    joiner = site.make_consent(OTHER)
    assert site.ask(joiner) == f"run 2 is not approved here: fednode approve {change_id.hex()}"
    joiner.note(sign_approval(OTHER, site.chain.genesis.chain_id, change_id, Answer.YES))
    assert site.ask(joiner) is None
    site.make_rounds(5)
    assert site.ask(joiner) is None  # six were set when it joined


def test_own_answers_outlive_the_change_they_were_given_to(site: Site) -> None:
    change = propose(SetRounds(1, 5, 6), by=0)
    change_id = change.compute_id(site.chain.genesis.chain_id)
    approval = sign_approval(KEYS[0], site.chain.genesis.chain_id, change_id, Answer.YES)
    site.store.put_change(change_id, change.data, approval, is_own=True)
    site.store.drop_changes([change_id])
    assert site.store.get_changes() == ()
    assert site.store.get_own_answers() == {change_id: Answer.YES}
