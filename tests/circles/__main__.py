"""Says which tests a change reaches, and runs them.

python -m tests.circles changed BASE [OPTION...]   runs those that the changes since BASE reach, with options of pytest
python -m tests.circles outer [BASE]               prints the outer files that they reach, `tests/fuzz` for the hunt
python -m tests.circles passed COMMIT              notes that all but the long tests have passed at this commit

BASE is a revision; the changes are those of the working tree too. Without one it is what tests/all-passed holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from circles import changed, outer  # their place is in the path only now
from circles.changes import list_changed, read_base, write_base

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    match arguments:
        case ["changed", base, *options]:
            return changed.run(ROOT, list_changed(ROOT, base or read_base(ROOT)), options)
        case ["outer"] | ["outer", ""]:
            return outer.show(ROOT, read_base(ROOT))
        case ["outer", base]:
            return outer.show(ROOT, base)
        case ["passed", commit]:
            return write_base(ROOT, commit)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
