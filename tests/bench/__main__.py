"""Benchmarks beside those of `fednode bench`: what methods, ledgers, transfers and floods cost, and nodes under faults.

python -m tests.bench soak --rounds 40 --plot soak.png       as `make bench-soak ARGS="--rounds 40 --plot soak.png"`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.application import main  # its place is in the path only now

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
