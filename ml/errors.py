"""The errors of `ml`, each by whose fault it is.

MlError
 ├ PayloadError        bytes or arrays that are not what they claim to be; their sender is at fault
 ├ AggregationError    contributions that cannot be combined, although each may be well formed
 ├ SpecError           a method, a model or one of their settings is not one we know; names the key
 ├ BoundError          constants that a bound cannot have, or that leave no number of rounds
 ├ BudgetError         a time budget in which not one local iteration fits, or that is not a number
 ├ DataError           a data set or a partition of it cannot be read or made as configured
 ├ Spoiled             an aggregate leaves a client without a finite loss
 └ Stopped             training was stopped by request, and left no trace
    └ Abandoned        training was stopped by request, and kept what it had learned
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from ml.text import escape_undecoded

MAX_LINE_CHARS = 1000


class MlError(Exception):
    """The root of all errors that `ml` raises on purpose."""


class PayloadError(MlError):
    """Bytes are not a canonical encoding, or arrays do not fit their schema."""


class AggregationError(MlError):
    """Contributions cannot be combined by the rule they are for."""


class SpecError(MlError):
    """A setting of method or model is wrong. `path` is its dotted place, as in `method.lambda`."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class BoundError(MlError):
    """A constant is impossible in a bound, or the constants allow no number of rounds."""


class BudgetError(MlError):
    """A time budget leaves no local iteration at all, or one of its numbers is impossible."""


class DataError(MlError):
    """A data set, or a partition of it, cannot be read or made as the configuration says. Its text is made by
    `show_line`, since it may contain the name or the content of any file."""

    def __init__(self, text: object) -> None:
        super().__init__(show_line(escape_undecoded(str(text))))


class Spoiled(MlError):
    """An aggregate, or a blob pulled with it, leaves a client without a finite loss."""


class Stopped(MlError):
    """Training was asked to stop between two steps."""


class Abandoned(Stopped):
    """Training ended early, between two steps, because its round is over; the model keeps what it has learned."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown `word`: the nearest known one, or all of them."""
    names = sorted(known)
    near = get_close_matches(word, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "expected one of " + ", ".join(names) if names else "nothing is expected here"


def show_line(text: str) -> str:
    """Returns a text as one line that can be printed and is not long, whatever a file or a library has put in it."""
    line = " ".join(text[: 4 * MAX_LINE_CHARS].splitlines())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in line.strip())
    return shown if len(shown) <= MAX_LINE_CHARS else shown[: MAX_LINE_CHARS - 1] + "…"
