"""The error that ends a node whose chain cannot be trusted, or followed, any more (PROTOCOL §9)."""

from __future__ import annotations

from node.errors import NodeError


class Halted(NodeError):
    """The chain cannot be trusted any more; the text says why. The node stops and stays readable."""
