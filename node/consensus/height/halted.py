"""The error that ends a node whose chain it can no longer trust or follow (PROTOCOL §9)."""

from __future__ import annotations

from node.errors import NodeError


class Halted(NodeError):
    """Says why the chain cannot be trusted any more. The node stops and stays readable."""
