"""The growth of a round's messages and signature checks with the number of members: bounded by counting, not by the
clock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chain.signing import verify
from support.federation.cluster import Cluster, cluster
from support.federation.in_process import IdleTrainer
from support.federation.virtual_time import run_virtual

ROUNDS = 2
DIFFICULTY = 64  # as `support.federation.cluster` has it
MINING_S = 0.2  # until the first of all members finds a block: a hundred times what a message takes


@pytest.mark.parametrize("n", [4, 16])
def test_a_member_sends_each_other_one_what_the_protocol_asks_for_and_checks_each_signature_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    checks = 0

    def count(*arguments: Any) -> None:
        nonlocal checks
        checks += 1
        verify(*arguments)

    monkeypatch.setattr("chain.validation.verify", count)

    async def story() -> None:
        trainers = [IdleTrainer() for _ in range(n)]
        rate = DIFFICULTY / MINING_S / n
        async with cluster(tmp_path, n, trainers=trainers, hash_rate=rate, method={"name": "local"}, seed=1) as net:
            await net.wait_for_height(1)
            sent, checked = count_sent(net), checks
            await net.wait_for_height(1 + ROUNDS)
            for_each = Counter[str]()  # of a kind that none was sent of there are none
            for_each.update({kind: num / ROUNDS / n / (n - 1) for kind, num in (count_sent(net) - sent).items()})
            assert get_views(net) == [0] * ROUNDS  # nobody was of two minds, so:
            assert for_each["contribution"] <= 1 + 1 / ROUNDS  # those of the next height have begun
            assert for_each["vote"] == pytest.approx(2, abs=0.1)  # a prevote and a precommit to each
            assert for_each["block"] <= 2 / n  # one candidate, or two that crossed
            assert for_each["status"] <= 5  # a change is told within Delta, and all of Delta at once
            assert sum(for_each.values()) <= 8
            assert (checks - checked) / ROUNDS / n / (n - 1) <= 3 + 1 / ROUNDS + 2 / n  # of what came, each once

    run_virtual(story())


def count_sent(net: Cluster) -> Counter[str]:
    sent: Counter[str] = Counter()
    for member in net.genesis.state.member_ids:
        for counters in net.network.find(member).counters().values():  # type: ignore[union-attr]  # they all run
            sent.update({kind: traffic.messages_sent for kind, traffic in counters.kinds.items()})
    return sent


def get_views(net: Cluster) -> list[int]:
    store = net["node0"].store
    assert store is not None
    return [stored.certificate.view for stored in store.blocks(2, 1 + ROUNDS) if stored.certificate is not None]
