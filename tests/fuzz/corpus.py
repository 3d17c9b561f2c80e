"""The kept corpus: for each target what its seeds are made of, and what was found and mended since.

`python -m tests.fuzz corpus` writes the seeds anew; a test fails while they are not what the script makes. Findings are
kept by hand, as `found-<what it was>`.
"""

from __future__ import annotations

from fuzz.campaign import CORPUS
from fuzz.targets import TARGETS

FOUND = "found-"


def read_corpus(name: str) -> dict[str, bytes]:
    """The files kept for a target, by name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


def write_seeds() -> None:
    """Every target's seeds in place of those that are there; findings stay."""
    for name, target in TARGETS.items():
        directory = CORPUS / name
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.iterdir():
            if not path.name.startswith(FOUND):
                path.unlink()
        for seed, data in target.seeds().items():
            (directory / seed).write_bytes(data)
