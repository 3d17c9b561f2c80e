"""The `fednode` command: the only part that prints."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; what went wrong stands in one place, on stderr."""
    if os.getpid() == 1:
        _heed_sigterm()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name is no reason to fail
    try:
        from node.host.collector import collect_seldom

        collect_seldom()
        from node.cli.app import run

        return run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before or after typer, which hears of all others
        return INTERRUPTED


def _heed_sigterm() -> None:
    """SIGTERM ends this process, as it does any other that has not asked for it yet.

    From a container's first process the kernel keeps every signal it has no handler for: whoever stopped a node
    before it listens would wait for nothing, and then kill it.
    """
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
