"""A genesis of masked sums: members enough to hide each of them, and limits that leave room for what they send."""

from __future__ import annotations

from typing import Any

import pytest

from chain.errors import GenesisError
from ml.errors import SpecError
from ml.specs import MaskedSpec
from node.config.genesis_file import get_genesis_spec
from support.data.chains import make_genesis, make_keys

MASKED = {"name": "fedavg", "aggregation": "masked_sum"}


def get_spec(num_members: int = 4, hidden: int = 8, **overrides: Any) -> MaskedSpec:
    model = {"name": "mlp", "hidden": [hidden]}
    genesis = make_genesis(make_keys(num_members), **{"method": MASKED, "model": model, **overrides})
    spec = get_genesis_spec(genesis)
    assert isinstance(spec, MaskedSpec)
    return spec


@pytest.mark.parametrize("num_members", [1, 2, 3])
def test_fewer_than_four_members_cannot_hide_in_a_sum(num_members: int) -> None:
    assert get_spec(4).task.num_members == 4
    with pytest.raises(GenesisError, match=rf"^members: expected at least 4 .*, got {num_members}$"):
        get_spec(num_members)


def test_limits_that_leave_a_sum_no_bits_are_refused_at_their_place() -> None:
    with pytest.raises(SpecError, match=r"limits\.max_weight: .* leave 0$"):
        get_spec(limits={"max_weight": 1_000_000, "payload_mib": 16, "max_abs": 1e12})


def test_a_model_whose_masked_numbers_are_longer_than_payloads_may_be_is_refused() -> None:
    """3 million numbers of 8 bytes each, where 16 MiB are the most; heights of keys and of openings have few."""
    assert get_spec(hidden=10_000).coding.size < 1_000_000
    with pytest.raises(SpecError, match=r"limits\.payload_mib: expected at least"):
        get_spec(hidden=40_000)


@pytest.mark.parametrize(("num_prototypes", "is_taken"), [(34_000, True), (36_000, False)])
def test_pools_that_would_be_longer_than_aggregates_may_be_are_refused(num_prototypes: int, is_taken: bool) -> None:
    """One of the round before, and one that waits for its sum: with 10 classes and 8 numbers each prototype is 48 bytes
    in either, where an aggregate of four members may have 128 MiB."""
    method = {"name": "mpfedcl", "aggregation": "masked_sum", "num_prototypes": num_prototypes}
    if is_taken:
        assert get_spec(method=method).max_aggregate_bytes <= 128 * 2**20
        return
    with pytest.raises(SpecError, match=r"limits\.payload_mib: expected at least 17, for an aggregate of mpfedcl"):
        get_spec(method=method)
    get_spec(method=method, limits={"max_weight": 1000, "payload_mib": 17})
