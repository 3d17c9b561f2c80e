"""The limits of a genesis whose aggregates have more than a model."""

from __future__ import annotations

from typing import Any

import pytest

from chain.genesis import Genesis
from ml.errors import SpecError
from node.config.genesis_file import get_genesis_spec
from support.data.chains import make_genesis_mapping, make_keys
from support.data.run_schemas import with_schema

ADAM = {"name": "fedavg", "outer": {"optimizer": "adam"}}


def check(method: dict[str, Any], num_members: int, payload_mib: float) -> None:
    """Of a model with 1.4 million parameters, 5.5 MiB."""
    terms = {"method": method, "model": {"name": "mlp", "hidden": [1800]}, "input": {"shape": [1, 28, 28]}}
    limits = {"max_weight": 1000, "payload_mib": payload_mib}
    mapping = make_genesis_mapping(make_keys(num_members), limits=limits, **terms)
    get_genesis_spec(Genesis.from_mapping(with_schema(mapping)))


def test_the_moments_of_an_outer_optimiser_fit_into_what_others_take_as_an_aggregate() -> None:
    with pytest.raises(SpecError, match=r"^limits\.payload_mib: expected at least 9, for an aggregate of fedavg"):
        check(ADAM, 1, 6)
    check(ADAM, 1, 9)
    check(ADAM, 2, 6)
    check({"name": "fedavg"}, 1, 6)
