"""`fednode chain diff` and `chain evidence`: where chains part, and who signed two things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chain.block import ZERO, Block, Certificate, Evidence, Phase
from chain.codec import encode_block, encode_certificate, sign_vote
from chain.evidence import make_evidence, validate_evidence
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from node.cli import main
from node.ledger.comparison import Pair, compare_chains, run_comparison
from support.data.chains import make_candidate, make_certificate, make_chain, make_contribution, make_genesis, make_keys

Captured = pytest.CaptureFixture[str]

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)
CHAIN = make_chain(GENESIS, KEYS, 12)


def make_fork(common: int, length: int, keys: int = 4) -> list[tuple[Block, Certificate]]:
    """CHAIN up to `common`, then other blocks, certified by the last `keys` members."""
    fork = list(CHAIN[:common])
    while len(fork) < length:
        parent = fork[-1][0] if fork else GENESIS.block0
        block = make_candidate(GENESIS, parent, KEYS, time_ms=parent.header.time_ms + 1500)
        fork.append((block, make_certificate(GENESIS, block, KEYS[-keys:])))
    return fork


def fill(path: Path, chain: list[tuple[Block, Certificate]]) -> Path:
    with SqliteStore.open(path, GENESIS) as store:
        for block, certificate in chain:
            store.append(block, certificate)
    return path


def run_json(capsys: Captured, *arguments: object, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["chain", *map(str, arguments), "--json"]) == code
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


@pytest.mark.parametrize("common", range(12))
def test_the_first_difference_is_found_wherever_it_is(common: int) -> None:
    fork, looks = make_fork(common, 11), []

    def get_pair(height: int) -> Pair:
        looks.append(height)
        ours, theirs = CHAIN[height - 1], fork[height - 1]
        encoded = [(encode_block(block), encode_certificate(certificate)) for block, certificate in (ours, theirs)]
        return encoded[0], encoded[1], GENESIS.state

    shown = run_comparison(compare_chains(GENESIS, 12, 11), get_pair)
    assert (shown.height, shown.other_height, shown.common) == (12, 11, common)
    assert shown.HasField("ours") == (common < 11)
    if common < 11:
        assert shown.theirs.id == fork[common][0].id.hex()
    assert len(looks) == 1 if common == 11 else len(looks) <= 5


def test_chains_that_are_the_same_say_that_they_never_part(capsys: Captured, tmp_path: Path) -> None:
    a, b = fill(tmp_path / "a", CHAIN[:5]), fill(tmp_path / "b", CHAIN[:8])
    shown = run_json(capsys, "diff", "--data-dir", a, "--other", b)
    assert (shown["same"], shown["common"], shown["height"], shown["other_height"]) == (True, 5, 5, 8)
    assert (shown["ours"], shown["theirs"], shown["guilty"]) == (None, None, [])
    assert main(["chain", "diff", "--data-dir", str(a), "--other", str(b)]) == 0
    assert "finalised blocks never part" in capsys.readouterr().out
    new = fill(tmp_path / "new", [])
    assert run_json(capsys, "diff", "--data-dir", a, "--other", new)["common"] == 0


def test_two_certified_chains_name_those_who_signed_both(capsys: Captured, tmp_path: Path) -> None:
    a, b = fill(tmp_path / "a", CHAIN[:8]), fill(tmp_path / "b", make_fork(4, 6, keys=3))
    shown = run_json(capsys, "diff", "--data-dir", a, "--other", b, code=5)
    assert (shown["same"], shown["common"], shown["ours"]["height"]) == (False, 4, 5)
    assert (shown["ours"]["certified"], shown["theirs"]["certified"]) == (True, True)
    assert [voter["name"] for voter in shown["guilty"]] == [
        "node1",
        "node2",
    ]  # 0, 1, 2 certify one and 1, 2, 3 the other
    assert main(["chain", "diff", "--data-dir", str(a), "--other", str(b)]) == 5
    captured = capsys.readouterr()
    assert "the same up to height 4" in captured.out
    assert "the chains part at height 5" in captured.err


def test_another_chain_cannot_be_compared_and_a_peer_needs_a_running_node(capsys: Captured, tmp_path: Path) -> None:
    a = fill(tmp_path / "a", [])
    SqliteStore.open(tmp_path / "other", make_genesis(KEYS, chain_name="another")).close()
    assert main(["chain", "diff", "--data-dir", str(a), "--other", str(tmp_path / "other")]) == 5
    assert main(["chain", "diff", "--data-dir", str(a), "--peer", "node1"]) == 2
    assert main(["chain", "diff", "--data-dir", str(a)]) == 2
    assert main(["chain", "diff", "--data-dir", str(a), "--other", str(tmp_path / "none")]) == 3
    capsys.readouterr()


# ---- evidence


def put(store: SqliteStore, evidence: Evidence, seen_ms: int | None) -> None:
    author, height = validate_evidence(GENESIS.state, evidence)
    store.put_evidence(evidence, author, height, seen_ms)


def test_evidence_says_who_signed_what_and_when_it_was_seen(capsys: Captured, tmp_path: Path) -> None:
    votes = [
        sign_vote(KEYS[2], GENESIS.chain_id, phase=Phase.PRECOMMIT, height=3, view=1, block_id=block_id)
        for block_id in (ZERO, CHAIN[0][0].id)
    ]
    contributions = [make_contribution(GENESIS, KEYS[1], weight=weight) for weight in (1, 2)]
    blocks = [make_candidate(GENESIS, GENESIS.block0, KEYS, miner=0, authors=authors) for authors in (None, (0, 1, 2))]
    with SqliteStore.open(tmp_path / "a", GENESIS) as store:
        put(store, make_evidence(*votes), 1_795_183_336_042)
        put(store, make_evidence(*contributions), None)
        put(store, make_evidence(*blocks), 1)
    entries = run_json(capsys, "evidence", "--data-dir", tmp_path / "a")["evidence"]
    assert [entry["height"] for entry in entries] == [1, 1, 3]
    by_slot = {entry["slot"]: entry for entry in entries}
    vote = by_slot["vote"]
    assert (vote["author"], vote["name"]) == (encode_id(KEYS[2].id), "node2")
    assert (vote["view"], vote["phase"], vote["seen"]) == (1, "precommit", "2026-11-20T14:02:16.042Z")
    assert {vote["first"], vote["second"]} == {"0" * 64, CHAIN[0][0].id.hex()}
    assert {by_slot["candidate"]["first"], by_slot["candidate"]["second"]} == {block.id.hex() for block in blocks}
    contribution = by_slot["contribution"]
    assert (contribution["name"], contribution["seen"], contribution["view"]) == ("node1", None, None)
    assert contribution["first"] != contribution["second"]
    assert main(["chain", "evidence", "--data-dir", str(tmp_path / "a")]) == 0
    table = capsys.readouterr().out
    assert "precommit of view 1" in table
    assert "nil" in table


def test_no_evidence_is_said_so(capsys: Captured, tmp_path: Path) -> None:
    fill(tmp_path / "a", [])
    assert run_json(capsys, "evidence", "--data-dir", tmp_path / "a") == {"evidence": []}
    assert main(["chain", "evidence", "--data-dir", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.startswith("none:")
