"""The sections of node.yaml: every key that a site may set for its node, with its type, limits and default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from chain.signing import decode_id
from ml.accountant import MAX_EPSILON
from ml.data.source import SHARE
from ml.measures.alone import FEDERATION
from node.config.value_types import (
    DataFormat,
    Device,
    DialledAddress,
    Digest,
    DisplayName,
    FilePath,
    ListenAddress,
    Name,
    Peer,
    ProxyAddress,
    Seed,
    SocketPath,
    Threads,
)

if TYPE_CHECKING:
    from chain.genesis import Genesis
    from chain.state import State


class Section(BaseModel):
    """A part of node.yaml: unknown keys are errors, text is not taken for numbers, nothing changes once built."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class NodeSection(Section):
    """Who this node is, and where it keeps what it knows. The name is a label; the identity is the key.

    An `observer` is no member: it follows the chain and serves it, and neither trains nor votes. `display_names` are
    what this site calls others by their ids, in any script: they are shown beside names, and decide nothing.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "node"
    identity_key_file: FilePath
    identity_passphrase_file: FilePath | None = None
    next_key_file: FilePath | None = None
    data_dir: FilePath
    observer: bool = False
    display_names: tuple[DisplayName, ...] = ()

    def get_display_names(self) -> dict[str, str]:
        """Returns this site's display names of other nodes, by id."""
        return dict(text.split("=", 1) for text in self.display_names)

    @property
    def spare_key_file(self) -> Path:
        """Returns the path of the second key of a node that rotates its keys: by default beside the first."""
        return self.next_key_file or self.identity_key_file.with_name(f"{self.identity_key_file.name}.next")


class LimitsSection(Section):
    """What one peer may cost this node. Nobody is refused for more: it is read more slowly, left out or turned away.

    How large a message of each kind may be is the protocol's to say, and a payload genesis', so that all judge alike.
    What depends neither on the size of a federation nor on a site's link is a constant (`node.p2p.transport`).
    """

    max_connections: Annotated[int, Field(ge=16, le=100_000)] = 512  # at once, of everybody, strangers too
    peer_rate_mib_s: Annotated[float, Field(ge=1, le=100_000)] = 20.0  # of what a peer pushes
    peer_messages_s: Annotated[float, Field(ge=100, le=1_000_000)] = 1000.0  # on average; four times as many at once
    blob_min_kib_s: Annotated[float, Field(ge=1, le=1_000_000)] = 128.0  # a transfer slower than this ends


NOT_SAID = ""
NOWHERE = "127.0.0.1:0"  # stands for the address of a node that does not listen


class NetworkSection(Section):
    """Where the node listens, whom it dials. Peers named here override the addresses that genesis hints at."""

    dial_out: bool = False  # nobody dials this node: it does not listen for peers
    listen: Annotated[ListenAddress, Field(validate_default=True)] = NOT_SAID  # required, unless it dials out
    advertise: DialledAddress | None = None
    proxy: ProxyAddress | None = None  # peers are dialled through it, by HTTP CONNECT
    mesh_max: Annotated[int, Field(ge=1, le=10_000)] = 64  # members; of more, connections are kept with some
    tls: Literal["mutual", "off"] = "mutual"
    peers: tuple[Peer, ...] = ()
    limits: LimitsSection = LimitsSection()

    @field_validator("listen", mode="before")
    @classmethod
    def _listen_nowhere(cls, listen: object, info: ValidationInfo) -> object:
        """Returns NOWHERE for a node that only dials out and names no address to listen at."""
        if listen != NOT_SAID:
            return listen
        if info.data.get("dial_out"):
            return NOWHERE
        raise PydanticCustomError("missing", "Field required")

    def get_peer_addresses(self) -> dict[bytes, str]:
        """Returns `host:port` by node id."""
        pairs = (peer.split("@", 1) for peer in self.peers)
        return {decode_id(peer): address for peer, address in pairs}

    def get_addresses(self, genesis: Genesis) -> dict[bytes, str]:
        """Returns the address at which each member is dialled, by id: that of genesis, unless `peers` has another."""
        hints = {founder.key: founder.address for founder in genesis.founders if founder.address}
        return hints | self.get_peer_addresses()

    def find_strangers(self, genesis: Genesis, state: State | None = None) -> tuple[bytes, ...]:
        """Returns the ids in `peers` that are neither members nor observers, by genesis or by a later state."""
        known = {*genesis.state.member_ids, *(observer.key for observer in genesis.observers)}
        if state is not None:
            known |= {*state.member_ids, *(observer.key for observer in state.observers)}
            known |= {old.key for old in state.retired}
        return tuple(peer for peer in self.get_peer_addresses() if peer not in known)


