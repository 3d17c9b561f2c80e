"""Work in processes: all of it is done, one that dies takes nothing else along, and stopping leaves nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.errors import ConfigError
from node.experiments.gpus import find_gpus, list_environments
from node.experiments.pool import Advanced, Died, Event, Finished, work_through
from support.data.experiments import double, double_or_die, meet, tell_pid_and_wait, tell_variable
from support.federation.processes import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.outer]


def get_outcomes(events: list[Event]) -> dict[int, object]:
    return {event.index: event.outcome for event in events if isinstance(event, Finished)}


def test_every_piece_is_done_once_and_reports_on_its_way() -> None:
    events = list(work_through([3, 1, 4, 1, 5], double, 2))
    assert get_outcomes(events) == {0: 6, 1: 2, 2: 8, 3: 2, 4: 10}
    assert {event.index: event.news for event in events if isinstance(event, Advanced)} == {
        0: "at 3",
        1: "at 1",
        2: "at 4",
        3: "at 1",
        4: "at 5",
    }
    assert len(events) == 10


@pytest.mark.slow
def test_a_process_that_dies_loses_its_own_piece_alone() -> None:
    events = list(work_through([1, -1, 2, 0, 3], double_or_die, 2))
    assert get_outcomes(events) == {0: 2, 2: 4, 4: 6}
    assert {event.index: event.why for event in events if isinstance(event, Died)} == {
        1: "its process was ended by SIGKILL (out of memory?)",
        3: "its process ended with exit code 7",
    }


def test_stopping_ends_the_processes_at_work() -> None:
    pids: list[int] = []
    for event in work_through([1, 2, 3], tell_pid_and_wait, 2, lambda: len(pids) == 2):
        assert isinstance(event, Advanced)
        pids.append(event.news)
    assert len(set(pids)) == 2
    assert not any(map(is_alive, pids))


def test_leaving_early_ends_the_processes_too() -> None:
    events = work_through([1], tell_pid_and_wait, 1)
    event = next(events)
    assert isinstance(event, Advanced)
    assert is_alive(event.news)
    events.close()  # type: ignore[attr-defined]  # it is a generator
    assert not is_alive(event.news)


def test_each_process_computes_on_one_thread() -> None:
    assert get_outcomes(list(work_through(["OMP_NUM_THREADS"], tell_variable, 1))) == {0: "1"}


def test_each_process_sees_the_device_that_is_its_own(tmp_path: Path) -> None:
    environments = list_environments(("3", "GPU-5f"), 2)
    pieces = [(tmp_path, 4, "CUDA_VISIBLE_DEVICES")] * 4
    told = get_outcomes(list(work_through(pieces, meet, 4, environments=environments)))
    assert sorted(map(str, told.values())) == ["3", "3", "GPU-5f", "GPU-5f"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_more_devices_than_there_are_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"--gpus 1000: torch finds \d+ CUDA devices here"):
        find_gpus(1000)


def test_no_work_starts_no_process() -> None:
    with pytest.raises(StopIteration):
        next(work_through([], double, 4))
