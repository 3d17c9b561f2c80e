"""Files that unpack to more than there is: each reader says so instead of taking it."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml.data import open_dataset
from ml.data.memory import bounded, count_killed, get_free_bytes, limit_memory, validate_fits
from ml.errors import DataError
from support.data.bombs import MIB, WRITERS

FREE_MIB = 24
MEMINFO = "MemTotal: 8000 kB\nMemAvailable: 4000 kB\nSwapFree: 1000 kB\n"


@pytest.fixture
def limited() -> Iterator[None]:
    """Room for fewer bytes than the samples of any of these files take."""
    gc.collect()  # what other tests have left would be room, too, once it goes
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(FREE_MIB * MIB, hard=before[1])
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(params=[*WRITERS])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    return {"format": request.param, "path": str(WRITERS[request.param](tmp_path))}


def test_what_does_not_fit_is_refused_before_it_is_taken(data: dict[str, str], limited: None) -> None:
    with pytest.raises(DataError, match=r"would take (more|[\d,]+ MiB of) memory.* \d+ MiB (that )?are free"):
        open_dataset(data)


def test_free_is_what_the_smallest_of_machine_and_groups_leaves(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", MEMINFO)
    assert get_free_bytes(tmp_path) == 5000 * 1024
    write("proc/self/cgroup", "0::/pods/one\n")
    group = "sys/fs/cgroup/pods"
    write(f"{group}/one/memory.max", "max\n")
    write(f"{group}/memory.max", "3000000\n")
    write(f"{group}/memory.current", "2500000\n")
    write(f"{group}/memory.stat", "anon 1900000\nactive_file 200000\ninactive_file 300000\n")
    assert get_free_bytes(tmp_path) == 1_000_000
    write(f"{group}/memory.current", "9000000\n")
    assert get_free_bytes(tmp_path) == 0


def test_free_is_what_the_older_groups_leave(tmp_path: Path) -> None:
    for name, text in (
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu:/docker/abc\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n"),
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n"),
        ("sys/fs/cgroup/memory/memory.stat", "active_file 0\ninactive_file 0\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert get_free_bytes(tmp_path) == 1_500_000


def test_where_the_system_says_nothing_all_fits(tmp_path: Path) -> None:
    assert get_free_bytes(tmp_path) is None


def test_a_limit_of_this_process_counts(limited: None) -> None:
    free = get_free_bytes()
    assert free is not None
    assert 0 < free <= FREE_MIB * MIB
    validate_fits(16 * MIB, "a.npz")
    with pytest.raises(DataError, match=r"a\.npz: would take 100 MiB of memory"):
        validate_fits(100 * MIB, "a.npz")
    with (
        pytest.raises(DataError, match=r"a\.npz: would take more memory than the \d+ MiB that are free"),
        bounded("a.npz"),
    ):
        bytearray(2048 * MIB)


def test_the_limit_is_lifted_again() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with bounded("a"):
        assert resource.getrlimit(resource.RLIMIT_AS) != before
        with bounded("a"):
            pass
        assert resource.getrlimit(resource.RLIMIT_AS) != before
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/vmstat": "pgfault 9\noom_kill 3\n"}, 3),
        ({"proc/self/cgroup": "0::/one\n", "sys/fs/cgroup/one/memory.events": "oom 7\noom_kill 2\n"}, 2),
        (
            {
                "proc/vmstat": "oom_kill 3\n",
                "proc/self/cgroup": "4:memory:/one\n",
                "sys/fs/cgroup/memory/one/memory.oom_control": "under_oom 0\noom_kill 1\n",
            },
            1,
        ),
    ],
)
def test_those_killed_for_want_of_memory_are_counted_where_the_system_does(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_killed(tmp_path) == expected