Noise = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PrivacySection(Section):
    """The site's own noise in what it sends, where a run has none, or less. A key means what it means in genesis.

    It is of this node's own local phases alone, and nothing that others check depends on it. Where the run's rule is
    stronger, that holds: the larger noise and the smaller clip. In a run whose method cannot have it the node does not
    train.
    """

    dp_noise: Noise | None = None
    dp_clip: Noise | None = None
    dp_prototype_noise: Noise | None = None
    dp_prototype_clip: Noise | None = None
    dp_update_noise: Noise | None = None
    dp_update_clip: Noise | None = None

    def get_own(self) -> dict[str, float]:
        """Returns the keys that are set, with their values."""
        return {key: value for key, value in self.model_dump().items() if value is not None}


class TrainingSection(Section):
    """What a site may choose about its training; everything else about it is the method's, in genesis.

    `threads: auto` leaves the number to torch; 1 gives the same bytes whatever the number of cores, on processors of
    one kind. `precision: auto` is bf16 on a GPU made for it where the model has a million weights, else fp32, and
    concerns forward passes in training. `deterministic` has a GPU train to the same bytes each time; `channels_last`
    and `compile` may make convolutions faster; with `cuda_graphs` a GPU records a step and replays it. Checkpoints are
    written every so many rounds, and on stopping; a node that was killed trains again from the last one. With one a
    round, a worker that dies alone is replaced by one in the same state. Code of others is imported only of `plugins`:
    distributions by name, or modules that were never installed. It runs with the rights of the node.

    Where models are drawn of single peers, one that makes the loss on the own test samples more than `max_loss_ratio`
    times as large is not taken, and its sender is not drawn again for `keep_heights` rounds.

    With `compare_local` the worker also trains the same model without the others, for the same work, while it has
    nothing else to do. `answer_by` says whose answers this node then gives where nobody asks for others: those of the
    federation's model, of that model, or of both mixed.

    Where samples or the site are hidden, by the run's noise or by the site's own, `privacy_budget` is the epsilon up to
    which this node contributes. Local phases of earlier releases whose noise can be guessed count as without noise,
    unless `privacy_set_aside` names them.

    `keep_models` says whose models are kept of a run's rounds besides the newest: best is that of the best round, where
    the run selects one; newest K that and the K newest.

    With `publish_metrics` the node signs its measures of each round and sends them to all members and observers, with
    the number of its test samples; never where it has fewer of these than `publish_min_samples`.
    """

    device: Device = "auto"
    seed: Seed
    threads: Threads = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    deterministic: bool = False
    channels_last: bool = False
    compile: bool = False
    cuda_graphs: bool = True
    checkpoint_every: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    keep_models: Annotated[str, Field(pattern=r"^(all|best|newest [1-9][0-9]{0,5})$")] = "best"
    plugins: tuple[Name, ...] = ()
    max_loss_ratio: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] = 4.0
    compare_local: bool = False
    answer_by: Literal["federation", "alone", "mixed"] = "federation"
    privacy_budget: Annotated[float, Field(gt=0, le=MAX_EPSILON, allow_inf_nan=False)] | None = None
    privacy_set_aside: Literal["guessable_noise"] | None = None
    privacy: PrivacySection = PrivacySection()
    publish_metrics: bool = False
    publish_min_samples: Annotated[int, Field(ge=1, le=1_000_000_000)] = 50

    @field_validator("answer_by")
    @classmethod
    def _needs_both(cls, answer_by: str, info: ValidationInfo) -> str:
        if answer_by != FEDERATION and not info.data.get("compare_local"):
            raise PydanticCustomError("answer_by", "expected compare_local: true beside it, which trains a model alone")
        return answer_by


class PartSection(Section):
    """Which part of a shared data set is this node's: `index` of `of`. For demonstrations; real sites have theirs."""

    index: Annotated[int, Field(ge=0)]
    of: Annotated[int, Field(ge=1, le=10_000)]
    seed: Annotated[int, Field(ge=0, lt=1 << 31)]
    shots: Annotated[int, Field(ge=1)] | None = None  # samples per class, all by default
    sha256: Digest | None = None  # of all parts as first dealt: this node checks its data against it


class ClassesPartition(PartSection):
    """`avg` classes for each part, give or take `std`."""

    scheme: Literal["classes"]
    avg: Annotated[int, Field(ge=2)]
    std: Annotated[int, Field(ge=0)]
    count: Literal["uniform", "normal"] = "uniform"
    samples: Literal["all", "shots"] | None = None  # by default as `shots` says
    cover: bool = False


class OwnedPartition(PartSection):
    """The classes of each part, written out; what several own is shared out equally."""

    scheme: Literal["owned"]
    classes: Annotated[str, Field(pattern=r"^[0-9+,]{1,10000}$")]


class DirichletPartition(PartSection):
    """Classes by a Dirichlet distribution, drawn for each class or for each part."""

    scheme: Literal["dirichlet"]
    alpha: Annotated[float, Field(gt=0)]
    per: Literal["class", "client"] = "class"
    balance: bool = True


class DomainsPartition(PartSection):
    """A domain for each part: of the data's own, where they have some; else equal parts, each seen in another way:
    upright, inverted, noisy, rotated, blurred."""

    scheme: Literal["domains"]


