"""`fednode evaluate`: what it takes, and what it refuses before it asks a node."""

from __future__ import annotations

import pytest

from node.cli.evaluate import read_cuts, read_prevalence
from node.errors import ConfigError


def test_cuts_are_numbers_of_a_column() -> None:
    assert read_cuts(None, None) == read_cuts(None, "age") == ()
    assert read_cuts("40,60.5", "age") == (40, 60.5)
    with pytest.raises(ConfigError, match="--cuts: expected --by beside it"):
        read_cuts("40", None)
    for wrong in ("", "a,b", "40;60", "nan", "inf,1"):
        with pytest.raises(ConfigError, match="--cuts: expected numbers, as in 40,60"):
            read_cuts(wrong, "age")


def test_nothing_is_predicted_where_everybody_is_ill_or_nobody() -> None:
    assert (read_prevalence(None), read_prevalence(0.01)) == (None, 0.01)
    for wrong in (0.0, 1.0):
        with pytest.raises(ConfigError, match="--prevalence: expected more than 0 and less than 1"):
            read_prevalence(wrong)
