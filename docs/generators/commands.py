"""The page of the commands: each with its help, arguments and options, as the command tree has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import typer.main

from generators.words import code, escape, make_table
from node.cli.app import make_app


def write_commands() -> str:
    """Every command with its help, arguments and options, by walking the command tree."""
    root = typer.main.get_command(make_app())
    commands = dict(walk(root, ()))
    parts = [
        "# Commands\n",
        "Every command has `--help`. The result goes to stdout, everything else to stderr. "
        "Queries have `--json`, whose keys are stable.\n",
        make_table(
            ("command", "what it does"),
            [
                (f"[`{' '.join(('fednode', *words))}`](#{make_anchor(words)})", get_summary(command))
                for words, command in commands.items()
                if words and not has_commands(command)
            ],
        ),
    ]
    parts += [write_exit_codes()]
    parts += [write_command(words, command) for words, command in commands.items()]
    return "\n".join(parts)


def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*words, name))


def has_commands(command: Any) -> bool:
    """Whether it is a group that does nothing by itself."""
    return bool(getattr(command, "commands", {})) and not (command.invoke_without_command and command.params)


def get_summary(command: Any) -> str:
    return str(command.get_short_help_str(200))


def make_anchor(words: Sequence[str]) -> str:
    return "-".join(("cmd", *words)) if words else "cmd-fednode"


def write_command(words: tuple[str, ...], command: Any) -> str:
    level = "##" if len(words) < 2 else "###"
    parts = [f"({make_anchor(words)})=\n{level} {' '.join(('fednode', *words))}\n"]
    *paragraphs, example = [" ".join(text.split()) for text in (command.help or "").strip().split("\n\n")]
    if "Example" not in example:
        paragraphs, example = [*paragraphs, example], ""
    parts += [f"{escape(text)}\n" for text in paragraphs]
    if example:
        parts.append(f"{escape(example)}\n")
    if has_commands(command):
        return "\n".join(parts)
    context = command.context_class(command, info_name=" ".join(("fednode", *words)))
    parts.append(f"```text\n{' '.join(('fednode', *words, *command.collect_usage_pieces(context)))}\n```\n")
    rows = [row for parameter in command.params if (row := make_parameter_row(parameter, context))]
    if rows:
        parts.append(make_table(("option", "what it is", "default and limits"), rows))
    return "\n".join(parts)


def make_parameter_row(parameter: Any, context: Any) -> tuple[str, str, str] | None:
    """None for what only shells need, and for what has no help."""
    record = parameter.get_help_record(context)
    if record is None or parameter.name in ("install_completion", "show_completion"):
        return None
    found = re.fullmatch(r"(.*?)(?:  \[(.*)\])?", " ".join(record[1].split(" ")), re.DOTALL)
    shown, limits = (found[1], found[2] or "") if found else (record[1], "")
    limits = limits.replace("default: ", "").replace("9223372036854775807", "2^63 - 1")
    return code(record[0].strip()), escape(shown), code(limits)


EXIT_CODES = (
    ("0", "Success. A daemon that was told to stop also ends with 0."),
    ("1", "The operation failed; stderr says why."),
    ("2", "A mistake in the command line."),
    ("3", "Not found: block, peer or round."),
    ("4", "The node cannot be reached, or is not ready."),
    ("5", "Verification failed: chain, signature or state."),
    ("6", "`doctor` or `health` found a problem."),
    ("77", "Permission: mode of a key or socket, or a token without the role."),
    ("78", "The configuration is invalid."),
    ("130", "A command was interrupted by Ctrl-C."),
)


def write_exit_codes() -> str:
    return "(exit-codes)=\n## Exit codes\n\n" + make_table(("code", "meaning"), EXIT_CODES)
