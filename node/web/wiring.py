"""Wiring: makes the site of one node from the parts of its control plane."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from node.admin.node_answers import NodeAnswers
from node.admin.page_keys import PageKeys
from node.admin.tokens import Tokens
from node.clock import Clock
from node.telemetry.http_token import HttpToken
from node.web.acting import Acting
from node.web.asking import Asking
from node.web.checkup import Checkup
from node.web.endpoint import Endpoint
from node.web.guard import Guard
from node.web.openapi import write_openapi
from node.web.reading import Reading
from node.web.reports import Reports
from node.web.shared import SharedAnswers
from node.web.site import Site
from node.web.streams import Streams


def make_site(
    answers: NodeAnswers,
    *,
    keys: PageKeys,
    tokens: Tokens,
    shown: HttpToken,
    origins: Mapping[str, str],
    data: Mapping[str, Any],
    clock: Clock,
    socket: Path | None,
    options: Sequence[str] | None = None,
) -> Site:
    """Makes the site. `socket` is that of the admin server, None without one; `options` are those that the node was
    started with; `data` says how its own files are read."""
    closed, shared = asyncio.Event(), SharedAnswers(clock)
    reading, streams = Reading(answers, origins), Streams(answers, closed, shared.clear)
    acting, asking = Acting(answers, keys), Asking(answers, data)
    endpoints = list_endpoints(reading, streams, acting, asking, Reports(socket), Checkup(options))
    return Site(endpoints, Guard(keys, tokens, shown), shared, closed)


def describe_api() -> dict[str, Any]:
    """Returns the OpenAPI document, which is the same for every node."""
    nobody = cast(Any, None)  # never called
    reading, streams = Reading(nobody, {}), Streams(nobody, nobody)
    acting, asking = Acting(nobody, nobody), Asking(nobody, {})
    return write_openapi(list_endpoints(reading, streams, acting, asking, Reports(None), Checkup(None)))


def list_endpoints(*parts: Reading | Streams | Acting | Asking | Reports | Checkup) -> Sequence[Endpoint]:
    """Returns the endpoints of all parts: paths without parameters first, and longer ones before shorter ones."""
    found = [endpoint for part in parts for endpoint in part.list_endpoints()]
    return sorted(found, key=lambda one: ("{" in one.path, -one.path.count("/")))
