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


Many = Annotated[tuple[T, ...], BeforeValidator(_wrap)]  # one value, or a list of them
Targets = Annotated[Many[float], AfterValidator(_validate_targets)]
Axis = Annotated[tuple[T, ...], AfterValidator(_validate_axis)]
PerClient = Annotated[Many[T], AfterValidator(_validate_axis)]  # one for all, or each for one client in turn


class Item(Section):
    """A value that is a section of settings: `dfpl`, or `{name: dfpl, infer: prototype, label: DFPL (prototypes)}`.

    The label is what tables and figures call it.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, allow_inf_nan=False)

    label: Label | None = None

    def get_settings(self) -> dict[str, Any]:
        """All of it but the label."""
        return self.model_dump(exclude={"label"})


class NamedItem(Item):
    """A model, a method, or an attack: `none` is nobody's."""

    name: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class MethodItem(NamedItem):
    """A method. It may have `rounds` of its own, where it is compared with others that do less work in each; and
    clients that take of peers with another `max_loss_ratio` than those of the others."""

    rounds: Count | None = None
    max_loss_ratio: Ratio | None = None

    def get_own(self) -> dict[str, Any]:
        """The settings it has in place of those in `base`."""
        own = {name: getattr(self, name) for name in ("rounds", "max_loss_ratio")}
        return {name: value for name, value in own.items() if value is not None}

    def get_settings(self) -> dict[str, Any]:
        """All of it but the label and what is its own, in sections by dotted keys."""
        return flatten(self.model_dump(exclude={"label", "rounds", "max_loss_ratio"}))


class DataItem(Item):
    """A data set: `digits`, or `{format: idx, path: data/mnist}`, the path relative to the experiment's file."""

    format: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _read_format(cls, value: Any) -> Any:
        return {"format": value} if isinstance(value, str) else value


class BaseSection(Section):
    """The settings of every run unless the sweep says otherwise. `method` holds settings that reach each method which
    has them, `attack` those that reach each attack; `input` is by default what suits data and model. `max_loss_ratio`
    is how much harm peers may do (`ml.guard`), without end by default; `participation` the share of clients that take
    part in a round. Every `eval_every` rounds and after the last something is measured, on `test_samples` of the test
    set, by default on all of it. With `alone_until` clients take nothing of each other, and each trains until its model
    has that accuracy."""

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
        """The axes that are single settings, as they were written."""
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
    `worst_of` which does worst. `against` shows how much worse than in the runs that differ in these axes alone: with
    `{attack: none}` what liars cost. `target` is the accuracy in 0..1 that rounds are counted to: of several, each has
    a column. `seconds` of local training are what the values at equal training time are read at.
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

    Across is `round`, `bytes` (sent by a client so far), `seconds` (trained by a client so far), `epochs` (so far),
    `network_seconds` (so far), or an axis; up is a per-round series (taa, tal, global, tal_global, taa_local; of
    peer-to-peer methods peers, similar, dropout and divergence, of DFPL aux_loss), or against an axis a table's value.
    `draw: box` then shows where the runs of each value lie, and not their mean alone.
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
    """How far each two clients are apart, by round: a line for each pair, of UA-PDFL with few clients."""

    pairs: Literal["divergence"]
    title: Label | None = None
    panels: Many[str] = ("partition",)
    each: Many[str] = ()
    where: dict[str, Any] = Field(default_factory=dict)
    over: Many[str] = ()


class SnapshotSection(Section):
    """One figure for each value of `each`, a panel for each of `panels` and of `clients`, each of the model that one
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
    """Pictures of the answers to test samples: how classes are confused, the ROC curve of each class against all
    others, or how often answers of some confidence are right."""

    answers: Literal["confusion", "roc", "calibration"]


_BY_KEY: Mapping[str, type[Section]] = {
    "embedding": EmbeddingSection,
    "answers": AnswersSection,
    "grid": GridSection,
    "pairs": PairsSection,
}


def _choose_figure(value: Any) -> str:
    """The section that a figure is written as, by its key."""
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
    """The links between clients and a server: `up_mbit` and `down_mbit` are millions of bits a second, `latency_s` each
    way; `wait_s` is what the server needs by itself each round. Of several values each is one client's, in turn."""

    up_mbit: PerClient[Positive]
    down_mbit: PerClient[Positive]
    latency_s: PerClient[NotNegative] = (0.0,)
    wait_s: NotNegative = 0.0


class PeerLinks(Section):
    """The links between clients: what the access of each, in turn, carries, and how long it takes to the other end."""

    mbit: PerClient[Positive]
    latency_s: PerClient[NotNegative] = (0.0,)


class NetworkSection(Section):
    """A network that seconds are reckoned by (`node.experiments.network`); without `server` all goes from peer to peer.

    Local work takes `step_s` a mini-batch or `epoch_s` an epoch, of an encryptor `encryptor_ratio` times as long; or as
    long as was measured. `slowdown` is how many times longer clients take for it, in turn.
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
    or several, for tables that have none of their own; `network` one or several that seconds are reckoned by."""

    target: Targets = ()
    network: Annotated[Many[NetworkSection], AfterValidator(_validate_networks)] = ()
    tables: tuple[TableSection, ...] | None = None
    figures: tuple[AnyFigureSection, ...] | None = None


class ExperimentFile(Section):
    """The whole file. What the experiments in `reuse` have finished, beside this one's directory, is not run again."""

    version: Literal[1] = 1
    name: Name
    title: str | None = None
    description: str = ""
    reuse: Many[Name] = ()
    base: BaseSection = BaseSection()
    sweep: SweepSection
    budget: BudgetSection | None = None
    report: ReportSection = ReportSection()
