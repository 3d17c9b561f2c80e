"""`fednode chain import`: a file is judged whole, what extends the store is appended, and anything else changes
nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from chain.audit import verify_chain, write_export
from chain.block import Block, Certificate
from chain.codec import encode_block, encode_certificate
from chain.genesis import Genesis
from chain.store.sqlite import SqliteStore
from node.cli import main
from node.config import federation
from node.config.genesis_file import GenesisFile
from node.errors import VerificationFailed
from node.ledger.importing import import_chain
from support.data.chains import make_candidate, make_certificate, make_chain, make_genesis, make_keys

Captured = pytest.CaptureFixture[str]
Finalised = tuple[Block, Certificate]

KEYS = make_keys(4)
GENESIS = make_genesis(KEYS, rounds=0)
CHAIN = make_chain(GENESIS, KEYS, 20)  # beyond the first retarget


def fill(path: Path, count: int, genesis: Genesis = GENESIS) -> Path:
    with SqliteStore.open(path, genesis) as store:
        for block, certificate in CHAIN[:count]:
            store.append(block, certificate)
    return path


def get_height(path: Path) -> int:
    with SqliteStore.open(path, GENESIS, readonly=True) as store:
        assert verify_chain(GENESIS, store).ok
        return store.head_height


def write(path: Path, chain: list[Finalised], chain_id: bytes = GENESIS.chain_id) -> Path:
    blocks = [(block.height, encode_block(block), encode_certificate(certificate)) for block, certificate in chain]
    with path.open("wb") as stream:
        write_export(stream, chain_id, blocks)
    return path


def take(capsys: Captured, *arguments: object, code: int = 0) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    assert main(["chain", "import", *map(str, arguments), "--json"]) == code
    captured = capsys.readouterr()
    return json.loads(captured.out) if code == 0 else {}, captured.err


@pytest.mark.parametrize("file_format", ["binary", "jsonl"])
def test_what_export_writes_is_taken_in_and_again_changes_nothing(
    capsys: Captured, tmp_path: Path, file_format: str
) -> None:
    source, target = fill(tmp_path / "source", 20), fill(tmp_path / "target", 3)
    file = tmp_path / "chain"
    assert main(["chain", "export", str(file), "--format", file_format, "--data-dir", str(source)]) == 0
    shown, _ = take(capsys, file, "--dry-run", "--data-dir", target)
    assert (shown["appended"], shown["height"], shown["dry_run"]) == (17, 20, True)
    assert get_height(target) == 3
    shown, _ = take(capsys, file, "--data-dir", target)
    assert list(shown) == ["file", "from", "to", "known", "dry_run", "appended", "height", "head"]
    assert (shown["from"], shown["to"], shown["known"], shown["appended"], shown["height"]) == (0, 20, 4, 17, 20)
    assert shown["head"] == CHAIN[-1][0].id.hex()
    assert get_height(target) == 20
    shown, _ = take(capsys, file, "--data-dir", target)
    assert (shown["known"], shown["appended"], shown["height"]) == (21, 0, 20)


def test_a_file_may_begin_where_the_store_ends_and_not_later(capsys: Captured, tmp_path: Path) -> None:
    target = fill(tmp_path / "target", 3)
    _, err = take(capsys, write(tmp_path / "late", CHAIN[4:8]), "--data-dir", target, code=5)
    assert "expected a file that begins at height 4 or below" in err
    assert get_height(target) == 3
    shown, _ = take(capsys, write(tmp_path / "next", CHAIN[3:8]), "--data-dir", target)
    assert (shown["known"], shown["appended"]) == (0, 5)
    shown, _ = take(capsys, write(tmp_path / "old", CHAIN[1:3]), "--data-dir", target)
    assert (shown["known"], shown["appended"], shown["height"]) == (2, 0, 8)


@pytest.mark.parametrize("file_format", ["binary", "jsonl"])
def test_a_damaged_file_changes_nothing_wherever_the_damage_is(
    capsys: Captured, tmp_path: Path, file_format: str
) -> None:
    source, target = fill(tmp_path / "source", 6), fill(tmp_path / "target", 2)
    file = tmp_path / "chain"
    assert main(["chain", "export", str(file), "--format", file_format, "--data-dir", str(source)]) == 0
    data = file.read_bytes()
    cuts = [0, 3, len(data) // 2, len(data) - 1]
    if file_format == "jsonl":  # what is said of a block beside its bytes is not read
        ends = [end for end, byte in enumerate(data) if byte == ord("\n")]
        places = [data.rindex(b'"certificate": "', 0, end) + 20 for end in ends[1:-1]]
        places += [data.rindex(b'"block": "', 0, end) + 400 for end in ends[1:-1]]
        cuts += [end + 1 for end in ends[:-1]]  # between two lines
    else:
        places = list(range(0, len(data), len(data) // 40))
    spoiled = [data[:place] + bytes([data[place] ^ 0x01]) + data[place + 1 :] for place in places]
    spoiled += [data[:cut] for cut in cuts]
    spoiled.append(data + data[-80:])
    with SqliteStore.open(target, GENESIS) as store:
        for content in spoiled:
            with pytest.raises(VerificationFailed, match="nothing was imported"):
                import_chain(GENESIS, store, BytesIO(content))
            assert store.head_height == 2
    file.write_bytes(spoiled[0])
    take(capsys, file, "--data-dir", target, code=5)
    assert get_height(target) == 2


def _drop_vote(chain: list[Finalised]) -> None:
    block, certificate = chain[5]
    chain[5] = block, Certificate(certificate.view, certificate.signatures[1:])


def _swap(chain: list[Finalised]) -> None:
    chain[4], chain[5] = chain[5], chain[4]


def _forge(chain: list[Finalised]) -> None:
    """Certified by strangers."""
    block = make_candidate(GENESIS, chain[4][0], KEYS, miner=1)
    chain[5] = block, make_certificate(GENESIS, chain[5][0], KEYS)


def _ease(chain: list[Finalised]) -> None:
    """Every signature holds, the work is too little."""
    block = make_candidate(GENESIS, chain[4][0], KEYS, difficulty=1)
    chain[5:] = [(block, make_certificate(GENESIS, block, KEYS))]


@pytest.mark.parametrize("spoil", [_drop_vote, _swap, _forge, _ease])
def test_blocks_that_break_a_rule_change_nothing(
    capsys: Captured, tmp_path: Path, spoil: Callable[[list[Finalised]], None]
) -> None:
    target = fill(tmp_path / "target", 2)
    chain = list(CHAIN[:8])
    spoil(chain)
    try:
        file = write(tmp_path / "chain", chain)
    except ValueError:  # not consecutive: only lines can say that
        file = tmp_path / "chain"
        rows = [
            {"height": b.height, "block": encode_block(b).hex(), "certificate": encode_certificate(c).hex()}
            for b, c in chain
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"end": {"blocks": len(rows)}}]))
    _, err = take(capsys, file, "--data-dir", target, code=5)
    assert "nothing was imported" in err
    assert get_height(target) == 2


def test_another_chain_is_refused_in_either_format(capsys: Captured, tmp_path: Path) -> None:
    other = make_genesis(KEYS, chain_name="another")
    with SqliteStore.open(tmp_path / "other", other) as store:
        for block, certificate in make_chain(other, KEYS, 3):
            store.append(block, certificate)
    target = fill(tmp_path / "target", 2)
    for file_format, what in (("binary", "chain id of the export"), ("jsonl", "block 0, which names the chain")):
        file = tmp_path / file_format
        assert main(["chain", "export", str(file), "--format", file_format, "--data-dir", str(tmp_path / "other")]) == 0
        _, err = take(capsys, file, "--data-dir", target, code=5)
        assert what in err
    assert get_height(target) == 2


def test_two_finalised_blocks_at_one_height_are_an_alarm(capsys: Captured, tmp_path: Path) -> None:
    target = fill(tmp_path / "target", 3)
    rival = make_candidate(GENESIS, CHAIN[1][0], KEYS, miner=0, time_ms=CHAIN[2][0].header.time_ms + 1)
    file = write(tmp_path / "chain", [*CHAIN[:2], (rival, make_certificate(GENESIS, rival, KEYS))])
    _, err = take(capsys, file, "--data-dir", target, code=5)
    assert "are both certified: at least 2 members have lied" in err
    assert get_height(target) == 3


def test_import_is_for_stopped_nodes(capsys: Captured, tmp_path: Path) -> None:
    file = write(tmp_path / "chain", CHAIN[:3])
    with SqliteStore.open(tmp_path / "running", GENESIS):
        assert "stop it first" in take(capsys, file, "--data-dir", tmp_path / "running", code=1)[1]
    take(capsys, file, "--data-dir", tmp_path / "none", code=3)
    take(capsys, tmp_path / "missing", "--data-dir", fill(tmp_path / "target", 0), code=1)
    take(capsys, file, code=2)


def test_a_configuration_begins_a_new_directory_once_the_file_holds(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(
        "node: {identity_key_file: a.key, data_dir: data}\n"
        "genesis_file: genesis.yaml\nnetwork: {listen: '127.0.0.1:7050'}\ntraining: {seed: 1}\n"
    )
    monkeypatch.setattr(federation, "load_genesis", lambda path: GenesisFile(GENESIS, path))
    take(capsys, write(tmp_path / "late", CHAIN[1:3]), "-c", config, code=5)
    file = write(tmp_path / "chain", CHAIN[:3])
    assert take(capsys, file, "-c", config, "--dry-run")[0]["height"] == 3
    assert not (tmp_path / "data").exists()
    assert take(capsys, file, "-c", config)[0]["appended"] == 3
    assert get_height(tmp_path / "data") == 3
    SqliteStore.open(tmp_path / "other", make_genesis(KEYS, chain_name="another")).close()
    take(capsys, file, "-c", config, "--data-dir", tmp_path / "other", code=2)
    config.write_text(config.read_text().replace("data_dir: data", "data_dir: other"))
    take(capsys, file, "-c", config, code=78)
