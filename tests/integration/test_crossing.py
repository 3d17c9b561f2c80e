"""Candidates that cross, where mining takes less than a round trip: they must not split view 0 (PROTOCOL §4)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from support.federation.cluster import cluster
from support.federation.virtual_time import run_virtual

pytestmark = pytest.mark.slow

ONE_WAY_S = 0.05
ROUNDS = 30


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.parametrize(("difficulty", "jitter_s"), [(1, 0.0), (1, 0.02), (200, 0.0)])  # mining: 1 us, and 20 ms
def test_four_far_apart_agree_in_view_0_whoever_mines_first(tmp_path: Path, difficulty: int, jitter_s: float) -> None:
    async def story() -> tuple[int, float]:
        in_order = jitter_s == 0  # as a stream is; with jitter each message has a delay of its own
        pow_ = {"difficulty": difficulty, "target_ms": 50}
        rate = 1e6 if difficulty == 1 else 10_000.0
        latency_s = (ONE_WAY_S - jitter_s, ONE_WAY_S + jitter_s)
        async with cluster(
            tmp_path, 4, profile="wide", pow=pow_, hash_rate=rate, network={"latency_s": latency_s, "fifo": in_order}
        ) as net:
            await net.wait_for_height(4)
            began_s = asyncio.get_running_loop().time()
            await net.wait_for_height(4 + ROUNDS)
            took_s = asyncio.get_running_loop().time() - began_s
            store = net["node0"].store
            assert store is not None
            stored = store.blocks(5, 4 + ROUNDS)
            return sum(each.certificate is not None and each.certificate.view == 0 for each in stored), took_s / ROUNDS

    in_view_0, round_s = run_virtual(story())
    print(f"{in_view_0} of {ROUNDS} in view 0, {round_s:.2f} s a round")
    assert in_view_0 >= 0.9 * ROUNDS
    assert round_s < 12 * ONE_WAY_S
