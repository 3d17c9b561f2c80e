"""The page of a node: each view says what the command line says, acts where it may, and trusts nothing it shows."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from node.unseen import escape_unseen
from support.pages import ROUNDS, Served, Visit

pytestmark = pytest.mark.web

VIEWS = ("", "learning", "round", "chain", "chain/3", "federation", "model", "settings")
MARKUP = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'
STRANGE = (
    MARKUP,
    "<svg/onload=window.hit=1>",
    "<svg><script>window.hit=1</script></svg>",
    '"><iframe srcdoc="<script>parent.hit=1</script>"></iframe>',
    '<a href="javascript:window.hit=1">node1</a>',
    "javascript:window.hit=1",
    "' autofocus onfocus='window.hit=1",
    "<style>*{display:none}</style>",
    "<!-- <b>",
    "</textarea></title></script><script>alert(1)</script>",
    "&lt;img src=x onerror=window.hit=1&gt; &#60;b&#62;",
    "${window.hit=1} {{constructor.constructor('window.hit=1')()}}",
    '<meta http-equiv="refresh" content="0;url=//evil.example"><base href="//evil.example">',
    "<details open ontoggle=window.hit=1>",
    "node1\u202egnp.1edon\u202c",
    "\u2066\u2067node2\u2069 (\u200fme\u200e)",
    "no\u200bde\u200d1\u2060\ufeff",
    "n" + "\u0301\u0323" * 30,
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "W" * 2000,
)
MOST_ELEMENTS = 2000  # of a page, however long the chain is

Visits = Callable[..., Visit]

PROPOSAL = {
    "id": "ab" * 32,
    "kind": "set_rounds",
    "proposer": "node1",
    "proposer_id": "n5mfbckd",
    "approved_here": False,
    "approvals": [],
    "missing": {"before": 2, "quorum": 3, "after": 0, "training": 0, "readiness": None, "unanswered": []},
    "expires": 99,
    "height": 12,
}

VERDICT = {
    "measure": "auc",
    "together": 0.91,
    "alone": 0.88,
    "difference": 0.03,
    "interval": {"low": 0.004, "high": 0.056},
    "num_samples": 61,
    "rounds": 12,
    "owed_steps": 0,
    "outcome": "together",
    "sentence": "Federating helps here: AUC 0.910 against 0.880 alone (+0.030, +0.004 to +0.056), on 61 test samples.",
}

COUNT_VIOLATIONS = (
    "addEventListener('securitypolicyviolation', () => { window.violations = (window.violations ?? 0) + 1; })"
)

# What ran, and what was made of markup.
FIND_HARM = """() => {
  const made = "script:not(head script), style:not(head style), meta:not(head meta), iframe, object, embed, base, "
    + "form[action], main img, [onerror], [onload], [ontoggle], [onfocus], [autofocus], a[href^='javascript:' i]";
  const found = [...document.querySelectorAll(made)].map((one) => one.outerHTML);
  if (window.hit) found.push("a script ran");
  if (window.violations) found.push(`${window.violations} violations of the policy`);
  return found;
}"""

# Whether a text stands in the view whole, can be scrolled to and is not covered by nothing.
IS_SEEN = """(text) => {
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.replace(/\\s+/g, " ").includes(text) || parent.closest(".unseen, title")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const { width, height, left, right } = range.getBoundingClientRect();
    const isReached = parent.closest(".scroll") || (left >= 0 && right <= document.documentElement.clientWidth);
    const isVisible = parent.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (width && height && isReached && isVisible) return true;
  }
  return false;
}"""

WATCH_DRAWING = """
new MutationObserver(() => {
  const members = document.querySelectorAll("svg.ring g title").length;
  const isDrawn = members >= 49 && document.querySelector(".chart canvas");
  if (isDrawn && !window.drawn) requestAnimationFrame(() => {
    window.drawn = performance.now();
    document.documentElement.dataset.drawn = "yes";
  });
}).observe(document, { childList: true, subtree: true });
"""

# From when the numbers were there.
GET_DRAWN_MS = """() => {
  const metrics = performance.getEntriesByType("resource").filter((entry) => /metrics/.test(entry.name));
  return window.drawn - metrics[0].responseEnd;
}"""

MAKE_TROUBLE = """async () => {
  const { findProblems } = await import("./problems.js");
  const overview = await (await fetch("api/v1/overview")).json();
  const { status, members, peers } = overview;
  Object.assign(status, {
    stalled: true, stall_reason: "2 of 4 members in sight", silence: "a backup was put back", upgrade: null,
    other_history: "node1 has another block", training_trouble: "the data cannot be read", not_approved: "run 2",
    spoiled_reason: "not finite", spoiled_round: 3,
    not_learning: ["one class only is ever given"], model_signs: ["it overfits"],
    clocks_wrong: ["node2: 9 s ahead"], paused: true, stops_after: 7,
    disk_free_bytes: 1e6, unapproved_changes: 1,
  });
  const other = members.members.find((member) => !member.me);
  Object.assign(other, { connected: false, alive: false, silent_s: 12, version: "9.9.9" });
  Object.assign(peers.peers.find((peer) => peer.id !== other.id), { banned_s: 60, banned_for: "fault" });
  const evidence = [{ name: "node3", slot: "vote", height: 4 }];
  const data = { height: 5, author_name: "node1", reason: "norm" };
  const events = [{ kind: "rejected", time: new Date().toISOString(), data }];
  return findProblems({ overview, evidence, events });
}"""

PAUSE = """fetch("api/v1/pause", {
  method: "POST", headers: { "Content-Type": "application/json" }, body: "{}",
}).then((response) => response.status)"""


# ---- what is shown


def test_the_overview_says_what_status_says(site: Served, visit: Visits) -> None:
    one = visit()
    one.show()
    status = site.tell("node0", "status")
    text = one.read()
    assert f"All {ROUNDS} rounds of run 1 are done. 4 of 4 members in sight." in text
    assert f"Accuracy {status['accuracy']:.3f}" in text
    assert f"{status['quorum']} of 4 decide" in text
    assert "Nothing is wrong that this node knows of." in text
    label = one.page.get_attribute("svg.ring", "aria-label")
    assert label.startswith("4 of 4 members in sight: ")
    for block in site.tell("node0", "chain", "list", "--limit", 10)["blocks"]:
        assert block["id"][:8] in text


def test_learning_says_what_was_measured(site: Served, visit: Visits) -> None:
    one = visit()
    page = one.show("learning")
    measures = site.tell("node0", "status")["measures"]
    text = one.read()
    for value in measures["summary"].values():
        assert f"{value:.4f}" in text
    held = [each for each in measures["classes"] if each["num_samples"] or each["num_given"]]
    cells = page.locator("table.matrix td").all_inner_texts()
    assert len(cells) == len(held) ** 2
    assert sum(map(int, cells)) == measures["num_samples"]
    page.select_option("select", "macro_f1")
    page.wait_for_selector(".chart[aria-label*='At ']")
    with page.expect_download() as saved:
        page.click("text=CSV")
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0] == "height,macro F1"
    assert len(lines) == ROUNDS + 1
    with page.expect_download() as picture:
        page.click("text=PNG")
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")


def test_the_verdict_comes_first_and_stands_beside_training_alone(site: Served, visit: Visits) -> None:
    one = visit()

    def compare(route: Any) -> None:
        response = route.fetch()
        overview = response.json()
        alone = {"rounds": 12, "owed_steps": 0, "seconds": 1.5, "measures": None, "failure": None, "verdict": VERDICT}
        overview["status"]["alone"] = alone
        route.fulfill(response=response, json=overview)

    one.page.route("**/api/v1/overview", compare)
    page = one.show()
    assert page.inner_text("h1").startswith(f"{VERDICT['sentence']} All {ROUNDS} rounds")
    page = one.show("learning")
    card = page.locator("section[aria-label='Beside training alone']").inner_text()
    for told in (VERDICT["sentence"], "AUC together", "0.910", "0.880", "+0.030", "+0.004 to +0.056"):
        assert told in card
    options = page.locator("main select option").all_inner_texts()
    assert {"training loss", "test loss"} <= set(options)
    assert "loss" not in options


def test_charts_show_what_there_is_and_where_a_run_begins(visit: Visits) -> None:
    page = visit().show()
    assert page.evaluate("""async () => {
      const { findRuns, spread } = await import("./chart.js");
      const points = [1, 1, 2, 2, 3].map((run, i) => ({ run, height: i + 1 }));
      const [low, high] = spread(0.74, 0.82, true);
      return [findRuns(points), low > 0.7 && low < 0.74 && high > 0.82 && high < 0.86, spread(0.5, 1, true)[1] <= 1.01];
    }""") == [[{"at": 3, "label": "run 2"}, {"at": 5, "label": "run 3"}], True, True]


def test_a_table_that_is_wider_than_a_phone_says_that_it_scrolls(visit: Visits) -> None:
    one = visit()
    page = one.show("learning")
    hint = page.locator("section[aria-label='Class by class'] .hint")
    page.set_viewport_size({"width": 390, "height": 800})
    hint.wait_for()
    page.set_viewport_size({"width": 1600, "height": 900})
    hint.wait_for(state="detached")


def test_curves_are_those_of_the_newest_model_on_the_own_test_samples(site: Served, visit: Visits) -> None:
    one = visit()
    page = one.show("learning")
    page.wait_for_selector("svg.plot")
    told = site.ask("curves")
    measures = site.tell("node0", "status")["measures"]
    assert told["round"] == ROUNDS
    assert sum(bin_["counts"] for bin_ in told["reliability"]) == measures["num_samples"]
    error = sum(bin_["counts"] * abs(bin_["accuracy"] - bin_["confidence"]) for bin_ in told["reliability"])
    assert abs(error / measures["num_samples"] - measures["summary"]["calibration_error"]) < 1e-4
    drawn = {each["class"] for each in measures["classes"] if 0 < each["num_samples"] < measures["num_samples"]}
    label = page.get_attribute("section[aria-label^=ROC] svg.plot", "aria-label")
    assert set(label.removeprefix("ROC curves of ").split(", ")) == drawn
    for curve, each in zip(told["roc"], measures["classes"], strict=True):
        if curve:  # the area under few points is that of all, or nearly
            area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(curve))
            assert abs(area - each["values"]["auc"]) < 0.02


def test_a_round_says_what_rounds_show_says(site: Served, visit: Visits) -> None:
    one = visit()
    one.show("round/3")
    record = site.tell("node0", "rounds", "show", 3)
    text = one.read()
    assert "Round 3 of run 1" in text
    for name in record["contributor_names"]:
        assert name in text
    assert f"{record['accuracy']:.3f}" in text
    for phase in ("train", "exchange", "mine", "vote", "apply"):
        assert phase in text


def test_prototypes_of_too_many_classes_are_no_failure(site: Served, visit: Visits) -> None:
    one, said = visit(), "prototypes: expected a run of at most 256 classes, got 300"

    def share_prototypes(route: Any) -> None:
        response = route.fetch()
        block = response.json()
        block["contributions"][0]["payloads"][0]["kind"] = "prototypes"
        route.fulfill(response=response, json=block)

    one.page.route("**/api/v1/chain/3", share_prototypes)
    one.page.route("**/api/v1/rounds/3/prototypes", lambda route: route.fulfill(status=400, json={"error": said}))
    page = one.show("round/3")
    card = page.locator("section[aria-label^='Prototypes']")
    card.locator(f"text={said}").wait_for()
    assert card.locator(".note").count() == 0
    one.said.clear()  # the console told of the refusal


def test_federation_model_and_settings_say_what_their_commands_say(site: Served, visit: Visits) -> None:
    one = visit()
    one.show("federation")
    text = one.read()
    for member in site.tell("node0", "members", "list")["members"]:
        assert f"{member['name']} {member['id'][:8]}" in text
    assert f"{ROUNDS} of {ROUNDS}" in text
    with one.page.expect_download(timeout=120_000) as report:
        one.page.get_by_role("button", name="report of run 1").click()
    assert "node3" in Path(report.value.path()).read_text()
    one.show("model")
    model = site.tell("node0", "model", "info")
    assert model["sha256"] in one.read()
    with one.page.expect_download() as saved:
        one.page.click("text=Download as safetensors")
    assert Path(saved.value.path()).stat().st_size == model["bytes"]
    page = one.show("settings")
    page.click("text=also defaults")
    text = one.read()
    shown = site.tell("node0", "config", "show")
    assert str(shown["config"]["training"]["seed"]) in text  # 64 bits, and none is lost
    assert "node0.yaml:" in text


def test_what_members_have_stands_side_by_side(site: Served, visit: Visits) -> None:
    """With answers in the place of the node's, whose run agrees on nothing."""

    def make_classes(correlation: float | None) -> dict[str, Any]:
        against = None if correlation is None else -correlation
        return {"classes": [{"values": 50, "mean": 1.0, "std": 1.0, "correlation": r} for r in (against, correlation)]}

    def make_site(name: str, mean: float, bins: list[int]) -> dict[str, Any]:
        quartiles = {"lower_quartile": None, "median": None, "upper_quartile": None}
        features = [
            {"values": 90, "mean": mean, "std": 4.5, "bins": bins, **quartiles, "median": mean} | make_classes(0.31),
            {"values": 100, "mean": 0.45, "std": 0.5, "bins": [], **quartiles} | make_classes(None),
        ]
        return {"id": name, "name": name, "held": True, "samples": 100, "features": features, "classes": [60, 40]}

    told = {
        "run": 1,
        "height": 1,
        "min_count": 5,
        "features": [
            {"name": "age", "category": False, "edges": [40, 60]},
            {"name": "sex=f", "category": True, "edges": []},
        ],
        "classes": ["no", "yes"],
        "all": {**make_site("", 51.2, [30, 50, 10]), "samples": 200, "classes": [120, 80]},
        "sites": [
            make_site("node0", 50.1, [40, 50, 0]),
            make_site("node1", 1.3, [0, 0, 90]),
            {**make_site("node2", 0, []), "held": False},
        ],
        "differences": ["age: the mean of node1 is about 1/38.67 of the others'"],
    }

    def answer_runs(route: Any) -> None:
        response = route.fetch()
        runs = response.json()
        terms = json.loads(runs["runs"][0]["terms"])
        terms["input"]["normalize"] = "agreed"
        runs["runs"][0]["terms"] = json.dumps(terms)
        route.fulfill(response=response, json=runs)

    one = visit()
    one.page.route("**/api/v1/runs", answer_runs)
    one.page.route("**/api/v1/runs/1/statistics", lambda route: route.fulfill(json=told))
    one.show("federation")
    one.page.wait_for_selector("[aria-label='what members have'] table")
    said = one.page.inner_text("[aria-label='what members have']")
    for words in (
        "51.2 ± 4.5, 55 % empty",
        "50.1 ± 4.5, 10 % empty",
        "45.0 %",
        "about 1/38.67 of the others'",
        "What node2 told",
        "yes, node0",
        "0.31",
    ):
        assert words in said, said
    drawn = one.page.query_selector_all("svg.histogram")
    assert len(drawn) == 1
    assert "node0 below 40 40, from 40 50, from 60 0, median 50" in drawn[0].get_attribute("aria-label")
    assert len(drawn[0].query_selector_all("rect")) == 3
    assert len(drawn[0].query_selector_all("polyline")) == 2


