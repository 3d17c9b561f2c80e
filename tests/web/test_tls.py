"""The page beyond loopback: over TLS by a certificate of the hospital's, and with a key; else it is not there."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.testnet.layout import TestnetSpec, make_testnet
from support.data.certificates import Authority
from support.faults.relay import relaying
from support.federation.ports import find_free_ports
from support.federation.real_nodes import run_command
from support.pages import Served

pytestmark = pytest.mark.web

TOKEN = "t" * 32


@pytest.fixture
def make_open(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Makes a node that is reached from anywhere, and starts it."""
    running: list[Served] = []

    def make(**http: Any) -> Served:
        port = find_free_ports(1)[0]
        spec = TestnetSpec(num_nodes=1, rounds=1, base_port=0, http_port=port, difficulty=16)
        [node] = make_testnet(tmp_path / "net", spec).nodes
        (tmp_path / "token").write_text(TOKEN)
        config = yaml.safe_load(node.config_file.read_text())
        config["http"] = {"listen": f"0.0.0.0:{port}", "token_file": str(tmp_path / "token"), **http}
        node.config_file.write_text(yaml.safe_dump(config))
        served = Served((node,), port)
        served.start("node0")
        running.append(served)
        served.wait_for(lambda: run_command("status", "-c", node.config_file).code == 0, "an answer")
        return served

    yield make
    for served in running:
        served.processes["node0"].terminate()
        served.processes["node0"].wait(60)


def test_over_tls_the_page_is_opened_acted_by_and_checks_blocks(
    tmp_path: Path, make_open: Callable[..., Served], browser: Any
) -> None:
    certificate, key = Authority(tmp_path).issue("page")
    site = make_open(tls={"certificate_file": str(certificate), "key_file": str(key)})
    address = site.tell("node0", "open")["address"]
    assert address.startswith(f"https://127.0.0.1:{site.http_port}/#key=")
    context = browser.new_context(ignore_https_errors=True)  # this browser knows no hospital's authority
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("text=may act")
    page.goto(f"https://127.0.0.1:{site.http_port}/#/settings")
    page.click("text=Pause training")
    page.click("dialog >> text=Pause training >> nth=-1")
    site.wait_for(lambda: bool(site.tell("node0", "status")["paused"]), "the pause")
    page.goto(f"https://127.0.0.1:{site.http_port}/#/chain/0")
    page.wait_for_selector("[data-checked=ok]")
    other = context.new_page()
    other.goto(f"https://127.0.0.1:{site.http_port}/")
    other.wait_for_selector("text=This node shows itself to those with a key")
    other.fill("input[name=token]", TOKEN)  # which scrapes, and opens nothing
    other.click("button:has-text('Look')")
    other.wait_for_selector("text=This node shows itself to those with a key")
    other.fill("input[name=token]", site.tell("node0", "token", "new", "ward")["token"])
    other.click("button:has-text('Look')")
    other.wait_for_selector("text=may look")
    context.close()


@contextmanager
def forwarding(port: int) -> Iterator[str]:
    """An address on this machine that leads there, as a published port or `kubectl port-forward` does."""
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever, name="forwarding")
    thread.start()
    opening = stack.enter_async_context(relaying([("127.0.0.1", port)]))
    try:
        yield asyncio.run_coroutine_threadsafe(opening, loop).result()[0].address
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_by_a_port_that_is_forwarded_the_page_is_opened_and_acted_by(
    make_open: Callable[..., Served], browser: Any
) -> None:
    """As with Compose and Kubernetes, whose containers listen on all interfaces."""
    site = make_open(tls_in_front=True)
    with forwarding(site.http_port) as place:
        address = site.tell("node0", "open", "--at", f"http://{place}")["address"]
        assert address.startswith(f"http://{place}/#key=")
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("text=may act")
        page.goto(f"http://{place}/#/settings")
        page.click("text=Pause training")
        page.click("dialog >> text=Pause training >> nth=-1")
        site.wait_for(lambda: bool(site.tell("node0", "status")["paused"]), "the pause")
        context.close()


def test_in_the_clear_there_are_metrics_and_no_page(make_open: Callable[..., Served]) -> None:
    site = make_open()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(site.get_address("node0"))
    asked = urllib.request.Request(f"{site.get_address('node0')}metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(asked) as answer:
        assert b"fednode_chain_height" in answer.read()
    done = run_command("open", "-c", site.nodes[0].config_file)
    assert done.code != 0
    assert "beyond loopback http.tls" in done.err
    assert "the page is not served at" in site.nodes[0].config_file.with_suffix(".log").read_text()
