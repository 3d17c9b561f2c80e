"""Long chains, many tabs, and pages that are left open: what they cost, in a real browser. How long something took is
printed and never asserted; what is asserted is how much is asked for, drawn and kept."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from chain.store.sqlite import SqliteStore
from node.config.identity import open_identity
from node.config.node_config import load_config
from node.host.procfs import read_cpu_s
from node.testnet.layout import TestnetSpec, make_testnet
from support.data.measured_rounds import put_measured_rounds
from support.federation.ports import find_free_ports
from support.federation.real_nodes import run_bench
from support.pages import Served, Visit

pytestmark = pytest.mark.web

ROUNDS = 10_000
MOST_POINTS = 2000  # that a chart begins with
MOST_BYTES = 400_000  # of all that a page at a long chain is sent to begin with, its own files apart
POLL_MS = 3000  # from one question of a tab to the next, where nothing happens
BLOCK_MS = 2000  # and where a block came
BENCH_S = 540.0
MOST_GROWTH_MB = 1.0
QUESTIONS = 8

Windows = Callable[..., Visit]

# From when the page asked for the chain's history until it stood there.
WATCH = """
new MutationObserver(() => {
  if (window.drawn || !document.querySelector(".chart canvas")) return;
  requestAnimationFrame(() => {
    const [asked] = performance.getEntriesByType("resource").filter((entry) => /metrics/.test(entry.name));
    window.drawn ??= asked && performance.now() - asked.startTime;
    document.documentElement.dataset.drawn = "yes";
  });
}).observe(document, { childList: true, subtree: true });
"""

# A stream that tells nothing by itself.
OWN_STREAM = """
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  readyState = 1;
  constructor() { super(); window.stream = this; }
  close() {}
};
"""


@pytest.fixture(scope="module")
def long_chain(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """One node, its chain as long as it will be."""
    first = find_free_ports(1)[0]
    spec = TestnetSpec(method="dfpl", num_nodes=1, rounds=ROUNDS, base_port=0, http_port=first, difficulty=4)
    net = make_testnet(tmp_path_factory.mktemp("long") / "net", spec)
    config = load_config(net.nodes[0].config_file)
    with SqliteStore.open(config.node.data_dir, net.genesis) as store:
        put_measured_rounds(store, net.genesis, [open_identity(config)], ROUNDS)
    return Served(net.nodes, first)


def test_the_charts_of_a_long_chain_are_drawn_whole_of_few_points(long_chain: Served, open_windows: Windows) -> None:
    with long_chain.running():
        long_chain.wait_for(lambda: long_chain.has_applied("node0", ROUNDS), "an answer")
        one, pid = open_windows(long_chain), long_chain.processes["node0"].pid
        one.page.add_init_script(WATCH)
        devtools = one.page.context.new_cdp_session(one.page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        for _ in range(3):
            one.page.goto("about:blank")
            time.sleep(1)  # so that no answer is kept from before
            answers = watch_answers(one.page)
            began_s = read_cpu_s(pid)
            one.page.goto(one.address)
            one.page.wait_for_selector("html[data-drawn]")
            daemon_s, page_s = read_cpu_s(pid) - began_s, _get_task_s(devtools)
            took_s = one.page.evaluate("window.drawn") / 1000
            print(f"drawn in {took_s:.2f} s; CPU time {daemon_s:.2f} s of the daemon, {page_s:.2f} of it")
        [history] = [answer for answer in answers if "/metrics" in answer.url]  # read once
        assert 100 < len(history.json()["rounds"]) <= MOST_POINTS
        assert sum(len(answer.body()) for answer in answers) < MOST_BYTES
        label = one.page.get_attribute(".chart[aria-label^='Training loss']", "aria-label")
        assert label.startswith(f"Training loss by height. At {ROUNDS}: ")
        points = long_chain.ask("metrics?from=0&max_points=2000")["rounds"]
        assert (points[0]["height"], points[-1]["height"]) == (1, ROUNDS)
        assert max(point["values"]["loss"] for point in points) == 50  # of one round among ten thousand
        one.page.close()


def watch_answers(page: Any) -> list[Any]:
    """The records that the node gives from now on, streams apart, as they come."""
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer) if is_record(answer.url) else None)
    return answers


def is_record(url: str) -> bool:
    return "/api/v1/" in url and "/api/v1/events" not in url


def _get_task_s(devtools: Any) -> float:
    """What the page's own thread has worked since it was opened."""
    found = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


