"""The `fednode` command: the only part that prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; what went wrong stands in one place, on stderr."""
    from node.cli.app import run

    return run(list(sys.argv[1:] if arguments is None else arguments))
