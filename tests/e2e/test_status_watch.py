"""`fednode status --watch` on a terminal, beside real nodes: signals, sizes, and a node that goes and comes back."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.federation.real_nodes import Federation, make_federation
from support.machines.pseudo_terminal import ENTER, LEAVE, SHOW_CURSOR, PseudoTerminal

pytestmark = [pytest.mark.e2e, pytest.mark.outer]
NAME = "node0"
ENDED = "the set rounds are done"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Federation]:
    """A federation of two that has made its two rounds."""
    directory = make_federation(tmp_path_factory.mktemp("watch") / "net", num_nodes=2, rounds=2)
    async with Federation(directory) as net:
        await net.start()
        await net.wait_for(lambda now: all(status["measured_round"] == 2 for status in now.values()), "two rounds")
        yield net


def get_config(net: Federation) -> Path:
    return net.nodes[NAME].node.config_file


def check_restored(terminal: PseudoTerminal) -> None:
    """The terminal is as it was: its settings, its own screen, its cursor."""
    assert terminal.after == terminal.before
    written = terminal.written
    assert written.count(ENTER) == written.count(LEAVE) == 1
    assert SHOW_CURSOR in written[written.rindex(ENTER) :]
    assert "Traceback" not in written


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
    ids=lambda value: str(value),
)
async def test_a_signal_ends_it_with_the_terminal_restored(net: Federation, number: signal.Signals, code: int) -> None:
    async with PseudoTerminal("status", "--watch", "-c", get_config(net), rows=40, columns=120) as terminal:
        frame = await terminal.wait_for(ENDED)
        assert "LEFT OUT" in frame
        assert "node1" in frame
        terminal.process.send_signal(number)
        assert await terminal.wait_for_end() == code
        check_restored(terminal)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_node_that_goes_away_is_asked_until_it_is_back(net: Federation) -> None:
    async with PseudoTerminal("status", "--watch", "-c", get_config(net), rows=40, columns=120) as terminal:
        await terminal.wait_for(ENDED)
        assert await net.stop(NAME) == 0
        await terminal.wait_for("AWAY")
        assert ENDED in terminal.frame
        await net.start(NAME)
        await terminal.wait_for("AWAY", absent=True)
        await terminal.wait_for(ENDED)
        terminal.resize(8, 40)
        await terminal.wait_until(lambda: len(terminal.frame.rstrip("\n").split("\n")) <= 8, "eight lines")
        assert all(len(line) <= 40 for line in terminal.frame.split("\n"))
        terminal.type("\x03")
        assert await terminal.wait_for_end() == 130
        check_restored(terminal)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_dumb_terminal_gets_a_line_each_time(net: Federation) -> None:
    dumb = {"TERM": "dumb"}
    async with PseudoTerminal("status", "--watch", "-c", get_config(net), environment=dumb) as terminal:
        await terminal.wait_until(lambda: terminal.written.count(NAME) >= 2, "two lines")
        assert "\x1b" not in terminal.written
