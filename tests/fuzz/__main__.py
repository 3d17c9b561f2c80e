"""Fuzzes the readers of bytes from outside: all of them for a while, or those that are named.

python -m tests.fuzz --seconds 600 arrays push     two targets, ten minutes each
python -m tests.fuzz replay arrays FILE            one input once more
python -m tests.fuzz corpus                        write the seeds of the kept corpus anew
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.campaign import run_campaign  # its place is in the path only now


def main(arguments: list[str]) -> int:
    match arguments:
        case ["corpus"]:
            from fuzz.corpus import write_seeds

            write_seeds()
            return 0
        case ["replay", name, file]:
            from fuzz.targets import TARGETS

            print("taken" if TARGETS[name].check(Path(file).read_bytes()) else "refused")
            return 0
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=_at_least_1, default=20, help="for each target (20)")
    parser.add_argument("--jobs", type=_at_least_1, default=os.cpu_count(), help="targets at a time (one a core)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all by default")
    options = parser.parse_args(arguments)
    return run_campaign(options.targets, options.seconds, options.jobs)


def _at_least_1(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
