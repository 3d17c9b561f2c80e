"""The view of a node: JSON that keeps its promises, and nothing that must stay hidden."""

from __future__ import annotations

import pytest

from node.admin.json_view import to_json
from node.config.redaction import REDACTED, redact
from node.ledger.reader import show_summary
from node.pb import admin_pb2 as pb
from support.data.chains import make_certificate, make_chain, make_genesis, make_keys

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS)


def test_status_has_the_names_that_others_rely_on() -> None:
    names = set(to_json(pb.NodeStatus()))
    promised = {"id", "name", "height", "head", "round", "phase", "peers_connected", "members", "stalled", "accuracy"}
    assert promised <= names


def test_a_report_has_the_names_that_others_rely_on() -> None:
    names = set(to_json(pb.VerifyReport()))
    assert names == {"ok", "from", "to", "blocks", "signatures", "recomputed", "not_held", "head", "seconds", "fault"}


def test_numbers_stay_numbers_and_what_is_not_known_is_null() -> None:
    shown = to_json(pb.NodeStatus(height=2**53, stalled=False))
    assert shown["height"] == 2**53
    assert shown["stalled"] is False
    assert shown["accuracy"] is None
    assert shown["miner_pids"] == []
    assert to_json(pb.NodeStatus(accuracy=0.0))["accuracy"] == 0.0


def test_maps_and_messages_within_are_shown_in_full() -> None:
    shown = to_json(pb.Round(seconds={"wall": 2.0, "train": 1.5}, rejected={"a": "why"}))
    assert list(shown["seconds"].items()) == [("train", 1.5), ("wall", 2.0)]
    assert shown["rejected"] == {"a": "why"}
    report = to_json(pb.VerifyReport(fault=pb.Fault(what="certificate"), not_held=[1, 2]))
    assert report["fault"] == {"height": None, "what": "certificate", "expected": "", "got": ""}
    assert report["not_held"] == [1, 2]


def test_a_summary_names_the_miner_and_counts_what_the_block_holds() -> None:
    block, _ = make_chain(GENESIS, KEYS, 1)[0]
    certificate = make_certificate(GENESIS, block, KEYS, view=2)
    shown = show_summary(GENESIS.state, block, certificate, 1234)
    assert (shown.height, shown.id, shown.prev) == (1, block.id.hex(), GENESIS.block0.id.hex())
    assert (shown.miner_name, shown.time) == ("node1", "2026-11-20T14:00:01Z")
    assert (shown.num_contributions, shown.num_votes, shown.num_members, shown.view) == (4, 3, 4, 2)
    assert (shown.bytes, shown.payload_bytes, shown.mining_s) == (1234, 4 * 1024, 0.1)


def test_block_0_has_neither_miner_nor_votes() -> None:
    shown = show_summary(GENESIS.state, GENESIS.block0, None, 300)
    assert not shown.HasField("miner")
    assert not shown.HasField("view")
    assert (shown.num_votes, shown.time) == (0, "2026-11-20T14:00:00Z")


@pytest.mark.parametrize("key", ["identity_key_file", "identity_passphrase_file", "token_file", "token"])
def test_places_of_secrets_are_not_shown(key: str) -> None:
    assert redact({"node": {key: "keys/node0.key", "name": "node0"}}) == {"node": {key: REDACTED, "name": "node0"}}
    assert redact({key: None}) == {key: None}


def test_the_user_part_of_an_address_is_not_shown() -> None:
    shown = redact({"uri": ["https://user:word@example.org:80/x", "https://example.org/a@b", "id@host:1"]})
    assert shown == {"uri": [f"https://{REDACTED}@example.org:80/x", "https://example.org/a@b", "id@host:1"]}


def test_who_reads_the_file_anyway_sees_which_files_it_names() -> None:
    config = {"node": {"identity_key_file": "keys/a.key"}, "http": {"token": "abc"}, "uri": "https://user:word@host/"}
    shown = {
        "node": {"identity_key_file": "keys/a.key"},
        "http": {"token": REDACTED},
        "uri": f"https://{REDACTED}@host/",
    }
    assert redact(config, keep_places=True) == shown
