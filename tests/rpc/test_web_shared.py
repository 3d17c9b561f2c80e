"""The cost of many pages to a node: that of one, however many look. That an event is written once for all of them is in
test_web_api.py; which questions a page asks, in tests/web/test_long_and_many.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.web import shared, site
from support.federation.asked_over_http import serving_page

ASKED = ("/api/v1/overview", "/api/v1/metrics?from=0&max_points=2000", "/api/v1/chain?limit=8")  # by a page that opens


def note_writing(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The records that are written from now on."""
    written, real = list[Any](), site.encode_json

    def encode(record: Any) -> bytes:
        written.append(record)
        return real(record)

    monkeypatch.setattr(site, "encode_json", encode)
    return written


@pytest.mark.parametrize("tabs", [1, 10])
async def test_what_pages_ask_for_together_is_worked_out_once(
    tabs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_page(tmp_path, rounds=2) as page:
        await page.one.net.wait_for_height(2)
        monkeypatch.setattr(shared, "AGE_S", 3600.0)  # all of it happens at once, whatever the machine takes
        written = note_writing(monkeypatch)
        answers = await asyncio.gather(*(page.get(path) for path in ASKED for _ in range(tabs)))
        assert {answer.code for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == len(written) == len(ASKED)


async def test_what_has_come_of_age_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_page(tmp_path, rounds=2) as page:
        await page.one.net.wait_for_height(2)
        monkeypatch.setattr(shared, "AGE_S", -1.0)
        written = note_writing(monkeypatch)
        for _ in range(3):
            assert (await page.get(ASKED[0])).code == 200
        assert len(written) == 3
