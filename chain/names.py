"""The names of members and observers: which may be given, and which two nobody can tell apart (PROTOCOL, Names).

From protocol `PLAIN_NAMES` on new names are ASCII, so that every Python release judges them alike: which characters are
printable, or look alike, depends on its version of Unicode. Names from before stay as they are.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

from chain.errors import GenesisError
from chain.schema import MAX_NAME_CHARS

PLAIN_NAMES = 3  # the first protocol under which the names that are given are plain

_PLAIN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}", re.ASCII)
_ALIKE = {"o": "0oO", "l": "1lLiI"}  # characters that are folded into one, beside upper case
_FOLDS = {
    **{char: char for char in string.ascii_lowercase + string.digits + "-_."},
    **dict(zip(string.ascii_uppercase, string.ascii_lowercase, strict=True)),
    **{char: into for into, chars in _ALIKE.items() for char in chars},
}


def fold_name(name: str) -> str:
    """Returns a name as it may be misread: lower case, with `o` for `0`, and `l` for `1` and `i`. Characters that no
    plain name has are dropped, as they may be invisible."""
    return "".join(_FOLDS.get(char, "") for char in name)


def check_new_name(path: str, name: str, taken: Iterable[str]) -> None:
    """Raises GenesisError unless a name is plain, and cannot be misread for one in `taken`."""
    if not _PLAIN.fullmatch(name):
        raise GenesisError(
            path,
            f"expected 1 to {MAX_NAME_CHARS} of the characters A-Z a-z 0-9 . _ -, the first a letter or a digit, got "
            f"{name[:MAX_NAME_CHARS]!a}",
        )
    folded = fold_name(name)
    for other in taken:
        if fold_name(other) == folded:
            raise GenesisError(path, f"expected a name that nobody takes for {other!a}, got {name!a}")
