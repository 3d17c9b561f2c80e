"""The records of a node over HTTP: each is the one that the command line prints with `--json`, under the same names."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request

from chain.signing import encode_id
from node.admin.changes import ChangeControl
from node.admin.json_view import show_block, to_json
from node.admin.stored_chain import StoredChain
from node.admin.view import NodeView
from node.errors import InvalidRequest, NotFound
from node.ledger.names import get_name
from node.ledger.prototypes import MAX_CLASSES, read_prototypes, show_prototypes
from node.pb import admin_pb2 as pb
from node.web.acting import read_body
from node.web.endpoint import NO_BODY, ROUND, Endpoint, Parameter, parse_whole, read_flag, read_whole

_STRING = {"type": "string"}
_PAGE = (
    Parameter("from", "integer", "The height to begin at."),
    Parameter("limit", "integer", "At most so many: 20 unless told otherwise."),
    Parameter("reverse", "boolean", "Oldest first."),
)
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
    """Answers questions by `view` and `changes` of one node. `origins` says by dotted key where each value of the
    configuration came from."""

    def __init__(self, view: NodeView, changes: ChangeControl, chain: StoredChain, origins: Mapping[str, str]) -> None:
        self._view = view
        self._changes = changes
        self._chain = chain
        self._origins = origins
        self._comparing = asyncio.Lock()

    def list_endpoints(self) -> Sequence[Endpoint]:
        height = Parameter("height", "string", "A height, or `head`.", in_path=True)
        which = Parameter("which", "string", "A height, a block id in full, or `head`.", in_path=True)
        series = Parameter("series", "string", "One that `known` names.", is_repeated=True)
        return (
            Endpoint("/overview", "Status, members, peers and proposals together.", self._get_overview, _OVERVIEW),
            Endpoint("/status", "As `fednode status`.", self._get_status, pb.NodeStatus),
            Endpoint("/version", "As `fednode version`.", self._get_version, pb.Version),
            Endpoint("/config", "As `fednode config show`, with fewer places.", self._get_config, _CONFIG),
            Endpoint("/genesis", "What all members share.", self._get_genesis, {"type": "object"}),
            Endpoint("/peers", "As `fednode peers`.", self._list_peers, pb.ListPeersReply),
            Endpoint("/members", "As `fednode members`.", self._list_members, pb.ListMembersReply),
            Endpoint("/proposals", "As `fednode proposals`.", self._list_proposals, pb.ListProposalsReply),
            Endpoint(
                "/proposals/{change}",
                "As `fednode proposals show`.",
                self._get_proposal,
                pb.ProposalView,
                (Parameter("change", "string", "Its id, or the first digits of it.", in_path=True),),
            ),
            Endpoint("/runs", "As `fednode runs`.", self._list_runs, pb.ListRunsReply),
            Endpoint(
                "/runs/{run}",
                "As `fednode runs show`.",
                self._get_run,
                pb.RunView,
                (Parameter("run", "integer", "Its number; 0 is the newest.", in_path=True),),
            ),
            Endpoint(
                "/runs/{run}/statistics",
                "As `fednode statistics`.",
                self._get_statistics,
                pb.StatisticsReply,
                (Parameter("run", "integer", "Its number; 0 is the newest.", in_path=True),),
            ),
            Endpoint("/evaluations", "As `fednode evaluation`.", self._list_evaluations, pb.ListEvaluationsReply),
            Endpoint("/chain", "As `fednode chain list`.", self._list_blocks, pb.ListBlocksReply, _PAGE),
            Endpoint(
                "/chain/{which}",
                "As `fednode chain show`.",
                self._get_block,
                pb.Block,
                (which, Parameter("payloads", "boolean", "Also the arrays of each payload held.")),
            ),
            Endpoint("/chain/{height}/bytes", "A block's canonical bytes.", self._get_bytes, _BYTES, (height,)),
            Endpoint(
                "/compare",
                "As `fednode chain diff`.",
                self._compare,
                pb.ChainComparison,
                (Parameter("peer", "string", "Its name, its id, or the beginning of one."),),
                method="POST",
                body=NO_BODY,
                only_looks=True,
            ),
            Endpoint("/evidence", "As `fednode chain evidence`.", self._list_evidence, pb.ListEvidenceReply),
            Endpoint("/rounds", "As `fednode rounds`.", self._list_rounds, pb.ListRoundsReply, _PAGE),
            Endpoint("/rounds/{height}", "As `fednode rounds show`.", self._get_round, pb.Round, (height,)),
            Endpoint(
                "/rounds/{height}/prototypes",
                "How far the prototypes of a round's classes are from each other, and each member's from those; of a "
                f"run of at most {MAX_CLASSES} classes.",
                self._compare_prototypes,
                _PROTOTYPES,
                (height,),
            ),
            Endpoint(
                "/metrics",
                "As `fednode metrics`: what was measured, in few enough rounds for a chart.",
                self._query_metrics,
                pb.Metrics,
                (
                    series,
                    Parameter("from", "integer", "The first round's height."),
                    Parameter("to", "integer", "The last round's height."),
                    Parameter("max_points", "integer", "At most about so many rounds."),
                ),
            ),
            Endpoint(
                "/curves",
                "ROC and reliability of the newest round's model on the own test samples; gone after a restart.",
                self._get_curves,
                _CURVES,
            ),
            Endpoint(
                "/intervals",
                "Measures of a recent round's model on the own test samples, with intervals as `fednode evaluate` has "
                "them; gone after a restart.",
                self._get_intervals,
                _INTERVALS,
            ),
            Endpoint("/model", "As `fednode model info`.", self._get_model, pb.ModelInfo, (ROUND,)),
        )

    # ---- the node

    async def _get_overview(self, request: Request) -> dict[str, Any]:
        return {
            "status": await self._get_status(request),
            "members": await self._list_members(request),
            "peers": await self._list_peers(request),
            "proposals": await self._list_proposals(request),
        }

    async def _get_status(self, request: Request) -> dict[str, Any]:
        return to_json(await self._view.get_status())

    async def _get_version(self, request: Request) -> dict[str, Any]:
        return to_json(self._view.get_version())

    async def _get_config(self, request: Request) -> dict[str, Any]:
        return {"config": json.loads(self._view.get_config().json), "origins": dict(self._origins)}

    async def _get_genesis(self, request: Request) -> dict[str, Any]:
        reply = self._view.get_genesis()
        return {"chain_id": reply.chain_id, **json.loads(reply.json)}

    async def _list_peers(self, request: Request) -> dict[str, Any]:
        return to_json(self._view.list_peers())

    async def _get_curves(self, request: Request) -> dict[str, Any]:
        return self._view.get_curves()

    async def _get_intervals(self, request: Request) -> dict[str, Any]:
        return await self._view.own_measures.show()

    async def _get_model(self, request: Request) -> dict[str, Any]:
        return to_json((await self._view.read_model(request.query_params.get("round", ""))).info)

    # ---- the federation

    async def _list_members(self, request: Request) -> dict[str, Any]:
        return to_json(await self._view.federation.list_members())

    async def _list_proposals(self, request: Request) -> dict[str, Any]:
        return to_json(self._changes.list_open())

    async def _get_proposal(self, request: Request) -> dict[str, Any]:
        return to_json(await self._changes.get(request.path_params["change"]))

    async def _list_runs(self, request: Request) -> dict[str, Any]:
        return to_json(await self._view.federation.list_runs())

    async def _get_run(self, request: Request) -> dict[str, Any]:
        number = parse_whole("run", request.path_params["run"])
        (run,) = (await self._view.federation.list_runs(number)).runs
        return to_json(run)

    async def _get_statistics(self, request: Request) -> dict[str, Any]:
        number = parse_whole("run", request.path_params["run"])
        return to_json(await self._view.federation.get_statistics(number))

    async def _list_evaluations(self, request: Request) -> dict[str, Any]:
        return to_json(await self._view.federation.list_evaluations())

    # ---- the chain

    async def _list_blocks(self, request: Request) -> dict[str, Any]:
        return to_json(await self._view.list_blocks(*_read_page(request), reverse=read_flag(request, "reverse")))

    async def _get_block(self, request: Request) -> dict[str, Any]:
        which, payloads = request.path_params["which"], read_flag(request, "payloads")
        if which == "head":
            return show_block(await self._view.get_head(include_payloads=payloads))
        if len(which) == 64:
            return show_block(await self._view.find_block(which, include_payloads=payloads))
        height = parse_whole("height", which)
        return show_block(await self._view.get_block(height, include_payloads=payloads))

    async def _get_bytes(self, request: Request) -> dict[str, Any]:
        height, chain = await self._read_height(request), self._chain
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

    async def _compare(self, request: Request) -> dict[str, Any]:
        await read_body(request)
        return to_json(await self._view.compare(request.query_params.get("peer", "")))

    async def _list_evidence(self, request: Request) -> dict[str, Any]:
        return to_json(await self._view.list_evidence())

    # ---- rounds

    async def _list_rounds(self, request: Request) -> dict[str, Any]:
        return to_json(await self._view.list_rounds(*_read_page(request), reverse=read_flag(request, "reverse")))

    async def _get_round(self, request: Request) -> dict[str, Any]:
        return to_json(await self._view.get_round(await self._read_height(request)))

    async def _compare_prototypes(self, request: Request) -> dict[str, Any]:
        height, chain = await self._read_height(request), self._chain
        async with self._comparing:
            held = await chain.disk.run(read_prototypes, chain.store, height)
            return await asyncio.to_thread(show_prototypes, held)

    async def _query_metrics(self, request: Request) -> dict[str, Any]:
        asked = pb.QueryMetricsRequest(
            series=request.query_params.getlist("series"),
            first=read_whole(request, "from", 0),
            last=read_whole(request, "to"),
            max_points=_read_small(request, "max_points"),
        )
        return to_json(await self._view.query_metrics(asked))

    async def _read_height(self, request: Request) -> int:
        text = request.path_params["height"]
        if text == "head":
            return (await self._chain.disk.run(self._chain.store.head)).block.height
        return parse_whole("height", text)


def _read_page(request: Request) -> tuple[int | None, int]:
    return read_whole(request, "from"), _read_small(request, "limit")


def _read_small(request: Request, name: str) -> int:
    """A number that fits a uint32; 0 where it is not said. Raises InvalidRequest."""
    number = read_whole(request, name, 0) or 0
    if number >= 1 << 32:
        raise InvalidRequest(f"{name}: expected less than 2^32, got {number}")
    return number
