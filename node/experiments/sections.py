"""The form of an experiment's file, checked once into frozen sections; what it means is `plan`'s.

    name, title, description
    reuse    names of experiments that have runs in common with this one
    base     the settings of every run: data, model, input, pretrained, partition, clients, rounds, shots, seed, device,
             batched, max_loss_ratio, participation, eval_every, test_samples, alone_until, method, attack
    sweep    axes, each a list of values; every combination is run
    budget   t_sum, alpha and beta of DFPL's time model, from which local_iterations follow
    report   target, tables and figures

An axis is a key of `base`, or a single setting (`method.lr`, `model.hidden`, `attack.liars`), or `task`, whose items
set several keys at once: a data set with the model that suits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from ml.specs.sections import flatten
from node.config.node_sections import Section

T = TypeVar("T")

Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Ratio = Annotated[float, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Label = Annotated[str, Field(min_length=1, max_length=80)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _wrap(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _validate_axis(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise ValueError("expected at least one value")
    return values


def _validate_targets(values: tuple[float, ...]) -> tuple[float, ...]:
    for value in values:
        if not 0 < value <= 1:
            raise ValueError(f"expected accuracies of more than 0 and at most 1 (got {value:g})")
    if len(set(values)) < len(values):
        raise ValueError(f"given twice: {', '.join(f'{value:g}' for value in values)}")
    return values


Many = Annotated[tuple[T, ...], BeforeValidator(_wrap)]  # one value, or several
Targets = Annotated[Many[float], AfterValidator(_validate_targets)]
Axis = Annotated[tuple[T, ...], AfterValidator(_validate_axis)]
PerClient = Annotated[Many[T], AfterValidator(_validate_axis)]  # one for all clients, or one for each in turn


class Item(Section):
    """A value with settings of its own: `dfpl`, or `{name: dfpl, infer: prototype, label: DFPL (prototypes)}`.

    The label is what tables and figures call it.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    label: Label | None = None

    def get_settings(self) -> dict[str, Any]:
        """Returns all of it but the label."""
        return self.model_dump(exclude={"label"})


class NamedItem(Item):
    """A model, a method, or an attack; the attack `none` means no liars."""

    name: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class MethodItem(NamedItem):
    """A method. It may have `rounds` of its own, to be compared with methods that do less work in each, and a
    `max_loss_ratio` of its own."""

    rounds: Count | None = None
    max_loss_ratio: Ratio | None = None

    def get_own(self) -> dict[str, Any]:
        """Returns the settings that replace those in `base`."""
        own = {name: getattr(self, name) for name in ("rounds", "max_loss_ratio")}
        return {name: value for name, value in own.items() if value is not None}

    def get_settings(self) -> dict[str, Any]:
        """Returns all settings but the label and those of `get_own`, sections as dotted keys."""
        return flatten(self.model_dump(exclude={"label", "rounds", "max_loss_ratio"}))


class DataItem(Item):
    """A data set: `digits`, or `{format: idx, path: data/mnist}`, the path relative to the experiment's file."""

    format: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _read_format(cls, value: Any) -> Any:
        return {"format": value} if isinstance(value, str) else value


class BaseSection(Section):
    """The settings of every run unless the sweep says otherwise. `method` holds settings for every method that has
    them, `attack` those for every attack; `input` by default suits data and model. `max_loss_ratio` limits the harm
    that peers may do (`ml.guard`), by default not at all; `participation` is the share of clients that take part in a
    round. Models are measured every `eval_every` rounds and after the last, on `test_samples` of the test set, by
    default on all of it. With `alone_until` clients exchange nothing, and each trains until its model has that
    accuracy."""

    data: DataItem = DataItem(format="digits")
    model: NamedItem = NamedItem(name="mlp")
    input: dict[str, Any] | None = None
    pretrained: str | None = None
    partition: str = "classes:3,1"
    clients: Count = 10
    rounds: Count = 10
    shots: Count | None = None
    seed: Seed = 1
    device: str = "cpu"
    batched: Literal["auto", "on", "off"] = "auto"
    max_loss_ratio: Ratio | None = None
    participation: Share | None = None
    eval_every: Count | None = None
    test_samples: Count | None = None
    alone_until: Share | None = None
    method: dict[str, Any] = Field(default_factory=dict)
    attack: dict[str, Any] = Field(default_factory=dict)


