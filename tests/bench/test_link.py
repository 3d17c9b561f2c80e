"""The benchmark of large models over slow links: a small one, whose figures add up."""

from __future__ import annotations

import json

import pytest

from bench.application import main
from support.machines import nat

pytestmark = pytest.mark.outer

OBSTACLE = nat.find_obstacle()


@pytest.mark.slow
@pytest.mark.skipif(OBSTACLE is not None, reason=f"needs network namespaces: {OBSTACLE}")
def test_a_small_one_gives_figures_that_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", "mlp", "--set", "input.shape=[1,8,8]", "--set", "model.hidden=[1024,512]")
    assert main(["link", "--nodes", "2", *model, "--mbit", "10", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 2e6 < found["payload_bytes"] < 3e6  # 64 x 1024, 1024 x 512 and 512 x 10 numbers of four bytes
    ideal_s = 8 * found["payload_bytes"] / 10e6
    assert 0.8 * ideal_s < found["bare_s"] < 2 * ideal_s
    assert found["exchange_s"]["median"] > 0.8 * ideal_s
    assert found["ratio"] == pytest.approx(found["exchange_s"]["median"] / found["bare_s"])
    assert 0 < found["overhead"] < 0.1
    assert found["contributions"] == 2
