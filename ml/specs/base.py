"""The parts of every method's spec: the task it is set, its hyper-parameters, and what a validator asks of it.

A spec is numpy only, so that the daemon and `chain verify --deep` never load torch (DESIGN §6). It says which payloads
a contribution carries at each height and how they combine; `ml.methods` has the training, and reads the same
hyper-parameters.

A method knows one run: what is called a height here, and in `ml.methods` and `ml.clients`, is the round of the run,
from 1 on. On a chain of one run without changes the two are the same; `node.runs` translates.
"""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ml.aggregation import PLAIN, RULES_ON_PARENT, Box, RuleSettings
from ml.errors import PayloadError, SpecError, suggest
from ml.payload import Array, Arrays, ArraySchema, ArraySpec, validate_arrays
from ml.plugins import PluginRecord
from ml.specs.judging import Judging
from ml.specs.privacy import CLIP, DELTA, DpSettings, check_privacy, get_dp_settings
from ml.specs.schedule import SCHEDULES, LrSchedule
from ml.specs.sections import flatten, get_key, nest
from ml.specs.task import Task
from ml.tasks import CLASSIFICATION

MAX_COUNT = 1 << 31


# ---- hyper-parameters


def number(default: float | None, interval: str) -> Any:
    """A finite real setting in an interval such as "[0, 1)"; None is only ever a default."""
    return field(default=default, metadata={"type": float, "interval": interval})


def count(default: int | None) -> Any:
    """A whole setting of at least 1."""
    return field(default=default, metadata={"type": int})


def up_to(most: int) -> Any:
    """A whole setting from 0 to `most`, and 0 where it is not set."""
    return field(default=None, metadata={"type": int, "span": (0, most)})


def flag(default: bool) -> Any:
    """A setting that is on or off."""
    return field(default=default, metadata={"type": bool})


def switch() -> Any:
    """A setting that is on or off, and off where it is not set."""
    return field(default=None, metadata={"type": bool})


def option(*words: str) -> Any:
    """A setting that is one of a few words; the first is what holds where it is not set."""
    return field(default=None, metadata={"type": str, "choices": words})


