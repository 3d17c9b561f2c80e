"""The table of operations: all that a node can be asked, each with its messages, the role it needs, its address below
`/api/v1`, its time limit, and whether a stopped node answers it.

An operation is one row and one function that answers it. The function has the operation's name in snake case and the
request's fields as its parameters, and is found in a part of the node or in `LedgerAnswers`. The servicer and the
client of the admin RPC, the routes over HTTP with their OpenAPI, and the offline node are made from the rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from node.admin.tokens import Role
from node.pb import admin_pb2 as pb
from node.pb.common_pb2 import FinalisedBlock

ADMIN_SERVICE = "fednode.v1.Admin"
MODEL_S = 60.0  # to write a large model to a file
PROPOSE_S = 60.0  # to read all of this site's labels, or a run's blocks
DRAW_S = 360.0  # to draw a run's first parameters as well
METRICS_S = 300.0  # to read a long chain
COMPARE_S = 120.0  # a peer answers four requests for blocks a second

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message, covariant=True)


# The parameters in the path or behind the `?`, by the names that the request's fields have in JSON.
RUN = {"run": "Its number; 0 is the newest."}
ROUND = {"round": "Whose model, as `--round`: newest, best, or the number of one that is kept."}
CHANGE = {"change": "Its id, or the first digits of it."}
PEER = {"peer": "Its name, its id, or the beginning of one."}
PAGE = {
    "from": "The height to begin at.",
    "limit": "At most so many: 20 unless told otherwise.",
    "reverse": "Oldest first.",
}
CHART = {
    "series": "One that `known` names.",
    "from": "The first round's height.",
    "to": "The last round's height.",
    "max_points": "At most about so many rounds.",
}


@dataclass(frozen=True, slots=True)
class Http:
    """The address of an operation below `/api/v1`. `body` names the fields of the request that a POST takes as JSON;
    None makes it a GET."""

    path: str
    text: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Operation(Generic[Q, A]):
    """One row. `timeout_s` is None where the client's usual limit holds; a stream has none. An operation `of_ledger` is
    also answered by a stopped node. For one `in_pages` a running node reads its store piece by piece, for one caller at
    a time."""

    request: type[Q]
    reply: type[A]
    http: Http | None = None
    role: Role = Role.READ
    timeout_s: float | None = None
    of_ledger: bool = False
    in_pages: bool = False
    is_stream: bool = False
    called: str = ""

    @property
    def name(self) -> str:
        """Returns the name in admin.proto, which its request has, too."""
        return self.called or self.request.__name__.removesuffix("Request")

    @property
    def method(self) -> str:
        """Returns the path of its gRPC method."""
        return f"/{ADMIN_SERVICE}/{self.name}"

    @property
    def function(self) -> str:
        """Returns the name of the function that answers it."""
        return re.sub("(?<!^)(?=[A-Z])", "_", self.name).lower()


def read_fields(request: Message) -> dict[str, Any]:
    """Returns the fields of a request as the function that answers it takes them, None for one that is not set."""
    return {
        one.name: getattr(request, one.name) if not one.has_presence or request.HasField(one.name) else None
        for one in request.DESCRIPTOR.fields
    }


# ---- the node

GET_STATUS = Operation(pb.GetStatusRequest, pb.NodeStatus, Http("/status", "As `fednode status`."))
GET_VERSION = Operation(pb.GetVersionRequest, pb.Version, Http("/version", "As `fednode version`."))
GET_CONFIG = Operation(pb.GetConfigRequest, pb.ConfigReply)
GET_GENESIS = Operation(pb.GetGenesisRequest, pb.GenesisReply, of_ledger=True)
GET_JOIN_FILE = Operation(pb.GetJoinFileRequest, pb.JoinFileReply, of_ledger=True, in_pages=True)
LIST_PEERS = Operation(pb.ListPeersRequest, pb.ListPeersReply, Http("/peers", "As `fednode peers`."))

# ---- the federation

LIST_MEMBERS = Operation(pb.ListMembersRequest, pb.ListMembersReply, Http("/members", "As `fednode members`."))
LIST_PROPOSALS = Operation(
    pb.ListProposalsRequest, pb.ListProposalsReply, Http("/proposals", "As `fednode proposals`.")
)
GET_PROPOSAL = Operation(
    pb.GetProposalRequest, pb.ProposalView, Http("/proposals/{change}", "As `fednode proposals show`.", CHANGE)
)
RUNS = Http("/runs", "As `fednode runs`.")
LIST_RUNS = Operation(pb.ListRunsRequest, pb.ListRunsReply, RUNS, timeout_s=PROPOSE_S, of_ledger=True, in_pages=True)
STATISTICS = Http("/runs/{run}/statistics", "As `fednode statistics`.", RUN)
GET_STATISTICS = Operation(pb.GetStatisticsRequest, pb.StatisticsReply, STATISTICS, of_ledger=True)
EVALUATIONS = Http("/evaluations", "As `fednode evaluation`.")
LIST_EVALUATIONS = Operation(pb.ListEvaluationsRequest, pb.ListEvaluationsReply, EVALUATIONS, of_ledger=True)

# ---- the chain

GET_HEAD = Operation(pb.GetHeadRequest, pb.Block, of_ledger=True)
GET_BLOCK = Operation(pb.GetBlockRequest, pb.Block, of_ledger=True)
CHAIN = Http("/chain", "As `fednode chain list`.", PAGE)
LIST_BLOCKS = Operation(pb.ListRequest, pb.ListBlocksReply, CHAIN, of_ledger=True, called="ListBlocks")
COMPARE = Http("/compare", "As `fednode chain diff`.", PEER, body=())
COMPARE_CHAIN = Operation(pb.CompareChainRequest, pb.ChainComparison, COMPARE, timeout_s=COMPARE_S)
EVIDENCE = Http("/evidence", "As `fednode chain evidence`.")
LIST_EVIDENCE = Operation(pb.ListEvidenceRequest, pb.ListEvidenceReply, EVIDENCE, of_ledger=True)
VERIFY_CHAIN = Operation(pb.VerifyChainRequest, pb.VerifyUpdate, is_stream=True)
EXPORT_CHAIN = Operation(pb.ExportChainRequest, FinalisedBlock, of_ledger=True, is_stream=True)
WATCH_EVENTS = Operation(pb.WatchEventsRequest, pb.Event, is_stream=True)
BACKUP = Operation(pb.BackupRequest, pb.BackupChunk, role=Role.ADMIN, is_stream=True)

# ---- rounds

ROUNDS = Http("/rounds", "As `fednode rounds`.", PAGE)
LIST_ROUNDS = Operation(pb.ListRequest, pb.ListRoundsReply, ROUNDS, of_ledger=True, called="ListRounds")
GET_ROUND = Operation(pb.GetRoundRequest, pb.Round, of_ledger=True, in_pages=True)
METRICS = Http("/metrics", "As `fednode metrics`: what was measured, in few enough rounds for a chart.", CHART)
QUERY_METRICS = Operation(
    pb.QueryMetricsRequest, pb.Metrics, METRICS, timeout_s=METRICS_S, of_ledger=True, in_pages=True
)

# ---- the model

MODEL = Http("/model", "As `fednode model info`.", ROUND)
GET_MODEL_INFO = Operation(pb.GetModelInfoRequest, pb.ModelInfo, MODEL, timeout_s=MODEL_S, of_ledger=True)
EXPORT_MODEL = Operation(pb.ExportModelRequest, pb.ModelChunk, of_ledger=True, is_stream=True)
PREDICT = Operation(pb.PredictRequest, pb.PredictReply, role=Role.PREDICT)

# ---- what an operator decides

PAUSE = Http("/pause", "As `fednode pause`.", body=())
PAUSE_TRAINING = Operation(pb.PauseTrainingRequest, pb.TakingPart, PAUSE, Role.ADMIN)
RESUME = Http("/resume", "As `fednode resume`.", body=())
RESUME_TRAINING = Operation(pb.ResumeTrainingRequest, pb.TakingPart, RESUME, Role.ADMIN)
STOP = Http("/stop", "As `fednode stop --after`: 0 is the round in hand.", body=("round", "withdraw"))
STOP_AFTER_ROUND = Operation(pb.StopAfterRoundRequest, pb.TakingPart, STOP, Role.ADMIN)
LOG_LEVEL = Http("/log-level", "As `fednode log-level`.", body=("level",))
SET_LOG_LEVEL = Operation(pb.SetLogLevelRequest, pb.LogLevel, LOG_LEVEL, Role.ADMIN)
YES = "As `fednode approve --yes`: signs this node's yes, to the change of this whole id."
APPROVAL = Http("/approve", YES, body=("change", "no_train", "lend"))
APPROVE = Operation(pb.ApproveRequest, pb.ProposalView, APPROVAL, Role.ADMIN, PROPOSE_S)
PROPOSE = Operation(pb.ProposeRequest, pb.ProposalView, role=Role.ADMIN, timeout_s=DRAW_S)
SHUTDOWN = Operation(pb.ShutdownRequest, pb.TakingPart, role=Role.ADMIN)
RELOAD = Operation(pb.ReloadRequest, pb.ReloadReply, role=Role.ADMIN)
ROTATE_KEY = Operation(pb.RotateKeyRequest, pb.RotateKeyReply, role=Role.ADMIN)
OPEN_PAGE = Operation(pb.OpenPageRequest, pb.PageKey, role=Role.ADMIN)
BAN_PEER = Operation(pb.BanPeerRequest, pb.PeerView, role=Role.ADMIN)
UNBAN_PEER = Operation(pb.UnbanPeerRequest, pb.PeerView, role=Role.ADMIN)
ADD_PEER = Operation(pb.AddPeerRequest, pb.PeerView, role=Role.ADMIN)
REMOVE_PEER = Operation(pb.RemovePeerRequest, pb.PeerView, role=Role.ADMIN)

OPERATIONS: tuple[Operation[Any, Any], ...] = tuple(row for row in [*vars().values()] if isinstance(row, Operation))
