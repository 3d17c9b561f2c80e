"""`make bench-page`: what pages that look on cost a node, and whether a page that is left open grows.

Four real nodes make rounds without end, one of them looked at by real tabs of Chromium. Windows of time with all tabs
open and with none take turns. While tabs draw, rounds on the same cores take longer; so the daemon's CPU time without
tabs is taken by round, and what it takes beyond that of the rounds made meanwhile is the tabs'.

For the other figure the clock of one tab runs many times faster, so that it asks as often in minutes as in hours. Its
heap is measured after a collection of garbage.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from node.bench.figures import Report
from node.bench.fixtures import temporary_directory
from node.host.machine import get_machine
from node.host.procfs import get_pss_mb, read_cpu_s
from support.pages import Served, find_browser, make_served

ASKED = "node0"
POLL_S = 3.0  # between two questions of a page, by its own clock
SETTLE_S = 4.0

HURRY = """(speed) => {
  const own = window.setTimeout;
  window.setTimeout = (call, after, ...more) => own(call, after / speed, ...more);
}"""


@dataclass(frozen=True, slots=True)
class Window:
    """What the daemon took in so many seconds and rounds."""

    seconds: float
    cpu_s: float
    rounds: int


def run_page_bench(*, tabs: int, seconds: float, pairs: int, speed: float, report: Report) -> dict[str, Any]:
    """Figures by name. Each window lasts `seconds`, and so do both halves of the time in which a tab hurries."""
    from playwright.sync_api import sync_playwright

    with temporary_directory() as directory, sync_playwright() as playwright:
        site = make_served(directory / "net", method="dfpl", rounds=0, partition="classes:3,1")
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        with site.running():
            site.wait_for(lambda: site.has_applied(ASKED, 3), "three rounds")
            alone, looked_at = [], []
            for i in range(pairs):
                report(f"pair {i + 1} of {pairs}: {tabs} tabs for {seconds:g} s, and none for as long")
                alone.append(_measure(site, seconds))
                with _looking(browser, site, tabs):
                    looked_at.append(_measure(site, seconds))
            report(f"a tab whose clock runs {speed:g} times as fast, for {2 * seconds:g} s")
            growth = _measure_growth(browser, site, seconds, speed)
            browser.close()
    by_round = sum(one.cpu_s for one in alone) / sum(one.rounds for one in alone)
    shares = [100 * (one.cpu_s - by_round * one.rounds) / one.seconds for one in looked_at]
    return {
        "machine": get_machine(),
        "job": {"tabs": tabs, "seconds": seconds, "pairs": pairs, "speed": speed},
        "alone_percent": _average(alone),
        "looked_at_percent": _average(looked_at),
        "rounds": {"alone": sum(one.rounds for one in alone), "looked_at": sum(one.rounds for one in looked_at)},
        "tabs_percent": statistics.median(shares),
        "tabs_percent_of_each": shares,
        "growth": growth,
    }


def _average(windows: list[Window]) -> float:
    return 100 * sum(one.cpu_s for one in windows) / sum(one.seconds for one in windows)


def _measure(site: Served, seconds: float) -> Window:
    pid, first = site.processes[ASKED].pid, site.ask("status", ASKED)["height"]
    began_s, began_cpu_s = time.monotonic(), read_cpu_s(pid)
    time.sleep(seconds)
    took_s, cpu_s = time.monotonic() - began_s, read_cpu_s(pid) - began_cpu_s
    return Window(took_s, cpu_s, site.ask("status", ASKED)["height"] - first)


@contextmanager
def _looking(browser: Any, site: Served, tabs: int) -> Iterator[None]:
    """That many tabs of one window, all of which their browser takes for seen."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    for _ in range(tabs):
        page = context.new_page()
        page.goto(site.get_address(ASKED))
        page.wait_for_selector("svg.ring", timeout=120_000)
    time.sleep(SETTLE_S)
    yield
    context.close()


def _measure_growth(browser: Any, site: Served, seconds: float, speed: float) -> dict[str, Any]:
    context = browser.new_context()
    page = context.new_page()
    asked = [0]
    page.on("request", lambda request: asked.__setitem__(0, asked[0] + ("overview" in request.url)))
    page.add_init_script(f"({HURRY})({speed})")
    page.goto(site.get_address(ASKED))
    page.wait_for_selector("svg.ring", timeout=120_000)
    devtools = context.new_cdp_session(page)
    found = [_look(page, devtools, site)]
    for _ in range(2):
        page.wait_for_timeout(1000 * seconds)
        found.append(_look(page, devtools, site))
    context.close()
    begin, middle, end = found
    return {
        "questions": asked[0],
        "hours": asked[0] * POLL_S / 3600,
        "heap_mb": [one["heap_mb"] for one in found],
        "elements": [one["elements"] for one in found],
        "daemon_mb": [one["daemon_mb"] for one in found],
        "heap_growth_mb": end["heap_mb"] - middle["heap_mb"],
        "daemon_growth_mb": end["daemon_mb"] - middle["daemon_mb"],
        "rounds": end["height"] - begin["height"],
    }


def _look(page: Any, devtools: Any, site: Served) -> dict[str, Any]:
    devtools.send("HeapProfiler.collectGarbage")
    used = devtools.send("Runtime.getHeapUsage")["usedSize"]
    return {
        "heap_mb": used / 1e6,
        "elements": page.evaluate("document.getElementsByTagName('*').length"),
        "daemon_mb": get_pss_mb(site.processes[ASKED].pid),
        "height": site.ask("status", ASKED)["height"],
    }