class Tab:
    """A page whose clock goes as the test has it go, and whose stream tells what the test says. The chain grows by a
    block with every answer."""

    def __init__(self, one: Visit) -> None:
        self._page = one.page
        self._num_answers = 0
        self.asked: list[str] = []
        self.passed_ms = 0
        self._page.clock.install()
        self._page.add_init_script(OWN_STREAM)
        self._page.route("**/api/v1/overview", self._answer)
        self._page.route(re.compile(r"/api/v1/metrics\?from=[1-9]"), self._measure)
        one.show("settings")  # which shows nothing else that grows with the chain
        self._page.wait_for_function("() => window.stream")
        self._page.clock.pause_at(self._page.evaluate("Date.now()") / 1000 + 1)
        self._page.on("request", lambda request: self._hear(request.url))

    def _answer(self, route: Any) -> None:
        response = route.fetch()
        overview = response.json()
        overview["status"]["height"] += self._num_answers
        self._num_answers += 1
        route.fulfill(response=response, json=overview)

    def _measure(self, route: Any) -> None:
        """A block that came since."""
        height = int(re.findall(r"from=(\d+)", route.request.url)[0])
        point = {"run": 1, "round": height, "height": height, "time": "2026-11-20T14:02:16Z", "values": {"loss": 1.0}}
        route.fulfill(json={"series": [], "known": [], "measured": 1, "rounds": [point]})

    def _hear(self, url: str) -> None:
        if is_record(url):
            self.asked.append(url.rpartition("/")[2])

    def pass_by(self, milliseconds: int) -> None:
        self._page.clock.run_for(milliseconds)
        self.passed_ms += milliseconds
        self._page.wait_for_timeout(20)  # so that answers come in, on a machine that has time for them

    def tell_of_a_block(self) -> None:
        self._page.evaluate("""window.stream.dispatchEvent(new MessageEvent("block", {
          data: JSON.stringify({ kind: "block", time: new Date().toISOString(), data: {} }),
        }))""")


def test_tabs_ask_the_same_once_for_each_block_and_of_the_past_only_what_is_new(
    site: Served, open_windows: Windows
) -> None:
    """So that one answer serves all of them (tests/rpc/test_web_shared.py), and ten cost a node little."""
    tabs = [Tab(open_windows(site)), Tab(open_windows(site))]
    for tab in tabs:
        while len(tab.asked) < 2 * QUESTIONS:
            tab.pass_by(POLL_MS)
        assert tab.asked[::2] == ["overview"] * len(tab.asked[::2])
        assert all(url.startswith("metrics?from=") for url in tab.asked[1::2])
        assert not any(url.startswith("metrics?from=0") for url in tab.asked)
        assert len(tab.asked[::2]) <= tab.passed_ms / POLL_MS + 1
    assert tabs[0].asked[: 2 * QUESTIONS] == tabs[1].asked[: 2 * QUESTIONS]


def test_a_tab_asks_no_more_often_where_blocks_come_without_end(site: Served, open_windows: Windows) -> None:
    tab = Tab(open_windows(site))
    while tab.passed_ms < 5 * BLOCK_MS:
        tab.tell_of_a_block()
        tab.pass_by(100)
    assert 1 <= tab.asked.count("overview") <= 5 + 1


def test_ten_tabs_are_measured_and_one_left_open_does_not_grow() -> None:
    done = run_bench("page", "--tabs", 10, "--seconds", 8, "--pairs", 1, "--json", timeout_s=BENCH_S)
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    print(figures)
    assert figures["job"]["tabs"] == 10
    growth = figures["growth"]
    assert growth["questions"] > 0
    assert growth["heap_growth_mb"] < MOST_GROWTH_MB
    assert growth["elements"][2] - growth["elements"][1] < 100


def test_more_tabs_than_a_browser_has_connections_all_stay_live(site: Served, browser: Any) -> None:
    context = browser.new_context()
    pages = [context.new_page() for _ in range(10)]
    for page in pages:
        page.goto(site.get_address("node1"))
        page.wait_for_selector("text=4 of 4 members in sight")
    for page in pages:
        with page.expect_response("**/api/v1/overview", timeout=10_000):
            pass
    context.close()
