"""Questions that a page puts for its visitor, whose answers may come late: only that to the newest is shown."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.pages import Served, Visit

pytestmark = pytest.mark.web

Visits = Callable[..., Visit]

ANSWERS = "[...document.querySelectorAll('[aria-label=answers] tbody tr')]"
HAS_CHANGED = f"said => {ANSWERS}.some((row, i) => row.innerText !== said[i])"
IS_AS_BEFORE = f"said => {ANSWERS}.length === said.length && {ANSWERS}.every((row, i) => row.innerText === said[i])"

DRAW = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_a_file_is_asked_about_and_the_dial_leans_its_answers(site: Served, visit: Visits) -> None:
    one = visit(key=True)
    page = one.show("model")
    rows = ask_about_noise(page)
    before = rows.all_inner_texts()
    dial = page.get_by_role("slider")
    dial.fill("1")
    page.wait_for_selector("text=leans 1.00 to the classes that this site has")
    page.wait_for_function(HAS_CHANGED, arg=before)
    dial.fill("0")
    page.wait_for_selector("text=as the model answers")
    page.wait_for_function(IS_AS_BEFORE, arg=before)


def ask_about_noise(page: Any) -> Any:
    """The rows of answers about eight samples, once they are there."""
    archive = io.BytesIO()
    np.savez(archive, x=np.random.default_rng(1).random((8, 1, 8, 8), np.float32))
    file: Any = {"name": "noise.npz", "mimeType": "application/octet-stream", "buffer": archive.getvalue()}
    page.set_input_files("input[type=file]", files=file)
    rows = page.locator("[aria-label=answers] tbody tr")
    rows.nth(7).wait_for()
    return rows


def test_an_answer_that_comes_late_is_not_shown_for_where_the_dial_is_by_now(site: Served, visit: Visits) -> None:
    one = visit(key=True)
    page = one.show("model")
    held: list[Any] = []
    rows = ask_about_noise(page)
    before = rows.all_inner_texts()
    page.route("**/api/v1/predict*prior=0.5", lambda route: held.append(route))
    dial = page.get_by_role("slider")
    with page.expect_request("**/api/v1/predict*prior=0.5"):
        dial.fill("0.5")
    dial.fill("1")
    page.wait_for_function(HAS_CHANGED, arg=before)
    whole = rows.all_inner_texts()
    with page.expect_response("**/api/v1/predict*prior=0.5") as late:
        held[0].continue_()
    late.value.finished()
    page.evaluate(DRAW)
    assert rows.all_inner_texts() == whole
    assert "Each leans 1.00 to the classes that this site has" in one.read()
    dial.fill("0")
    page.wait_for_function(IS_AS_BEFORE, arg=before)
    assert "Each leans" not in one.read()


def test_a_comparison_that_comes_late_is_not_shown_for_another_peer(site: Served, visit: Visits) -> None:
    page = visit().show("chain")
    held: list[Any] = []

    def hold_the_first(route: Any) -> None:
        if held:
            route.fulfill(json={"ours": None, "common": 7})
        held.append(route)

    page.route("**/api/v1/compare*", hold_the_first)
    for peer in (0, 1):
        page.get_by_role("combobox", name="peer").select_option(index=peer)
        page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("text=the same up to height 7")
    with page.expect_response("**/api/v1/compare*") as late:
        held[0].fulfill(json={"ours": None, "common": 3})
    late.value.finished()
    page.evaluate(DRAW)
    assert page.locator("text=the same up to height 7").count() == 1
