"""`fednode evaluate`: what it takes, and what it refuses before it asks a node."""

from __future__ import annotations

import pytest

from node.cli.model.evaluate import list_cuts
from node.errors import ConfigError


def test_cuts_are_numbers_of_a_column() -> None:
    assert list_cuts(None, None) == list_cuts(None, "age") == ()
    assert list_cuts("40,60.5", "age") == (40, 60.5)
    with pytest.raises(ConfigError, match="--cuts: expected --by beside it"):
        list_cuts("40", None)
    for wrong in ("", "a,b", "40;60", "nan", "inf,1"):
        with pytest.raises(ConfigError, match="--cuts: expected numbers, as in 40,60"):
            list_cuts(wrong, "age")
