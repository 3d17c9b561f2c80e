"""The records of a node over HTTP: each is the one that the command line prints with `--json`, under the same names."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from chain.signing import encode_id
from node.admin.json_view import show_block, to_json
from node.admin.node_answers import NodeAnswers
from node.admin.operations import (
    GET_BLOCK,
    GET_CONFIG,
    GET_GENESIS,
    GET_HEAD,
    GET_ROUND,
    GET_STATUS,
    LIST_MEMBERS,
    LIST_PEERS,
    LIST_PROPOSALS,
    LIST_RUNS,
)
from node.admin.tokens import Role
from node.errors import NotFound
from node.ledger.names import get_name
from node.ledger.prototypes import MAX_CLASSES, read_prototypes, show_prototypes
from node.pb import admin_pb2 as pb
from node.web.endpoint import Endpoint, Parameter, parse_whole, read_flag
from node.web.routes import list_routes

_STRING = {"type": "string"}
_OVERVIEW = {
    "type": "object",
    "description": "What a first look needs, of one moment.",
    "properties": {
        "status": pb.NodeStatus,
        "members": pb.ListMembersReply,
        "peers": pb.ListPeersReply,
        "proposals": pb.ListProposalsReply,
    },
}
_CONFIG = {
    "type": "object",
    "properties": {
        "config": {"type": "object", "description": "The configuration in force, without secrets."},
        "origins": {
            "type": "object",
            "description": "Dotted key -> where its value came from when the node started.",
            "additionalProperties": _STRING,
        },
    },
}
_BYTES = {
    "type": "object",
    "description": "A block as it is hashed and signed, for whoever checks it without this node.",
    "properties": {
        "height": {"type": "integer"},
        "chain_id": _STRING,
        "quorum": {"type": "integer"},
        "members": {
            "type": "array",
            "description": "Who decided about it, in the order in which certificate and approvals count them.",
            "items": pb.Voter,
        },
        "block": {"type": "string", "format": "byte"},
        "certificate": {"type": "string", "format": "byte"},
    },
}
_DISTANCES = {"type": "array", "items": {"type": ["number", "null"]}}
_CURVES = {
    "type": "object",
    "properties": {
        "height": {"type": "integer"},
        "run": {"type": "integer"},
        "round": {"type": "integer"},
        "classes": {"type": "array", "items": _STRING},
        "roc": {
            "type": "array",
            "description": "By class: points of false and true positive rate; null where it has no samples, or all.",
            "items": {"type": ["array", "null"]},
        },
        "reliability": {
            "type": ["array", "null"],
            "description": "By bin of confidence: low, high, counts, confidence, accuracy.",
            "items": {"type": "object"},
        },
    },
}
_INTERVALS = {
    "type": "object",
    "properties": {
        "height": {"type": "integer"},
        "run": {"type": "integer"},
        "round": {"type": "integer"},
        "measures": pb.Measures,
    },
}
_PROTOTYPES = {
    "type": "object",
    "properties": {
        "held": {"type": "boolean", "description": "False where there are no prototypes, or they are not held."},
        "classes": {"type": "array", "items": _STRING},
        "distances": {"type": "array", "items": _DISTANCES, "description": "Between classes, by rows."},
        "members": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": _STRING, "name": _STRING, "distances": _DISTANCES},
            },
        },
    },
}


class Reading:
    """Answers requests for records by the `answers` of one node. `origins` says by dotted key where each value of the
    configuration came from."""

    def __init__(self, answers: NodeAnswers, origins: Mapping[str, str]) -> None:
        self._answers = answers
        self._origins = origins
        self._comparing = asyncio.Lock()

    def list_endpoints(self) -> Sequence[Endpoint]:
        """Lists the endpoints of the table of operations and the further ones, each after the one to which it
        belongs."""
        beside = self._list_beside()
        found = [Endpoint("/overview", "Status, members, peers and proposals together.", self._get_overview, _OVERVIEW)]
        for route in list_routes(self._answers, Role.READ):
            found += [route, *beside.get(route.path, ())]
        return found

    def _list_beside(self) -> dict[str, tuple[Endpoint, ...]]:
        height = Parameter("height", "string", "A height, or `head`.", in_path=True)
        which = Parameter("which", "string", "A height, a block id in full, or `head`.", in_path=True)
        run = Parameter("run", "integer", "Its number; 0 is the newest.", in_path=True)
        payloads = Parameter("payloads", "boolean", "Also the arrays of each payload held.")
        return {
            "/version": (
                Endpoint("/config", "As `fednode config show`, with fewer places.", self._get_config, _CONFIG),
                Endpoint("/genesis", "What all members share.", self._get_genesis, {"type": "object"}),
            ),
            "/runs": (Endpoint("/runs/{run}", "As `fednode runs show`.", self._get_run, pb.RunView, (run,)),),
            "/chain": (
                Endpoint("/chain/{which}", "As `fednode chain show`.", self._get_block, pb.Block, (which, payloads)),
                Endpoint("/chain/{height}/bytes", "A block's canonical bytes.", self._get_bytes, _BYTES, (height,)),
            ),
            "/rounds": (
                Endpoint("/rounds/{height}", "As `fednode rounds show`.", self._get_round, pb.Round, (height,)),
                Endpoint(
                    "/rounds/{height}/prototypes",
                    "How far the prototypes of a round's classes are from each other, and each member's from those; of "
                    f"a run of at most {MAX_CLASSES} classes.",
                    self._compare_prototypes,
                    _PROTOTYPES,
                    (height,),
                ),
            ),
            "/metrics": (
                Endpoint(
                    "/curves",
                    "ROC and reliability of the newest round's model on the own test samples; gone after a restart.",
                    self._get_curves,
                    _CURVES,
                ),
                Endpoint(
                    "/intervals",
                    "Measures of a recent round's model on the own test samples, with intervals as `fednode evaluate` "
                    "has them; gone after a restart.",
                    self._get_intervals,
                    _INTERVALS,
                ),
            ),
        }

    # ---- the node

    async def _get_overview(self, request: Request) -> dict[str, Any]:
        return {
            "status": to_json(await self._answers.ask(GET_STATUS)),
            "members": to_json(await self._answers.ask(LIST_MEMBERS)),
            "peers": to_json(await self._answers.ask(LIST_PEERS)),
            "proposals": to_json(await self._answers.ask(LIST_PROPOSALS)),
        }

    async def _get_config(self, request: Request) -> dict[str, Any]:
        reply = await self._answers.ask(GET_CONFIG)
        return {"config": json.loads(reply.json), "origins": dict(self._origins)}

    async def _get_genesis(self, request: Request) -> dict[str, Any]:
        reply = await self._answers.ask(GET_GENESIS)
        return {"chain_id": reply.chain_id, **json.loads(reply.json)}

    async def _get_curves(self, request: Request) -> dict[str, Any]:
        return self._answers.view.get_curves()

    async def _get_intervals(self, request: Request) -> dict[str, Any]:
        return await self._answers.view.own_measures.show()

    async def _get_run(self, request: Request) -> dict[str, Any]:
        number = parse_whole("run", request.path_params["run"])
        (run,) = (await self._answers.ask(LIST_RUNS, run=number)).runs
        return to_json(run)

    # ---- the chain

    async def _get_block(self, request: Request) -> dict[str, Any]:
        which, payloads = request.path_params["which"], read_flag(request, "payloads")
        if which == "head":
            return show_block(await self._answers.ask(GET_HEAD, include_payloads=payloads))
        is_id = len(which) == 64
        place = {"height": None if is_id else parse_whole("height", which), "id": which if is_id else None}
        return show_block(await self._answers.ask(GET_BLOCK, include_payloads=payloads, **place))

    async def _get_bytes(self, request: Request) -> dict[str, Any]:
        height, chain = await self._read_height(request), self._answers.view.chain
        stored = await chain.disk.run(chain.store.get_block_bytes, height)
        if stored is None:
            raise NotFound(f"block {height}: not on this chain")
        judge = await chain.get_judge(height)
        voters = [pb.Voter(id=encode_id(member.key), name=get_name(judge, member.key)) for member in judge.members]
        block, certificate = stored
        return {
            "height": height,
            "chain_id": chain.genesis.chain_id.hex(),
            "quorum": judge.q,
            "members": [to_json(voter) for voter in voters],
            "block": base64.b64encode(block).decode(),
            "certificate": base64.b64encode(certificate).decode(),
        }

    # ---- rounds

    async def _get_round(self, request: Request) -> dict[str, Any]:
        return to_json(await self._answers.ask(GET_ROUND, round=await self._read_height(request)))

    async def _compare_prototypes(self, request: Request) -> dict[str, Any]:
        height, chain = await self._read_height(request), self._answers.view.chain
        async with self._comparing:
            held = await chain.disk.run(read_prototypes, chain.store, height)
            return await asyncio.to_thread(show_prototypes, held)

    async def _read_height(self, request: Request) -> int:
        text = request.path_params["height"]
        if text == "head":
            return (await self._answers.view.chain.disk.run(self._answers.view.chain.store.head)).block.height
        return parse_whole("height", text)
