"""The base of every method's spec: its task, its hyper-parameters, and the questions that a validator asks of it.

A spec needs numpy only, so that the daemon and `chain verify --deep` never load torch (DESIGN §6). It says which
payloads a contribution carries at each height and how they combine; `ml.methods` has the training, and reads the same
hyper-parameters.

A method knows one run: a height here, and in `ml.methods` and `ml.clients`, is the round of the run, from 1 on. On a
chain of one run without changes the two are the same; `node.runs` translates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ml.aggregation import PLAIN, RULES_ON_PARENT, RuleSettings
from ml.aggregation.outer import OuterSettings
from ml.errors import PayloadError, suggest
from ml.payload import Array, Arrays, ArraySchema, ArraySpec, validate_arrays
from ml.plugins import PluginRecord
from ml.specs.hyperparameters import Hyperparameters
from ml.specs.selection import SelectionSpec
from ml.specs.task import Task
from ml.tasks import CLASSIFICATION


@dataclass(frozen=True, slots=True)
class AuthorPayloads:
    """Holds one author's part in a round: the decoded payloads of each kind, and its signed weight."""

    author: bytes
    weight: int
    payloads: Mapping[str, Arrays]


@dataclass(frozen=True, slots=True)
class RoundKinds:
    """Describes what a round exchanges: the schema of each kind, and the rules of those that are voted on."""

    schemas: Mapping[str, ArraySchema]
    rules: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Judging:
    """Holds the settings that a member needs besides schemas and rules to judge a method whose code it does not have.

    `weights` is "1" if every contribution is signed as 1, "samples" if weights differ. The settings of rules are as in
    `RuleSettings`. `draw` is the number of other members whose on-demand kinds a member pulls, None if there are no
    such kinds. `outer` is the optimiser that updates the common model, None if the rule's result is the common model.
    """

    weights: str
    weight_cap: int | None = None
    clip: float | None = None
    momentum: float = 0.0
    draw: int | None = None
    outer: OuterSettings | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the settings as a schema has them, without those that are not set."""
        values: dict[str, Any] = {"weights": self.weights, "weight_cap": self.weight_cap, "clip": self.clip}
        values |= {"draw": self.draw, "momentum": self.momentum or None}
        values["outer"] = None if self.outer is None else self.outer.to_mapping()
        return {key: value for key, value in values.items() if value is not None}

    def make_settings(self, max_liars: int) -> RuleSettings:
        return RuleSettings(max_liars, self.weight_cap, self.clip, self.momentum)


@dataclass(frozen=True)
class MethodSpec(SelectionSpec, ABC):
    """A method without its training: hyper-parameters, payloads by height, and how they combine (DESIGN §7)."""

    name: ClassVar[str]
    settings: ClassVar[type[Hyperparameters]] = Hyperparameters
    training: ClassVar[str] = ""  # for a plugin's method: package.module:Class of its training
    record: ClassVar[PluginRecord | None] = None  # describes the plugin that has the method
    tasks: ClassVar[tuple[str, ...]] = (CLASSIFICATION,)  # the kinds of tasks that its mathematics allows
    hides_samples: ClassVar[bool] = False  # whether noise can be added to all that it sends
    shown: ClassVar[Mapping[str, str]] = {}  # voted kinds that masks do not hide, each with what it reveals

    task: Task
    hyperparameters: Hyperparameters

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], task: Task) -> Self:
        """Reads genesis' `method`. Raises SpecError."""
        spec = cls(task, cls.settings.from_mapping(method))
        spec.hyperparameters.lr_schedule.check_rounds(max(task.rounds - spec.sharing_heights, 0))
        return spec

    def explain_not_private(self) -> str | None:
        """Explains why members cannot hide each of their samples in this run; None if they can."""
        if not self.hides_samples or self.training:
            return f"{self.name} sends what has no noise"
        if self.task.layout.buffers:
            return f"{self.task.model['name']} keeps statistics of batches, in which samples are not apart"
        return None

    def explain_not_hiding_updates(self) -> str | None:
        """Explains why members cannot hide themselves in what they send; None if they can."""
        return f"{self.name} sends something else than a model"

    def explain_not_masked(self) -> str | None:
        """Explains why members cannot hide what they send in a sum of all (`ml.specs.masked`); None if they can."""
        return f"{self.name} is not of those whose common model is a mean of what members send"

    @abstractmethod
    def schemas(self, height: int) -> Mapping[str, ArraySchema]:
        """Returns all payload kinds that a contribution for this height carries, each with its schema."""

    @abstractmethod
    def rules(self, height: int) -> Mapping[str, str]:
        """Returns the voted kinds of this height, each with the name of its rule in `ml.aggregation.RULES`."""

    def reads_parent(self, height: int) -> bool:
        """Says whether the aggregate of this height needs the parent's, as with `nova` and `carry`."""
        if self.sends_changes or self.get_kept(height):
            return True
        return not RULES_ON_PARENT.isdisjoint(self.rules(height).values())

    def get_kept(self, height: int) -> Collection[str]:
        """Returns the kinds that the aggregate of this height takes over from the parent's, if that has them."""
        return ()

    @property
    def carried(self) -> Mapping[str, ArraySpec]:
        """The arrays that an aggregate has besides the results of rules, by their names in it."""
        return {}

    def get_origin(self, kind: str) -> Arrays | None:
        """Returns the arrays that replace the parent's aggregate for the rule of a kind; None if the rule reads the
        parent's."""
        return None

    def carry(self, height: int, authors: Sequence[bytes], made: Arrays, parent: Arrays | None) -> Mapping[str, Array]:
        """Returns the `carried` arrays of the aggregate of this height. `made` has the results of the rules for
        contributions of `authors`, in order, and `parent` is the parent's aggregate. Arrays of `made` that are returned
        replace them."""
        return {}

    @property
    def closing(self) -> RoundKinds | None:
        """The kinds and rules of a run's last round, whatever its number; None if it is like the rounds before."""
        return None

    @property
    def rule_settings(self) -> RuleSettings:
        """The settings of the rules besides contributions."""
        return PLAIN

    @property
    @abstractmethod
    def max_weight_is_one(self) -> bool:
        """Says whether weights mean nothing in this method and must be signed as 1."""

    def describe_judging(self) -> Judging:
        """Returns the settings by which members without the method's code judge, besides the run's schema. Raises
        AggregationError if rules need the number of members, and it is unknown."""
        settings = self.rule_settings
        return Judging(
            weights="1" if self.max_weight_is_one else "samples",
            weight_cap=settings.weight_cap,
            clip=settings.clip,
            momentum=settings.momentum,
        )

    # ---- models that are sent as changes

    @property
    def sends_changes(self) -> bool:
        """Says whether the kind `model` has the changes of the common model instead of the model (`model_changes`)."""
        return False

    def pack(self, kind: str, arrays: Arrays, parent: Arrays, height: int) -> Arrays:
        """Returns a payload as it is sent. `parent` is the common model of the round, without the kind in front."""
        return arrays

    def unpack(self, kind: str, arrays: Arrays, parent: Arrays | None, height: int) -> Arrays:
        """Returns a payload that was sent as rules read it. Raises AggregationError for the parent of another model."""
        return arrays

    # ---- heights and the method's own rounds

    def compute_lr(self, round_number: int, num_steps: int = 0) -> float:
        """Computes the learning rate at the beginning of the method's round of this number."""
        rounds = max(self.task.rounds - self.sharing_heights, 0)
        return self.hyperparameters.compute_lr(max(round_number, 1), num_steps, rounds)

    @property
    def sharing_heights(self) -> int:
        """The number of heights before the method's round 1."""
        return 0

    def get_round_number(self, height: int) -> int:
        """Returns t, the method's round that makes the block at `height`: from 1 on, and 0 at the last height
        before."""
        return height - self.sharing_heights

    def get_local_work(self, height: int) -> int:
        """Returns E of this height's local phase: how many iterations or epochs it has."""
        return self.hyperparameters.local_work

    def get_collect_s(self, height: int, default: float) -> float:
        """Returns for how many seconds a node waits for contributions of this height; `default` is genesis' own."""
        return default

    # ---- checks of a contribution

    def validate_kinds(self, kinds: Iterable[str], height: int) -> None:
        """Raises PayloadError unless a contribution carries exactly the kinds of this height."""
        expected, got = sorted(self.schemas(height)), sorted(kinds)
        if got != expected:
            raise PayloadError(f"payload kinds at height {height}: expected {expected}, got {got}")

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        """Raises PayloadError unless `arrays` are a payload of this kind and height, in form and in meaning."""
        schemas = self.schemas(height)
        if kind not in schemas:
            raise PayloadError(f"payload {kind!r} at height {height}: {suggest(kind, schemas)}")
        try:
            validate_arrays(arrays, schemas[kind], max_abs=self.task.max_abs)
        except PayloadError as error:
            raise PayloadError(f"payload {kind!r}: {error}") from error

    @property
    def is_judged_on_parent(self) -> bool:
        """Says whether `validate_on_parent` checks anything."""
        return False

    def validate_on_parent(
        self, author: bytes, payloads: Mapping[str, Arrays], parent: Arrays | None, height: int
    ) -> None:
        """Raises PayloadError unless an author's payloads, each valid by itself, fit the parent's aggregate."""
        return

    def validate_weight(self, weight: int) -> None:
        """Raises PayloadError unless a contribution may be signed at this weight."""
        high = 1 if self.max_weight_is_one else self.task.max_weight
        if not 1 <= weight <= high:
            raise PayloadError(f"weight: expected {'1' if high == 1 else f'1 to {high}'}, got {weight}")

    @property
    def model_bytes(self) -> int:
        """The cost of sending the whole model: the bytes of its encoding."""
        return self.task.model_schema.max_bytes

    def to_mapping(self) -> dict[str, Any]:
        """Returns genesis' `method` with every default written out."""
        plugin = {} if self.record is None else {"plugin": self.record.to_mapping()}
        return {"name": self.name, **plugin, **self.hyperparameters.to_mapping()}
