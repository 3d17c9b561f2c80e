"""Priorities of log lines for systemd's journal: given where the journal reads, and for every line."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest

from node.cli.app import run
from node.host.journal import JournalFormatter, is_journal, mark_lines


def get_stream(path: Path) -> str:
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"


def test_only_the_stream_that_systemd_names_is_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as journal, (tmp_path / "other").open("w") as other:
        env = {"JOURNAL_STREAM": get_stream(tmp_path / "journal")}
        assert is_journal(journal, env)
        assert not is_journal(other, env)
        assert not is_journal(journal, {})
    assert not is_journal(journal, env), "closed"
    assert not is_journal(io.StringIO(), env)


def test_levels_are_those_of_syslog() -> None:
    levels = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    assert [mark_lines("x", level) for level in levels] == ["<2>x", "<3>x", "<4>x", "<6>x", "<7>x"]


def test_every_line_of_a_traceback_is_as_grave_as_its_first() -> None:
    record = logging.makeLogRecord({"msg": "Failed\n  at a\n  at b", "levelno": logging.ERROR})
    assert JournalFormatter(logging.Formatter()).format(record) == "<3>Failed\n<3>  at a\n<3>  at b"


def test_why_a_node_cannot_start_is_an_error_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("version: 1\nnode: {nme: a}\n")
    with (tmp_path / "journal").open("w") as journal:
        monkeypatch.setattr(sys, "stderr", journal)
        monkeypatch.setenv("JOURNAL_STREAM", get_stream(tmp_path / "journal"))
        assert run(["start", "--config", str(config)]) == 78
    lines = (tmp_path / "journal").read_text().splitlines()
    assert len(lines) > 1
    assert all(line.startswith("<3>") for line in lines), lines
