"""Rules that every command keeps: they are checked by walking the command tree, so that a new command is held to them
too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer

from node.cli.app import make_app

# Why a command prints no JSON; whoever adds one here should have as good a reason.
WITHOUT_JSON = {
    "": "it starts a node, whose log has --log-format json",
    "start": "it starts a node, whose log has --log-format json",
    "config schema": "it prints JSON anyway",
}

# Not pydantic: typer itself takes it where an option is a number.
WALK = """
import sys
from node.cli import main
from node.cli.app import make_app, run
code, app = main(["--help"]), make_app()
heavy = ("torch", "numpy", "grpc", "google.protobuf", "sklearn", "yaml", "cryptography", "asyncio", "rich")
for line in sys.stdin:
    code = code or run([*line.split(), "--help"], lambda: app)
    loaded = [name for name in heavy if name in sys.modules]
    if code or loaded:
        print(f"{line.strip()!r}: exit {code}, loaded {loaded}", file=sys.stderr)
        break
"""


@cache
def find_commands() -> dict[str, Any]:
    """Every command that does something by itself, by the words that call it; "" is fednode without any."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", {})
        if not children or (command.invoke_without_command and command.params):
            yield " ".join(words), command
        for name, child in children.items():
            yield from walk(child, (*words, name))

    return dict(walk(typer.main.get_command(make_app()), ()))


COMMANDS = sorted(find_commands())
# Without a word behind them they are their own `list`.
GROUPS_THAT_LIST = {"members", "peers", "proposals", "rounds", "runs"}


def test_the_walk_finds_them() -> None:
    assert {"", "init", "status", "chain verify", "model export", "config diff", "genesis new"} <= set(COMMANDS)
    assert len(COMMANDS) > 50


@pytest.mark.parametrize("words", COMMANDS)
def test_help_has_an_example(words: str) -> None:
    if words in GROUPS_THAT_LIST:
        words = f"{words} list"
    text = find_commands()[words].help
    assert text.count("Example") == 1, text
    example = text.split("Example")[1]
    assert f"fednode {words}" in " ".join(example.split()), example


def test_its_line_in_a_list_is_whole() -> None:
    """Of 80 columns a list of commands leaves 60 to what each of them does; what is longer ends in dots."""

    def find_lines(command: Any) -> Iterator[str]:
        for child in getattr(command, "commands", {}).values():
            yield child.get_short_help_str(1000)
            yield from find_lines(child)

    lines = list(find_lines(typer.main.get_command(make_app())))
    assert len(lines) > 60
    assert [line for line in lines if len(line) > 60 or not line.endswith(".")] == []


@pytest.mark.parametrize("words", sorted(set(COMMANDS) - set(WITHOUT_JSON)))
def test_its_answer_can_be_had_as_json(words: str) -> None:
    options = {option for parameter in find_commands()[words].params for option in parameter.opts}
    assert "--json" in options


def test_only_what_has_no_json_needs_a_reason() -> None:
    for words in WITHOUT_JSON:
        assert not any("--json" in parameter.opts for parameter in find_commands()[words].params)


@pytest.mark.outer
def test_the_help_of_no_command_waits_for_a_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WALK], input="\n".join(COMMANDS), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: fednode") == len(COMMANDS) + 1
    assert "\x1b" not in done.stdout


def test_what_reads_a_ledger_also_reads_a_stopped_nodes() -> None:
    online = {"chain watch", "chain diff"}  # about what a running node sees
    for words, command in find_commands().items():
        if words.split(" ")[0] in ("chain", "rounds", "metrics", "model") and words not in online:
            options = {option for parameter in command.params for option in parameter.opts}
            assert "--data-dir" in options or words == "chain import", words