class ShardsPartition(PartSection):
    """Samples sorted by label and cut into shards."""

    scheme: Literal["shards"]
    per_client: Annotated[int, Field(ge=1)] = 2


class IidPartition(PartSection):
    """Equal parts at random."""

    scheme: Literal["iid"]


Part = ClassesPartition | OwnedPartition | DirichletPartition | DomainsPartition | ShardsPartition | IidPartition


def _validate_part(part: Part) -> Part:
    if part.index >= part.of:
        raise ValueError(f"expected index below of (got part {part.index} of {part.of})")
    if isinstance(part, ClassesPartition) and part.samples == "all" and part.shots is not None:
        raise ValueError(f"expected no shots with samples: all (got {part.shots})")
    if isinstance(part, DirichletPartition) and part.per == "client" and not part.balance:
        raise ValueError("expected no balance: false with per: client, whose parts are equal (got both)")
    return part


class ColumnsSection(Section):
    """Where a table or a Hugging Face data set keeps images and labels; by default they are found by name and type.
    Several labels or targets of a sample may be in a column each. `names` are those of all columns of a table of text
    that has no header.
    """

    image: Name | None = None
    label: Name | tuple[Name, ...] | None = None
    names: tuple[Name, ...] | None = None


class CsvSection(Section):
    """How a table of text is written. What is not set is seen from the file, but for a sign of thousands, which numbers
    have only where it is set."""

    separator: Name | None = None
    decimal: Literal[".", ","] | None = None
    thousands: Name | None = None
    encoding: Name | None = None


class TransformSection(Section):
    """What training does to each batch, and the plugin's transform that every sample goes through, on this node alone.
    Size, channels and normalisation are genesis' `input`, the same for all."""

    augment: Literal["none", "flip", "crop", "flip_crop"] = "none"
    own: Name | None = None


class ImagesSection(Section):
    """What this site's image files are, where they do not say it themselves, and what those that had to change are kept
    as: `uint8` rounds them to 8 bits, which take a quarter of the room."""

    page: Annotated[int, Field(ge=1, le=65_536)] | None = None
    white: Annotated[int, Field(ge=1, le=65_535)] | None = None
    pixels: Literal["float32", "uint8"] = "float32"


class DataSection(Section):
    """The site's samples. A format besides fednode's own is a reader that one of `training.plugins` offers.

    What tests is the split of that name, or the samples at `test`, or the rows that the column `split` says; else
    `held_out` of each class is held out, and stays so. Samples of one `group` are on one side: columns of a table,
    `parent` or a regular expression of an image's path, an archive's array. A table's `id` is the column by which
    a row is known when it changes. `val` is the share of the others that is held out of training to compare rounds by.

    `domains` chooses and orders those of format domains, `classes` the classes whose samples are used; all by default.
    With a `split_seed` each domain holds out samples as a site does, by a seed of its own that follows from it.
    """

    format: DataFormat | Name = "digits"
    path: FilePath | None = None
    train_split: Name = "train"
    test_split: Name | None = None
    test: FilePath | None = None
    split: Name | None = None
    group: Name | tuple[Name, ...] | None = None
    id: Name | None = None
    held_out: Annotated[float, Field(gt=0, lt=1)] = SHARE
    val: Annotated[float, Field(ge=0, lt=1)] | None = None
    columns: ColumnsSection = ColumnsSection()
    csv: CsvSection = CsvSection()
    domains: tuple[Name, ...] | None = None
    split_seed: int | None = None
    classes: tuple[Name, ...] | None = None
    images: ImagesSection = ImagesSection()
    cache_gb: Annotated[float, Field(ge=0)] = 20.0
    transform: TransformSection = TransformSection()
    partition: Annotated[Part, Field(discriminator="scheme"), AfterValidator(_validate_part)] | None = None


class ConsensusSection(Section):
    """What this node does beyond voting: whether it mines, in how many processes, and what it trains in. The rules live
    in genesis.

    With `join_runs: ask` it trains in the runs that its operator has approved, as far as that goes. In those of
    `fededs` it never does otherwise: a learned transformation of its samples leaves the node then, which is obfuscation
    and not cryptography. Of the run in genesis `approves_genesis` says that.
    """

    mine: bool = True
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    join_runs: Literal["ask", "always"] = "ask"
    approves_genesis: bool = False


class AdminSection(Section):
    """Where the operator's commands reach the daemon; null switches it off.

    Whoever can open the socket may do all. At `address` callers need a token (`fednode token new`), and beyond loopback
    they speak TLS with the node's own identity.
    """

    socket: SocketPath | None = None
    address: ListenAddress | None = None


class LogSection(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"
    file: FilePath | None = None


class SinksSection(Section):
    """Where what a round was like is written besides the store: `metrics.jsonl` in the data directory, and what others
    read. OTLP goes where the standard variables say (OTEL_EXPORTER_OTLP_ENDPOINT), or to this machine."""

    jsonl: bool = True
    tensorboard: bool = False
    mlflow_uri: Annotated[str, Field(min_length=1)] | None = None
    otlp: bool = False
