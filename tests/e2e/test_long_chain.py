"""One run that is long enough for the difficulty to follow the miners twice, with a member that came late."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.federation.real_nodes import Federation, make_federation, paused, run_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROUNDS = 34  # the difficulty may change at heights 17 and 33
LATE = "node3"


async def test_a_late_joiner_catches_up_and_all_agree_on_a_difficulty_that_follows_the_miners(tmp_path: Path) -> None:
    """Mining takes far less than the target of 10 minutes, so the difficulty rises by the most that it may: 4 times."""
    directory = make_federation(
        tmp_path / "net",
        rounds=ROUNDS,
        settings=("local_iterations=1", "pow.difficulty=16384", "pow.adaptive=true", "pow.target_ms=600000"),
    )
    async with Federation(directory) as net:
        first = [name for name in net.names if name != LATE]
        await net.start(*first)
        await net.wait_for_height(5)
        with paused(await net.get_worker(first[0]), await net.get_worker(first[1])):  # or the others are done too soon
            await net.start(LATE)
            await net.wait_until_ready(LATE)
        height = await net.wait_for_contribution(LATE, 5)
        await net.wait_for_height(ROUNDS)
        done = await net.wait_for(lambda now: all(status["done"] for status in now.values()), "the end of all rounds")
        assert len({status["head"] for status in done.values()}) == 1
        assert await net.check_agreement() == ROUNDS
        chain = await net.read_chain(LATE)
        expected = [1] + [16_384] * 16 + [65_536] * 16 + [262_144] * 2
        assert [block["difficulty"] for block in chain] == expected
        for before in range(1, 6):
            assert LATE not in await net.read_contributors(LATE, before)
        assert height > 5
    verified = run_command("chain", "verify", "--deep", "--data-dir", net.get_data_dir(LATE))
    assert verified.code == 0, verified.err