class TaskItem(Section):
    """Several keys of `base` that change together."""

    label: Label
    data: DataItem | None = None
    model: NamedItem | None = None
    input: dict[str, Any] | None = None
    pretrained: str | None = None
    partition: str | None = None
    clients: Count | None = None
    rounds: Count | None = None
    shots: Count | None = None
    participation: Share | None = None
    device: str | None = None
    method: dict[str, Any] = Field(default_factory=dict)
    attack: dict[str, Any] = Field(default_factory=dict)


class SweepSection(Section):
    """The axes. Keys that are not named here are single settings of method, model or attack, as in `method.lr: [0.1,
    0.01]`."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    task: Axis[TaskItem] | None = None
    data: Axis[DataItem] | None = None
    model: Axis[NamedItem] | None = None
    clients: Axis[Count] | None = None
    shots: Axis[Count | None] | None = None
    participation: Axis[Share] | None = None
    rounds: Axis[Count] | None = None
    partition: Axis[str] | None = None
    method: Axis[MethodItem]
    attack: Axis[NamedItem] | None = None
    seed: Axis[Seed] | None = None

    def get_settings(self) -> Mapping[str, Any]:
        """Returns the axes that are single settings, as they were written."""
        return self.model_extra or {}


class BudgetSection(Section):
    """DFPL's time model: `t_sum` seconds for all rounds, `alpha` for a local iteration, `beta` for a block."""

    t_sum: Many[Annotated[float, Field(gt=0)]]
    alpha: Many[Annotated[float, Field(gt=0)]] = (1.0,)
    beta: Many[Annotated[float, Field(ge=0)]]


class TableSection(Section):
    """One table: axes down and across, and the value in its cells, mean ± standard deviation over seeds.

    `where` keeps only runs with these values of axes; `over` names axes averaged over besides the seed. `compare` is
    the axis whose best value is set in bold. `best_of` shows, for each cell, which value of that axis does best there,
    `worst_of` which does worst. `against` shows how much worse a run is than the run that differs in these axes alone:
    `{attack: none}` shows the cost of liars. `target` is the accuracy in 0..1 that rounds are counted to; each of
    several has a column. Values at equal training time are read after `seconds` of local training.
    """

    title: Label | None = None
    value: Many[str] = ("best_taa",)
    rows: Many[str] = ("method",)
    columns: Many[str] = ()
    where: dict[str, Any] = Field(default_factory=dict)
    over: Many[str] = ()
    compare: str | None = "method"
    best_of: str | None = None
    worst_of: str | None = None
    against: dict[str, Any] = Field(default_factory=dict)
    target: Targets = ()
    seconds: Annotated[float, Field(gt=0)] | None = None


class FigureSection(Section):
    """One figure for each value of `each`, a panel for each of `panels`, a line for each of `lines`.

    Its x is `round`, `bytes` (sent by a client so far), `seconds` (trained by a client so far), `epochs` (so far),
    `network_seconds` (so far), or an axis; its y is a per-round series (taa, tal, global, tal_global, taa_local; of
    peer-to-peer methods peers, similar, dropout and divergence, of DFPL aux_loss), or against an axis a table's value.
    `draw: box` then shows the spread of each x's runs, not only their mean.
    """

    title: Label | None = None
    x: str = "round"
    y: str = "taa"
    lines: Many[str] = ("method",)
    panels: Many[str] = ("partition",)
    each: Many[str] = ()
    where: dict[str, Any] = Field(default_factory=dict)
    over: Many[str] = ()
    draw: Literal["line", "box"] = "line"


class GridSection(Section):
    """A heat map of the value `grid`, a field where each two values of the axes `x` and `y` meet: one figure for each
    value of `each`, a panel for each of `panels`."""

    grid: str
    x: str
    y: str
    title: Label | None = None
    panels: Many[str] = ("partition",)
    each: Many[str] = ()
    where: dict[str, Any] = Field(default_factory=dict)
    over: Many[str] = ()


class PairsSection(Section):
    """A figure of the distance between each two clients, by round: a line for each pair, for UA-PDFL with few
    clients."""

    pairs: Literal["divergence"]
    title: Label | None = None
    panels: Many[str] = ("partition",)
    each: Many[str] = ()
    where: dict[str, Any] = Field(default_factory=dict)
    over: Many[str] = ()


