"""Cuts of every shape in bad weather: a third of the messages lost, the rest late, twice or out of order.

Memory transport, virtual time, seeded. Each cut is made in a running federation, lasts a while and is healed, while the
weather stays as it is. What is promised is read off the quorum alone: a side that has one goes on, a side that has none
stands still, trains no further and says so; nobody ever signs twice; and once the cut is healed all go on together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from support.federation.cluster import Cluster, ScriptedTrainer, cluster
from support.federation.virtual_time import run_virtual
from support.federation.wiretap import TappedNetwork

TRAIN_S = 1.0  # a round takes so long at least: what costs real time here is messages
NOTICE_S = 10.0  # within which a side without a quorum says so
CUT_S = 30.0
NUM_SEEDS = 20
PATIENCE_S = 300.0  # for what has to come about


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut among `n` members: `lost` has each (from, to) that no message passes.

    `goes_on` are those of a quorum that hear and reach each other, if there is one, and `waits` those who hear of none.
    Nobody else is held to anything before the cut is healed.
    """

    n: int
    lost: tuple[tuple[int, int], ...]
    goes_on: tuple[int, ...]
    waits: tuple[int, ...]
    quorum: str = "bft"


def part(n: int, *sides: Sequence[int], quorum: str = "bft") -> Cut:
    """Nothing passes between two sides."""
    needed = 2 * n // 3 + 1 if quorum == "bft" else n // 2 + 1
    lost = tuple((a, b) for here in sides for there in sides if here is not there for a in here for b in there)
    able = tuple(i for side in sides if len(side) >= needed for i in side)
    unable = tuple(i for side in sides if len(side) < needed for i in side)
    return Cut(n, lost, able, unable, quorum)


CUTS = {
    "1|3": part(4, (0, 1, 2), (3,)),
    "2|2": part(4, (0, 1), (2, 3)),
    "1|4": part(5, (0, 1, 2, 3), (4,)),
    "2|3": part(5, (0, 1), (2, 3, 4)),
    "2|3 of a majority": part(5, (0, 1), (2, 3, 4), quorum="majority"),
    "1|1|3 of a majority": part(5, (0,), (1,), (2, 3, 4), quorum="majority"),
    "one link": Cut(4, ((0, 1), (1, 0)), (0, 1, 2, 3), ()),
    "one link one way": Cut(4, ((0, 1),), (0, 1, 2, 3), ()),
    "one hears nobody": Cut(4, ((0, 3), (1, 3), (2, 3)), (0, 1, 2), (3,)),
    "one is heard by nobody": Cut(4, ((3, 0), (3, 1), (3, 2)), (0, 1, 2), ()),
    "two hear all and are not heard": Cut(4, ((2, 0), (2, 1), (3, 0), (3, 1)), (), (0, 1)),
    "each is unheard by the next": Cut(4, ((0, 1), (1, 2), (2, 3), (3, 0)), (), ()),
}


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine under the tests stays up: what a process wrote is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def make_weather(rng: Random) -> dict[str, object]:
    """Messages take up to a fifth of a second, four times Delta, and overtake each other."""
    return {"loss": 0.3, "duplicate": 0.1, "latency_s": (0.0, rng.choice((0.02, 0.1, 0.2)))}


def name(members: Sequence[int]) -> list[str]:
    return [f"node{i}" for i in members]


def get_stall(net: Cluster, member: str) -> str | None:
    service = net[member].service
    assert service is not None
    return service.stall


def get_heights(net: Cluster, members: Sequence[str]) -> list[int]:
    return [net[member].height for member in members]


async def run_cut(tmp_path: Path, cut: Cut, seed: int) -> dict[str, float]:
    """One federation through one cut. What was measured, in seconds of its own time and in blocks."""
    rng = Random(seed)
    trainers = [ScriptedTrainer(i, TRAIN_S) for i in range(cut.n)]
    able, unable = name(cut.goes_on), name(cut.waits)
    async with cluster(
        tmp_path,
        cut.n,
        seed=seed,
        quorum=cut.quorum,
        trainers=trainers,
        network=make_weather(rng),
        network_class=TappedNetwork,
    ) as net:
        clock = net["node0"].clock
        await net.wait_for_height(2, timeout_s=PATIENCE_S)
        for a, b in cut.lost:
            net.network.cut(net.id(f"node{a}"), net.id(f"node{b}"), one_way=True)
        cut_s = clock.monotonic()
        figures: dict[str, float] = {}
        if unable:
            await net.wait_for(
                lambda: all(get_stall(net, member) is not None for member in unable), f"{unable} to say so", NOTICE_S
            )
            figures["stall"] = clock.monotonic() - cut_s
            for member in unable:
                assert f"{net.genesis.state.q} needed" in str(get_stall(net, member))
        await net.wait_for(lambda: clock.monotonic() > cut_s + NOTICE_S, "what was under way to end")
        held = get_heights(net, unable)
        trained = [list(trainers[i].trained) for i in cut.waits]
        began = min(get_heights(net, able), default=0)
        await net.wait_for(lambda: clock.monotonic() > cut_s + CUT_S, "the cut to last")
        assert get_heights(net, unable) == held, net.describe()
        assert [trainers[i].trained for i in cut.waits] == trained
        assert all(get_stall(net, member) is not None for member in unable)
        if able:
            await net.wait_for_height(began + 3, *able, timeout_s=PATIENCE_S)
            figures["blocks"] = min(get_heights(net, able)) - began
        net.check_agreement()
        net.heal()
        healed_s, height = clock.monotonic(), max(node.height for node in net.nodes.values())
        await net.wait_for_height(height + 1, timeout_s=PATIENCE_S)
        figures["agreement"] = clock.monotonic() - healed_s
        await net.wait_for(lambda: all(get_stall(net, member) is None for member in net.nodes), "no stall any more")
        authors: set[bytes] = set()
        height = net["node0"].height

        def have_all_contributed() -> bool:
            nonlocal height
            while height < net["node0"].height:
                height += 1
                authors.update(one.author for one in net["node0"].get_block(height).contributions)
            return len(authors) == cut.n

        await net.wait_for(have_all_contributed, "a contribution of every member", PATIENCE_S)
        net.check_agreement()
        assert isinstance(net.network, TappedNetwork)
        net.network.check()
        return figures


@pytest.mark.parametrize("cut", ["1|4", "2|3", "2|3 of a majority", "one is heard by nobody"])
def test_a_side_with_a_quorum_goes_on_and_all_agree_after_healing(tmp_path: Path, cut: str) -> None:
    print(run_virtual(run_cut(tmp_path, CUTS[cut], seed=1)))


@pytest.mark.long
@pytest.mark.parametrize("cut", CUTS)
def test_the_same_under_many_seeds(tmp_path: Path, cut: str) -> None:
    measured: dict[str, list[float]] = {}
    for seed in range(2, 2 + NUM_SEEDS):
        try:
            figures = run_virtual(run_cut(tmp_path / str(seed), CUTS[cut], seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for what, value in figures.items():
            measured.setdefault(what, []).append(value)
    for what, values in measured.items():
        values.sort()
        print(f"{cut}: {what}: {values[0]:.1f} to {values[-1]:.1f}, median {values[len(values) // 2]:.1f}")
