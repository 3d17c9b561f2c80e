"""The part of a run's `input` that says members agree on what normalises it, in place of constants.

With `normalize: agreed` a round of statistics comes before all others; `inherited` uses the statistics of the run
before, which only a run that continues it can. `min_count` is the smallest number of samples that a site reports. With
`class_counts` sites report how many samples of each class they have, and with `correlations` the sums of the values of
each class. `low` and `high` bound the values, for all channels or for each: with masked sums, a value outside counts as
the bound that it exceeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chain.errors import GenesisError
from chain.layout import MAX_U32
from chain.schema import Section, check_choice, check_range, read_number

AGREED, INHERITED = "agreed", "inherited"
AGREED_KEYS = ("normalize", "min_count", "class_counts", "correlations", "low", "high")
MIN_COUNT = 5


def read_agreed(section: Section, num_channels: int) -> dict[str, Any]:
    """Returns the settings, all written out; {} if the input has constants. Raises GenesisError."""
    word = section.value("normalize", None)
    if word is None:
        for key in AGREED_KEYS[1:]:
            if section.has(key):
                raise GenesisError(section.path(key), "expected none without normalize: agreed")
        return {}
    check_choice(section.path("normalize"), section.text("normalize"), (AGREED, INHERITED))
    for key in ("mean", "std"):
        if section.has(key):
            raise GenesisError(section.path(key), f"expected none with normalize: {word}")
    min_count = section.integer("min_count", MIN_COUNT)
    check_range(section.path("min_count"), min_count, 1, MAX_U32 >> 1)
    agreed = {"normalize": word, "min_count": min_count}
    counts = {key: True for key in ("class_counts", "correlations") if section.flag(key, False)}
    return agreed | counts | _read_bounds(section, num_channels)


def _read_bounds(section: Section, num_channels: int) -> dict[str, list[float]]:
    bounds: dict[str, list[float]] = {}
    for key, other in (("low", "high"), ("high", "low")):
        if not section.has(key):
            if section.has(other):
                raise GenesisError(section.path(key), f"expected it beside {other}")
            continue
        values, path = section.items(key), section.path(key)
        if len(values) not in (1, num_channels):
            raise GenesisError(path, f"expected 1 value or {num_channels}, got {len(values)}")
        bounds[key] = [read_number(f"{path}[{i}]", value) for i, value in enumerate(values)]
    if bounds and len(bounds["low"]) != len(bounds["high"]):
        raise GenesisError(section.path("high"), f"expected as many values as low has, {len(bounds['low'])}")
    if any(low >= high for low, high in zip(bounds.get("low", ()), bounds.get("high", ()), strict=True)):
        raise GenesisError(section.path("high"), f"expected values above those of low, got {bounds['high']}")
    return bounds


def explain_uninherited(
    before: Mapping[str, Any], after: Mapping[str, Any], *, continues: bool, num_rounds: int = 1
) -> str | None:
    """Explains why a run with the input `after` cannot use the statistics of the run before, which has the input
    `before` and has made `num_rounds`. Returns None if it can, or does not ask for them."""
    if after.get("normalize") != INHERITED:
        return None
    if not continues:
        return "normalize: inherited goes with a run that continues; agreed begins anew"
    if before.get("normalize") is None:
        return "normalize: the run before has no agreed statistics to inherit"
    if any(before[key] != after[key] for key in ("shape", "resize")):
        return "normalize: statistics are inherited by the same shape and resize only"
    if before["normalize"] == AGREED and num_rounds < 1:
        return "normalize: the run before has not agreed on its statistics yet"
    return None
