"""Each sign of what is wrong with a model, in a federation that shows it at the site where it belongs, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ml.measures.collapse import QUIET, Sign
from support.federation.signs import FEDERATIONS, federate


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_sign_shows_where_it_belongs_and_no_other_does(tmp_path: Path, name: str) -> None:
    shown = FEDERATIONS[name]
    for told, sign in zip(federate(tmp_path, shown), shown.at, strict=True):
        assert told.record["signs"].keys() == ({sign} - {None})
        assert told.lasting.keys() == ({sign} - {None} - QUIET)


def test_every_sign_has_its_federation() -> None:
    assert {sign for shown in FEDERATIONS.values() for sign in shown.at if sign is not None} == set(Sign)
