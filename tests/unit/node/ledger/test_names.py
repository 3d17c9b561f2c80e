"""Names as the ledger shows them: those of the members that there were at the height, whoever joined or left since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain.block import Phase
from chain.changes.members import AddMember, AddObserver, RemoveMember, ReplaceKey
from chain.codec import sign_vote
from chain.evidence import make_evidence
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from node.cli import main
from node.ledger.names import get_name
from node.ledger.offline import OfflineNode
from support.data.chains import make_digest, make_genesis, make_keys
from support.data.changes import LivingChain, extend_with, make_round

KEYS = make_keys(4)
NEW, OTHER, WATCHER = make_keys(3, "newcomer")
EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}
JOINED, LEFT, REPLACED, HEAD = 2, 4, 6, 8  # the heights of the changes, with a round after each


def get_seat(chain: LivingChain, name: str) -> int:
    return next(member.seat for member in chain.state.members if member.name == name)


@pytest.fixture(scope="module")
def chain() -> LivingChain:
    """Of node0 to node3: node4 joins, node3 leaves, and node0 has another key at the end."""
    chain = LivingChain(make_genesis(KEYS, pow=EASY), [*KEYS, NEW, OTHER])
    chain.add_rounds(1)
    chain.add_change(AddMember(NEW.id, "node4"))
    chain.add_rounds(1)
    chain.add_change(RemoveMember(get_seat(chain, "node3")))
    chain.add_rounds(1)
    chain.add_change(ReplaceKey(get_seat(chain, "node0"), OTHER.id))
    chain.add_rounds(1)
    active = [key for key in chain.get_active() if key is not NEW]
    chain.add(extend_with(chain.tip, make_round(chain.tip, active), active[0]))
    assert chain.tip.height == HEAD
    return chain


@pytest.fixture
def data_dir(chain: LivingChain, tmp_path: Path) -> Path:
    with SqliteStore.open(tmp_path, chain.genesis) as store:
        store.append_all(chain.blocks)
        votes = [
            sign_vote(NEW, chain.genesis.chain_id, phase=Phase.PREVOTE, height=JOINED + 1, view=0, block_id=block_id)
            for block_id in (make_digest("one"), make_digest("two"))
        ]
        store.put_evidence(make_evidence(*votes), NEW.id, JOINED + 1)
    return tmp_path


@pytest.fixture
def node(data_dir: Path) -> Iterator[OfflineNode]:
    with OfflineNode(data_dir) as node:
        yield node


def get_names(chain: LivingChain, height: int) -> set[str]:
    return {member.name for member in chain.tips[height - 1].state.members}


@pytest.mark.parametrize("height", range(1, HEAD + 1))
def test_a_block_names_signers_and_authors_by_the_members_before_it(
    node: OfflineNode, chain: LivingChain, height: int
) -> None:
    state, certificate = chain.tips[height - 1].state, chain.blocks[height - 1][1]
    shown = node.get_block(height)
    expected = [state.members[index] for index, _ in certificate.signatures]
    assert [(voter.id, voter.name) for voter in shown.votes] == [(encode_id(one.key), one.name) for one in expected]
    assert {one.name for one in shown.contributions} <= get_names(chain, height)
    assert shown.summary.miner_name in get_names(chain, height)
    assert shown.summary.num_members == state.n


def test_a_list_counts_the_members_of_each_height(node: OfflineNode, chain: LivingChain) -> None:
    blocks = node.list_blocks(0, 20, reverse=True).blocks
    assert [block.num_members for block in blocks] == [4, 4, 4, 5, 5, 4, 4, 4, 4]
    assert all(block.miner_name in get_names(chain, block.height) for block in blocks[1:])


def test_a_round_names_those_who_had_a_part_in_it_and_those_who_had_none(node: OfflineNode, chain: LivingChain) -> None:
    rounds = {entry.height: entry for entry in node.list_rounds(None, 20, reverse=False).rounds}
    assert [rounds[height].num_members for height in (1, JOINED + 1, LEFT + 1, REPLACED + 1)] == [4, 5, 4, 4]
    for height in (1, JOINED + 1, LEFT + 1, REPLACED + 1):
        assert set(rounds[height].contributor_names) == get_names(chain, height)
        assert not rounds[height].absent_names
    assert (list(rounds[HEAD].absent_names), rounds[HEAD].num_members) == (["node4"], 4)


def test_evidence_names_one_who_joined_later(node: OfflineNode) -> None:
    assert [found.name for found in node.list_evidence().evidence] == ["node4"]


def test_the_commands_show_as_many_members_as_there_were(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rounds", "list", "--data-dir", str(data_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    shares = [word for line in lines for word in line.split() if "/" in word]
    assert shares == ["3/4", "4/4", "4/4", "5/5", "4/4"]
    assert main(["rounds", "show", str(HEAD), "--data-dir", str(data_dir)]) == 0
    assert ["left", "out", "node4"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    lines_file = tmp_path / "chain.jsonl"
    assert main(["chain", "export", str(lines_file), "--format", "jsonl", "--data-dir", str(data_dir)]) == 0
    exported = [json.loads(line) for line in lines_file.read_text(encoding="utf-8").splitlines()]
    assert [block["num_members"] for block in exported[:-1]] == [4, 4, 4, 5, 5, 4, 4, 4, 4]


def test_a_name_outlasts_the_key_and_a_stranger_has_none(chain: LivingChain) -> None:
    chain_state = chain.state
    founder = next(member.key for member in chain.genesis.state.members if member.name == "node0")
    assert get_name(chain_state, founder) == get_name(chain_state, OTHER.id) == "node0"
    assert get_name(chain_state, WATCHER.id) == encode_id(WATCHER.id)[:8]
    watched = LivingChain(make_genesis(KEYS, pow=EASY), KEYS)
    watched.add_change(AddObserver(WATCHER.id, "archive"))
    assert get_name(watched.state, WATCHER.id) == "archive"
