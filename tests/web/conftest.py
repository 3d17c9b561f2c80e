"""The page of a real federation in a real browser: four nodes that have done their rounds, and Debian's Chromium.

Every window that a test opens fails it by what its console says, an error of a script and a broken policy among that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from support.pages import ROUNDS, Served, Visit, explain_missing, find_browser, make_served

PATIENCE_S = 600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = explain_missing()
    for item in items:
        if item.get_closest_marker("web"):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Four nodes that have done all their rounds, node1 of them alone too; others for each file, as some end them."""
    served = make_served(
        tmp_path_factory.mktemp("page") / "net",
        rounds=ROUNDS,
        partition="dirichlet:0.3",
        settings=("waits.collect_s=60", "data.val=0.2"),
    )
    config = yaml.safe_load(served.nodes[1].config_file.read_text())
    config["training"] |= {"compare_local": True, "answer_by": "mixed"}
    served.nodes[1].config_file.write_text(yaml.safe_dump(config))
    with served.running():
        for node in served.nodes:
            served.wait_for(lambda name=node.name: served.has_applied(name, ROUNDS), f"the last round of {node.name}")  # type: ignore[misc]
        yield served


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_windows(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens windows at the pages of any federation's nodes; with `key` as `fednode open` does."""
    contexts: list[Any] = []
    visits: list[Visit] = []

    def make(site: Served, name: str = "node0", *, key: bool = False, **options: Any) -> Visit:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        one = Visit(context.new_page(), site.get_address(name))
        visits.append(one)
        if key:
            one.page.goto(site.tell(name, "open")["address"])
            one.page.wait_for_selector("text=may act")
        return one

    yield make
    for context in contexts:
        context.close()
    assert not [line for one in visits for line in one.said]


@pytest.fixture
def visit(site: Served, open_windows: Callable[..., Visit]) -> Callable[..., Visit]:
    """Opens the page of a node of the four."""
    return lambda name="node0", **options: open_windows(site, name, **options)
