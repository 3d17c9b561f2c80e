"""`fednode`, and `python -m fednode`: where the command starts, on our packages whatever lies on the search path."""

from __future__ import annotations

import sys

from fednode._names import claim_names


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    claim_names()
    from node.cli import main as run
    from node.host.child import leave_out_directory

    leave_out_directory()
    return run()


if __name__ == "__main__":
    sys.exit(main())
