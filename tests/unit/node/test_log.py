"""Log lines: times in UTC, one line each, values as values."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.errors import ConfigError
from node.log import JsonFormatter, TextFormatter, escape_control, format_time, logging_values, setup_logging


def make_record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    record = logging.makeLogRecord(
        {"msg": message, "args": arguments, "name": "node.test", "levelname": "INFO", **extra}
    )
    record.created = 1_795_183_331.0421
    return record


@pytest.fixture
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_times_are_rfc_3339_in_utc() -> None:
    assert format_time(1_795_183_331.0421) == "2026-11-20T14:02:11.042Z"


def test_text_is_one_line_with_time_level_and_logger() -> None:
    line = TextFormatter().format(make_record("Finalised block %d", 13))
    assert line == "2026-11-20T14:02:11.042Z INFO    node.test: Finalised block 13"


def test_json_carries_extra_values_as_they_are() -> None:
    entry = json.loads(JsonFormatter().format(make_record("Finalised block %d", 13, height=13, id=b"\x01\x02")))
    entry.pop("_ray_timestamp_ns", None)  # which Ray adds to every record of a process that has imported it
    assert entry == {
        "time": "2026-11-20T14:02:11.042Z",
        "level": "info",
        "logger": "node.test",
        "message": "Finalised block 13",
        "height": 13,
        "id": "0102",
    }


def test_a_peer_cannot_forge_a_line_or_steer_a_terminal() -> None:
    evil = "x\n2026-11-20T14:02:11.042Z INFO node: all is well\x1b[2J\u2028\x9b"
    line = TextFormatter().format(make_record("Refused %s", evil))
    assert line.isprintable()
    assert "\\n2026" in line
    assert "\n" not in JsonFormatter().format(make_record("Refused %s", evil))
    assert escape_control("Grüße, 日本") == "Grüße, 日本"


def test_a_traceback_follows_its_line() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        record = make_record("Failed", exc_info=(ValueError, error, error.__traceback__))
    assert TextFormatter().format(record).splitlines()[-1] == "ValueError: no"
    assert json.loads(JsonFormatter().format(record))["exception"].endswith("ValueError: no")


@pytest.mark.usefixtures("_root_logger")
def test_auto_is_json_where_nobody_reads_along() -> None:
    out = io.StringIO()
    setup_logging("warning", "auto", stream=out)
    logging.getLogger("node.test").info("not shown")
    logging.getLogger("node.test").warning("shown")
    assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["shown"]


@pytest.mark.usefixtures("_root_logger")
def test_a_log_file_is_made_with_its_directory(tmp_path: Path) -> None:
    setup_logging("info", "text", tmp_path / "logs" / "node.log")
    logging.getLogger("node.test").info("Started")
    assert (tmp_path / "logs" / "node.log").read_text().endswith("node.test: Started\n")


@pytest.mark.usefixtures("_root_logger")
def test_a_log_file_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written"):
        setup_logging("info", "text", tmp_path / "logs" / "node.log")


@pytest.mark.usefixtures("_root_logger")
def test_lines_carry_what_is_said_to_hold_meanwhile() -> None:
    out = io.StringIO()
    setup_logging("info", "json", stream=out)
    height = 7
    name, log = {"node": "hospital-a"}, logging.getLogger("node.test")
    with logging_values(lambda: name), logging_values(lambda: {"height": height, "round": height + 1}):
        log.info("one")
        height = 8
        log.info("two", extra={"round": 3})
    log.info("three")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    shown = [(line.get("node"), line.get("height"), line.get("round")) for line in lines]
    assert shown == [("hospital-a", 7, 8), ("hospital-a", 8, 3), (None, None, None)]