def choice(default: str, *others: str) -> Any:
    """A setting that is one of a few words."""
    return field(default=default, metadata={"type": str, "choices": (default, *others)})


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Local optimisation, as every method with local training has it (ALGORITHMS §1.5).

    Momentum starts at zero in each local phase; `decay` of the learning rate acts once per round, with `decay_unit:
    step` after each mini-batch step; local work is either iterations (mini-batch steps) or epochs, never both, and
    `drop_last` leaves an epoch's partial batch out. With `budget_s` a member trains as many iterations (or epochs) as
    fit into so many seconds a round beside the mining, by its own measurements; what is set here is then for its first
    round. The defaults are DFPL's.

    What is not set leaves training as the papers have it: `optimizer` (its memory, too, begins empty in each phase),
    `clip_norm` of all gradients together, `loss` with `focal_gamma` or `huber_delta`, `label_smoothing`,
    `class_weights` by how often a client's own samples have a class, or all members' samples, where they have agreed on
    that (`agreed`), `sampling` that draws all its classes alike, and the learning rate's `schedule` over the rounds,
    with `warmup_rounds`, `lr_min`, `step_rounds` and `step_factor` (`ml.specs.schedule`). Which of them a task can have
    is in `ml.specs.task_rules`.

    With `dp_noise` each member hides every one of its samples (`ml.training.private`): the noise in its steps by
    `dp_clip`, the length that a sample's gradient has at most, and `dp_prototype_noise` in prototypes by
    `dp_prototype_clip`, that of an embedding; and `dp_statistics_noise` in the sums that members agree on, if they do
    (`ml.data.hidden_statistics`). `dp_delta` is the chance that epsilon leaves out (`ml.accountant`).
    """

    lr: float = number(0.1, "(0, 1e38]")
    momentum: float = number(0.0, "[0, 1)")
    weight_decay: float = number(0.0, "[0, inf)")
    decay: float = number(1.0, "(0, 1]")
    decay_unit: str = choice("round", "step")
    batch_size: int = count(32)
    drop_last: bool = flag(False)
    local_iterations: int | None = count(20)
    local_epochs: int | None = count(None)
    budget_s: float | None = number(None, "(0, 604800]")
    optimizer: str | None = option("sgd", "adam", "adamw")
    clip_norm: float | None = number(None, "(0, inf)")
    loss: str | None = option("cross_entropy", "focal", "binary_cross_entropy", "mse", "huber")
    focal_gamma: float | None = number(None, "(0, inf)")
    huber_delta: float | None = number(None, "(0, inf)")
    label_smoothing: float | None = number(None, "[0, 1)")
    class_weights: str | None = option("none", "own", "agreed")
    sampling: str | None = option("uniform", "balanced")
    schedule: str | None = option(*SCHEDULES)
    warmup_rounds: int | None = count(None)
    lr_min: float | None = number(None, "(0, inf)")
    step_rounds: int | None = count(None)
    step_factor: float | None = number(None, "(0, 1)")
    dp_noise: float | None = number(None, "(0, inf)")
    dp_clip: float | None = number(None, "(0, inf)")
    dp_prototype_noise: float | None = number(None, "(0, inf)")
    dp_prototype_clip: float | None = number(None, "(0, inf)")
    dp_statistics_noise: float | None = number(None, "(0, inf)")
    dp_delta: float | None = number(None, "(0, 1)")

    def __post_init__(self) -> None:
        if (self.local_iterations is None) == (self.local_epochs is None):
            got = "neither" if self.local_epochs is None else "both"
            raise SpecError("method.local_epochs", f"expected either local_iterations or local_epochs, got {got}")
        if self.decay_unit == "step" and self.budget_s is not None:
            raise SpecError("method.decay_unit", "expected round with budget_s, which varies the steps; got 'step'")
        if self.optimizer in ("adam", "adamw") and self.momentum:
            raise SpecError("method.momentum", f"expected 0 with {self.optimizer}, got {self.momentum:g}")
        if self.focal_gamma is not None and self.loss != "focal":
            raise SpecError("method.focal_gamma", "expected none without loss: focal")
        if self.huber_delta is not None and self.loss != "huber":
            raise SpecError("method.huber_delta", "expected none without loss: huber")
        self.lr_schedule.check(self.lr, self.decay)
        check_privacy(self)

    @property
    def is_private(self) -> bool:
        """Whether members hide each of their samples."""
        return self.dp_noise is not None

    def without_privacy(self) -> Self:
        """The same, but that nothing hides samples."""
        return dataclasses.replace(
            self,
            dp_noise=None,
            dp_clip=None,
            dp_prototype_noise=None,
            dp_prototype_clip=None,
            dp_statistics_noise=None,
            dp_delta=None,
        )

    @property
    def update_noise(self) -> float | None:
        """The noise that hides a whole client in what it sends, in units of the length that an update has at most; None
        where nothing does."""
        return None

    @property
    def update_clip(self) -> float:
        """The length that an update has at most, where there is noise in it."""
        return CLIP

    @property
    def is_counted(self) -> bool:
        """Whether what a phase tells, of samples or of the client, is added up."""
        return self.is_private or self.update_noise is not None

    @property
    def is_masked(self) -> bool:
        """Whether members take the mean of what nobody sees (`ml.specs.masked`)."""
        return False

    @property
    def box(self) -> Box | None:
        """Returns the box that the mean of masked sums is clipped to, None where it stays as it comes."""
        return None

    @property
    def delta(self) -> float:
        """The chance that epsilon leaves out."""
        return DELTA if self.dp_delta is None else self.dp_delta

    @property
    def dp(self) -> DpSettings:
        """What hides samples, defaults written out. Raises ValueError where nothing does."""
        return get_dp_settings(self)

    @property
    def counts_epochs(self) -> bool:
        """Whether local work is counted in epochs, not in mini-batch steps."""
        return self.local_iterations is None

    @property
    def local_work(self) -> int:
        """E: how many iterations or epochs a local phase has."""
        return self.local_iterations or self.local_epochs or 0

    @property
    def lr_schedule(self) -> LrSchedule:
        return LrSchedule(self.schedule, self.warmup_rounds, self.lr_min, self.step_rounds, self.step_factor)

    def compute_lr(self, height: int, num_steps: int = 0, rounds: int = 0) -> float:
        """The learning rate that round `height`, from 1 on, of `rounds` begins with: that of the schedule times
        decay^(height - 1), or where decay acts after each of the round's `num_steps`, decay^((height - 1) * num_steps).
        """
        lr = self.lr_schedule.compute_lr(self.lr, height, rounds)
        return float(lr * self.decay ** ((height - 1) * (num_steps if self.decay_unit == "step" else 1)))

    @property
    def decay_by_step(self) -> float:
        """The factor of the learning rate after a mini-batch step."""
        return self.decay if self.decay_unit == "step" else 1.0

    @classmethod
    def keys(cls) -> dict[str, dataclasses.Field[Any]]:
        """The settings by the key they have in genesis (`ml.specs.sections`)."""
        return {get_key(f.name, f.metadata): f for f in dataclasses.fields(cls)}

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any]) -> Self:
        """Read genesis' `method`, `name` apart. Raises SpecError for an unknown key or a value out of range."""
        keys = cls.keys()
        values: dict[str, Any] = {}
        for key, value in flatten(method).items():
            if key in ("name", "plugin"):
                continue
            if key not in keys:
                raise SpecError(f"method.{key}", f"unknown key: {suggest(key, keys)}")
            values[keys[key].name] = read_value(f"method.{key}", keys[key].metadata, value)
        if "local_iterations" in values:  # setting one takes the place of the other's default
            values.setdefault("local_epochs", None)
        elif "local_epochs" in values:
            values["local_iterations"] = None
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Every setting by its key, defaults written out, so that genesis does not hang on this version's defaults."""
        values = {key: getattr(self, f.name) for key, f in self.keys().items()}
        return nest({key: value for key, value in values.items() if value is not None})


