"""The benchmark of shared sets: what it takes a process's memory and a pull's time to be, and what is refused."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import share as bench_share
from bench.application import main
from bench.share import JUDGED_MB, _Answers, _judge, _Pull, _read_pulls, _Watched, run_share_bench
from node.errors import ConfigError
from node.host.procfs import MB

pytestmark = pytest.mark.outer

LOG = """\
2026-11-22T10:00:00.000Z INFO node.payloads.transfers: encrypted set of node1 from node1  began at 0.0 of 5.5 MB
2026-11-22T10:00:00.500Z INFO node.payloads.transfers: encrypted set of node1 from node1  broke off at 2.1 of 5.5 MB: s
2026-11-22T10:00:01.000Z INFO node.payloads.transfers: encrypted set of node0 to node1  began at 0.0 of 5.5 MB
2026-11-22T10:00:01.250Z INFO node.payloads.transfers: encrypted set of node1 from node2  began at 2.1 of 5.5 MB
2026-11-22T10:00:03.250Z INFO node.payloads.transfers: encrypted set of node1 from node2  done, 5.5 of 5.5 MB in 2.0 s
"""


def test_growth_is_the_highest_mark_since_and_what_it_was_before_does_not_count() -> None:
    size = 64 << 20
    before = np.ones(2 * size, np.uint8)
    del before
    watched = _Watched.begin(os.getpid())
    with mmap.mmap(-1, size) as held:
        held.write(b"1" * size)
    watched.look("sharing")  # when it is gone again
    watched.look("training")
    found = watched.describe(size)
    if found["is_exact"]:
        assert 0.9 <= found["growth_sets"] < 2.5
    assert found["anonymous_sets"] < 0.5


def test_a_process_is_judged_by_its_growth_and_only_over_sets_that_outweigh_the_rest() -> None:
    processes = {"node0 daemon": {"growth_sets": 1.2}, "node0 worker": {"growth_sets": 1.9}}
    assert _judge(processes, round(JUDGED_MB * MB)) is True
    assert _judge(processes | {"node1 worker": {"growth_sets": 2.0}}, round(JUDGED_MB * MB)) is False
    assert _judge(processes, round(JUDGED_MB * MB) - 1) is None


def test_pulls_are_read_from_the_pullers_log_and_last_from_their_own_beginning(tmp_path: Path) -> None:
    log_file = tmp_path / "node0.log"
    log_file.write_text(LOG)
    process: Any = SimpleNamespace(name="node0", log_file=log_file)
    (pull,) = _read_pulls(process)
    assert (pull.puller, pull.peer, pull.author, pull.seconds) == ("node0", "node2", "node1", 2.0)
    assert pull.describe(5_000_000)["mb_per_s"] == 2.5


def test_answers_count_as_given_while_sharing_if_any_part_of_them_was() -> None:
    pull = _Pull("node0", "node1", "node1", began=10.0, ended=12.0)
    answers = _Answers([(9.0, 0.5), (9.9, 0.2), (11.0, 0.1), (12.5, 3.0)])
    assert answers.describe([pull]) == {"median": 0.35, "longest": 3.0, "longest_while_sharing": 0.2}


def test_sets_that_digits_cannot_be_blown_up_to_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_share, "temporary_testnet", lambda *_: pytest.fail("a testnet was made"))
    with pytest.raises(ConfigError, match=r"--mb: expected up to \d+ for sets of 2 nodes"):
        run_share_bench(nodes=2, set_mb=100_000, seed=1, report=lambda _: None)


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["share", "--mb", "100000"]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--mb: expected up to" in captured.err.splitlines()[-1]
