"""Trouble in a real federation, which the page shows with what to do about it: a network that is cut in two, a
contribution that is refused, a model that gives one answer only. How soon it shows is printed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.faults import hostile_node
from support.faults.cut_network import CutNetwork
from support.pages import Visit, make_served

pytestmark = pytest.mark.web

LONG_MS = 240_000
NAMES = ("node0", "node1", "node2", "node3")

Windows = Callable[..., Visit]

# When the node told of an event, and when the page said so; both in seconds, by the browser's clock.
WATCH = """([kind, text]) => {
  const times = (window.times = { told: null, shown: null });
  const look = () => {
    times.shown ??= document.querySelector("main").textContent.includes(text) ? Date.now() / 1000 : null;
  };
  new EventSource(`api/v1/events?kinds=${kind}`).addEventListener(kind, () => (times.told ??= Date.now() / 1000));
  new MutationObserver(look).observe(document, { childList: true, subtree: true, characterData: true });
}"""


def test_a_network_that_is_cut_in_two_shows(tmp_path: Path, open_windows: Windows) -> None:
    site = make_served(tmp_path / "net", rounds=0, partition="dirichlet:5")
    with CutNetwork(site.nodes) as network, site.running():
        for name in NAMES:
            site.wait_for(lambda name=name: site.has_applied(name, 1), f"the first round of {name}")  # type: ignore[misc]
        windows = {name: open_windows(site, name) for name in NAMES}
        for one in windows.values():
            one.show()
            one.page.wait_for_selector("text=4 of 4 members in sight")
        network.cut(NAMES[:2], NAMES[2:])
        began = time.monotonic()
        for name, one in windows.items():
            others = NAMES[2:] if name in NAMES[:2] else NAMES[:2]
            one.page.wait_for_selector(f"text={others[0]} and {others[1]} went out of sight together")
            one.page.wait_for_selector("h1:has-text('2 of 4 members in sight')")
            one.page.wait_for_selector("text=Rounds wait for 3 of 4; nothing was lost")
        took_s = time.monotonic() - began
        print(f"both halves show it {took_s:.1f} s after the cut")
        text = windows["node0"].read()
        assert "Ask at one of them whether it sees the other" in text
        assert "The round waits" not in text  # which would say the same again
        network.heal()
        for one in windows.values():
            one.page.wait_for_selector("text=4 of 4 members in sight", timeout=LONG_MS)
            one.page.wait_for_selector("text=Nothing is wrong that this node knows of.", timeout=LONG_MS)
            one.page.close()  # before its node ends, of which the console would tell


def test_a_refused_contribution_shows(tmp_path: Path, open_windows: Windows) -> None:
    trick = (sys.executable, str(hostile_node.__file__), "sends_what_overflows")
    site = make_served(tmp_path / "net", rounds=0, partition="dirichlet:5", via={"node3": trick})
    with site.running("node0", "node1", "node2"):
        site.wait_for(lambda: site.has_applied("node0", 1), "a round of the honest")
        one = open_windows(site)
        page = one.show()
        page.evaluate(WATCH, ["rejected", "Refused of node3"])
        site.start("node3")
        page.wait_for_selector("text=/Refused of node3 at height \\d+: ./", timeout=LONG_MS)
        page.wait_for_function("() => window.times.told && window.times.shown")  # two streams: either may come first
        times = page.evaluate("window.times")
        print(f"shown {times['shown'] - times['told']:.2f} s after it was refused")
        assert "It was left out of the round here." in one.read()
        href = page.get_attribute("main .notes a:has-text('See the round')", "href")
        height = int(href.rpartition("/")[2])
        site.wait_for(lambda: site.ask("status")["height"] >= height, f"height {height}")
        one.show(f"round/{height}")
        record = site.ask(f"rounds/{height}")
        assert record["rejected"]
        for reason in record["rejected"].values():
            assert reason in one.read()
        assert "node3" in page.inner_text("section[aria-label='Left out and refused']")
        page.close()


def test_a_model_of_one_answer_shows(tmp_path: Path, open_windows: Windows) -> None:
    """Every image is black, as where somebody has exported them with the wrong window."""
    site = make_served(tmp_path / "net", rounds=0, partition="iid", data=f"npz:{write_black_images(tmp_path)}")
    with site.running():
        site.wait_for(lambda: site.has_applied("node0", 1), "a round")
        one = open_windows(site)
        page = one.show()
        site.wait_for(lambda: bool(site.ask("status")["not_learning"]), "a sign that lasts")
        began = time.monotonic()
        page.wait_for_selector("text=/The model does not learn: all \\d+ test samples are called /")
        print(f"shown {time.monotonic() - began:.1f} s after the node knew")
        assert "Look at the classes one by one" in one.read()
        page.click("text=See the learning.")
        page.wait_for_selector("text=one that is never given shows as a column of zeros")
        columns = page.locator("table.matrix thead th[scope=col]").all_inner_texts()[1:]
        rows = [row.locator("td").all_inner_texts() for row in page.locator("table.matrix tbody tr").all()]
        given = [sum(int(row[i]) for row in rows) for i in range(len(columns))]
        assert sorted(given)[:-1] == [0] * (len(columns) - 1)
        page.close()


def write_black_images(folder: Path) -> Path:
    images, y = np.zeros((400, 8, 8), np.uint8), np.arange(400) % 4
    file = folder / "black.npz"
    np.savez(file, x_train=images, y_train=y, x_test=images[:200], y_test=y[:200])
    return file
