"""The benchmark of the store: that a small chain is kept, read, verified and moved whole, and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import chain as bench_chain
from bench.application import main
from bench.chain import run_chain_bench
from bench.commands.chain import show_figures
from node.admin.offline import verify_data_dir
from node.errors import VerificationFailed

pytestmark = pytest.mark.outer

TIMED = {"blocks", "seconds", "blocks_per_s", "mb_per_s", "bare_blocks_per_s", "ratio"}


@pytest.fixture(autouse=True)
def _is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_chain, "READ_S", 0.0002)
    monkeypatch.setattr(bench_chain, "READ_REPEATS", 2)


def test_a_small_chain_is_kept_read_verified_and_moved_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("--blocks", "6", "--members", "3", "--one-by-one", "4", "--dir", str(tmp_path))
    assert main(["chain", *options, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []
    assert figures["job"] == {"blocks": 6, "members": 3, "one_by_one": 4, "batch": 128, "seed": 1}
    timed = {**figures["append"], **figures["verify"], "export": figures["export"], "import": figures["import"]}
    for name, found in timed.items():
        assert found.keys() >= TIMED
        assert found["blocks"] == (4 if name == "one_by_one" else 6)
        assert found["blocks_per_s"] == pytest.approx(found["blocks"] / found["seconds"])
        assert found["ratio"] == pytest.approx(found["bare_blocks_per_s"] / found["blocks_per_s"])
    verify, disk = figures["verify"], figures["disk"]
    assert verify["shallow"]["signatures"] == verify["deep"]["signatures"] == 6 * (1 + 3 + 3)
    assert (verify["shallow"]["recomputed"], verify["deep"]["recomputed"]) == (0, 6)
    assert disk["certificate_bytes"] == 6 + 3 * 66
    assert figures["export"]["bytes"] > 6 * (disk["block_bytes"] + disk["certificate_bytes"])
    assert disk["database_bytes_per_block"] > disk["block_bytes"] + disk["certificate_bytes"]
    assert disk["blobs"] == 6 * (3 + 1) + 1  # payloads and the aggregate of each height, and the initial model
    assert figures["read"].keys() == {"height", "block", "range", "open_s"}
    assert figures["fsync_s"]["count"] == bench_chain.FSYNCS

    show_figures(figures)
    shown = capsys.readouterr().out
    for line in ("append, one by one ", "append, 128 at once ", "verify --deep ", "export ", "import ", "a block "):
        assert f"\n{line}" in shown
    assert "fsync" in shown


def test_a_directory_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["chain", "--dir", str(tmp_path / "none")]) == 78
    assert "--dir: expected a directory" in capsys.readouterr().err


def test_a_chain_that_does_not_verify_is_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def damage_and_verify(path: Path, *, deep: bool, require_all: bool) -> object:
        for blob in (path / "blobs").rglob("*"):
            if blob.is_file():
                blob.write_bytes(b"another")
        return verify_data_dir(path, deep=deep, require_all=require_all)

    monkeypatch.setattr(bench_chain, "verify_data_dir", damage_and_verify)
    with pytest.raises(VerificationFailed, match="does not verify"):
        run_chain_bench(blocks=1, members=1, one_by_one=1, parent=tmp_path, seed=1, report=lambda _: None)
