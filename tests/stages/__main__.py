"""Tells of the stages of `.ci/run`, from what they leave in .reports, and of tests that pass at one time only.

python -m tests.stages table        how long each stage took and how its tests ended, and the slowest tests
python -m tests.stages flaky 10     runs the tests ten times, and says which of them failed in how many of these
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from stages.reports import describe, read_stages  # its place is in the path only now

REPORTS = Path(".reports")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["table"]:
            print(describe(read_stages(REPORTS)))
            return 0
        case ["flaky", count] if count.isdecimal():
            from stages.flaky import run_often

            return run_often(int(count), REPORTS / "flaky")
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
