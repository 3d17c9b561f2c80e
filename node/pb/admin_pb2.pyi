from node.pb import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("id", "name", "version", "chain_id", "chain_name", "method", "height", "head", "head_time", "round", "run", "phase", "view", "rounds", "done", "contributions", "candidates", "difficulty", "peers_connected", "members", "members_in_sight", "quorum", "stalled", "stall_reason", "ready", "unready_reason", "applied_round", "measured_round", "accuracy", "local_accuracy", "loss", "device", "precision", "num_train", "num_test", "parameters", "model_bytes", "bytes_sent", "bytes_received", "hashes", "database_bytes", "disk_free_bytes", "train_step", "train_steps", "local_iterations", "counts_epochs", "budget_s", "alpha_s", "beta_s", "train_s", "mine_s", "transfers", "not_awaited", "clocks_wrong", "silence", "other_history", "upgrade", "not_approved", "clock_ahead_s", "paused", "contributes", "stops_after", "training_trouble", "spoiled_round", "spoiled_reason", "data_change", "not_learning", "num_val", "model_signs", "measures", "alone", "privacy", "statistics", "selected", "own_best", "open_changes", "unapproved_changes", "time", "started_at", "uptime_s", "pid", "worker_pid", "miner_pids")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    CHAIN_NAME_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    HEAD_TIME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    PEERS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_IN_SIGHT_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    STALL_REASON_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    UNREADY_REASON_FIELD_NUMBER: _ClassVar[int]
    APPLIED_ROUND_FIELD_NUMBER: _ClassVar[int]
    MEASURED_ROUND_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    NUM_TRAIN_FIELD_NUMBER: _ClassVar[int]
    NUM_TEST_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    DATABASE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEP_FIELD_NUMBER: _ClassVar[int]
    TRAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    ALPHA_S_FIELD_NUMBER: _ClassVar[int]
    BETA_S_FIELD_NUMBER: _ClassVar[int]
    TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    MINE_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    NOT_AWAITED_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_WRONG_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    OTHER_HISTORY_FIELD_NUMBER: _ClassVar[int]
    UPGRADE_FIELD_NUMBER: _ClassVar[int]
    NOT_APPROVED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    STOPS_AFTER_FIELD_NUMBER: _ClassVar[int]
    TRAINING_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SPOILED_ROUND_FIELD_NUMBER: _ClassVar[int]
    SPOILED_REASON_FIELD_NUMBER: _ClassVar[int]
    DATA_CHANGE_FIELD_NUMBER: _ClassVar[int]
    NOT_LEARNING_FIELD_NUMBER: _ClassVar[int]
    NUM_VAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_SIGNS_FIELD_NUMBER: _ClassVar[int]
    MEASURES_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    OWN_BEST_FIELD_NUMBER: _ClassVar[int]
    OPEN_CHANGES_FIELD_NUMBER: _ClassVar[int]
    UNAPPROVED_CHANGES_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    WORKER_PID_FIELD_NUMBER: _ClassVar[int]
    MINER_PIDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    version: str
    chain_id: str
    chain_name: str
    method: str
    height: int
    head: str
    head_time: str
    round: int
    run: int
    phase: str
    view: int
    rounds: int
    done: bool
    contributions: int
    candidates: int
    difficulty: int
    peers_connected: int
    members: int
    members_in_sight: int
    quorum: int
    stalled: bool
    stall_reason: str
    ready: bool
    unready_reason: str
    applied_round: int
    measured_round: int
    accuracy: float
    local_accuracy: float
    loss: float
    device: str
    precision: str
    num_train: int
    num_test: int
    parameters: int
    model_bytes: int
    bytes_sent: int
    bytes_received: int
    hashes: int
    database_bytes: int
    disk_free_bytes: int
    train_step: int
    train_steps: int
    local_iterations: int
    counts_epochs: bool
    budget_s: float
    alpha_s: float
    beta_s: float
    train_s: float
    mine_s: float
    transfers: _containers.RepeatedCompositeFieldContainer[Transfer]
    not_awaited: _containers.RepeatedCompositeFieldContainer[NotAwaited]
    clocks_wrong: _containers.RepeatedScalarFieldContainer[str]
    silence: str
    other_history: str
    upgrade: str
    not_approved: str
    clock_ahead_s: float
    paused: bool
    contributes: bool
    stops_after: int
    training_trouble: str
    spoiled_round: int
    spoiled_reason: str
    data_change: str
    not_learning: _containers.RepeatedScalarFieldContainer[str]
    num_val: int
    model_signs: _containers.RepeatedScalarFieldContainer[str]
    measures: Measures
    alone: TrainedAlone
    privacy: PrivacySpent
    statistics: str
    selected: Selected
    own_best: OwnBest
    open_changes: int
    unapproved_changes: int
    time: str
    started_at: str
    uptime_s: float
    pid: int
    worker_pid: int
    miner_pids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[str] = ..., chain_id: _Optional[str] = ..., chain_name: _Optional[str] = ..., method: _Optional[str] = ..., height: _Optional[int] = ..., head: _Optional[str] = ..., head_time: _Optional[str] = ..., round: _Optional[int] = ..., run: _Optional[int] = ..., phase: _Optional[str] = ..., view: _Optional[int] = ..., rounds: _Optional[int] = ..., done: _Optional[bool] = ..., contributions: _Optional[int] = ..., candidates: _Optional[int] = ..., difficulty: _Optional[int] = ..., peers_connected: _Optional[int] = ..., members: _Optional[int] = ..., members_in_sight: _Optional[int] = ..., quorum: _Optional[int] = ..., stalled: _Optional[bool] = ..., stall_reason: _Optional[str] = ..., ready: _Optional[bool] = ..., unready_reason: _Optional[str] = ..., applied_round: _Optional[int] = ..., measured_round: _Optional[int] = ..., accuracy: _Optional[float] = ..., local_accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., device: _Optional[str] = ..., precision: _Optional[str] = ..., num_train: _Optional[int] = ..., num_test: _Optional[int] = ..., parameters: _Optional[int] = ..., model_bytes: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., hashes: _Optional[int] = ..., database_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., train_step: _Optional[int] = ..., train_steps: _Optional[int] = ..., local_iterations: _Optional[int] = ..., counts_epochs: _Optional[bool] = ..., budget_s: _Optional[float] = ..., alpha_s: _Optional[float] = ..., beta_s: _Optional[float] = ..., train_s: _Optional[float] = ..., mine_s: _Optional[float] = ..., transfers: _Optional[_Iterable[_Union[Transfer, _Mapping]]] = ..., not_awaited: _Optional[_Iterable[_Union[NotAwaited, _Mapping]]] = ..., clocks_wrong: _Optional[_Iterable[str]] = ..., silence: _Optional[str] = ..., other_history: _Optional[str] = ..., upgrade: _Optional[str] = ..., not_approved: _Optional[str] = ..., clock_ahead_s: _Optional[float] = ..., paused: _Optional[bool] = ..., contributes: _Optional[bool] = ..., stops_after: _Optional[int] = ..., training_trouble: _Optional[str] = ..., spoiled_round: _Optional[int] = ..., spoiled_reason: _Optional[str] = ..., data_change: _Optional[str] = ..., not_learning: _Optional[_Iterable[str]] = ..., num_val: _Optional[int] = ..., model_signs: _Optional[_Iterable[str]] = ..., measures: _Optional[_Union[Measures, _Mapping]] = ..., alone: _Optional[_Union[TrainedAlone, _Mapping]] = ..., privacy: _Optional[_Union[PrivacySpent, _Mapping]] = ..., statistics: _Optional[str] = ..., selected: _Optional[_Union[Selected, _Mapping]] = ..., own_best: _Optional[_Union[OwnBest, _Mapping]] = ..., open_changes: _Optional[int] = ..., unapproved_changes: _Optional[int] = ..., time: _Optional[str] = ..., started_at: _Optional[str] = ..., uptime_s: _Optional[float] = ..., pid: _Optional[int] = ..., worker_pid: _Optional[int] = ..., miner_pids: _Optional[_Iterable[int]] = ...) -> None: ...

