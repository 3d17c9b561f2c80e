"""`make bench-join`: a site joins a federation of a thousand rounds in the time that it is promised."""

from __future__ import annotations

import json

import pytest

from support.federation.real_nodes import run_bench

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROUNDS = 1000
READY_S = 15.0
WITHIN_HEIGHTS = 3


def test_a_joiner_of_a_thousand_rounds_stands_ready_and_contributes_soon() -> None:
    done = run_bench("join", "--rounds", ROUNDS, "--json", timeout_s=600.0)
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["blocks"] > ROUNDS
    assert figures["ready_s"] < READY_S
    assert 1 <= figures["heights_to_contribution"] <= WITHIN_HEIGHTS