def read_value(path: str, rule: Mapping[str, Any], value: Any) -> Any:
    """`value` as a setting of this kind, from the metadata of its field. Raises SpecError at `path`."""
    if rule["type"] is str:
        if value not in rule["choices"]:
            one_of = "one of " if len(rule["choices"]) > 1 else ""
            raise SpecError(path, f"expected {one_of}{', '.join(rule['choices'])}, got {value!r}")
        return value
    if rule["type"] is bool:
        if not isinstance(value, bool):
            raise SpecError(path, f"expected true or false, got {value!r}")
        return value
    if rule["type"] is int:
        low, high = rule.get("span", (1, MAX_COUNT - 1))
        if type(value) is not int or not low <= value <= high:
            raise SpecError(path, f"expected a whole number from {low} to {high}, got {value!r}")
        return value
    interval: str = rule["interval"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_in(value, interval):
        raise SpecError(path, f"expected a number in {interval}, got {value!r}")
    return float(value)


def _is_in(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    below = value <= high if interval[-1] == "]" else value < high
    return above and below and value <= sys.float_info.max


# ---- the spec


@dataclass(frozen=True, slots=True)
class AuthorPayloads:
    """One author's part in a round: the decoded payloads of each kind, at its signed weight."""

    author: bytes
    weight: int
    payloads: Mapping[str, Arrays]


@dataclass(frozen=True, slots=True)
class Offer:
    """The commitments of one author's contribution: the digest of each kind's blob."""

    author: bytes
    weight: int
    digests: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class RoundKinds:
    """What a round exchanges: the schema of each kind, and the rules of those that are voted on."""

    schemas: Mapping[str, ArraySchema]
    rules: Mapping[str, str]


@dataclass(frozen=True)
class MethodSpec(ABC):
    """A method without its training: hyper-parameters, payloads by height, and how they combine (DESIGN §7)."""

    name: ClassVar[str]
    settings: ClassVar[type[Hyperparameters]] = Hyperparameters
    training: ClassVar[str] = ""  # of a plugin's method: package.module:Class of what trains
    record: ClassVar[PluginRecord | None] = None  # of the plugin that the method is of
    tasks: ClassVar[tuple[str, ...]] = (CLASSIFICATION,)  # the kinds that its mathematics allows
    hides_samples: ClassVar[bool] = False  # whether all that it sends comes of steps and prototypes that can have noise
    shown: ClassVar[Mapping[str, str]] = {}  # voted kinds that masks leave in the clear, each with what it tells

    task: Task
    hyperparameters: Hyperparameters

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], task: Task) -> Self:
        """Read genesis' `method`. Raises SpecError."""
        spec = cls(task, cls.settings.from_mapping(method))
        spec.hyperparameters.lr_schedule.check_rounds(max(task.rounds - spec.sharing_heights, 0))
        return spec

    def explain_not_private(self) -> str | None:
        """Why members cannot hide each of their samples in this run; None where they can."""
        if not self.hides_samples or self.training:
            return f"{self.name} sends what has no noise"
        if self.task.layout.buffers:
            return f"{self.task.model['name']} keeps statistics of batches, in which samples are not apart"
        return None

    def explain_not_hiding_updates(self) -> str | None:
        """Why members cannot hide themselves in what they send; None where they can."""
        return f"{self.name} sends something else than a model"

    def explain_not_masked(self) -> str | None:
        """Why members cannot hide what they send in a sum of all (`ml.specs.masked`); None where they can."""
        return f"{self.name} is not of those whose common model is a mean of what members send"

    @abstractmethod
    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        """The payload kinds a contribution for this height carries, all of them, each with its schema."""

    @abstractmethod
    def rules(self, height: int) -> Mapping[str, str]:
        """The voted kinds of this height, each with the name of its rule in `ml.aggregation.RULES`."""

    def reads_parent(self, height: int) -> bool:
        """Whether the aggregate of this height needs the one before it, as `nova` and `carry` do."""
        if self.sends_changes or self.get_kept(height):
            return True
        return not RULES_ON_PARENT.isdisjoint(self.rules(height).values())

    def get_kept(self, height: int) -> Collection[str]:
        """The kinds that the aggregate of this height takes over from the one before it, as far as that has them."""
        return ()

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        """The arrays that an aggregate has besides what rules make, by their names in it."""
        return {}

    def get_origin(self, kind: str) -> Arrays | None:
        """What the rule of a kind sees as the aggregate before; None for what that has of the kind."""
        return None

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        """Those arrays, in the aggregate of this height: `made` is what rules have made of the contributions of
        `authors`, in order, and `parent` the aggregate before. Arrays of `made` that come back stand in their place."""
        return {}

    def list_stale(self, aggregate: Arrays | None) -> Sequence[tuple[bytes, int]]:
        """Members that are not in the block, and whose offers of so many rounds before may be taken in its round. Their
        offers come after the block's own, wherever offers are asked for."""
        return ()

    @property
    def closing(self) -> RoundKinds | None:
        """What the round with which a run ends exchanges, whatever its number; None where it is as those before it."""
        return None

    @property
    def rule_settings(self) -> RuleSettings:
        """The settings of the rules besides contributions."""
        return PLAIN

    @property
    @abstractmethod
    def max_weight_is_one(self) -> bool:
        """Whether weights say nothing in this method and must be signed as 1."""

    def describe_judging(self) -> Judging:
        """What members without the method's code judge by, besides the run's schema. Raises AggregationError where
        rules need the number of members, and nobody said what that is."""
        settings = self.rule_settings
        return Judging(
            weights="1" if self.max_weight_is_one else "samples",
            weight_cap=settings.weight_cap,
            clip=settings.clip,
            momentum=settings.momentum,
        )

    # ---- models that travel as changes

    @property
    def sends_changes(self) -> bool:
        """Whether the kind `model` has what was changed in the common model, and not the model (`model_changes`)."""
        return False

    def pack(self, kind: str, arrays: Arrays, parent: Arrays, height: int) -> Arrays:
        """What a payload is sent as, where the common model of the round is `parent`, without the kind in front."""
        return arrays

    def unpack(self, kind: str, arrays: Arrays, parent: Arrays | None, height: int) -> Arrays:
        """What rules see of a payload that was sent. Raises AggregationError for another model's parent."""
        return arrays

    # ---- heights and the method's own rounds

    def compute_lr(self, round_number: int, num_steps: int = 0) -> float:
        """The learning rate that the method's round of this number begins with."""
        rounds = max(self.task.rounds - self.sharing_heights, 0)
        return self.hyperparameters.compute_lr(max(round_number, 1), num_steps, rounds)

    @property
    def sharing_heights(self) -> int:
        """The number of heights before the method's round 1."""
        return 0

    def get_round_number(self, height: int) -> int:
        """t, the method's round that makes the block at `height`: from 1 on, and 0 at the last height before."""
        return height - self.sharing_heights

    def get_local_work(self, height: int) -> int:
        """E of this height's local phase: how many iterations or epochs it has."""
        return self.hyperparameters.local_work

    def get_collect_s(self, height: int, default: float) -> float:
        """For how long contributions of this height are waited for; `default` is genesis' own."""
        return default

    # ---- what is too large to be held in memory, or read by later rounds

    @property
    def shares_samples(self) -> bool:
        """Whether a learned transformation of a member's samples leaves its node."""
        return False

    def get_streamed(self, height: int) -> Mapping[str, str]:
        """The kinds of this height that are too large to hold in memory, each with the kind that has the digests of its
        chunks."""
        return {}

    def get_shared_height(self, height: int) -> int | None:
        """The earlier height whose blobs the local phase for `height` reads; None where it reads none."""
        return None

    def needed_until(self, height: int) -> int | None:
        """The last height whose local phase reads the blobs of `height`, itself where none does; None: without end."""
        return height

    @property
    def keeps_shared(self) -> bool:
        """Whether what later heights read stays for ever, also once the run is over."""
        return False

    def get_lent(self, height: int) -> Collection[str]:
        """The kinds of this height that no member keeps: they go as soon as no local phase reads them, small or not."""
        return ()

    def wanted_in_training(
        self, height: int, beacon: bytes, me: bytes, offers: Sequence[Offer], gone: Collection[bytes] = frozenset()
    ) -> Sequence[bytes]:
        """The digests of the blobs that the local phase of `me` for `height` reads.

        `offers` are those of the block at `get_shared_height(height)`; `beacon` is that of `height`; the
        authors in `gone` have been found to have none of what they offer.
        """
        return ()

    # ---- what it takes of others once there is a block

    def wanted(
        self,
        height: int,
        beacon: bytes,
        me: bytes,
        offers: Sequence[Offer],
        aggregate: Arrays | None,
        gone: Collection[bytes] = frozenset(),
    ) -> Sequence[bytes]:
        """The digests of the on-demand blobs that `me` needs to apply this round. None, unless a method says so.

        `offers` are the block's in author order; `beacon` is that of its height; the authors in `gone` have
        been found to have none of what they offer.
        """
        return ()

    def explain(
        self,
        height: int,
        beacon: bytes,
        offers: Sequence[Offer],
        aggregate: Arrays | None,
        *,
        shared: Sequence[Offer] = (),
    ) -> Mapping[str, Any] | None:
        """The explanation of a round, as JSON: who took what from whom and why, from what everyone knows; None where
        there is nothing of the kind to say. `shared` are the offers of the block at `get_shared_height(height)`."""
        return None

    # ---- what a contribution has to be

    def validate_kinds(self, kinds: Iterable[str], height: int) -> None:
        """Raise PayloadError unless a contribution carries exactly the kinds of this height."""
        expected, got = sorted(self.schemas(height)), sorted(kinds)
        if got != expected:
            raise PayloadError(f"payload kinds at height {height}: expected {expected}, got {got}")

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        """Raise PayloadError unless `arrays` are a payload of this kind and height, in form and in meaning."""
        schemas = self.schemas(height)
        if kind not in schemas:
            raise PayloadError(f"payload {kind!r} at height {height}: {suggest(kind, schemas)}")
        try:
            validate_arrays(arrays, schemas[kind], max_abs=self.task.max_abs)
        except PayloadError as error:
            raise PayloadError(f"payload {kind!r}: {error}") from error

    @property
    def is_judged_on_parent(self) -> bool:
        """Whether `validate_on_parent` has anything to say."""
        return False

    def validate_on_parent(
        self, author: bytes, payloads: Mapping[str, Arrays], parent: Arrays | None, height: int
    ) -> None:
        """Raise PayloadError unless the payloads of an author, each valid by itself, are what the aggregate before
        asks of it."""
        return

    def validate_weight(self, weight: int) -> None:
        """Raise PayloadError unless a contribution may be signed at this weight."""
        high = 1 if self.max_weight_is_one else self.task.max_weight
        if not 1 <= weight <= high:
            raise PayloadError(f"weight: expected {'1' if high == 1 else f'1 to {high}'}, got {weight}")

    @property
    def model_bytes(self) -> int:
        """The cost of sending the whole model: the bytes of its encoding."""
        return self.task.model_schema.max_bytes

    def to_mapping(self) -> dict[str, Any]:
        """Genesis' `method` with every default written out."""
        plugin = {} if self.record is None else {"plugin": self.record.to_mapping()}
        return {"name": self.name, **plugin, **self.hyperparameters.to_mapping()}
