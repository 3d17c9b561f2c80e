"""`make bench-beside`: training alone costs a round of real nodes little."""

from __future__ import annotations

import json

import pytest

from support.federation.real_nodes import run_bench

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PAIRS = 3
LIMIT = 1.5  # 1.1 on a quiet machine; this one may be shared


def test_training_alone_costs_a_round_little() -> None:
    done = run_bench("beside", "--pairs", PAIRS, "--rounds", 10, "--json", timeout_s=900.0)
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert len(figures["ratios"]) == PAIRS
    assert figures["ratio"]["median"] < LIMIT
