"""The command line as a whole: which modules have commands, and how a command ends.

A module listed below has `register(app)`, which adds its commands. All of them are imported whatever the command is, so
they import only typer and the standard library at the top, and what a command needs inside it: `fednode --help` must
not wait for torch, grpc or pydantic.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable

import typer
import typer.main

from node.cli.options import make_group
from node.cli.output import RED, paint
from node.cli.target import offer_token_file
from node.errors import NodeError
from node.host.journal import is_journal, mark_lines

MODULES = (
    "node.cli.node.start",
    "node.cli.node.config",
    "node.cli.node.init",
    "node.cli.federation.join",
    "node.cli.node.keys",
    "node.cli.federation.rotation",
    "node.cli.federation.genesis",
    "node.cli.data.data",
    "node.cli.trial.testnet",
    "node.cli.trial.compose",
    "node.cli.node.assets",
    "node.cli.research.simulate",
    "node.cli.research.experiment",
    "node.cli.trial.demo",
    "node.cli.bench",
    "node.cli.node.status",
    "node.cli.model.predict",
    "node.cli.model.evaluate",
    "node.cli.node.health",
    "node.cli.doctor",
    "node.cli.node.reset",
    "node.cli.node.backup",
    "node.cli.node.token",
    "node.cli.node.open",
    "node.cli.node.control",
    "node.cli.federation.propose",
    "node.cli.federation.proposals",
    "node.cli.federation.members",
    "node.cli.federation.runs",
    "node.cli.federation.statistics",
    "node.cli.federation.evaluations",
    "node.cli.federation.peers",
    "node.cli.chain.chain",
    "node.cli.federation.rounds",
    "node.cli.node.metrics",
    "node.cli.model.model",
    "node.cli.research.plan",
    "node.cli.node.privacy",
    "node.cli.node.version",
)

SUMMARY = """Train a model together with no server, no shared data and no trusted party.

Examples: fednode --config node.yaml starts a node; fednode demo tries it all out; fednode init DIR begins a site.
"""


def make_app() -> typer.Typer:
    """Makes the application with the commands of every module."""
    app = make_group(SUMMARY)
    for name in MODULES:
        importlib.import_module(name).register(app)
    return app


def run(arguments: list[str], make: Callable[[], typer.Typer] | None = None, name: str = "fednode") -> int:
    """Runs one command line, of `fednode` or of the application that `make` returns. Errors that the user can correct
    are one line; others show a traceback."""
    try:
        code = _run(arguments, make or make_app, name)
        sys.stdout.flush()  # here, as nobody would catch its errors at the interpreter's end
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _run(arguments: list[str], make: Callable[[], typer.Typer], name: str) -> int:
    try:
        command = typer.main.get_command(make())
        offer_token_file(command)
        command(arguments, prog_name=name)
    except NodeError as error:
        _complain(error.describe())
        return error.exit_code
    except BrokenPipeError:
        raise
    except OSError as error:  # an error about a file that no command has translated
        _complain(f"fednode: {error.filename or 'this machine'}: {error.strerror or error}")
        return 1
    except SystemExit as done:  # typer ends every command so, also one that succeeds
        return done.code if isinstance(done.code, int) else 1
    return 0


def _complain(text: str) -> None:
    """Prints an error on stderr; its last line is the error's own and begins with the program's name."""
    if is_journal(sys.stderr, os.environ):
        print(mark_lines(text, logging.ERROR), file=sys.stderr)
        return
    *problems, line = text.splitlines() or [""]
    name, colon, what = line.partition(": ")
    print(*problems, f"{paint(name, RED, sys.stderr)}{colon}{what}", sep="\n", file=sys.stderr)
