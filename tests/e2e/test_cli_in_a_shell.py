"""The command line among other programs: in a pipe whose reader has enough, without colours, under completion."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from node.cli import main
from node.cli.app import MODULES
from node.testnet.running import announced, read_demo
from support.federation.real_nodes import WAIT_S, DemoRun, make_federation, run_command

pytestmark = pytest.mark.e2e

FEDNODE = (sys.executable, "-m", "node.cli")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("shell") / "cluster"
    assert main(["testnet", "-n", "2", "-o", str(out), "--base-port", "0", "--partition", "iid"]) == 0
    return out


DATA = "DATA"  # stands for a stopped node's data directory
TERMINAL = {"TERM": "xterm", "COLUMNS": "100"}
COLORED = (
    ("status", "--socket", "none.sock"),
    ("doctor", "-c", "none.yaml"),
    ("chain", "verify", "--data-dir", DATA),
)
PLAIN = (("--help",), ("chain", "--help"), ("doctor", "--help"), ("version",), ("status", "--bogus"))


def fill(command: Sequence[str], demo: DemoRun) -> list[str]:
    return [str(demo.directory / "data/node0") if word == DATA else word for word in command]


@pytest.mark.parametrize(
    "command",
    [
        ("config", "schema"),
        ("version", "--json"),
        ("version",),
        ("chain", "list", "--data-dir", DATA),
        ("chain", "export", "-", "--format", "jsonl", "--data-dir", DATA),
        ("chain", "verify", "--data-dir", DATA),
        ("rounds", "list", "--json", "--data-dir", DATA),
        ("metrics", "--csv", "--data-dir", DATA),
        ("data", "inspect", "digits"),
    ],
)
@pytest.mark.outer
def test_a_reader_who_has_enough_is_no_accident(command: tuple[str, ...], demo: DemoRun) -> None:
    read, write = os.pipe()
    os.close(read)  # before anything was written
    with os.fdopen(write, "wb") as stdout:
        buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
        words = [*FEDNODE, *fill(command, demo)]
        done = subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True, env=buffered)
    assert (done.returncode, done.stderr) == (1, "")


# Each command is forked off one process that has loaded what all of them load: the rest each has to find by itself.
EACH = """
import os, sys
from node.cli import main
from node.cli.app import make_app
make_app()
for line in sys.stdin:
    if (child := os.fork()) == 0:
        sys.exit(main(line.split()))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), line, end="", file=sys.stderr)
"""
# A command of each module, as far as it goes beside a demo that is over, and how it ends.
ANSWERS = {
    "init": (0, "init {out}/site"),
    "join": (0, "join-file -o {out}/a.join -c {net}/node0.yaml"),
    "rotation": (4, "key rotate -c {net}/node0.yaml"),
    "genesis": (0, "genesis hash {net}/genesis.yaml"),
    "compose": (78, "compose-setup {out}/none"),
    "predict": (4, "predict {out}/x.npz --socket none.sock"),
    "evaluate": (4, "evaluate {out}/x.npz --socket none.sock"),
    "evaluations": (4, "evaluation --socket none.sock"),
    "statistics": (4, "statistics --socket none.sock"),
    "health": (4, "health --socket none.sock"),
    "reset": (3, "unsafe-reset --yes -c {out}/site/node.yaml"),
    "backup": (0, "backup {out}/a.backup -c {net}/node0.yaml"),
    "token": (0, "token list -c {net}/node0.yaml"),
    "open": (4, "open -c {net}/node0.yaml"),
    "control": (4, "pause --socket none.sock"),
    "propose": (4, "propose rounds 9 --yes --socket none.sock"),
    "model": (0, "model info --data-dir {net}/data/node0"),
    "plan": (0, "plan --budget 60s -c {net}/node0.yaml"),
    "privacy": (1, "privacy -c {net}/node0.yaml"),
}
# And those of which other tests start one: this file, and those of a simulation, a light command, a mistake, a wheel.
STARTED = {
    *("start", "config", "keys", "data", "testnet", "assets", "simulate", "experiment", "demo", "bench", "status"),
    *("doctor", "proposals", "members", "runs", "peers", "chain", "rounds", "metrics", "version"),
}


@pytest.mark.outer
def test_a_command_of_each_module_answers_in_a_process_of_its_own(demo: DemoRun, tmp_path: Path) -> None:
    """Most tests call commands in their own process, where another may have imported what one of them forgets."""
    assert sorted(ANSWERS.keys() ^ STARTED) == sorted(name.rpartition(".")[2] for name in MODULES)
    lines = [line.format(net=demo.directory, out=tmp_path) for _, line in ANSWERS.values()]
    command = [sys.executable, "-c", EACH]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    ends = [f"{code} {line}" for (code, _), line in zip(ANSWERS.values(), lines, strict=True)]
    assert [said for said in done.stderr.splitlines() if said[:1].isdigit()] == ends, done.stderr


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a lone node that makes blocks."""
    directory = make_federation(tmp_path_factory.mktemp("busy") / "net", num_nodes=1, rounds=0, difficulty=4096)
    command = [*FEDNODE, "--config", str(directory / "node0.yaml")]
    with (directory / "node0.log").open("wb") as log, subprocess.Popen(command, stderr=log) as node:
        try:
            waited = run_command("health", "--ready", "--wait", WAIT_S, "--socket", directory / "run/node0.sock")
            assert waited.code == 0, waited.err
            yield directory
        finally:
            node.terminate()


