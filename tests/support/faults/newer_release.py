"""A node of a later release: it speaks one protocol more, which differs by its number alone."""

from __future__ import annotations

import sys
from pathlib import Path

from chain import protocol
from node.cli import main


def get_command() -> tuple[str, ...]:
    """Returns the command by which `NodeProcess` starts a daemon of the later release."""
    return ("env", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable, "-m", "support.faults.newer_release")


if __name__ == "__main__":
    protocol.SPOKEN = (*protocol.SPOKEN, protocol.get_newest() + 1)
    _, *command = sys.argv
    sys.argv = [command[0], *command[command.index("node.cli") + 1 :]]
    sys.exit(main())
