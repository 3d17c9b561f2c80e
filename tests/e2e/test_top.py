"""`fednode top` on a terminal, beside real nodes: keys, sizes, signals, and a node that goes and comes back."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.federation.real_nodes import Federation, make_federation, paused, run_command
from support.machines.pseudo_terminal import ENTER, LEAVE, SHOW_CURSOR, PseudoTerminal

pytestmark = pytest.mark.e2e
NAME = "node0"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def net(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Federation]:
    """A federation of two that has made its two rounds."""
    directory = make_federation(tmp_path_factory.mktemp("top") / "net", num_nodes=2, rounds=2)
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
    assert written.rindex(LEAVE) > written.rindex(ENTER)
    assert SHOW_CURSOR in written[written.rindex(ENTER) :]
    assert "Traceback" not in written


@pytest.mark.asyncio(loop_scope="module")
async def test_keys_go_to_each_view_and_q_leaves_the_terminal_as_it_was(net: Federation) -> None:
    async with PseudoTerminal("top", "-c", get_config(net)) as terminal:
        frame = await terminal.wait_for("the set rounds are done")
        assert "[overview]" in frame
        assert "node1" in frame
        terminal.type("2")
        assert "Where the time went" in await terminal.wait_for("[round]")
        terminal.type("\t")
        assert "this node" in await terminal.wait_for("[members]")
        terminal.type("4")
        await terminal.wait_for("[events]")
        await terminal.wait_for("height 2")
        terminal.type("\x1b[A\x1b[A\x1b[A")
        await terminal.wait_for("newer below")
        terminal.type("\x1b[Z\x1b[Z\x1b[Z")
        await terminal.wait_for("[overview]")
        terminal.type("q")
        assert await terminal.wait_for_end() == 0
        check_restored(terminal)


@pytest.mark.outer
@pytest.mark.asyncio(loop_scope="module")
async def test_it_follows_the_size_of_the_terminal(net: Federation) -> None:
    async with PseudoTerminal("top", "-c", get_config(net)) as terminal:
        await terminal.wait_for("the set rounds are done")
        terminal.resize(8, 40)
        frame = await terminal.wait_for("[overview] 1-4 q")
        lines = frame.rstrip("\n").split("\n")
        assert len(lines) <= 8
        assert all(len(line) <= 40 for line in lines)
        terminal.resize(40, 120)
        await terminal.wait_for("q quit")
        terminal.resize(1, 1)
        await asyncio.sleep(0.5)
        assert terminal.process.poll() is None
        terminal.type("q")
        assert await terminal.wait_for_end() == 0


@pytest.mark.outer
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
    ids=lambda value: str(value),
)
async def test_a_signal_ends_it_with_the_terminal_restored(net: Federation, number: signal.Signals, code: int) -> None:
    async with PseudoTerminal("top", "-c", get_config(net)) as terminal:
        await terminal.wait_for("the set rounds are done")
        terminal.process.send_signal(number)
        assert await terminal.wait_for_end() == code
        check_restored(terminal)


@pytest.mark.outer
@pytest.mark.asyncio(loop_scope="module")
async def test_ctrl_c_is_heard_and_ctrl_z_gives_the_terminal_back_for_a_while(net: Federation) -> None:
    """Without a shell above it the kernel lets nobody stop: it comes back at once."""
    async with PseudoTerminal("top", "-c", get_config(net)) as terminal:
        await terminal.wait_for("the set rounds are done")
        terminal.type("\x1a")
        await terminal.wait_until(lambda: terminal.written.count(ENTER) == 2, "a second screen")
        assert terminal.written.index(LEAVE) < terminal.written.rindex(ENTER)
        await terminal.wait_for("the set rounds are done")
        terminal.type("\x03")
        assert await terminal.wait_for_end() == 130
        assert terminal.after == terminal.before


@pytest.mark.outer
@pytest.mark.asyncio(loop_scope="module")
async def test_a_node_that_goes_away_is_asked_until_it_is_back(net: Federation) -> None:
    async with PseudoTerminal("top", "-c", get_config(net)) as terminal:
        await terminal.wait_for("the set rounds are done")
        with paused(net.get_pid(NAME)):
            await terminal.wait_for("NO ANSWER")
        await terminal.wait_for("NO ANSWER", absent=True)
        assert await net.stop(NAME) == 0
        frame = await terminal.wait_for("AWAY")
        assert "It is asked again every second" in frame.replace("\n", " ").replace("  ", " ")
        await terminal.wait_for("Below is what it said")
        assert "the set rounds are done" in terminal.frame
        await net.start(NAME)
        await terminal.wait_for("AWAY", absent=True)
        await terminal.wait_for("the set rounds are done")
        terminal.type("q")
        assert await terminal.wait_for_end() == 0
        check_restored(terminal)


@pytest.mark.outer
@pytest.mark.asyncio(loop_scope="module")
async def test_plain_terminals_get_plain_shapes_and_dumb_ones_a_snapshot(net: Federation) -> None:
    config = get_config(net)
    plain = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    async with PseudoTerminal("top", "-c", config, environment=plain) as terminal:
        await terminal.wait_for("the set rounds are done")
        assert terminal.frame.isascii()
        terminal.type("q")
        assert await terminal.wait_for_end() == 0
    async with PseudoTerminal("top", "-c", config, environment={"TERM": "dumb"}) as terminal:
        assert await terminal.wait_for_end() == 0
        assert "\x1b" not in terminal.written
        assert "the set rounds are done" in terminal.written.replace("\r\n", " ")


@pytest.mark.outer
@pytest.mark.asyncio(loop_scope="module")
async def test_in_a_pipe_it_is_a_snapshot_and_json_is_the_status(net: Federation) -> None:
    config = get_config(net)
    shown = await asyncio.to_thread(run_command, "top", "-c", config)
    assert (shown.code, shown.err) == (0, "")
    assert "\x1b" not in shown.out
    for word in ("the set rounds are done", "nothing is wrong", "Where the time went", "this node", "BLOCK"):
        assert word in shown.out, word
    told = json.loads((await asyncio.to_thread(run_command, "top", "--json", "-c", config)).out)
    status = json.loads((await asyncio.to_thread(run_command, "status", "--json", "-c", config)).out)
    assert told.keys() == status.keys()
    assert (told["head"], told["name"]) == (status["head"], NAME)
    missing = await asyncio.to_thread(run_command, "top", "--once", "--socket", "/nowhere/node.sock")
    assert missing.code == 4
    assert "no such socket; is the node running?" in missing.err
