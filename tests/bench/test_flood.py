"""The benchmark of a flood: what it takes a federation's pace to be, and what is refused."""

from __future__ import annotations

import os
import time

import pytest

from bench.application import main
from bench.flood import describe_finality
from bench.tails import get_quantile
from node.errors import NodeError
from node.host.procfs import read_cpu_s, read_memory

pytestmark = pytest.mark.outer


def test_blocks_count_from_the_beginning_to_the_end_and_no_others() -> None:
    found = describe_finality([9.0, 10.0, 11.0, 13.0, 14.0, 21.0], began=10.0, ended=15.0)
    assert found["blocks"] == 4
    assert found["blocks_per_s"] == 0.8
    assert found["round_s"] == {"median": 1.0, "p95": 2.0, "max": 2.0}


def test_a_federation_that_stands_still_is_seen_to() -> None:
    assert describe_finality([10.5, 11.0], began=10.0, ended=20.0)["round_s"]["max"] == 9.0
    none = describe_finality([9.0], began=10.0, ended=20.0)
    assert (none["blocks"], none["round_s"]) == (0, {"median": 10.0, "p95": 10.0, "max": 10.0})


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [get_quantile(values, share) for share in (0.0, 0.5, 0.95, 0.99, 1.0)] == [1, 50, 95, 99, 100]
    assert get_quantile([7.0], 0.99) == 7.0


def test_cpu_time_grows_with_work_and_a_process_that_is_gone_is_an_error() -> None:
    before_s = read_cpu_s(os.getpid())
    until_s = time.process_time() + 0.1
    while time.process_time() < until_s:
        pass
    assert 0.05 <= read_cpu_s(os.getpid()) - before_s < 60
    assert read_memory(os.getpid())["resident"] > 1 << 20
    for read in (read_cpu_s, read_memory):
        with pytest.raises(NodeError, match="has ended"):
            read(2**22 + 1)  # more than there can be


def test_the_command_refuses_an_unknown_member_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flood", "--members", "silent,loud"]) == 78
    assert "--members: expected some of silent, honest, valid, invalid (got 'loud')" in capsys.readouterr().err
