"""The errors of a node, each by whose fault it is, with the exit code that it ends the command with.

    NodeError                   1   the operation failed
     ├ InvalidRequest           2   a caller asked a node for something that makes no sense
     ├ NotFound                 3   no such block, peer or round
     ├ NodeUnreachable          4   no daemon answers, or it is not ready in time
     ├ ChangeRefused            1   a change that cannot hold, and so is not signed
     ├ Busy                     1   a node does as much of that as it does at a time
     ├ VerificationFailed       5   a chain, signature or state does not hold
     ├ HealthProblem            6   `doctor` or `health` found something
     ├ PermissionRefused       77   a key, socket or role that may not be used
     │   └ KeyFileError             an identity key file: its mode, owner or content
     └ ConfigError             78   what the user wrote cannot be started from

The codes are the table of the command line (sysexits where one fits). Errors of `chain` and `ml` are translated into
these once, at the edge where they meet the user's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class NodeError(Exception):
    """The root of a node's errors. Its text is one line for the user, naming what, where, expected and actual."""

    exit_code: ClassVar[int] = 1

    def describe(self) -> str:
        """Returns the text that the command line prints on stderr."""
        return f"fednode: {self}"


class InvalidRequest(NodeError):
    """The caller asked for something that makes no sense: its mistake, not the node's."""

    exit_code = 2


class NotFound(NodeError):
    """There is no such block, peer, round or file."""

    exit_code = 3


class NodeUnreachable(NodeError):
    """No daemon answers there, or it is not ready in time."""

    exit_code = 4


class ChangeRefused(NodeError):
    """A change of the federation is impossible, or this node may not sign it."""


class Busy(NodeError):
    """The node already runs as many such operations as it may at a time. Ask again."""


class VerificationFailed(NodeError):
    exit_code = 5


class HealthProblem(NodeError):
    exit_code = 6


class PermissionRefused(NodeError):
    """The caller may not use a key, socket or role."""

    exit_code = 77


class KeyFileError(PermissionRefused):
    """An identity key file must not, or cannot, be used."""


class ConfigError(NodeError):
    """Nothing can be started from the configuration: one line, or every problem found in `source`."""

    exit_code = 78

    def __init__(self, message: str, *, problems: Sequence[str] = (), source: str = "") -> None:
        super().__init__(message)
        self.problems = tuple(problems)
        self.source = source

    @classmethod
    def from_problems(cls, problems: Sequence[str], source: str) -> ConfigError:
        """Returns the error for all `problems`, one line each and in the order found, under the file they were found
        in."""
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        return cls(f"{count} in {source}; nothing was started", problems=problems, source=source)

    def describe(self) -> str:
        return "\n".join([*self.problems, super().describe()])
