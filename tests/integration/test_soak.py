"""Thousands of rounds under faults of every kind: all stay one, and what a node takes does not grow with the rounds.

Memory transport, virtual time, seven nodes that train on nothing. Faults go on all along; every so many rounds there is
a calm, in which everything is counted. The curves are printed; `FEDNODE_SOAK=FILE` writes them too, as CSV or as JSON
by the file's ending.
"""

from __future__ import annotations

import csv
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import node.events
from chain.difficulty import LOOKBACK
from chain.store import sqlite
from node.consensus.record.learning_watch import MAX_LOSSES
from node.p2p.transport.round_trips import KEPT
from support.faults.soak import (
    NUM_NODES,
    Sample,
    compute_growth,
    compute_slope,
    compute_slopes,
    connect_without_sync,
    format_table,
    soaking,
)
from support.federation.memory_census import take_census
from support.federation.pulling import FEDPER, taking
from support.federation.virtual_time import run_virtual

ROUNDS = int(os.environ.get("FEDNODE_SOAK_ROUNDS", "2000"))
SEED = int(os.environ.get("FEDNODE_SOAK_SEED", "1"))
KEPT_EVENTS = 64  # a full log of events must not be taken for one that grows: it is full soon
WARM_UP = 0.2  # of the rounds, while caches and logs fill up

# More of anything each round than this is a leak. One of a vote a round, in one node of the seven, is an entry a round
# in one collection, and an object with three byte strings: four blocks. The entries are exact; blocks are those of all
# that runs in the process. RSS is the allocator's too, and says no more than that nothing large is lost sight of.
MOST_ENTRIES = 0.1
# Which fill up first; and events have more fields or fewer, at most eight, of which some are lists of members.
BOUNDED = {
    "records.learning._losses": MAX_LOSSES * NUM_NODES,
    "current.tip.headers": LOOKBACK,
    "opener._delays._round_trips.self._trips[]._newest_s": KEPT * NUM_NODES,
    "events._kept[].data": 8 * KEPT_EVENTS,
    "events._kept[].data[]": 8 * KEPT_EVENTS,
    "events._kept[].data[][]": 8 * KEPT_EVENTS,  # of what was not taken, by peer and reason
}
MOST_BLOCKS = 3.0
MOST_RSS_MB = 0.01
# What a block must leave on disk: each payload and the aggregate; in the database, less than so many bytes.
MOST_FILES = NUM_NODES + 1.0
MOST_DB_BYTES = 25_000.0
MOST_WAL_BYTES = 6_000_000  # SQLite writes it back at 1,000 pages of 4 KiB; a transaction may be under way by then


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(sqlite, "connect", connect_without_sync)


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pytest keeps every line that is logged, which would be the largest leak of all."""
    monkeypatch.setattr(node.events, "KEPT", KEPT_EVENTS)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


async def run_soak(path: Path, rounds: int, every: int, seed: int) -> list[Sample]:
    samples: list[Sample] = []
    async with soaking(path, seed) as soak:
        while soak.net["node0"].height < rounds:
            await soak.go_on(every)
            samples.append(soak.sample())
            print(format_table(samples).splitlines()[-1], flush=True)
        faults = ", ".join(f"{count} of {what}" for what, count in sorted(soak.num_faults.items()))
    print(f"{format_table(samples)}\n{sum(soak.num_faults.values())} faults: {faults}")
    return samples


def check_all_is_given_back(samples: Sequence[Sample]) -> None:
    """Open files and tasks: as few as ever. One or two more at a time are of what is under way in a calm, too."""
    half = len(samples) // 2
    for what in ("fds", "tasks"):
        early, late = (min(getattr(sample, what) for sample in part) for part in (samples[:half], samples[half:]))
        assert late <= early, f"{what}: never fewer than {late} later on, {early} were enough at first"
    assert min(sample.temporary for sample in samples[half:]) == 0
    assert max(sample.wal_bytes for sample in samples) < MOST_WAL_BYTES


def check_entries(samples: Sequence[Sample], most: float) -> None:
    grown = {
        name: round(slope, 3)
        for name, slope in compute_growth(samples).items()
        if slope > most and samples[-1].entries[name] > BOUNDED.get(name, 0)
    }
    assert not grown, f"collections that grow with the rounds, by entries each round: {grown}"


def check_disk(samples: Sequence[Sample]) -> None:
    """What is kept of a block is kept for good, and is no more of a late one than of an early one."""
    slopes = compute_slopes(samples)
    assert slopes["files"] / NUM_NODES < MOST_FILES
    rounds, written = [one.round for one in samples], [one.db_bytes for one in samples]
    assert compute_slope(rounds, written) < MOST_DB_BYTES


def test_what_was_pulled_on_demand_is_not_remembered_for_ever(tmp_path: Path) -> None:
    async def story() -> tuple[Counter[str], Counter[str]]:
        async with taking(tmp_path, 3, {**FEDPER, "num_peers": 1}, rounds=0) as fed:
            found = []
            for height in (4, 14):
                await fed.wait_for_round(height)
                service = fed.net["node0"].service
                assert service is not None
                found.append(take_census(service, beyond=(fed.net.network, fed.net["node0"].trainer)))
            return found[0], found[1]

    early, late = run_virtual(story())
    name = "parts.payloads.demanded_blobs._pulled"
    assert name in late
    assert late[name] <= early[name] + 2


@pytest.mark.slow
def test_sixty_rounds_under_faults_leave_nothing_behind(tmp_path: Path) -> None:
    samples = run_virtual(run_soak(tmp_path, 60, 4, seed=2))
    settled = samples[len(samples) // 3 :]
    check_all_is_given_back(samples)
    check_entries(settled, 4 * MOST_ENTRIES)
    check_disk(settled)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_memory_files_and_disk_stay_bounded_over_thousands_of_rounds(tmp_path: Path) -> None:
    samples = run_virtual(run_soak(tmp_path, ROUNDS, ROUNDS // 40, SEED), timeout_s=1e7)
    settled = [sample for sample in samples if sample.round >= WARM_UP * ROUNDS]
    slopes = compute_slopes(settled)
    print("each round: " + ", ".join(f"{what} {slope:+.4f}" for what, slope in slopes.items()))
    write(samples)
    check_all_is_given_back(samples)
    check_entries(settled, MOST_ENTRIES)
    assert slopes["blocks"] < MOST_BLOCKS
    assert slopes["rss_mb"] < MOST_RSS_MB
    check_disk(settled)
    half = len(settled) // 2
    early, late = (compute_slopes(part)["disk_mb"] for part in (settled[:half], settled[half:]))
    assert late < 1.3 * early, f"{early:.4f} MB a round at first, {late:.4f} later on"


def write(samples: Sequence[Sample]) -> None:
    """As the environment asks for it."""
    if not (name := os.environ.get("FEDNODE_SOAK")):
        return
    rows = [sample.to_row() for sample in samples]
    with Path(name).open("w", encoding="utf-8", newline="") as file:
        if name.endswith(".json"):
            json.dump(rows, file, indent=1)
        else:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
