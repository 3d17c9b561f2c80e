from node.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Batch(_message.Message):
    __slots__ = ("messages", "question", "answer")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Envelope]
    question: int
    answer: int
    def __init__(self, messages: _Optional[_Iterable[_Union[Envelope, _Mapping]]] = ..., question: _Optional[int] = ..., answer: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("status", "contribution", "block", "vote", "evidence", "proposal", "approval", "readiness", "hint", "measures", "payload", "bundle")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    READINESS_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    MEASURES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    status: bytes
    contribution: bytes
    block: bytes
    vote: bytes
    evidence: bytes
    proposal: bytes
    approval: bytes
    readiness: bytes
    hint: bytes
    measures: bytes
    payload: bytes
    bundle: bytes
    def __init__(self, status: _Optional[bytes] = ..., contribution: _Optional[bytes] = ..., block: _Optional[bytes] = ..., vote: _Optional[bytes] = ..., evidence: _Optional[bytes] = ..., proposal: _Optional[bytes] = ..., approval: _Optional[bytes] = ..., readiness: _Optional[bytes] = ..., hint: _Optional[bytes] = ..., measures: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., bundle: _Optional[bytes] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("chain_id", "head_height", "head_id", "height", "view", "contributes", "contributions", "candidates", "votes", "abstains", "time_ms", "open", "version", "protocol", "reaches", "contributing", "abstaining", "ages")
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    HEAD_ID_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    ABSTAINS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REACHES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTING_FIELD_NUMBER: _ClassVar[int]
    ABSTAINING_FIELD_NUMBER: _ClassVar[int]
    AGES_FIELD_NUMBER: _ClassVar[int]
    chain_id: bytes
    head_height: int
    head_id: bytes
    height: int
    view: int
    contributes: bool
    contributions: bytes
    candidates: _containers.RepeatedScalarFieldContainer[bytes]
    votes: _containers.RepeatedCompositeFieldContainer[VoteBitmap]
    abstains: bool
    time_ms: int
    open: _containers.RepeatedCompositeFieldContainer[OpenChange]
    version: str
    protocol: int
    reaches: bytes
    contributing: bytes
    abstaining: bytes
    ages: bytes
    def __init__(self, chain_id: _Optional[bytes] = ..., head_height: _Optional[int] = ..., head_id: _Optional[bytes] = ..., height: _Optional[int] = ..., view: _Optional[int] = ..., contributes: _Optional[bool] = ..., contributions: _Optional[bytes] = ..., candidates: _Optional[_Iterable[bytes]] = ..., votes: _Optional[_Iterable[_Union[VoteBitmap, _Mapping]]] = ..., abstains: _Optional[bool] = ..., time_ms: _Optional[int] = ..., open: _Optional[_Iterable[_Union[OpenChange, _Mapping]]] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., reaches: _Optional[bytes] = ..., contributing: _Optional[bytes] = ..., abstaining: _Optional[bytes] = ..., ages: _Optional[bytes] = ...) -> None: ...

class OpenChange(_message.Message):
    __slots__ = ("id", "approvals", "ready")
    ID_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    approvals: bytes
    ready: int
    def __init__(self, id: _Optional[bytes] = ..., approvals: _Optional[bytes] = ..., ready: _Optional[int] = ...) -> None: ...

class VoteBitmap(_message.Message):
    __slots__ = ("view", "phase", "members")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    view: int
    phase: int
    members: bytes
    def __init__(self, view: _Optional[int] = ..., phase: _Optional[int] = ..., members: _Optional[bytes] = ...) -> None: ...

class BlocksRequest(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class BlocksReply(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[_common_pb2.FinalisedBlock]
    def __init__(self, blocks: _Optional[_Iterable[_Union[_common_pb2.FinalisedBlock, _Mapping]]] = ...) -> None: ...

class BlobRequest(_message.Message):
    __slots__ = ("digest", "offset")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    offset: int
    def __init__(self, digest: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class BlobChunk(_message.Message):
    __slots__ = ("data", "last", "not_found", "not_yet")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    NOT_YET_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    not_found: bool
    not_yet: bool
    def __init__(self, data: _Optional[bytes] = ..., last: _Optional[bool] = ..., not_found: _Optional[bool] = ..., not_yet: _Optional[bool] = ...) -> None: ...

class ServeRequest(_message.Message):
    __slots__ = ("blocks", "blob")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    blocks: BlocksRequest
    blob: BlobRequest
    def __init__(self, blocks: _Optional[_Union[BlocksRequest, _Mapping]] = ..., blob: _Optional[_Union[BlobRequest, _Mapping]] = ...) -> None: ...

class ServeReply(_message.Message):
    __slots__ = ("blocks", "chunk", "refused")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    blocks: BlocksReply
    chunk: BlobChunk
    refused: str
    def __init__(self, blocks: _Optional[_Union[BlocksReply, _Mapping]] = ..., chunk: _Optional[_Union[BlobChunk, _Mapping]] = ..., refused: _Optional[str] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("chain_id", "version", "protocol", "time_ms")
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    chain_id: bytes
    version: str
    protocol: int
    time_ms: int
    def __init__(self, chain_id: _Optional[bytes] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...
