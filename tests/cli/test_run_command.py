"""Commands that tests call in their own process: each says what it would in one of its own, and leaves no trace."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.federation import real_nodes
from support.federation.real_nodes import Finished, run_command, run_process


@pytest.mark.parametrize("words", [("version", "--json"), ("status", "--bogus")])
def test_it_says_what_it_would_in_a_process_of_its_own(words: Sequence[str]) -> None:
    assert run_command(*words) == run_process(*words)


@pytest.mark.slow
def test_two_at_a_time_do_not_mix() -> None:
    commands = [("version",), ("chain", "--help"), ("status", "--bogus")] * 4
    alone = [run_command(*words) for words in commands]
    with ThreadPoolExecutor(max_workers=4) as threads:
        assert list(threads.map(lambda words: run_command(*words), commands)) == alone


def test_what_a_test_prints_meanwhile_is_not_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(_: Sequence[str]) -> int:
        with ThreadPoolExecutor() as threads:
            threads.submit(print, "of the test").result()
        print("of the command")
        return 0

    monkeypatch.setattr(real_nodes, "main", command)
    assert run_command("anything") == Finished(0, "of the command\n", "")
    assert capsys.readouterr() == ("of the test\n", "")


def test_it_finds_what_a_new_process_has_and_leaves_this_one_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(_: Sequence[str]) -> int:
        print("read", repr(sys.stdin.read()))
        sys.stdout.buffer.write(b"a line\r\n")
        logging.getLogger("node").warning("a warning")
        logging.getLogger().addHandler(logging.NullHandler())
        gc.set_threshold(123)
        return 7

    monkeypatch.setattr(real_nodes, "main", command)
    before = (sys.stdin, sys.stdout, sys.stderr, logging.getLogger().handlers[:], gc.get_threshold())
    done = run_command("anything")
    assert (done.code, sorted(done.out.splitlines()), done.err) == (7, ["a line", "read ''"], "a warning\n")
    assert (sys.stdin, sys.stdout, sys.stderr, logging.getLogger().handlers, gc.get_threshold()) == before


def test_what_it_raises_is_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process would end with 1 and a traceback, for which a test would have to look."""

    def command(_: Sequence[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(real_nodes, "main", command)
    with pytest.raises(ZeroDivisionError):
        run_command("anything")
    monkeypatch.undo()
    assert isinstance(run_command("version"), Finished)
