"""The benchmark of signatures and digests: that each call is held against one that does the same work, and its JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature

from bench.application import main
from bench.commands.crypto import show_figures
from bench.crypto import Signed, list_candidate, list_certificate, make_bare_check
from bench.paired import compare_calls
from chain.store.sqlite import SqliteStore
from support.data.synthetic import extend_chain, make_prototype_genesis

pytestmark = pytest.mark.outer

GROUPS = {
    "signatures": {"sign_contribution", "sign_vote", "verify_contribution", "verify_vote", "verify_block"},
    "digests": {"seal", "block_id", "body", "stored_row", "blob_file"},
    "codec": {
        f"{do}_{what}" for do in ("encode", "decode") for what in ("block", "contribution", "vote", "certificate")
    },
    "validation": {"candidate", "certificate", "aggregate", "whole_block"},
    "envelopes": {"send_batch", "take_batch"},
}


def test_a_call_that_does_a_hundred_times_the_work_is_said_to_take_longer() -> None:
    found = compare_calls(lambda: sum(range(100_000)), lambda: sum(range(1000)), seconds=0.01, repeats=3)
    assert found["ratio"]["median"] > 1
    assert found["bare_per_s"]["median"] > found["per_s"]["median"]


def test_the_bare_check_verifies_all_that_a_block_and_its_certificate_have_signed(tmp_path: Path) -> None:
    genesis, keys = make_prototype_genesis(4, seed=1, difficulty=1)
    with SqliteStore.open(tmp_path, genesis) as store:
        extend_chain(store, genesis, keys, 1)
        (stored,) = store.blocks(1, 1)
    assert stored.certificate is not None
    signed = list_candidate(genesis, stored.block) + list_certificate(genesis, stored.block, stored.certificate)
    assert len(signed) == 1 + 4 + 3
    assert {one.signer for one in signed} == {key.id for key in keys}
    make_bare_check(signed)()
    for i, one in enumerate(signed):
        forged: list[Signed] = [*signed[:i], replace(one, data=one.data + b"!"), *signed[i + 1 :]]
        with pytest.raises(InvalidSignature):
            make_bare_check(forged)()


def test_a_federation_without_files_is_the_same_for_the_same_seed() -> None:
    (genesis, keys), (again, _), (other, _) = (
        make_prototype_genesis(3, seed=seed, difficulty=16) for seed in (1, 1, 2)
    )
    assert genesis.chain_id == again.chain_id != other.chain_id
    assert [key.id for key in keys] == list(genesis.state.member_ids)


def test_a_small_one_gives_every_call_with_its_size_and_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--members", "3", "--seconds", "0.0002", "--repeats", "1")
    assert main(["crypto", *options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.keys() == {"machine", "job", *GROUPS}
    assert figures["job"] == {"members": 3, "quorum": 3, "seconds": 0.0002, "repeats": 1, "seed": 1}
    for group, calls in GROUPS.items():
        assert figures[group].keys() == calls
        for found in figures[group].values():
            assert found.keys() == {"bytes", "per_s", "bare_per_s", "ratio", "mb_per_s"}
            per_s, bare_per_s = found["per_s"]["median"], found["bare_per_s"]["median"]
            assert found["ratio"]["median"] == pytest.approx(bare_per_s / per_s)
            assert found["mb_per_s"] == pytest.approx(per_s * found["bytes"] / 1e6)
    assert figures["signatures"]["sign_vote"]["bytes"] == 16 + 32 + 77  # tag, chain id, fields (PROTOCOL §1)
    assert figures["digests"]["seal"]["bytes"] == 194
    assert figures["codec"]["encode_block"]["bytes"] == figures["digests"]["stored_row"]["bytes"]
    show_figures(figures)
    shown = capsys.readouterr().out
    for calls in GROUPS.values():
        assert all(f"\n{call.replace('_', ' ')} " in shown for call in calls)
