"""The page of `/api/v1/`, and its OpenAPI document, from the endpoints themselves."""

from __future__ import annotations

import json

from generators.words import code, escape, make_table
from node.web.wiring import describe_api

OPENAPI = "reference/openapi.json"


def write_document() -> str:
    """As a node serves it under `/api/v1/openapi.json`."""
    return json.dumps(describe_api(), indent=1, ensure_ascii=False) + "\n"


def write_http_api() -> str:
    """A table of what can be asked, and of what can be done."""
    parts = [
        "# HTTP API\n",
        "A node whose `http.listen` is set answers under `/api/v1/` what the command line prints with `--json`: the "
        "same records, under the same names, as [Admin RPC](admin-rpc.md) lists them. Every node serves the whole "
        "description as OpenAPI under `/api/v1/openapi.json`, and it lies beside this page as "
        "{download}`openapi.json`.\n",
        "On loopback nothing is needed to look; where `http.token_file` is set, a token of `fednode token new` or a "
        "key of `fednode open` is, as `Authorization: Bearer …`. To act takes a token of role `admin` or a key of "
        "`fednode open`; `/predict` and `/evaluate` take a file, for which a token of role `predict` will do. What "
        "else is asked for by `POST` takes JSON, `{}` where there is nothing to say. What a page from elsewhere has a "
        "browser ask for is refused.\n",
        "`/events` and `/verify` are server-sent events. Each of `/events` has its cursor as its id: an EventSource "
        "that was cut off goes on behind the last one it has seen, as long as the node keeps what followed (4096 "
        "events).\n",
    ]
    for method, is_open, title in (
        ("get", True, "## To look"),
        ("post", True, "## To look, at some expense, by POST"),
        ("post", False, "## To act, by POST"),
    ):
        rows = []
        for path, said in describe_api()["paths"].items():
            if method in said and ({} in said[method]["security"]) is is_open:
                asked = [code(one["name"]) for one in said[method]["parameters"] if one["in"] == "query"]
                rows.append((code(path), ", ".join(asked), escape(said[method]["summary"])))
        parts += [f"{title}\n", make_table(("below `/api/v1`", "behind the `?`", "what it gives"), sorted(rows))]
    return "\n".join(parts)
