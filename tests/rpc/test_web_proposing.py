"""Changes proposed over HTTP: what was shown is what is proposed, by whoever may act, and what cannot be is said."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from chain.signing import encode_id
from node.admin.tokens import Role
from node.cli import main
from node.federation.difference import format_difference
from node.web import shared
from support.data.chains import make_keys
from support.federation.asked_over_http import Answered, Served, serving_page

STRANGER = encode_id(make_keys(9)[8].id)
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "AGE_S", -1.0)


async def propose(page: Served, kind: str, terms: Any, *, key: str | None = None, **more: Any) -> Answered:
    said = {"kind": kind, "terms": terms, **more}
    return await page.post("/api/v1/propose", said, key=page.open(Role.ADMIN) if key is None else key)


async def show(page: Served, change: str, capsys: Captured) -> list[str]:
    """The differences that `fednode proposals show` prints."""
    assert await asyncio.to_thread(main, ["proposals", "show", change, "--socket", str(page.one.path)]) == 0
    return [line[2:] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]


PROPOSED: tuple[tuple[str, Any, str], ...] = (
    ("start_run", {"set": ["lr=0.05", "select.patience=2"], "rounds": 3, "initial": "continue"}, "run.method.lr"),
    ("set_rounds", {"rounds": 9}, "run.rounds"),
    ("end_run", {}, "run.is_ended"),
    ("add_member", {"request": f"hospital-d={STRANGER}@d.example.org:7050"}, "members.hospital-d"),
    ("remove_member", {"name": "node2"}, "members.node2"),
    ("set_rules", {"set": ["waits.collect_s=5", "keep_heights=3"]}, "rules.keep_heights"),
)


async def test_a_look_shows_what_proposals_show_prints_once_it_is_signed(tmp_path: Path, capsys: Captured) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        for number, (kind, terms, path) in enumerate(PROPOSED):
            draft = await propose(page, kind, terms, dry_run=True)
            assert draft.code == 200, draft.json
            assert path in {each["path"] for each in draft.json["differences"]}
            assert len((await page.get("/api/v1/proposals")).json["proposals"]) == number
            made = await propose(page, kind, terms, shown=draft.json["terms"], note="agreed on Monday")
            assert (made.code, made.json["open"], made.json["approved_here"]) == (200, True, True), made.json
            assert await show(page, made.json["id"], capsys) == [*map(format_record, draft.json["differences"])]


def format_record(difference: dict[str, str | None]) -> str:
    old, new = (None if text is None else json.loads(text) for text in (difference["old"], difference["new"]))
    return format_difference(difference["path"] or "", old, new)


@pytest.mark.slow  # torch is loaded to draw
async def test_the_parameters_that_were_shown_are_those_that_a_run_begins_from(tmp_path: Path) -> None:
    terms = {"set": ["model.hidden=[3]"], "rounds": 2, "initial": "new"}
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        draft = (await propose(page, "start_run", terms, dry_run=True)).json
        digest = json.loads(draft["terms"])["initial"]
        assert not page.one.context.store.has_blob(bytes.fromhex(digest)), "a look keeps nothing"
        made = (await propose(page, "start_run", terms, shown=draft["terms"])).json
        assert json.loads(made["terms"])["initial"] == digest
        assert page.one.context.store.has_blob(bytes.fromhex(digest))
        again = await propose(page, "start_run", terms, shown=draft["terms"])
        assert (again.code, "gone by now; look at it again" in again.json["error"]) == (409, True)
        other = await propose(page, "start_run", {**terms, "set": ["model.name=nothing"]}, dry_run=True)
        assert other.code == 409


REFUSED: tuple[tuple[str, Any, int, str], ...] = (
    ("start_run", {"set": ["lr=-1"], "initial": "continue"}, 409, "method.lr: expected a number in (0, 1e38]"),
    ("start_run", {"set": ["lr"], "initial": "continue"}, 409, "--set lr: expected KEY=VALUE"),
    ("start_run", {"set": ["select.patience=-1"], "initial": "continue"}, 409, "select.patience: expected 0 to"),
    ("start_run", {"rounds": -1, "initial": "continue"}, 409, "rounds: expected"),
    ("start_run", {"set": "lr=1", "initial": "continue"}, 409, "set: expected"),
    ("start_run", {"initial": "/etc/passwd"}, 400, "initial: expected continue or new, got '/etc/passwd'"),
    ("start_run", {"initial": "ab" * 32}, 400, "initial: expected continue or new"),
    ("start_run", {"initial": ["new"]}, 400, "initial: expected continue or new"),
    ("add_member", {"request": "nobody"}, 409, "request: expected fednode-join-1:… or NAME=ID, got 'nobody'"),
    ("add_member", {"request": "fednode-join-1:AAAA"}, 409, ""),
    ("add_member", {"request": f"node1={STRANGER}"}, 409, ""),
    ("remove_member", {"name": "node7"}, 409, "name: no member is called 'node7'"),
    ("remove_member", {}, 409, "name: is missing"),
    ("set_rules", {"set": ["keep_heights"]}, 409, "rules: expected PATH=VALUE, as in waits.collect_s=5, got"),
    ("set_rules", {"set": ["keep_heights=3", "keep_heights=4"]}, 409, "rules.keep_heights: is given twice"),
    ("set_rules", {"set": ["keep_heights=[3"]}, 409, "rules.keep_heights: expected a YAML value"),
    ("set_rules", {"set": ["colect_s=3"]}, 409, "rules.colect_s: there is no such rule"),
    ("set_rules", {"set": []}, 409, "rules: expected PATH=VALUE"),
    ("upgrade", {"protocol": 9}, 400, "kind: expected one of start_run, "),
    ("end_run", {"now": True}, 409, "now: "),
)


async def test_what_cannot_be_proposed_is_said_in_a_sentence(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        key = page.open(Role.ADMIN)
        for kind, terms, code, said in REFUSED:
            for dry_run in (True, False):
                answer = await propose(page, kind, terms, key=key, dry_run=dry_run)
                assert (answer.code, answer.json["error"][: len(said)]) == (code, said)
                assert "\n" not in answer.json["error"]
        assert (await page.get("/api/v1/proposals")).json == {"proposals": []}


async def test_not_even_a_look_is_for_who_only_reads_or_comes_from_elsewhere(tmp_path: Path) -> None:
    async with serving_page(tmp_path, rounds=1) as page:
        await page.one.net.wait_for_height(1)
        for key, code in ((page.open(Role.READ), 403), (page.open(Role.PREDICT), 403), ("x" * 40, 401)):
            assert (await propose(page, "end_run", {}, key=key, dry_run=True)).code == code
        said, key = {"kind": "end_run", "terms": {}, "dry_run": True}, page.open(Role.ADMIN)
        for elsewhere in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}):
            assert (await page.post("/api/v1/propose", said, key=key, **elsewhere)).code == 403
        assert (await page.post("/api/v1/propose", said, key=key, Content_Type="text/plain")).code == 400
        assert (await page.post("/api/v1/propose", said, key=key)).code == 200