class SnapshotSection(Section):
    """One figure for each value of `each`, a panel for each of `panels` and of `clients`; each shows the model that one
    client of one run has after the last round."""

    title: Label | None = None
    panels: Many[str] = ("method",)
    each: Many[str] = ()
    where: dict[str, Any] = Field(default_factory=dict)
    clients: Many[Annotated[int, Field(ge=0)]] = (0,)


class EmbeddingSection(SnapshotSection):
    """Maps of embeddings and prototypes."""

    embedding: Literal["tsne", "pca"]


class AnswersSection(SnapshotSection):
    """Pictures of the answers to test samples: the confusion of classes, the ROC curve of each class against all
    others, or the calibration of the confidence."""

    answers: Literal["confusion", "roc", "calibration"]


_BY_KEY: Mapping[str, type[Section]] = {
    "embedding": EmbeddingSection,
    "answers": AnswersSection,
    "grid": GridSection,
    "pairs": PairsSection,
}


def _choose_figure(value: Any) -> str:
    """Returns the name of the section that a figure is written as, chosen by its key."""
    if isinstance(value, dict):
        return next((section.__name__ for key, section in _BY_KEY.items() if key in value), FigureSection.__name__)
    return type(value).__name__


AnyFigureSection = Annotated[
    Annotated[FigureSection, Tag(FigureSection.__name__)]
    | Annotated[GridSection, Tag(GridSection.__name__)]
    | Annotated[PairsSection, Tag(PairsSection.__name__)]
    | Annotated[EmbeddingSection, Tag(EmbeddingSection.__name__)]
    | Annotated[AnswersSection, Tag(AnswersSection.__name__)],
    Discriminator(_choose_figure),
]


class ServerLinks(Section):
    """The links between clients and a server: `up_mbit` and `down_mbit` are millions of bits a second, `latency_s` is
    each way; `wait_s` is the time that the server itself takes each round. Several values belong to clients in turn."""

    up_mbit: PerClient[Positive]
    down_mbit: PerClient[Positive]
    latency_s: PerClient[NotNegative] = (0.0,)
    wait_s: NotNegative = 0.0


class PeerLinks(Section):
    """The links between clients: the bandwidth of each client's access, in turn, and the latency to the other end."""

    mbit: PerClient[Positive]
    latency_s: PerClient[NotNegative] = (0.0,)


class NetworkSection(Section):
    """A network for which seconds are computed (`node.experiments.network`); without `server` everything goes from peer
    to peer.

    Local work takes `step_s` a mini-batch or `epoch_s` an epoch, `encryptor_ratio` times as long for an encryptor; or
    as long as was measured. `slowdown` multiplies that time, for each client in turn.
    """

    label: Label
    server: ServerLinks | None = None
    peers: PeerLinks
    step_s: Positive | None = None
    epoch_s: Positive | None = None
    encryptor_ratio: Positive = 1.0
    slowdown: PerClient[Positive] = (1.0,)

    @model_validator(mode="after")
    def _check_work(self) -> Self:
        if self.step_s is not None and self.epoch_s is not None:
            raise ValueError("expected step_s or epoch_s, not both")
        return self

    def __str__(self) -> str:
        return self.label


def _validate_networks(networks: tuple[NetworkSection, ...]) -> tuple[NetworkSection, ...]:
    labels = [network.label for network in networks]
    if len(set(labels)) < len(labels):
        raise ValueError(f"expected different labels (got {', '.join(labels)})")
    return networks


class ReportSection(Section):
    """The contents of the page; without tables or figures, ones that suit the sweep. `target` is an accuracy in 0..1,
    or several, for tables that have none of their own; `network` is one or several that seconds are computed for."""

    target: Targets = ()
    network: Annotated[Many[NetworkSection], AfterValidator(_validate_networks)] = ()
    tables: tuple[TableSection, ...] | None = None
    figures: tuple[AnyFigureSection, ...] | None = None


class ExperimentFile(Section):
    """The whole file. Runs that the experiments in `reuse` have finished, in directories beside this one's, are not
    made again."""

    version: Literal[1] = 1
    name: Name
    title: str | None = None
    description: str = ""
    reuse: Many[Name] = ()
    base: BaseSection = BaseSection()
    sweep: SweepSection
    budget: BudgetSection | None = None
    report: ReportSection = ReportSection()