class NotAwaited(_message.Message):
    __slots__ = ("id", "name", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("incoming", "peer", "peer_name", "digest", "kind", "author", "author_name", "bytes", "resumed", "total_bytes", "seconds")
    INCOMING_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    incoming: bool
    peer: str
    peer_name: str
    digest: str
    kind: str
    author: str
    author_name: str
    bytes: int
    resumed: int
    total_bytes: int
    seconds: float
    def __init__(self, incoming: _Optional[bool] = ..., peer: _Optional[str] = ..., peer_name: _Optional[str] = ..., digest: _Optional[str] = ..., kind: _Optional[str] = ..., author: _Optional[str] = ..., author_name: _Optional[str] = ..., bytes: _Optional[int] = ..., resumed: _Optional[int] = ..., total_bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Version(_message.Message):
    __slots__ = ("version", "protocol", "python", "libraries")
    class LibrariesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    version: str
    protocol: int
    python: str
    libraries: _containers.ScalarMap[str, str]
    def __init__(self, version: _Optional[str] = ..., protocol: _Optional[int] = ..., python: _Optional[str] = ..., libraries: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class GetGenesisRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GenesisReply(_message.Message):
    __slots__ = ("chain_id", "json")
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    chain_id: str
    json: str
    def __init__(self, chain_id: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class GetJoinFileRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinFileReply(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: bytes
    def __init__(self, file: _Optional[bytes] = ...) -> None: ...

class ListPeersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPeersReply(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[PeerView]
    def __init__(self, peers: _Optional[_Iterable[_Union[PeerView, _Mapping]]] = ...) -> None: ...

class PeerView(_message.Message):
    __slots__ = ("id", "name", "address", "added", "member", "role", "connected", "direction", "alive", "silent_s", "round_trip_s", "height", "head", "round", "view", "rejected", "bytes_sent", "bytes_received", "messages_sent", "messages_received", "batches_sent", "dropped", "refused", "banned_s", "banned_for", "abstains", "waits", "clock_ahead_s", "credit", "not_awaited", "not_taken", "version", "protocol", "through")
    class NotTakenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_SENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_SENT_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BANNED_S_FIELD_NUMBER: _ClassVar[int]
    BANNED_FOR_FIELD_NUMBER: _ClassVar[int]
    ABSTAINS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    NOT_AWAITED_FIELD_NUMBER: _ClassVar[int]
    NOT_TAKEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    address: str
    added: bool
    member: bool
    role: str
    connected: bool
    direction: str
    alive: bool
    silent_s: float
    round_trip_s: float
    height: int
    head: str
    round: int
    view: int
    rejected: int
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    batches_sent: int
    dropped: int
    refused: int
    banned_s: float
    banned_for: str
    abstains: bool
    waits: int
    clock_ahead_s: float
    credit: float
    not_awaited: str
    not_taken: _containers.ScalarMap[str, int]
    version: str
    protocol: int
    through: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., added: _Optional[bool] = ..., member: _Optional[bool] = ..., role: _Optional[str] = ..., connected: _Optional[bool] = ..., direction: _Optional[str] = ..., alive: _Optional[bool] = ..., silent_s: _Optional[float] = ..., round_trip_s: _Optional[float] = ..., height: _Optional[int] = ..., head: _Optional[str] = ..., round: _Optional[int] = ..., view: _Optional[int] = ..., rejected: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., messages_sent: _Optional[int] = ..., messages_received: _Optional[int] = ..., batches_sent: _Optional[int] = ..., dropped: _Optional[int] = ..., refused: _Optional[int] = ..., banned_s: _Optional[float] = ..., banned_for: _Optional[str] = ..., abstains: _Optional[bool] = ..., waits: _Optional[int] = ..., clock_ahead_s: _Optional[float] = ..., credit: _Optional[float] = ..., not_awaited: _Optional[str] = ..., not_taken: _Optional[_Mapping[str, int]] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., through: _Optional[_Iterable[str]] = ...) -> None: ...

class GetHeadRequest(_message.Message):
    __slots__ = ("include_payloads",)
    INCLUDE_PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    include_payloads: bool
    def __init__(self, include_payloads: _Optional[bool] = ...) -> None: ...

class GetBlockRequest(_message.Message):
    __slots__ = ("height", "id", "include_payloads")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    height: int
    id: str
    include_payloads: bool
    def __init__(self, height: _Optional[int] = ..., id: _Optional[str] = ..., include_payloads: _Optional[bool] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("first", "limit", "reverse")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    first: int
    limit: int
    reverse: bool
    def __init__(self, first: _Optional[int] = ..., limit: _Optional[int] = ..., reverse: _Optional[bool] = ...) -> None: ...

class ListBlocksReply(_message.Message):
    __slots__ = ("blocks", "next")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockSummary]
    next: int
    def __init__(self, blocks: _Optional[_Iterable[_Union[BlockSummary, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class BlockSummary(_message.Message):
    __slots__ = ("height", "id", "prev", "time", "miner", "miner_name", "difficulty", "nonce", "mining_s", "num_contributions", "num_votes", "num_members", "view", "bytes", "payload_bytes", "body", "aggregate")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PREV_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    MINER_FIELD_NUMBER: _ClassVar[int]
    MINER_NAME_FIELD_NUMBER: _ClassVar[int]
    DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MINING_S_FIELD_NUMBER: _ClassVar[int]
    NUM_CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_VOTES_FIELD_NUMBER: _ClassVar[int]
    NUM_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    height: int
    id: str
    prev: str
    time: str
    miner: str
    miner_name: str
    difficulty: int
    nonce: int
    mining_s: float
    num_contributions: int
    num_votes: int
    num_members: int
    view: int
    bytes: int
    payload_bytes: int
    body: str
    aggregate: str
    def __init__(self, height: _Optional[int] = ..., id: _Optional[str] = ..., prev: _Optional[str] = ..., time: _Optional[str] = ..., miner: _Optional[str] = ..., miner_name: _Optional[str] = ..., difficulty: _Optional[int] = ..., nonce: _Optional[int] = ..., mining_s: _Optional[float] = ..., num_contributions: _Optional[int] = ..., num_votes: _Optional[int] = ..., num_members: _Optional[int] = ..., view: _Optional[int] = ..., bytes: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., body: _Optional[str] = ..., aggregate: _Optional[str] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("summary", "aggregate_held", "contributions", "votes")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_HELD_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    summary: BlockSummary
    aggregate_held: bool
    contributions: _containers.RepeatedCompositeFieldContainer[ContributionView]
    votes: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, summary: _Optional[_Union[BlockSummary, _Mapping]] = ..., aggregate_held: _Optional[bool] = ..., contributions: _Optional[_Iterable[_Union[ContributionView, _Mapping]]] = ..., votes: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

class ContributionView(_message.Message):
    __slots__ = ("author", "name", "weight", "payloads")
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    author: str
    name: str
    weight: int
    payloads: _containers.RepeatedCompositeFieldContainer[Payload]
    def __init__(self, author: _Optional[str] = ..., name: _Optional[str] = ..., weight: _Optional[int] = ..., payloads: _Optional[_Iterable[_Union[Payload, _Mapping]]] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("kind", "digest", "bytes", "held", "arrays")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    digest: str
    bytes: int
    held: bool
    arrays: _containers.RepeatedCompositeFieldContainer[Array]
    def __init__(self, kind: _Optional[str] = ..., digest: _Optional[str] = ..., bytes: _Optional[int] = ..., held: _Optional[bool] = ..., arrays: _Optional[_Iterable[_Union[Array, _Mapping]]] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Voter(_message.Message):
    __slots__ = ("id", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListRoundsReply(_message.Message):
    __slots__ = ("rounds", "next")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    next: int
    def __init__(self, rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class GetRoundRequest(_message.Message):
    __slots__ = ("round", "scores_within_s")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SCORES_WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    round: int
    scores_within_s: float
    def __init__(self, round: _Optional[int] = ..., scores_within_s: _Optional[float] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("round", "height", "run", "block", "time", "miner", "miner_name", "view", "votes", "contributors", "contributor_names", "num_members", "absent_names", "payload_bytes", "measured", "rejected", "seconds", "bytes_sent", "train", "apply", "accuracy", "local_accuracy", "beta_s", "pulled_bytes", "gone", "peering", "left_out", "candidates", "signed_twice", "not_taken", "schedule", "best", "counts_epochs", "spoiled", "clipped", "went_back", "data_change", "failure", "measures", "signs", "alone", "privacy", "published", "statistics", "scores", "no_distance", "no_effect")
    class RejectedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class BytesSentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TrainEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ApplyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class GoneEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LeftOutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SignedTwiceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SignsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    MINER_FIELD_NUMBER: _ClassVar[int]
    MINER_NAME_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTOR_NAMES_FIELD_NUMBER: _ClassVar[int]
    NUM_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_NAMES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    BETA_S_FIELD_NUMBER: _ClassVar[int]
    PULLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    PEERING_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SIGNED_TWICE_FIELD_NUMBER: _ClassVar[int]
    NOT_TAKEN_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    COUNTS_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SPOILED_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_FIELD_NUMBER: _ClassVar[int]
    WENT_BACK_FIELD_NUMBER: _ClassVar[int]
    DATA_CHANGE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MEASURES_FIELD_NUMBER: _ClassVar[int]
    SIGNS_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    NO_DISTANCE_FIELD_NUMBER: _ClassVar[int]
    NO_EFFECT_FIELD_NUMBER: _ClassVar[int]
    round: int
    height: int
    run: int
    block: str
    time: str
    miner: str
    miner_name: str
    view: int
    votes: int
    contributors: _containers.RepeatedScalarFieldContainer[str]
    contributor_names: _containers.RepeatedScalarFieldContainer[str]
    num_members: int
    absent_names: _containers.RepeatedScalarFieldContainer[str]
    payload_bytes: int
    measured: bool
    rejected: _containers.ScalarMap[str, str]
    seconds: _containers.ScalarMap[str, float]
    bytes_sent: _containers.ScalarMap[str, int]
    train: _containers.ScalarMap[str, float]
    apply: _containers.ScalarMap[str, float]
    accuracy: float
    local_accuracy: float
    beta_s: float
    pulled_bytes: int
    gone: _containers.ScalarMap[str, str]
    peering: Peering
    left_out: _containers.ScalarMap[str, str]
    candidates: _containers.RepeatedCompositeFieldContainer[CandidateView]
    signed_twice: _containers.ScalarMap[str, str]
    not_taken: _containers.RepeatedCompositeFieldContainer[NotTaken]
    schedule: Schedule
    best: bool
    counts_epochs: bool
    spoiled: str
    clipped: int
    went_back: str
    data_change: str
    failure: str
    measures: Measures
    signs: _containers.ScalarMap[str, str]
    alone: TrainedAlone
    privacy: PrivacySpent
    published: _containers.RepeatedCompositeFieldContainer[PublishedMeasures]
    statistics: str
    scores: _containers.RepeatedCompositeFieldContainer[Score]
    no_distance: str
    no_effect: str
    def __init__(self, round: _Optional[int] = ..., height: _Optional[int] = ..., run: _Optional[int] = ..., block: _Optional[str] = ..., time: _Optional[str] = ..., miner: _Optional[str] = ..., miner_name: _Optional[str] = ..., view: _Optional[int] = ..., votes: _Optional[int] = ..., contributors: _Optional[_Iterable[str]] = ..., contributor_names: _Optional[_Iterable[str]] = ..., num_members: _Optional[int] = ..., absent_names: _Optional[_Iterable[str]] = ..., payload_bytes: _Optional[int] = ..., measured: _Optional[bool] = ..., rejected: _Optional[_Mapping[str, str]] = ..., seconds: _Optional[_Mapping[str, float]] = ..., bytes_sent: _Optional[_Mapping[str, int]] = ..., train: _Optional[_Mapping[str, float]] = ..., apply: _Optional[_Mapping[str, float]] = ..., accuracy: _Optional[float] = ..., local_accuracy: _Optional[float] = ..., beta_s: _Optional[float] = ..., pulled_bytes: _Optional[int] = ..., gone: _Optional[_Mapping[str, str]] = ..., peering: _Optional[_Union[Peering, _Mapping]] = ..., left_out: _Optional[_Mapping[str, str]] = ..., candidates: _Optional[_Iterable[_Union[CandidateView, _Mapping]]] = ..., signed_twice: _Optional[_Mapping[str, str]] = ..., not_taken: _Optional[_Iterable[_Union[NotTaken, _Mapping]]] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., best: _Optional[bool] = ..., counts_epochs: _Optional[bool] = ..., spoiled: _Optional[str] = ..., clipped: _Optional[int] = ..., went_back: _Optional[str] = ..., data_change: _Optional[str] = ..., failure: _Optional[str] = ..., measures: _Optional[_Union[Measures, _Mapping]] = ..., signs: _Optional[_Mapping[str, str]] = ..., alone: _Optional[_Union[TrainedAlone, _Mapping]] = ..., privacy: _Optional[_Union[PrivacySpent, _Mapping]] = ..., published: _Optional[_Iterable[_Union[PublishedMeasures, _Mapping]]] = ..., statistics: _Optional[str] = ..., scores: _Optional[_Iterable[_Union[Score, _Mapping]]] = ..., no_distance: _Optional[str] = ..., no_effect: _Optional[str] = ...) -> None: ...

class Measures(_message.Message):
    __slots__ = ("num_samples", "summary", "intervals", "classes")
    class SummaryEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class IntervalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Interval
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Interval, _Mapping]] = ...) -> None: ...
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    num_samples: int
    summary: _containers.ScalarMap[str, float]
    intervals: _containers.MessageMap[str, Interval]
    classes: _containers.RepeatedCompositeFieldContainer[ClassMeasures]
    def __init__(self, num_samples: _Optional[int] = ..., summary: _Optional[_Mapping[str, float]] = ..., intervals: _Optional[_Mapping[str, Interval]] = ..., classes: _Optional[_Iterable[_Union[ClassMeasures, _Mapping]]] = ...) -> None: ...

class PublishedMeasures(_message.Message):
    __slots__ = ("author", "name", "num_samples", "values", "verdict")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    author: str
    name: str
    num_samples: int
    values: _containers.ScalarMap[str, float]
    verdict: Verdict
    def __init__(self, author: _Optional[str] = ..., name: _Optional[str] = ..., num_samples: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ...) -> None: ...

class TrainedAlone(_message.Message):
    __slots__ = ("rounds", "owed_steps", "seconds", "measures", "failure", "verdict", "mixed", "weight")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    OWED_STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEASURES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    MIXED_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    owed_steps: int
    seconds: float
    measures: Measures
    failure: str
    verdict: Verdict
    mixed: Measures
    weight: float
    def __init__(self, rounds: _Optional[int] = ..., owed_steps: _Optional[int] = ..., seconds: _Optional[float] = ..., measures: _Optional[_Union[Measures, _Mapping]] = ..., failure: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., mixed: _Optional[_Union[Measures, _Mapping]] = ..., weight: _Optional[float] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("measure", "together", "alone", "difference", "interval", "num_samples", "rounds", "owed_steps", "outcome", "sentence")
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    OWED_STEPS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    measure: str
    together: float
    alone: float
    difference: float
    interval: Interval
    num_samples: int
    rounds: int
    owed_steps: int
    outcome: str
    sentence: str
    def __init__(self, measure: _Optional[str] = ..., together: _Optional[float] = ..., alone: _Optional[float] = ..., difference: _Optional[float] = ..., interval: _Optional[_Union[Interval, _Mapping]] = ..., num_samples: _Optional[int] = ..., rounds: _Optional[int] = ..., owed_steps: _Optional[int] = ..., outcome: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

class PrivacySpent(_message.Message):
    __slots__ = ("phases", "epsilon", "epsilon_phases", "delta", "budget", "guessable", "set_aside")
    PHASES_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    EPSILON_PHASES_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    GUESSABLE_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    phases: int
    epsilon: float
    epsilon_phases: int
    delta: float
    budget: float
    guessable: int
    set_aside: bool
    def __init__(self, phases: _Optional[int] = ..., epsilon: _Optional[float] = ..., epsilon_phases: _Optional[int] = ..., delta: _Optional[float] = ..., budget: _Optional[float] = ..., guessable: _Optional[int] = ..., set_aside: _Optional[bool] = ...) -> None: ...

class ClassMeasures(_message.Message):
    __slots__ = ("class_name", "num_samples", "num_given", "given", "values", "intervals")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class IntervalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Interval
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Interval, _Mapping]] = ...) -> None: ...
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_GIVEN_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    INTERVALS_FIELD_NUMBER: _ClassVar[int]
    class_name: str
    num_samples: int
    num_given: int
    given: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.ScalarMap[str, float]
    intervals: _containers.MessageMap[str, Interval]
    def __init__(self, class_name: _Optional[str] = ..., num_samples: _Optional[int] = ..., num_given: _Optional[int] = ..., given: _Optional[_Iterable[int]] = ..., values: _Optional[_Mapping[str, float]] = ..., intervals: _Optional[_Mapping[str, Interval]] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: float
    high: float
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("author", "name", "distance", "effect")
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    author: str
    name: str
    distance: float
    effect: float
    def __init__(self, author: _Optional[str] = ..., name: _Optional[str] = ..., distance: _Optional[float] = ..., effect: _Optional[float] = ...) -> None: ...

class CandidateView(_message.Message):
    __slots__ = ("id", "miner", "miner_name", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    MINER_FIELD_NUMBER: _ClassVar[int]
    MINER_NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    miner: str
    miner_name: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., miner: _Optional[str] = ..., miner_name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class NotTaken(_message.Message):
    __slots__ = ("peer", "name", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PEER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    peer: str
    name: str
    counts: _containers.ScalarMap[str, int]
    def __init__(self, peer: _Optional[str] = ..., name: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("epochs", "lambda_c", "lambda_dis")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LAMBDA_C_FIELD_NUMBER: _ClassVar[int]
    LAMBDA_DIS_FIELD_NUMBER: _ClassVar[int]
    epochs: int
    lambda_c: float
    lambda_dis: float
    def __init__(self, epochs: _Optional[int] = ..., lambda_c: _Optional[float] = ..., lambda_dis: _Optional[float] = ...) -> None: ...

class Peering(_message.Message):
    __slots__ = ("held", "div", "threshold", "nodes")
    HELD_FIELD_NUMBER: _ClassVar[int]
    DIV_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    held: bool
    div: str
    threshold: float
    nodes: _containers.RepeatedCompositeFieldContainer[Taker]
    def __init__(self, held: _Optional[bool] = ..., div: _Optional[str] = ..., threshold: _Optional[float] = ..., nodes: _Optional[_Iterable[_Union[Taker, _Mapping]]] = ...) -> None: ...

class Taker(_message.Message):
    __slots__ = ("id", "name", "branch", "peers", "similar", "donor", "divergences", "weights")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SIMILAR_FIELD_NUMBER: _ClassVar[int]
    DONOR_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    branch: str
    peers: _containers.RepeatedScalarFieldContainer[str]
    similar: _containers.RepeatedScalarFieldContainer[str]
    donor: str
    divergences: _containers.RepeatedScalarFieldContainer[float]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., branch: _Optional[str] = ..., peers: _Optional[_Iterable[str]] = ..., similar: _Optional[_Iterable[str]] = ..., donor: _Optional[str] = ..., divergences: _Optional[_Iterable[float]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class VerifyChainRequest(_message.Message):
    __slots__ = ("first", "deep", "require_all")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DEEP_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_ALL_FIELD_NUMBER: _ClassVar[int]
    first: int
    deep: bool
    require_all: bool
    def __init__(self, first: _Optional[int] = ..., deep: _Optional[bool] = ..., require_all: _Optional[bool] = ...) -> None: ...

class VerifyUpdate(_message.Message):
    __slots__ = ("progress", "report")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    progress: VerifyProgress
    report: VerifyReport
    def __init__(self, progress: _Optional[_Union[VerifyProgress, _Mapping]] = ..., report: _Optional[_Union[VerifyReport, _Mapping]] = ...) -> None: ...

class VerifyProgress(_message.Message):
    __slots__ = ("height", "last")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    height: int
    last: int
    def __init__(self, height: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class VerifyReport(_message.Message):
    __slots__ = ("ok", "first", "last", "blocks", "signatures", "recomputed", "not_held", "head", "seconds", "fault")
    OK_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    NOT_HELD_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    first: int
    last: int
    blocks: int
    signatures: int
    recomputed: int
    not_held: _containers.RepeatedScalarFieldContainer[int]
    head: str
    seconds: float
    fault: Fault
    def __init__(self, ok: _Optional[bool] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., blocks: _Optional[int] = ..., signatures: _Optional[int] = ..., recomputed: _Optional[int] = ..., not_held: _Optional[_Iterable[int]] = ..., head: _Optional[str] = ..., seconds: _Optional[float] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("height", "what", "expected", "got")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    GOT_FIELD_NUMBER: _ClassVar[int]
    height: int
    what: str
    expected: str
    got: str
    def __init__(self, height: _Optional[int] = ..., what: _Optional[str] = ..., expected: _Optional[str] = ..., got: _Optional[str] = ...) -> None: ...

class ExportChainRequest(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BackupChunk(_message.Message):
    __slots__ = ("manifest", "data")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    data: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("kinds", "since")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    since: str
    def __init__(self, kinds: _Optional[_Iterable[str]] = ..., since: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("cursor", "time", "kind", "data", "missed")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    time: str
    kind: str
    data: str
    missed: int
    def __init__(self, cursor: _Optional[str] = ..., time: _Optional[str] = ..., kind: _Optional[str] = ..., data: _Optional[str] = ..., missed: _Optional[int] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("samples", "top", "wait_s", "alone", "round", "prior", "calibrated", "answer_by")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    CALIBRATED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BY_FIELD_NUMBER: _ClassVar[int]
    samples: bytes
    top: int
    wait_s: float
    alone: bool
    round: str
    prior: float
    calibrated: bool
    answer_by: str
    def __init__(self, samples: _Optional[bytes] = ..., top: _Optional[int] = ..., wait_s: _Optional[float] = ..., alone: _Optional[bool] = ..., round: _Optional[str] = ..., prior: _Optional[float] = ..., calibrated: _Optional[bool] = ..., answer_by: _Optional[str] = ...) -> None: ...

class PredictReply(_message.Message):
    __slots__ = ("applied_round", "run", "predictions", "trained_alone", "alone", "is_best", "passed_over", "answer_by", "mixed", "weight", "temperature")
    APPLIED_ROUND_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_ALONE_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    IS_BEST_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BY_FIELD_NUMBER: _ClassVar[int]
    MIXED_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    applied_round: int
    run: int
    predictions: _containers.RepeatedCompositeFieldContainer[Prediction]
    trained_alone: TrainedAlone
    alone: _containers.RepeatedCompositeFieldContainer[Prediction]
    is_best: bool
    passed_over: _containers.RepeatedScalarFieldContainer[str]
    answer_by: str
    mixed: _containers.RepeatedCompositeFieldContainer[Prediction]
    weight: float
    temperature: float
    def __init__(self, applied_round: _Optional[int] = ..., run: _Optional[int] = ..., predictions: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ..., trained_alone: _Optional[_Union[TrainedAlone, _Mapping]] = ..., alone: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ..., is_best: _Optional[bool] = ..., passed_over: _Optional[_Iterable[str]] = ..., answer_by: _Optional[str] = ..., mixed: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ..., weight: _Optional[float] = ..., temperature: _Optional[float] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("label", "class_name", "probability", "top", "distance", "nearest", "nearest_name", "labels", "values", "notes")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    NEAREST_NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    label: int
    class_name: str
    probability: float
    top: _containers.RepeatedCompositeFieldContainer[ClassProbability]
    distance: float
    nearest: str
    nearest_name: str
    labels: _containers.RepeatedCompositeFieldContainer[ClassProbability]
    values: _containers.RepeatedCompositeFieldContainer[TargetValue]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, label: _Optional[int] = ..., class_name: _Optional[str] = ..., probability: _Optional[float] = ..., top: _Optional[_Iterable[_Union[ClassProbability, _Mapping]]] = ..., distance: _Optional[float] = ..., nearest: _Optional[str] = ..., nearest_name: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[ClassProbability, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[TargetValue, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class TargetValue(_message.Message):
    __slots__ = ("target", "value")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    target: str
    value: float
    def __init__(self, target: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class ClassProbability(_message.Message):
    __slots__ = ("label", "class_name", "probability")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    label: int
    class_name: str
    probability: float
    def __init__(self, label: _Optional[int] = ..., class_name: _Optional[str] = ..., probability: _Optional[float] = ...) -> None: ...

class ListEvidenceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEvidenceReply(_message.Message):
    __slots__ = ("evidence",)
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    evidence: _containers.RepeatedCompositeFieldContainer[EvidenceView]
    def __init__(self, evidence: _Optional[_Iterable[_Union[EvidenceView, _Mapping]]] = ...) -> None: ...

class EvidenceView(_message.Message):
    __slots__ = ("author", "name", "height", "slot", "view", "phase", "first", "second", "seen")
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    author: str
    name: str
    height: int
    slot: str
    view: int
    phase: str
    first: str
    second: str
    seen: str
    def __init__(self, author: _Optional[str] = ..., name: _Optional[str] = ..., height: _Optional[int] = ..., slot: _Optional[str] = ..., view: _Optional[int] = ..., phase: _Optional[str] = ..., first: _Optional[str] = ..., second: _Optional[str] = ..., seen: _Optional[str] = ...) -> None: ...

class CompareChainRequest(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    def __init__(self, peer: _Optional[str] = ...) -> None: ...

class ChainComparison(_message.Message):
    __slots__ = ("peer", "peer_name", "height", "other_height", "common", "ours", "theirs", "guilty")
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_NAME_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    OTHER_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    COMMON_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    THEIRS_FIELD_NUMBER: _ClassVar[int]
    GUILTY_FIELD_NUMBER: _ClassVar[int]
    peer: str
    peer_name: str
    height: int
    other_height: int
    common: int
    ours: PartedBlock
    theirs: PartedBlock
    guilty: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, peer: _Optional[str] = ..., peer_name: _Optional[str] = ..., height: _Optional[int] = ..., other_height: _Optional[int] = ..., common: _Optional[int] = ..., ours: _Optional[_Union[PartedBlock, _Mapping]] = ..., theirs: _Optional[_Union[PartedBlock, _Mapping]] = ..., guilty: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

class PartedBlock(_message.Message):
    __slots__ = ("height", "id", "miner", "miner_name", "time", "votes", "certified")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MINER_FIELD_NUMBER: _ClassVar[int]
    MINER_NAME_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    height: int
    id: str
    miner: str
    miner_name: str
    time: str
    votes: int
    certified: bool
    def __init__(self, height: _Optional[int] = ..., id: _Optional[str] = ..., miner: _Optional[str] = ..., miner_name: _Optional[str] = ..., time: _Optional[str] = ..., votes: _Optional[int] = ..., certified: _Optional[bool] = ...) -> None: ...

class BanPeerRequest(_message.Message):
    __slots__ = ("peer", "minutes")
    PEER_FIELD_NUMBER: _ClassVar[int]
    MINUTES_FIELD_NUMBER: _ClassVar[int]
    peer: str
    minutes: float
    def __init__(self, peer: _Optional[str] = ..., minutes: _Optional[float] = ...) -> None: ...

class UnbanPeerRequest(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    def __init__(self, peer: _Optional[str] = ...) -> None: ...

class AddPeerRequest(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    def __init__(self, peer: _Optional[str] = ...) -> None: ...

class RemovePeerRequest(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    def __init__(self, peer: _Optional[str] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: str
    def __init__(self, round: _Optional[str] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("applied_round", "run", "chain_id", "chain_name", "method", "model", "input", "classes", "numbers", "bytes", "sha256", "arrays", "task", "target", "is_best")
    APPLIED_ROUND_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHAIN_ID_FIELD_NUMBER: _ClassVar[int]
    CHAIN_NAME_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    IS_BEST_FIELD_NUMBER: _ClassVar[int]
    applied_round: int
    run: int
    chain_id: str
    chain_name: str
    method: str
    model: str
    input: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    numbers: int
    bytes: int
    sha256: str
    arrays: _containers.RepeatedCompositeFieldContainer[Array]
    task: str
    target: str
    is_best: bool
    def __init__(self, applied_round: _Optional[int] = ..., run: _Optional[int] = ..., chain_id: _Optional[str] = ..., chain_name: _Optional[str] = ..., method: _Optional[str] = ..., model: _Optional[str] = ..., input: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ..., numbers: _Optional[int] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., arrays: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., task: _Optional[str] = ..., target: _Optional[str] = ..., is_best: _Optional[bool] = ...) -> None: ...

class ExportModelRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: str
    def __init__(self, round: _Optional[str] = ...) -> None: ...

class ModelChunk(_message.Message):
    __slots__ = ("info", "data")
    INFO_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    info: ModelInfo
    data: bytes
    def __init__(self, info: _Optional[_Union[ModelInfo, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PauseTrainingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeTrainingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopAfterRoundRequest(_message.Message):
    __slots__ = ("round", "withdraw")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    round: int
    withdraw: bool
    def __init__(self, round: _Optional[int] = ..., withdraw: _Optional[bool] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("grace_s",)
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    def __init__(self, grace_s: _Optional[float] = ...) -> None: ...

class TakingPart(_message.Message):
    __slots__ = ("paused", "height", "round", "contributes", "stops_after", "stopping", "name")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    STOPS_AFTER_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    height: int
    round: int
    contributes: bool
    stops_after: int
    stopping: bool
    name: str
    def __init__(self, paused: _Optional[bool] = ..., height: _Optional[int] = ..., round: _Optional[int] = ..., contributes: _Optional[bool] = ..., stops_after: _Optional[int] = ..., stopping: _Optional[bool] = ..., name: _Optional[str] = ...) -> None: ...

class SetLogLevelRequest(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: str
    def __init__(self, level: _Optional[str] = ...) -> None: ...

class LogLevel(_message.Message):
    __slots__ = ("before", "level")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    before: str
    level: str
    def __init__(self, before: _Optional[str] = ..., level: _Optional[str] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RotateKeyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RotateKeyReply(_message.Message):
    __slots__ = ("change", "id")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    change: str
    id: str
    def __init__(self, change: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class ReloadReply(_message.Message):
    __slots__ = ("applied", "needs_restart", "problems")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    NEEDS_RESTART_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    applied: _containers.RepeatedScalarFieldContainer[str]
    needs_restart: _containers.RepeatedScalarFieldContainer[str]
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, applied: _Optional[_Iterable[str]] = ..., needs_restart: _Optional[_Iterable[str]] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class QueryMetricsRequest(_message.Message):
    __slots__ = ("series", "first", "last", "max_points")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MAX_POINTS_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedScalarFieldContainer[str]
    first: int
    last: int
    max_points: int
    def __init__(self, series: _Optional[_Iterable[str]] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., max_points: _Optional[int] = ...) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("series", "known", "measured", "rounds")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedScalarFieldContainer[str]
    known: _containers.RepeatedScalarFieldContainer[str]
    measured: int
    rounds: _containers.RepeatedCompositeFieldContainer[MetricsPoint]
    def __init__(self, series: _Optional[_Iterable[str]] = ..., known: _Optional[_Iterable[str]] = ..., measured: _Optional[int] = ..., rounds: _Optional[_Iterable[_Union[MetricsPoint, _Mapping]]] = ...) -> None: ...

class MetricsPoint(_message.Message):
    __slots__ = ("round", "height", "run", "time", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    round: int
    height: int
    run: int
    time: str
    values: _containers.ScalarMap[str, float]
    def __init__(self, round: _Optional[int] = ..., height: _Optional[int] = ..., run: _Optional[int] = ..., time: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("kind", "terms", "note", "first", "heights", "dry_run", "shown", "lend")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    HEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    LEND_FIELD_NUMBER: _ClassVar[int]
    kind: str
    terms: str
    note: str
    first: int
    heights: int
    dry_run: bool
    shown: str
    lend: bool
    def __init__(self, kind: _Optional[str] = ..., terms: _Optional[str] = ..., note: _Optional[str] = ..., first: _Optional[int] = ..., heights: _Optional[int] = ..., dry_run: _Optional[bool] = ..., shown: _Optional[str] = ..., lend: _Optional[bool] = ...) -> None: ...

class ApproveRequest(_message.Message):
    __slots__ = ("change", "no_train", "lend")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    NO_TRAIN_FIELD_NUMBER: _ClassVar[int]
    LEND_FIELD_NUMBER: _ClassVar[int]
    change: str
    no_train: bool
    lend: bool
    def __init__(self, change: _Optional[str] = ..., no_train: _Optional[bool] = ..., lend: _Optional[bool] = ...) -> None: ...

class ListProposalsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListProposalsReply(_message.Message):
    __slots__ = ("proposals",)
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    proposals: _containers.RepeatedCompositeFieldContainer[ProposalView]
    def __init__(self, proposals: _Optional[_Iterable[_Union[ProposalView, _Mapping]]] = ...) -> None: ...

class GetProposalRequest(_message.Message):
    __slots__ = ("change",)
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    change: str
    def __init__(self, change: _Optional[str] = ...) -> None: ...

class ProposalView(_message.Message):
    __slots__ = ("id", "kind", "terms", "seat", "proposer", "made", "first", "expires", "note", "open", "differences", "approvals", "missing", "height", "approved_here", "warnings", "executed", "proposer_id", "lends_here")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    APPROVED_HERE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_ID_FIELD_NUMBER: _ClassVar[int]
    LENDS_HERE_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    terms: str
    seat: int
    proposer: str
    made: int
    first: int
    expires: int
    note: str
    open: bool
    differences: _containers.RepeatedCompositeFieldContainer[Difference]
    approvals: _containers.RepeatedCompositeFieldContainer[ApprovalView]
    missing: Missing
    height: int
    approved_here: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    executed: int
    proposer_id: str
    lends_here: bool
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., terms: _Optional[str] = ..., seat: _Optional[int] = ..., proposer: _Optional[str] = ..., made: _Optional[int] = ..., first: _Optional[int] = ..., expires: _Optional[int] = ..., note: _Optional[str] = ..., open: _Optional[bool] = ..., differences: _Optional[_Iterable[_Union[Difference, _Mapping]]] = ..., approvals: _Optional[_Iterable[_Union[ApprovalView, _Mapping]]] = ..., missing: _Optional[_Union[Missing, _Mapping]] = ..., height: _Optional[int] = ..., approved_here: _Optional[bool] = ..., warnings: _Optional[_Iterable[str]] = ..., executed: _Optional[int] = ..., proposer_id: _Optional[str] = ..., lends_here: _Optional[bool] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("path", "old", "new")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    path: str
    old: str
    new: str
    def __init__(self, path: _Optional[str] = ..., old: _Optional[str] = ..., new: _Optional[str] = ...) -> None: ...

class ApprovalView(_message.Message):
    __slots__ = ("id", "name", "trains")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRAINS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    trains: bool
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., trains: _Optional[bool] = ...) -> None: ...

class Missing(_message.Message):
    __slots__ = ("nothing", "before", "after", "training", "readiness", "unanswered", "unanswered_ids", "quorum", "quorum_after")
    NOTHING_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    READINESS_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_IDS_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    QUORUM_AFTER_FIELD_NUMBER: _ClassVar[int]
    nothing: bool
    before: int
    after: int
    training: int
    readiness: str
    unanswered: _containers.RepeatedScalarFieldContainer[str]
    unanswered_ids: _containers.RepeatedScalarFieldContainer[str]
    quorum: str
    quorum_after: str
    def __init__(self, nothing: _Optional[bool] = ..., before: _Optional[int] = ..., after: _Optional[int] = ..., training: _Optional[int] = ..., readiness: _Optional[str] = ..., unanswered: _Optional[_Iterable[str]] = ..., unanswered_ids: _Optional[_Iterable[str]] = ..., quorum: _Optional[str] = ..., quorum_after: _Optional[str] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: int
    def __init__(self, run: _Optional[int] = ...) -> None: ...

class GetStatisticsRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: int
    def __init__(self, run: _Optional[int] = ...) -> None: ...

class StatisticsReply(_message.Message):
    __slots__ = ("run", "height", "min_count", "features", "classes", "all", "sites", "differences", "masked")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    run: int
    height: int
    min_count: int
    features: _containers.RepeatedCompositeFieldContainer[StatisticsFeature]
    classes: _containers.RepeatedScalarFieldContainer[str]
    all: SiteStatistics
    sites: _containers.RepeatedCompositeFieldContainer[SiteStatistics]
    differences: _containers.RepeatedScalarFieldContainer[str]
    masked: bool
    def __init__(self, run: _Optional[int] = ..., height: _Optional[int] = ..., min_count: _Optional[int] = ..., features: _Optional[_Iterable[_Union[StatisticsFeature, _Mapping]]] = ..., classes: _Optional[_Iterable[str]] = ..., all: _Optional[_Union[SiteStatistics, _Mapping]] = ..., sites: _Optional[_Iterable[_Union[SiteStatistics, _Mapping]]] = ..., differences: _Optional[_Iterable[str]] = ..., masked: _Optional[bool] = ...) -> None: ...

class StatisticsFeature(_message.Message):
    __slots__ = ("name", "category", "edges")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    category: bool
    edges: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., category: _Optional[bool] = ..., edges: _Optional[_Iterable[float]] = ...) -> None: ...

class SiteStatistics(_message.Message):
    __slots__ = ("id", "name", "held", "samples", "features", "classes")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    held: bool
    samples: int
    features: _containers.RepeatedCompositeFieldContainer[FeatureStatistics]
    classes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., held: _Optional[bool] = ..., samples: _Optional[int] = ..., features: _Optional[_Iterable[_Union[FeatureStatistics, _Mapping]]] = ..., classes: _Optional[_Iterable[int]] = ...) -> None: ...

class FeatureStatistics(_message.Message):
    __slots__ = ("values", "mean", "std", "bins", "lower_quartile", "median", "upper_quartile", "classes")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    LOWER_QUARTILE_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_FIELD_NUMBER: _ClassVar[int]
    UPPER_QUARTILE_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    values: int
    mean: float
    std: float
    bins: _containers.RepeatedScalarFieldContainer[int]
    lower_quartile: float
    median: float
    upper_quartile: float
    classes: _containers.RepeatedCompositeFieldContainer[ClassFeature]
    def __init__(self, values: _Optional[int] = ..., mean: _Optional[float] = ..., std: _Optional[float] = ..., bins: _Optional[_Iterable[int]] = ..., lower_quartile: _Optional[float] = ..., median: _Optional[float] = ..., upper_quartile: _Optional[float] = ..., classes: _Optional[_Iterable[_Union[ClassFeature, _Mapping]]] = ...) -> None: ...

class ClassFeature(_message.Message):
    __slots__ = ("values", "mean", "std", "correlation")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    values: int
    mean: float
    std: float
    correlation: float
    def __init__(self, values: _Optional[int] = ..., mean: _Optional[float] = ..., std: _Optional[float] = ..., correlation: _Optional[float] = ...) -> None: ...

class ListEvaluationsRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: int
    def __init__(self, run: _Optional[int] = ...) -> None: ...

class ListEvaluationsReply(_message.Message):
    __slots__ = ("evaluations",)
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationView]
    def __init__(self, evaluations: _Optional[_Iterable[_Union[EvaluationView, _Mapping]]] = ...) -> None: ...

class EvaluationView(_message.Message):
    __slots__ = ("run", "height", "of_run", "of_round", "model", "min_samples", "min_count", "task", "classes", "sites", "lends", "lender", "lender_name")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    OF_RUN_FIELD_NUMBER: _ClassVar[int]
    OF_ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    LENDS_FIELD_NUMBER: _ClassVar[int]
    LENDER_FIELD_NUMBER: _ClassVar[int]
    LENDER_NAME_FIELD_NUMBER: _ClassVar[int]
    run: int
    height: int
    of_run: int
    of_round: int
    model: str
    min_samples: int
    min_count: int
    task: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    sites: _containers.RepeatedCompositeFieldContainer[SiteEvaluation]
    lends: bool
    lender: str
    lender_name: str
    def __init__(self, run: _Optional[int] = ..., height: _Optional[int] = ..., of_run: _Optional[int] = ..., of_round: _Optional[int] = ..., model: _Optional[str] = ..., min_samples: _Optional[int] = ..., min_count: _Optional[int] = ..., task: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ..., sites: _Optional[_Iterable[_Union[SiteEvaluation, _Mapping]]] = ..., lends: _Optional[bool] = ..., lender: _Optional[str] = ..., lender_name: _Optional[str] = ...) -> None: ...

class SiteEvaluation(_message.Message):
    __slots__ = ("id", "name", "held", "measures")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    MEASURES_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    held: bool
    measures: Measures
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., held: _Optional[bool] = ..., measures: _Optional[_Union[Measures, _Mapping]] = ...) -> None: ...

class ListRunsReply(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunView]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunView, _Mapping]]] = ...) -> None: ...

class OwnBest(_message.Message):
    __slots__ = ("round", "by", "score")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    round: int
    by: str
    score: float
    def __init__(self, round: _Optional[int] = ..., by: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Selected(_message.Message):
    __slots__ = ("by", "best_round", "score", "since", "patience", "stopped", "last_round", "last_score")
    BY_FIELD_NUMBER: _ClassVar[int]
    BEST_ROUND_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    LAST_SCORE_FIELD_NUMBER: _ClassVar[int]
    by: str
    best_round: int
    score: float
    since: int
    patience: int
    stopped: int
    last_round: int
    last_score: float
    def __init__(self, by: _Optional[str] = ..., best_round: _Optional[int] = ..., score: _Optional[float] = ..., since: _Optional[int] = ..., patience: _Optional[int] = ..., stopped: _Optional[int] = ..., last_round: _Optional[int] = ..., last_score: _Optional[float] = ...) -> None: ...

class RunView(_message.Message):
    __slots__ = ("number", "method", "model", "terms", "rounds", "made", "phase", "began", "last", "change", "note", "accuracy", "measured", "approvals", "authors", "counted", "selected")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    AUTHORS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    number: int
    method: str
    model: str
    terms: str
    rounds: int
    made: int
    phase: str
    began: int
    last: int
    change: str
    note: str
    accuracy: float
    measured: int
    approvals: _containers.RepeatedCompositeFieldContainer[ApprovalView]
    authors: _containers.RepeatedCompositeFieldContainer[RunAuthor]
    counted: int
    selected: Selected
    def __init__(self, number: _Optional[int] = ..., method: _Optional[str] = ..., model: _Optional[str] = ..., terms: _Optional[str] = ..., rounds: _Optional[int] = ..., made: _Optional[int] = ..., phase: _Optional[str] = ..., began: _Optional[int] = ..., last: _Optional[int] = ..., change: _Optional[str] = ..., note: _Optional[str] = ..., accuracy: _Optional[float] = ..., measured: _Optional[int] = ..., approvals: _Optional[_Iterable[_Union[ApprovalView, _Mapping]]] = ..., authors: _Optional[_Iterable[_Union[RunAuthor, _Mapping]]] = ..., counted: _Optional[int] = ..., selected: _Optional[_Union[Selected, _Mapping]] = ...) -> None: ...

class RunAuthor(_message.Message):
    __slots__ = ("id", "name", "rounds")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    rounds: int
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., rounds: _Optional[int] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMembersReply(_message.Message):
    __slots__ = ("height", "quorum", "min_contributions", "members", "observers")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    MIN_CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OBSERVERS_FIELD_NUMBER: _ClassVar[int]
    height: int
    quorum: int
    min_contributions: int
    members: _containers.RepeatedCompositeFieldContainer[MemberView]
    observers: _containers.RepeatedCompositeFieldContainer[ObserverView]
    def __init__(self, height: _Optional[int] = ..., quorum: _Optional[int] = ..., min_contributions: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberView, _Mapping]]] = ..., observers: _Optional[_Iterable[_Union[ObserverView, _Mapping]]] = ...) -> None: ...

class MemberView(_message.Message):
    __slots__ = ("id", "name", "seat", "since", "change", "key_since", "suspended", "pardoned_at", "me", "connected", "alive", "silent_s", "height", "clock_ahead_s", "address", "version", "through", "display_name")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    KEY_SINCE_FIELD_NUMBER: _ClassVar[int]
    SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    PARDONED_AT_FIELD_NUMBER: _ClassVar[int]
    ME_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    seat: int
    since: int
    change: str
    key_since: int
    suspended: bool
    pardoned_at: int
    me: bool
    connected: bool
    alive: bool
    silent_s: float
    height: int
    clock_ahead_s: float
    address: str
    version: str
    through: _containers.RepeatedScalarFieldContainer[str]
    display_name: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., seat: _Optional[int] = ..., since: _Optional[int] = ..., change: _Optional[str] = ..., key_since: _Optional[int] = ..., suspended: _Optional[bool] = ..., pardoned_at: _Optional[int] = ..., me: _Optional[bool] = ..., connected: _Optional[bool] = ..., alive: _Optional[bool] = ..., silent_s: _Optional[float] = ..., height: _Optional[int] = ..., clock_ahead_s: _Optional[float] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., through: _Optional[_Iterable[str]] = ..., display_name: _Optional[str] = ...) -> None: ...

class ObserverView(_message.Message):
    __slots__ = ("display_name", "id", "name", "connected", "alive")
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    id: str
    name: str
    connected: bool
    alive: bool
    def __init__(self, display_name: _Optional[str] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., connected: _Optional[bool] = ..., alive: _Optional[bool] = ...) -> None: ...

class OpenPageRequest(_message.Message):
    __slots__ = ("read_only",)
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    read_only: bool
    def __init__(self, read_only: _Optional[bool] = ...) -> None: ...

class PageKey(_message.Message):
    __slots__ = ("address", "key", "role", "seconds")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    address: str
    key: str
    role: str
    seconds: float
    def __init__(self, address: _Optional[str] = ..., key: _Optional[str] = ..., role: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...
