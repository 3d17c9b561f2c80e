"""The weight of a contribution, what it says of the samples it was made of, and the most that such a phase has told."""

from __future__ import annotations

from typing import Any

import pytest

from chain.block import PayloadRef
from ml.payload import KINDS
from ml.specs import MethodSpec, get_spec
from ml.specs.masked.spec import EMPTY_INPUT_BYTES
from node.consensus.learning.privacy_recount import plan_phase, read_samples, sends_nothing
from support.data.chains import make_contribution, make_digest, make_genesis, make_keys

KEYS = make_keys(1)
MODEL = {"name": "mlp", "hidden": [4]}
AGREED = {"shape": [1, 8, 8], "normalize": "agreed"}


def make_spec(name: str = "fedavg", input_: dict[str, Any] | None = None, **method: Any) -> MethodSpec:
    asked = {"name": name, "dp_noise": 2.0, **method}
    return get_spec(asked, MODEL, 10, (1, 8, 8), max_weight=1000, input_=input_)


@pytest.mark.parametrize(
    ("spec", "number", "weight", "between"),
    [
        (make_spec(), 3, 210, (210, 210)),
        (make_spec(weights="bucketed"), 3, 128, (128, 255)),
        (make_spec(weights="uniform"), 3, 1, None),
        (make_spec(), 3, 1000, None),  # or more, as no weight is larger
        (make_spec("dfpl"), 3, 1, None),
        (make_spec(input_=AGREED), 1, 1, None),  # that of statistics is 1
        (make_spec(input_=AGREED), 2, 210, (210, 210)),
    ],
    ids=["samples", "bucketed", "uniform", "capped", "prototypes", "statistics", "after statistics"],
)
def test_a_weight_says_how_many_samples_there_were_or_does_not(
    spec: MethodSpec, number: int, weight: int, between: tuple[int, int] | None
) -> None:
    contribution = make_contribution(make_genesis(KEYS), KEYS[0], weight=weight)
    assert read_samples(spec, number, contribution) == between


def test_what_is_not_certain_makes_it_more() -> None:
    spec = make_spec(local_epochs=2, batch_size=50)
    release = plan_phase(spec, (60, 119), 1, None)
    assert release is not None
    assert (release.rate, release.steps) == (50 / 60, 2 * 3)  # of the fewest samples, and of the most
    chosen = plan_phase(spec, (100, 100), 1, 7)
    assert chosen is not None
    assert chosen.steps == 7 * 2
    fewer = plan_phase(spec, (100, 100), 1, 1)
    assert fewer is not None
    assert fewer.steps == 2 * 2  # the method's own number


@pytest.mark.parametrize(("masked", "is_empty"), [(EMPTY_INPUT_BYTES, True), (EMPTY_INPUT_BYTES + 1, False)])
def test_an_empty_masked_input_is_no_phase_whatever_is_shown_beside_it(masked: int, is_empty: bool) -> None:
    agreed = {"name": "mpfedcl", "aggregation": "masked_sum", "cluster": "mean", "dp_noise": 2.0}
    spec = get_spec(agreed, MODEL, 10, (1, 8, 8), max_weight=1000, num_members=4, rounds=3)
    sizes = {"masked": masked, "prototypes": EMPTY_INPUT_BYTES}
    refs = [PayloadRef(KINDS[kind], make_digest(kind), size) for kind, size in sorted(sizes.items())]
    contribution = make_contribution(make_genesis(KEYS), KEYS[0], payloads=refs)
    assert sends_nothing(spec, contribution) is is_empty