STREAMS = (
    ("chain", "watch"),
    ("chain", "watch", "--json", "--events", "round,block"),
    ("status", "--watch", "--interval", "0.1"),
    ("status", "--watch", "--interval", "0.1", "--json"),
    ("demo", "logs", "--follow"),
)


def watch(busy: Path, command: Sequence[str]) -> subprocess.Popen[str]:
    where = ("--dir", str(busy)) if command[0] == "demo" else ("--socket", str(busy / "run/node0.sock"))
    return subprocess.Popen([*FEDNODE, *command, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.outer
@pytest.mark.parametrize("command", STREAMS)
def test_what_goes_on_ends_quietly_when_its_reader_has_enough(busy: Path, command: tuple[str, ...]) -> None:
    with watch(busy, command) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.wait(WAIT_S), process.stderr.read()) == (1, "")


@pytest.mark.outer
@pytest.mark.parametrize("command", STREAMS)
def test_what_goes_on_ends_quietly_by_an_interrupt(busy: Path, command: tuple[str, ...]) -> None:
    with watch(busy, command) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, err) == (130, "")


def run_on_a_terminal(command: Sequence[str], **variables: str) -> str:
    """All that a command shows there."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | TERMINAL | variables
    with subprocess.Popen([*FEDNODE, *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # nobody has the terminal any more
            while piece := os.read(ours, 65536):
                shown += piece
    os.close(ours)
    return shown.decode()


def find_colors(text: str) -> list[str]:
    """The escape sequences that choose one."""
    found = re.findall(r"\x1b\[([0-9;]*)m", text)
    return [codes for codes in found if any(30 <= int(code or 0) <= 107 for code in codes.split(";"))]


@pytest.mark.parametrize("command", COLORED)
@pytest.mark.outer
def test_colours_are_on_terminals_unless_no_color_is_set(command: tuple[str, ...], demo: DemoRun) -> None:
    words = fill(command, demo)
    assert find_colors(run_on_a_terminal(words))
    assert find_colors(run_on_a_terminal(words, NO_COLOR=""))  # set to nothing is not set, as no-color.org has it
    assert not find_colors(run_on_a_terminal(words, NO_COLOR="1"))
    piped = run_command(*words)
    assert "\x1b" not in piped.out + piped.err


@pytest.mark.parametrize("command", PLAIN)
def test_help_and_plain_answers_have_no_colours_anywhere(command: tuple[str, ...]) -> None:
    assert "\x1b" not in run_on_a_terminal(command)


def test_completion_needs_nothing_but_the_shell() -> None:
    """The script that --install-completion would install, and what it asks fednode at each press of the key."""
    shell = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run([*FEDNODE, "--show-completion", "bash"], env=shell, capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    assert "_FEDNODE_COMPLETE=complete_bash" in script.stdout
    for words, place, expected in (
        ("fednode sta", "1", {"start", "statistics", "status"}),
        ("fednode model ", "2", {"info", "export"}),
    ):
        asked = {"_FEDNODE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
        done = subprocess.run(FEDNODE, env={**os.environ, **asked}, capture_output=True, text=True)
        assert (set(done.stdout.split()), done.stderr) == (expected, "")


def test_a_demo_is_known_by_its_lock_alone(cluster: Path) -> None:
    assert read_demo(cluster).pid is None
    with announced(cluster):
        assert read_demo(cluster).pid == os.getpid()
    assert read_demo(cluster).pid is None
