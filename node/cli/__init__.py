"""The `fednode` command: the only part that prints."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; errors are printed on stderr."""
    if os.getpid() == 1:
        _heed_sigterm()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that cannot be shown must not end the command
    try:
        from node.host.collector import collect_seldom

        collect_seldom()
        from node.cli.app import run

        return run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before or after typer, which handles all others
        return INTERRUPTED


def _heed_sigterm() -> None:
    """Lets SIGTERM end this process, as it ends any other process without a handler.

    In a container's first process the kernel drops every signal without a handler: a node stopped before it listens
    would wait in vain, and then be killed.
    """
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
