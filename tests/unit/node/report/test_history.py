"""The history of a run follows from genesis and the blocks: approvals, participants, idle heights, convictions."""

from __future__ import annotations

import pytest

from chain.audit import ExportedBlock
from chain.block import Answer, Body, Phase
from chain.changes.base import Kind
from chain.changes.members import Convict, ReplaceKey
from chain.changes.rules import SetRules
from chain.changes.runs import EndRun, StartRun
from chain.codec import encode_block, encode_certificate, sign_vote
from chain.evidence import encode_evidence, make_evidence, read_accusation
from chain.run import Run
from chain.signing import encode_id
from node.errors import NotFound, VerificationFailed
from node.report.history import RunHistory, read_history
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import LivingChain, approve, extend_with, make_approved, make_round, propose

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS, rounds=3)
RULES = SetRules({"keep_heights": (2, 3)})


def make_chain() -> LivingChain:
    return LivingChain(GENESIS, KEYS)


def export(chain: LivingChain) -> list[ExportedBlock]:
    blocks = [
        (height, encode_block(block), encode_certificate(certificate))
        for height, (block, certificate) in enumerate(chain.blocks, start=1)
    ]
    return [(0, encode_block(GENESIS.block0), b""), *blocks]


def read(chain: LivingChain, number: int = 0) -> RunHistory:
    return read_history(GENESIS, export(chain), number)


def start(before: Run) -> Kind:
    terms = {name: value for name, value in before.to_terms().items() if name != "initial_model"}
    return StartRun(before.number + 1, terms, make_digest("a model"))


def test_a_chain_without_a_round_has_a_run_without_one() -> None:
    history = read(make_chain())
    assert (history.phase, history.began, history.last, history.rounds, history.changes) == ("running", 0, 0, [], [])
    assert [(one.name, one.rounds) for one in history.list_participants()] == [(f"node{i}", []) for i in range(4)]
    assert history.head.id == GENESIS.block0.id.hex()


def test_rounds_have_those_who_contributed_and_changes_are_no_rounds() -> None:
    chain = make_chain()
    chain.add_rounds()
    chain.add_change(RULES)
    chain.add(extend_with(chain.tip, make_round(chain.tip, KEYS[:3]), KEYS[0]))
    history = read(chain)
    assert [(each.number, each.height, len(each.parts)) for each in history.rounds] == [(1, 1, 4), (2, 3, 3)]
    found = {one.name: one.rounds for one in history.list_participants()}
    assert found == {"node0": [1, 2], "node1": [1, 2], "node2": [1, 2], "node3": [1]}
    assert [each.absent for each in history.rounds] == [(), ("node3",)]
    assert (history.head.height, history.head.id, history.last) == (3, chain.tip.id.hex(), 3)
    assert not history.counts_samples  # all weights are 1


def test_a_site_with_another_key_is_one_participant() -> None:
    new = make_keys(1, "another key")[0]
    chain = LivingChain(GENESIS, [*KEYS, new])
    chain.add_rounds()
    chain.add_change(ReplaceKey(1, new.id))
    chain.add_rounds()
    people = read(chain).list_participants()
    assert [(one.name, one.rounds) for one in people] == [(f"node{i}", [1, 2]) for i in range(4)]
    assert people[1].id == encode_id(new.id)


def test_a_change_has_who_approved_it_and_what_it_does() -> None:
    chain = make_chain()
    change = propose(RULES, by=2)
    chain.add(extend_with(chain.tip, Body(change=make_approved(chain.tip, change, KEYS[1:])), KEYS[0]))
    (told,) = read(chain).changes
    assert (told.height, told.kind, told.proposer, told.quorum) == (1, "set_rules", "node2", "3 of 4")
    assert [each.name for each in told.approvals] == ["node1", "node2", "node3"]
    assert [(each.path, each.old, each.new) for each in told.differences] == [("rules.keep_heights", 2, 3)]
    assert told.id == change.compute_id(GENESIS.chain_id).hex()


def test_idle_heights_are_of_the_run_that_is_done_and_the_next_begins_with_its_change() -> None:
    chain = make_chain()
    chain.add_rounds(3)
    chain.add_change(RULES)  # idle: no round is left
    assert read(chain).phase == "done"
    before = chain.state.run
    change = propose(start(before), made=chain.tip.height)
    answers = sorted(
        approve(chain.state, change, KEYS[:3]) + approve(chain.state, change, KEYS[3:], Answer.YES_WITHOUT_TRAINING)
    )
    approved = make_approved(chain.tip, change, ())
    chain.add(extend_with(chain.tip, Body(change=type(approved)(approved.change, tuple(answers))), KEYS[0]))
    chain.add_rounds(1)
    first, second = read(chain, 1), read(chain)
    assert (first.phase, first.began, first.last, len(first.rounds)) == ("over", 0, 4, 3)
    assert [each.kind for each in first.changes] == ["set_rules"]
    assert (second.run.number, second.phase, second.began, second.last) == (2, "running", 5, 6)
    assert [(each.number, each.height) for each in second.rounds] == [(1, 6)]
    assert [(each.name, each.trains) for each in second.changes[0].approvals] == [
        (f"node{i}", i != 3) for i in range(4)
    ]
    assert read(chain, 2).rounds == second.rounds
    assert first.head == second.head


def test_a_run_that_a_change_ended_says_so() -> None:
    chain = make_chain()
    chain.add_rounds(1)
    chain.add_change(EndRun(1))
    assert read(chain).phase == "ended"


def test_a_conviction_names_the_member_and_the_slot() -> None:
    chain = make_chain()
    chain.add_rounds(2)
    one, two = (
        sign_vote(KEYS[1], GENESIS.chain_id, phase=Phase.PREVOTE, height=1, view=0, block_id=make_digest(name))
        for name in ("one", "two")
    )
    evidence = make_evidence(one, two)
    assert read_accusation(evidence) == (KEYS[1].id, 1)
    chain.add_change(Convict(encode_evidence(evidence)))
    (told,) = read(chain).changes
    assert told.accused is not None
    assert (told.accused.name, told.accused.height, told.accused.slot) == ("node1", 1, "vote")
    assert [each.path for each in told.differences] == [f"members.node1 ({encode_id(KEYS[1].id)[:4]}).suspended"]


def test_a_run_that_never_was_is_not_found() -> None:
    with pytest.raises(NotFound, match=r"run 7: there were runs 1 to 1"):
        read(make_chain(), 7)


def test_blocks_that_are_none_are_a_fault_of_the_chain() -> None:
    with pytest.raises(VerificationFailed, match="cannot be followed"):
        read_history(GENESIS, [(1, b"nothing", b"")])