def test_what_a_model_is_worth_at_every_site_is_a_matrix(visit: Visits) -> None:
    def make_site(name: str, auc: float | None) -> dict[str, Any]:
        of_class = {
            "class": "ill",
            "num_samples": 30,
            "num_given": 25,
            "given": [25, 5],
            "values": {"sensitivity": 0.75},
        }
        measures = {
            "num_samples": 61,
            "summary": {"auc": auc},
            "intervals": {"auc": {"low": 0.7, "high": 0.95}},
            "classes": [{**of_class, "intervals": {"sensitivity": {"low": 0.6, "high": 0.85}}}],
        }
        return {"id": name, "name": name, "held": True, "measures": measures if auc else None}

    def make_evaluation(run: int, of_round: int, auc: float) -> dict[str, Any]:
        sites = [make_site("node0", auc), make_site("node1", 0.5), make_site("node2", None)]
        head = {"run": run, "height": run, "of_run": 1, "of_round": of_round, "model": "00", "task": "classification"}
        return {**head, "min_samples": 50, "min_count": 5, "classes": ["ill", "well"], "sites": sites}

    def answer_runs(route: Any) -> None:
        response = route.fetch()
        runs = response.json()
        runs["runs"][0]["method"] = "evaluation"
        route.fulfill(response=response, json=runs)

    told = {"evaluations": [make_evaluation(2, 20, 0.91), make_evaluation(3, 12, 0.88)]}
    one = visit()
    one.page.route("**/api/v1/runs", answer_runs)
    one.page.route("**/api/v1/evaluations", lambda route: route.fulfill(json=told))
    one.show("federation")
    one.page.wait_for_selector("[aria-label=evaluations] table")
    said = one.page.inner_text("[aria-label=evaluations]")
    for words in (
        "run 1, round 20",
        "0.910 (0.700 to 0.950)",
        "0.880 (0.700 to 0.950)",
        "0.750 (0.600 to 0.850)",
        "Fewer than 50 test samples at node2",
    ):
        assert words in said, said


