"""The schema of a test's run: what `genesis new` writes down, for a genesis that a test makes itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chain.genesis import Genesis
from ml.specs.run_schema import describe_payloads
from node.config.genesis_file import get_genesis_spec


def with_schema(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a genesis in its readable form, with the schema of its run."""
    return {**mapping, "schema": describe_payloads(get_genesis_spec(Genesis.from_mapping(mapping)))}
