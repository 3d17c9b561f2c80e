"""A file with labels on the page: all its answers, what they are worth, a threshold that moves, and groups of rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.measures.operating import find_points
from ml.tasks import CLASSIFICATION
from support.pages import ROUNDS, Served, Visit

pytestmark = pytest.mark.web

Visits = Callable[..., Visit]

NUM_SAMPLES = 120


def drop_labelled(page: Any, path: Path) -> None:
    """Has the model asked about samples that are noise about their labels."""
    rng = np.random.default_rng(4)
    archive = io.BytesIO()
    x, y = rng.random((NUM_SAMPLES, 1, 8, 8), np.float32), rng.integers(0, 10, NUM_SAMPLES)
    np.savez(archive, x=x, y=y)
    path.write_bytes(archive.getvalue())
    file: Any = {"name": path.name, "mimeType": "application/octet-stream", "buffer": archive.getvalue()}
    page.set_input_files("input[type=file]", files=file)


def read_table(page: Any, label: str) -> list[list[str]]:
    table = page.locator(f"[aria-label='{label}'] tbody tr")
    table.first.wait_for()
    return [row.split("\t") for row in table.all_inner_texts()]


def test_a_whole_file_is_answered_saved_and_measured_as_the_command_does(
    site: Served, visit: Visits, tmp_path: Path
) -> None:
    page = visit(key=True).show("model")
    page.select_option("section[aria-label='Ask the model'] select", "newest")
    drop_labelled(page, tmp_path / "own.npz")
    page.wait_for_selector("text=1 to 20 of 120")
    assert len(read_table(page, "answers")) == 20
    for _ in range(5):
        page.get_by_role("button", name="Next").click()
    page.wait_for_selector("text=101 to 120 of 120")
    assert [row[0] for row in read_table(page, "answers")] == [str(i) for i in range(100, 120)]
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV", exact=True).click()
    lines = list(csv.DictReader(Path(saved.value.path()).read_text().splitlines()))
    told = site.tell("node0", "predict", tmp_path / "own.npz", "--round", "newest", "--top", "10")["predictions"]
    assert [line["row"] for line in lines] == [str(i) for i in range(NUM_SAMPLES)]
    for line, said in zip(lines, told, strict=True):
        assert (line["class"], line["in the file"]) == (said["class"], said["expected"])
        for one in said["top"]:
            assert float(line[f"probability of {one['class']}"]) == one["probability"]
    found = site.tell("node0", "evaluate", tmp_path / "own.npz", "--round", "newest")["measures"]
    shown = {row[0]: row[1:3] for row in read_table(page, "measures")}
    assert len(shown) == len(found["summary"])
    interval = found["intervals"]["auc"]
    assert shown["AUC"] == [f"{found['summary']['auc']:.4f}", f"{interval['low']:.3f} to {interval['high']:.3f}"]
    page.wait_for_selector("text=Members may have trained on rows of this file.")


def test_a_threshold_that_moves_shows_what_the_command_says(site: Served, visit: Visits, tmp_path: Path) -> None:
    page = visit(key=True).show("model")
    page.select_option("section[aria-label='Ask the model'] select", "newest")
    drop_labelled(page, tmp_path / "own.npz")
    page.get_by_label("call it").select_option("3")
    page.get_by_role("slider", name="threshold").fill("0.2")
    page.get_by_role("spinbutton", name="prevalence").fill("0.05")
    page.wait_for_function(
        "document.querySelector(\"[aria-label='from a threshold on']\")?.innerText.includes('0.050')"
    )
    asked = ("--round", "newest", "--resamples", 0, "--threshold", 0.2, "--prevalence", 0.05, "--positive", "3")
    [point] = site.tell("node0", "evaluate", tmp_path / "own.npz", *asked)["points"]
    [row] = read_table(page, "from a threshold on")
    expected = ["3", "0.050", str(point["num_called"])]
    for name in ("sensitivity", "specificity", "ppv", "npv"):
        if name in point["values"]:
            of = point["intervals"][name]
            expected += [f"{point['values'][name]:.3f}", f"{of['low']:.3f} to {of['high']:.3f}"]
    assert [cell for cell in row if cell != "–"] == expected


def test_answers_are_calibrated_and_mixed_as_the_command_has_them(site: Served, visit: Visits, tmp_path: Path) -> None:
    site.wait_for(lambda: not site.ask("status", "node1")["alone"]["owed_steps"], "training alone to catch up")
    page = visit("node1", key=True).show("model")
    page.select_option("section[aria-label='Ask the model'] select", "newest")
    drop_labelled(page, tmp_path / "own.npz")
    page.get_by_label("calibrated").check()
    page.get_by_label("answered by").select_option("mixed")
    page.wait_for_selector("text=/mixed with the one trained alone [0-9. to]+, calibrated at temperature/")
    asked = (tmp_path / "own.npz", "--round", "newest", "--calibrated")
    told = site.tell("node1", "predict", *asked, "--answer-by", "mixed")
    shown = [row[1:3] for row in read_table(page, "answers")]
    assert shown == [[one["class"], f"{one['probability']:.3f}"] for one in told["predictions"][:20]]
    found = site.tell("node1", "evaluate", *asked)
    models = (found, found["alone"], found["mixed"])
    rows = {row[0]: row[1:] for row in read_table(page, "measures")}
    for name, title in (("auc", "AUC"), ("loss", "test loss")):
        expected = []
        for one in models:
            interval = one["measures"]["intervals"][name]
            expected += [f"{one['measures']['summary'][name]:.4f}", f"{interval['low']:.3f} to {interval['high']:.3f}"]
        assert rows[title] == expected


def test_the_pages_arithmetic_of_thresholds_is_the_nodes(visit: Visits) -> None:
    page, rng = visit().show(), np.random.default_rng(9)
    y = rng.integers(0, 2, 60)
    said = np.round(rng.random(60) * 0.6 + 0.4 * y, 2)
    given = [
        (y, said, threshold, prevalence) for threshold in (0, 0.2, 0.55, 0.9, 1.1) for prevalence in (None, 0.01, 0.7)
    ]
    given += [(np.ones(5, int), said[:5], 0.5, 0.2), (np.array([0, 1]), np.array([0.1, 0.9]), 0.5, 0.5)]
    cases = [(labels.tolist(), scores.tolist(), *rest) for labels, scores, *rest in given]
    found = page.evaluate(
        """async (cases) => {
          const { findPoint } = await import("./operating.js");
          return cases.map(([y, scores, ...rest]) => findPoint(y.map(Boolean), scores, ...rest));
        }""",
        cases,
    )
    for told, (labels, scores, threshold, prevalence) in zip(found, given, strict=True):
        both = np.stack([1 - scores, scores], 1)
        [point] = find_points(CLASSIFICATION, labels, both, ("no", "yes"), ["yes"], threshold, prevalence)
        expected = point.to_mapping()
        assert flatten(told) == pytest.approx(flatten({key: expected[key] for key in told}), abs=1e-12)


def flatten(record: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(record, dict):
        return {name: record}
    return {key: value for part in record for key, value in flatten(record[part], f"{name}/{part}").items()}


def test_rows_are_grouped_by_a_column_of_the_file(site: Served, visit: Visits, tmp_path: Path) -> None:
    one = visit(key=True)
    asked: list[str] = []

    def name_columns(route: Any) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"columns": ["age", "sex"]})

    def group(route: Any) -> None:
        asked.append(route.request.url)
        address = route.request.url.replace("&by=sex", "")
        response = route.fetch(url=address)
        told = response.json()
        if address != route.request.url:
            told["groups"] = [
                {"value": "f", "num_samples": 111, "measures": told["measures"]},
                {"value": "<b>m</b>", "num_samples": 9, "measures": None},
            ]
        route.fulfill(response=response, body=json.dumps(told))

    one.page.route("**/api/v1/predict?*", name_columns)
    one.page.route("**/api/v1/evaluate?*", group)
    page = one.show("model")
    drop_labelled(page, tmp_path / "own.npz")
    page.get_by_label("by the values of").select_option("sex")
    rows = read_table(page, "groups")
    assert [row[:2] for row in rows] == [["f", "111"], ["<b>m</b>", "9"]]
    assert set(rows[1][2:]) == {"–"}
    assert asked[-1].endswith("by=sex")
    page.get_by_label("numbers cut at").fill("40,60")
    with page.expect_response("**/api/v1/evaluate?*"):
        page.get_by_label("numbers cut at").press("Enter")
    assert asked[-1].endswith("by=sex&cuts=40%2C60")
    assert {row[1] for row in read_table(page, "classes by group")} == {"f"}


def test_learning_has_an_interval_of_every_measure(site: Served, visit: Visits) -> None:
    page = visit().show("learning")
    page.wait_for_selector(f"text=, after round {ROUNDS}")
    told = site.ask("intervals")["measures"]
    rows = read_table(page, "measures")
    assert len(rows) == len(told["summary"])
    shown = {row[1:][-1] for row in rows}
    assert shown == {f"{of['low']:.3f} to {of['high']:.3f}" for of in told["intervals"].values()}
    assert told["intervals"].keys() == told["summary"].keys()
    measured = site.tell("node0", "status")["measures"]["summary"]
    assert told["summary"] == pytest.approx(measured, abs=1e-4)