def test_the_doctor_is_asked_and_says_what_the_command_says(site: Served, visit: Visits) -> None:
    one = visit(key=True)
    page = one.show("settings")
    page.click("text=Ask the doctor")
    page.wait_for_selector("section [aria-label=doctor]", timeout=120_000)
    rows = page.locator("[aria-label=doctor] tbody tr").all_inner_texts()
    told = site.tell("node0", "doctor")["checks"]
    assert len(rows) == len(told) > 8
    for row, check in zip(rows, told, strict=True):
        assert check["check"] in row
        if check["verdict"] != "ok":
            assert check["advice"] in row
    looking = visit()
    looking.show("settings")
    assert looking.page.locator("text=Ask the doctor").count() == 0
    assert looking.page.evaluate(PAUSE.replace("pause", "doctor")) == 401
    looking.said.clear()  # the console told of the refusal


def test_the_doctor_shows_what_is_missing_of_each_column(visit: Visits) -> None:
    one = visit(key=True)
    missing = [{"column": column, "missing": num, "rows": 293} for column, num in (("ca", 290), ("chol", 1))]
    check = {"check": "data", "verdict": "ok", "found": "csv: 234 train / 59 test rows", "advice": None}
    told = {"ok": True, "checks": [check | {"missing": missing}]}
    one.page.route("**/api/v1/doctor", lambda route: route.fulfill(json=told))
    page = one.show("settings")
    page.click("text=Ask the doctor")
    page.wait_for_selector("section [aria-label=missing]")
    rows = page.locator("[aria-label=missing] tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [["ca", "290", "(99%)"], ["chol", "1", "(<1%)"]]


# ---- the browser checks blocks


def test_the_browser_checks_a_block_by_itself(site: Served, visit: Visits) -> None:
    one = visit()
    page = one.show("chain/3")
    page.wait_for_selector("[data-checked=ok]")
    names = page.locator(".ticks .state-ok .name").all_inner_texts()
    assert [name.partition(":")[0].strip() for name in names] == [
        "height",
        "seal and id",
        "proof of work",
        "body",
        "link below",
        "link above",
        "miner's signature",
        "contributions",
        "certificate",
    ]
    page = one.show("chain/0")
    page.wait_for_selector("[data-checked=ok]")


@pytest.mark.parametrize(
    ("at", "what"), [(20, "seal and id"), (215, "body"), (-1, "miner's signature"), (None, "certificate")]
)
def test_a_block_that_a_lying_server_altered_shows_red(site: Served, visit: Visits, at: int | None, what: str) -> None:
    one = visit()

    def lie(route: Any) -> None:
        response = route.fetch()
        given = response.json()
        field = "certificate" if at is None else "block"
        data = bytearray(base64.b64decode(given[field]))
        data[-1 if at is None else at] ^= 1
        route.fulfill(response=response, json=given | {field: base64.b64encode(data).decode()})

    one.page.route("**/api/v1/chain/3/bytes", lie)
    page = one.show("chain/3")
    page.wait_for_selector("[data-checked=bad]")
    assert "This block is not what it says." in one.read()
    assert what in " ".join(page.locator(".ticks .state-bad .name").all_inner_texts())


def test_the_node_checks_its_chain_and_tells_of_it(site: Served, visit: Visits) -> None:
    one = visit()
    page = one.show("chain")
    page.click("text=and every aggregate")
    page.wait_for_selector(f"text=Heights 0 to {ROUNDS} hold.")
    page.click("text=Compare >> nth=-1")
    page.wait_for_selector(f"text=the same up to height {ROUNDS}")
    page.fill("input[name=which]", "5")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Block 5')")


# ---- what is said by others


def test_what_strangers_write_runs_nothing_and_hides_nothing(site: Served, visit: Visits) -> None:
    one = visit()
    one.page.add_init_script(COUNT_VIOLATIONS)
    answers: dict[str, Any] = {}
    first = 0

    def spoil(route: Any) -> None:
        response = route.fetch()
        path = route.request.url.partition("/api/v1/")[2].partition("?")[0]
        answers[path] = _spoil(response.json(), first)
        route.fulfill(response=response, json=answers[path])

    def tell(route: Any) -> None:
        data = {"height": 3, "author_name": "node3", "reason": STRANGE[first]}
        record = {"kind": "rejected", "time": "2100-01-01T00:00:00Z", "data": data}
        text = f"retry: 600000\n\nid: {first}\nevent: rejected\ndata: {json.dumps(record, ensure_ascii=False)}\n\n"
        route.fulfill(body=text, content_type="text/event-stream; charset=utf-8")

    one.page.route("**/api/v1/**", lambda route: tell(route) if "/events" in route.request.url else spoil(route))
    for first in range(len(STRANGE)):
        for view in (
            ("", "round", "federation") if first % len(site.nodes) else VIEWS
        ):  # lists have four and more at once
            one.page.goto("about:blank")
            answers.clear()
            page = one.show(view)
            for text in _list_shown(view, answers):
                _wait_until_seen(page, text)
            if not view:
                _wait_until_seen(page, f"Refused of node3 at height 3: {STRANGE[first]}.")
            assert page.evaluate(FIND_HARM) == [], (view, first)


def test_what_an_error_says_runs_nothing_and_hides_nothing(site: Served, visit: Visits) -> None:
    one = visit()
    one.page.add_init_script(COUNT_VIOLATIONS)
    text = ""
    one.page.route(
        re.compile(r"/api/v1/chain/3\b"),
        lambda route: route.fulfill(
            status=500, body=json.dumps({"error": text}, ensure_ascii=False), content_type="application/json"
        ),
    )
    for text in STRANGE:
        one.page.goto("about:blank")
        _wait_until_seen(one.show("chain/3"), text)
        assert one.page.evaluate(FIND_HARM) == [], text
    one.said.clear()  # the console told of each error


def _spoil(record: Any, number: int) -> Any:
    """Every name, note, label and reason in it is of strangers; of a list each has another."""
    if isinstance(record, list):
        return [_spoil(each, number + i) for i, each in enumerate(record)]
    if not isinstance(record, dict):
        return record
    text = STRANGE[number % len(STRANGE)]
    words = {"name", "display_name", "note", "reason", "stall_reason", "unready_reason", "version", "device", "class"}
    words |= {"miner_name", "chain_name", "proposer_name"}
    spoiled = {key: text if key in words else _spoil(value, number) for key, value in record.items()}
    if "not_learning" in record:
        spoiled |= {"not_learning": [text], "model_signs": [text], "clocks_wrong": [text], "stalled": True}
    if isinstance(record.get("classes"), list) and all(isinstance(name, str) for name in record["classes"]):
        spoiled["classes"] = [STRANGE[(number + i) % len(STRANGE)] for i in range(len(record["classes"]))]
    if isinstance(record.get("proposals"), list):
        differences = [{"path": "run.classes[0]", "old": text, "new": text}]
        spoiled["proposals"] = [PROPOSAL | {"note": text, "warnings": [text], "differences": differences}]
    if isinstance(record.get("rejected"), dict):
        spoiled["rejected"] = {"ab" * 32: text}
    return spoiled


def _list_shown(view: str, answers: Mapping[str, Any]) -> list[str]:
    """What is of strangers in the answers and has to be seen in a view."""
    overview = answers["overview"]
    if view == "federation":
        members = overview["members"]["members"]
        runs = [run["note"] for run in answers["runs"]["runs"]]
        [proposal] = overview["proposals"]["proposals"]
        asked = [proposal["note"], *proposal["warnings"], *proposal["differences"][0].values()]
        return [one[key] for one in members for key in ("name", "display_name")] + runs + asked
    if view == "model":
        return list(answers["model"]["classes"])
    if view == "learning":
        measured = overview["status"]["measures"]["classes"]
        return [one["class"] for one in measured if one["num_samples"] or one["num_given"]]
    if view == "round":
        [answer] = [record for path, record in answers.items() if path.startswith("rounds/")]
        return list(answer["rejected"].values())
    return [overview["status"]["stall_reason"]] if not view else []


def _wait_until_seen(page: Any, text: str) -> None:
    """Until it stands in the view in letters that show, with an escape for each that would not."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    shown = " ".join(escape_unseen(text).split())
    try:
        page.wait_for_function(IS_SEEN, arg=shown)
    except PlaywrightTimeout:
        pytest.fail(f"{shown!a} is not seen in {page.inner_text('main')[:1000]!a}")


def test_the_policy_lets_nothing_run_that_is_not_a_file_of_the_page(site: Served, visit: Visits) -> None:
    one = visit()
    page = one.show()
    for attempt in (
        "document.body.innerHTML = '<b>x</b>'",
        "setTimeout('window.hit = 1')",
        "document.createElement('script').text = 'window.hit = 1'",
    ):
        failed = page.evaluate(f"() => {{ try {{ {attempt}; return null; }} catch (error) {{ return error.name; }} }}")
        assert failed == "TypeError", attempt
    assert not page.context.cookies()
    one.said.clear()  # the console told of each attempt


# ---- who uses it how


def test_no_view_has_a_serious_fault_of_access(site: Served, visit: Visits) -> None:
    import axe_playwright_python

    script = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    for scheme in ("light", "dark"):
        one = visit(key=True, color_scheme=scheme, bypass_csp=True)
        for view in VIEWS:
            page = one.show(view)
            page.evaluate(script)
            found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
            serious = [
                (fault["id"], [node["html"] for node in fault["nodes"]][:3])
                for fault in found["violations"]
                if fault["impact"] in ("serious", "critical")
            ]
            assert not serious, (view, scheme)


def test_everything_is_reached_by_keyboard(site: Served, visit: Visits) -> None:
    one = visit(key=True)
    page = one.show()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the view"
    seen = []
    for _ in range(7):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent"))
    assert seen == ["Overview", "Learning", "Round", "Chain", "Federation", "Model & data", "Settings"]
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Pause training")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.focus("text=Pause training")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert site.tell("node0", "status")["paused"] is False


def test_long_chains_and_many_members_are_drawn_with_few_elements(site: Served, visit: Visits) -> None:
    one = visit()

    def lengthen(route: Any) -> None:
        point = {"run": 1, "time": "2026-11-20T14:02:16Z", "values": {"accuracy": 0.5, "loss": 1.0}}
        points = [point | {"round": i, "height": i} for i in range(1, 10_001)]
        route.fulfill(json={"series": [], "known": [], "measured": 10_000, "rounds": points})

    def crowd(route: Any) -> None:
        response = route.fetch()
        overview = response.json()
        first = overview["members"]["members"]
        overview["members"]["members"] = [
            {**first[i % 4], "id": f"{i:052}", "name": f"hospital-{i}", "me": i == 0} for i in range(50)
        ]
        route.fulfill(response=response, json=overview)

    one.page.route("**/api/v1/metrics*", lengthen)
    one.page.route("**/api/v1/overview", crowd)
    one.page.add_init_script(WATCH_DRAWING)
    one.page.goto(f"{one.address}#/")
    one.page.wait_for_selector("html[data-drawn]")
    print(f"drawn in {one.page.evaluate(GET_DRAWN_MS):.0f} ms")
    assert one.page.evaluate("document.getElementsByTagName('*').length") < MOST_ELEMENTS
    one.show("federation")
    assert one.page.locator("table >> nth=0 >> tbody tr").count() >= 50


# ---- what is wrong


def test_each_trouble_shows_with_its_remedy(site: Served, visit: Visits) -> None:
    one = visit()
    page = one.show()
    found = page.evaluate(MAKE_TROUBLE)
    told = " ".join(one["what"] for one in found)
    for word in (
        "waits",
        "signs nothing",
        "away",
        "no training",
        "does not train",
        "not taken over",
        "does not learn",
        "but it overfits",
    ):
        assert word in told
    for word in (
        "two histories",
        "clock is off",
        "signed two",
        "Refused of node1",
        "banned",
        "left on the disk",
        "Releases",
        "1 change",
    ):
        assert word in told
    assert all(each["remedy"] for each in found)


# ---- acting; last, since the federation is another one afterwards


def test_without_a_key_nothing_can_be_pressed(site: Served, visit: Visits) -> None:
    one = visit()
    page = one.show("settings")
    assert page.is_disabled("text=Pause training")
    assert "This page only looks." in one.read()
    answer = page.evaluate(PAUSE)
    assert answer == 401
    assert site.tell("node0", "status")["paused"] is False
    one.said.clear()  # the console told of the refusal


def test_an_address_opens_the_page_once_and_is_cleaned(site: Served, visit: Visits) -> None:
    address = site.tell("node0", "open", "--read-only")["address"]
    one = visit()
    one.page.goto(address)
    one.page.wait_for_selector("text=may look")
    assert "key" not in one.page.url
    other = visit()
    other.page.goto(address)
    other.page.wait_for_selector("text=run fednode open again")
    other.said.clear()


def test_pause_and_resume_are_asked_for_once_more(site: Served, visit: Visits) -> None:
    one = visit(key=True)
    page = one.show("settings")
    for label, is_paused in (("Pause training", True), ("Resume training", False)):
        page.click(f"text={label}")
        page.click(f"dialog >> text={label} >> nth=-1")
        site.wait_for(lambda: site.tell("node0", "status")["paused"] is is_paused, label)  # noqa: B023
        page.wait_for_selector("dialog", state="detached")


def test_an_approval_that_is_pressed_lands_in_a_block(site: Served, visit: Visits) -> None:
    note = f"two more {MARKUP}"
    change = site.tell("node1", "propose", "rounds", ROUNDS + 2, "--note", note, "--yes")["id"]
    one = visit(key=True)
    page = one.show()
    page.wait_for_selector("text=1 change waits for this site's answer.")
    page = one.show("federation")
    page.wait_for_selector("text=not answered by this site")
    assert note in one.read()
    page.get_by_role("button", name="Approve", exact=True).click()
    dialog = page.inner_text("dialog")
    assert re.search(rf"yes to “set rounds” by node1 \([a-z2-7]{{4}}\), change {change[:8]}", dialog)
    assert "node0 (" in dialog
    page.click("text=Sign and send")
    page.wait_for_selector("text=approved by this site")
    site.tell("node2", "approve", change, "--yes")
    page.wait_for_selector(f"text={ROUNDS + 2} of {ROUNDS + 2}", timeout=120_000)
    page = one.show(f"chain/{ROUNDS + 1}")
    page.wait_for_selector("[data-checked=ok]")
    assert f"change {change[:8]}, signed by members" in one.read()


def look_at_a_proposal(page: Any, kind: str, **fields: str) -> Any:
    """The draft that the node gives for these fields of the form."""
    page.select_option("form >> select[name=kind]", kind)
    for name, value in fields.items():
        field = page.locator(f"form >> [name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name="Look at it…").click()
    return page.get_by_role("article", name="a proposal")


def sign_proposal(page: Any) -> tuple[str, dict[str, Any]]:
    """What the page asked before it signed, and the body that it sent."""
    page.get_by_role("button", name="Propose", exact=True).click()
    asked = page.inner_text("dialog")
    with page.expect_request("**/api/v1/propose") as sent:
        page.click("text=Sign and send")
    page.wait_for_selector("text=Proposed as change")
    return asked, sent.value.post_data_json


def test_what_was_shown_is_proposed(site: Served, visit: Visits) -> None:
    page = visit(key=True).show("federation")
    look_at_a_proposal(page, "set_rounds", rounds=str(ROUNDS + 9)).wait_for()
    asked, sent = sign_proposal(page)
    assert f"“set rounds” of run 1 to {ROUNDS + 9}" in asked
    [proposal] = site.ask("proposals")["proposals"]
    assert (proposal["proposer"], json.loads(proposal["terms"])) == ("node0", json.loads(sent["shown"]))


def test_a_run_and_a_removal_from_the_page_are_proposed_to_the_others(site: Served, visit: Visits) -> None:
    one = visit(key=True)
    page = one.show("federation")
    look_at_a_proposal(page, "start_run", set="lr=-1")
    page.wait_for_selector("[role=alert] >> text=method.lr: expected a number")
    assert page.get_attribute("textarea[name=set]", "aria-invalid") == "true"
    one.said.clear()  # the console told of the refusal
    fields = {"set": "lr=0.05\nmomentum=0.5", "rounds": "3", "initial": "new", "patience": "2"}
    fields |= {"evaluate": "true", "note": MARKUP}
    draft = look_at_a_proposal(page, "start_run", **fields)
    draft.wait_for(timeout=120_000)
    rows = [line.split("\t") for line in draft.locator("tbody tr").all_inner_texts()]
    assert "“start run” 2, and yes to it" in sign_proposal(page)[0]
    member = site.tell("node0", "members", "show", "node3")["id"]
    look_at_a_proposal(page, "remove_member", name=member).wait_for()
    assert f"“remove member” node3 ({member[:4]}), and yes to it" in sign_proposal(page)[0]

    def hear() -> dict[str, Any]:
        return {each["kind"]: each for each in site.ask("proposals", "node1")["proposals"]}

    site.wait_for(lambda: {"start_run", "remove_member"} <= hear().keys(), "node1 to hear of both")
    heard = hear()
    run = site.tell("node1", "proposals", "show", heard["start_run"]["id"])
    assert rows == [[one["path"], one["old"] or "", one["new"] or ""] for one in run["differences"]]
    changed = {"run.method.lr", "run.select.patience", "run.select.evaluate", "run.initial_model"}
    assert changed <= {row[0] for row in rows}
    assert run["note"] == MARKUP
    assert heard["remove_member"]["differences"][0] == {"path": "members.node3", "old": f'"{member}"', "new": None}


def test_a_killed_node_shows_and_a_silent_one_too(site: Served, visit: Visits) -> None:
    one = visit()
    page = one.show()
    page.wait_for_selector("text=4 of 4 members in sight")
    site.processes["node3"].kill()
    began = time.monotonic()
    page.wait_for_selector("text=/node3 is (away|connecting)/")
    print(f"shown {time.monotonic() - began:.1f} s after it was killed")
    assert "See whether its daemon runs" in one.read()
    site.processes["node0"].terminate()
    page.wait_for_selector("text=This node has not answered since", timeout=60_000)
    one.said.clear()  # the browser tells of each request that nobody answers


def test_the_document_of_the_api_is_served(site: Served) -> None:
    import urllib.request

    with urllib.request.urlopen(f"{site.get_address('node1')}api/v1/openapi.json") as answer:
        assert json.load(answer)["openapi"] == "3.1.0"
