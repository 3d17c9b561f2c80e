"""`fednode.simulate`: a method with all its nodes in this process, and what it came to round by round."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednode._arguments import read_whole, require_kind
from fednode._objects import choose_sites, is_written, name_model, reading_data
from node.errors import ConfigError, NodeError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import nn

    from fednode._trained import TrainedNode
    from fednode.prediction import Predictions
    from ml.simulation.results import RoundResult
    from ml.simulation.run import SimulationResult
    from node.admin.asking import Labelled


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a simulation. Accuracies and the loss are means over the nodes; under an attack, over honest ones.

    `accuracy` is on test samples of the classes that a node itself trains on, once it has applied what the others sent;
    `accuracy_before` is the same before that, and `loss` belongs to `accuracy`. `global_accuracy` is on everyone's test
    samples. `sent_bytes` and `received_bytes` are what all nodes together sent and received.
    """

    number: int
    accuracy: float
    accuracy_before: float
    global_accuracy: float
    loss: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """A whole run. `settings` are all of the method's, defaults written out; `accuracies` are each node's after the
    last round. It keeps each node's model, and no samples."""

    method: str
    settings: Mapping[str, Any]
    rounds: tuple[Round, ...]
    accuracies: tuple[float, ...]
    seconds: float
    _result: SimulationResult = field(repr=False, compare=False)
    _nodes: tuple[TrainedNode, ...] = field(repr=False, compare=False)

    @property
    def accuracy(self) -> float:
        """The mean accuracy after the last round; not a number where no round could be made."""
        return self.rounds[-1].accuracy if self.rounds else math.nan

    @property
    def best_accuracy(self) -> float:
        """The mean accuracy after the best round."""
        return max((round_.accuracy for round_ in self.rounds), default=math.nan)

    @property
    def best_round(self) -> int | None:
        """The number of the best round by val samples, where settings say how to select it (`select.by=loss`) and a
        quorum of nodes has such samples; else None."""
        return self._result.best_round

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The measures that each node makes of the best round's model on its own test samples once the run is over, as
        `evaluations` of a client returns them, where settings ask for it (`select.evaluate=true`); else None."""
        return self.to_json().get("evaluation")

    @property
    def global_accuracy(self) -> float:
        """The mean accuracy on everyone's test samples, after the last round."""
        return self.rounds[-1].global_accuracy if self.rounds else math.nan

    @property
    def measures(self) -> tuple[dict[str, Any] | None, ...]:
        """The measures of each node on its own test samples after the last round: accuracy, balanced accuracy, AUC and
        the others, and sensitivity and specificity of each class, as `measures` of `evaluate`. None for a node whose
        answers are not numbers."""
        return tuple(node.measures for node in self._nodes)

    def predict(
        self, samples: object, *, node: int = 0, label: str | tuple[str, ...] | None = None, prior: float | None = None
    ) -> Predictions:
        """Classifies samples with the model of one node, by its number, as `fednode.Client.predict` does.

            run.predict(images).labels

        Raises ConfigError for an object that holds no samples, NodeError for files that cannot be read.
        """
        from fednode.prediction import predict

        return predict(self._find(node), samples, self._find_label(label), 0.0, prior)

    def evaluate(
        self,
        samples: object,
        *,
        node: int = 0,
        label: str | tuple[str, ...] | None = None,
        resamples: int = 1000,
        threshold: float | None = None,
        prevalence: float | None = None,
        positive: str | None = None,
        by: str | None = None,
        cuts: Sequence[float] = (),
    ) -> dict[str, Any]:
        """Measures the model of one node, by its number, on labelled samples, as `fednode.Client.evaluate` does: a
        dictionary whose `measures` are sensitivity, specificity, AUC and the others, with intervals, and its `points`
        and `groups`. Raises as `predict` does, also for samples without a label."""
        from fednode.prediction import evaluate
        from node.admin.judging import Details

        details = Details(threshold, prevalence, positive, by, cuts)
        return evaluate(self._find(node), samples, self._find_label(label), 0.0, resamples, details).to_record()

    def model(self, node: int = 0) -> nn.Module:
        """Returns a copy of the model of one node, by its number, on the CPU, in eval mode: it takes samples as they
        are, float32 [N, C, H, W] with pixels in 0..1, or features [N, F, 1, 1], and returns logits. Its `model` is the
        network alone, which takes them normalised."""
        return self._find(node).make_model()

    def _find(self, node: int) -> TrainedNode:
        if not 0 <= read_whole("node", node) < len(self._nodes):
            raise ConfigError(f"node: expected 0 to {len(self._nodes) - 1} (got {node})")
        return self._nodes[node]

    def _find_label(self, label: str | tuple[str, ...] | None) -> Labelled:
        """Returns the columns of a table with labels: those asked for, or else those of the run's own data."""
        from ml.data.inference_files import DEFAULT_LABEL
        from node.admin.asking import Labelled

        named = (self._result.config.data.get("columns") or {}).get("label")
        return Labelled(label, tuple(named) if isinstance(named, list) else named or DEFAULT_LABEL)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a row for each round, by its number, with the columns that `Round` describes.

        Raises NodeError where pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise NodeError("expected pandas to be installed: pip install pandas") from error
        rows = [asdict(round_) for round_ in self.rounds]
        columns = [column.name for column in fields(Round)]
        return pandas.DataFrame(rows, columns=columns).rename(columns={"number": "round"}).set_index("round")

    def plot(self) -> Figure:
        """Draws accuracies and loss round by round, as a figure of matplotlib's that a notebook shows by itself.

            run.plot().savefig("run.png")

        Raises NodeError where matplotlib is not installed.
        """
        from fednode.chart import draw

        return draw(self)

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `fednode simulate --json` prints of the same run, with every figure there is."""
        from node.admin.simulated_evaluation import make_record

        return make_record(self._result, self._nodes[0].classes)


def simulate(
    method: str = "dfpl",
    data: object = "digits",
    *,
    nodes: int = 10,
    rounds: int = 10,
    partition: str = "classes:3,1",
    shots: int | None = None,
    model: object = "mlp",
    size: int | None = None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    attack: str | None = None,
    participation: float = 1.0,
    pretrained: str | PathLike[str] | None = None,
    max_loss_ratio: float | None = None,
    device: str = "cpu",
    batched: str = "auto",
    task: str = "classification",
    on_round: Callable[[Round], None] | None = None,
) -> Simulation:
    """Runs `method` for `rounds` rounds, with all its nodes one after the other in this process and no network.

        run = fednode.simulate("mpfedcl", "npz:scans.npz", nodes=4, rounds=20, partition="dirichlet:0.3")
        run.accuracy, run.best_accuracy          # after the last round, after the best
        run.rounds[0].sent_bytes                 # by all nodes in the first
        run.to_json()                            # everything, as fednode simulate --json

    Each argument is the option of `fednode simulate` of the same name (`nodes` is `--clients`), with its default:

    - `method` is dfpl, mpfedcl, uapdfl, fededs or one of the baselines.
    - `data` is `digits`, `FORMAT:PATH`, a path whose format can be seen, or an object: `(x, y)` of arrays or tensors, a
      frame with a column of labels or `(frame, "outcome")`, a Dataset of torch or of Hugging Face, `{"train": one,
      "test": another}`; or a list of these, one a site, in place of `nodes` and `partition`.
    - `partition` says who gets which samples, as in `iid`, `dirichlet:0.3` or `classes:3,1`; `shots` limits each node's
      samples per class.
    - `model` is one of ours, or your own as `package.module:factory` or as that class or factory itself; images are
      resized to `size` x `size`; `pretrained` is a file with a state dict to begin from.
    - `settings` are the method's, as in `{"lr": 0.05}`, or of a section, as in `{"model.hidden": [32]}`.
    - `attack` makes some nodes lie, as in `sign_flip:1`; `max_loss_ratio` refuses a peer's model that is much worse.
    - `participation` is the share of nodes that take part in a round, drawn for each.
    - `device` is cpu, auto, cuda or cuda:N; `batched` trains all nodes in one pass: on, off or auto (on a GPU).
    - `task` is classification, multilabel or regression; of the last, accuracies are R2.
    - `on_round` is called after each round.

    The same arguments give the same accuracies on one machine. Raises ConfigError for what cannot be run, NodeError
    for what goes wrong in the run.
    """
    from fednode._trained import TrainedNode
    from node.experiments.simulation import Outcome, SimulationSpec, run_simulation

    require_kind("a text", method=method, partition=partition, device=device, batched=batched, task=task)
    require_kind("a text", or_none=True, attack=attack)
    require_kind("a whole number", or_none=True, shots=shots, size=size)
    require_kind("a number", participation=participation)
    require_kind("a number", or_none=True, max_loss_ratio=max_loss_ratio)
    require_kind("a dictionary", or_none=True, settings=settings)
    nodes, rounds, seed = (read_whole(*one) for one in (("nodes", nodes), ("rounds", rounds), ("seed", seed)))
    nodes, partition = choose_sites(data, nodes, partition, (10, "classes:3,1"))
    name = name_model(model)
    trained: list[TrainedNode] = []

    def keep(outcome: Outcome) -> None:
        trained.extend(TrainedNode.list(outcome))

    with (
        tempfile.TemporaryDirectory(prefix="fednode-data-") as directory,
        reading_data(data, Path(directory), settings, seed) as options,
    ):
        spec = SimulationSpec(
            method=method,
            data=options.data,
            partition=partition,
            shots=shots,
            model=name,
            size=size,
            clients=nodes,
            rounds=rounds,
            seed=seed,
            settings=options.settings,
            device=device,
            pretrained=None if pretrained is None else Path(pretrained),
            batched=batched,
            max_loss_ratio=max_loss_ratio,
            attack=attack,
            participation=participation,
            task=task,
        )
        result = run_simulation(spec, None if on_round is None else lambda row: on_round(_make_round(row)), keep)
    for node in trained:
        node.leave_samples()
    if is_written(data):  # or data and settings would name files that are removed by then
        own = {key: value for key, value in result.config.data.items() if key != "path"}
        result = replace(result, config=replace(result.config, data=own))
    return Simulation(
        method=result.method["name"],
        settings={key: value for key, value in result.method.items() if key != "name"},
        rounds=tuple(map(_make_round, result.rounds)),
        accuracies=tuple(client.accuracy for client in result.clients),
        seconds=result.seconds,
        _result=result,
        _nodes=tuple(trained),
    )


def _make_round(row: RoundResult) -> Round:
    return Round(
        number=row.round,
        accuracy=row.taa,
        accuracy_before=row.taa_local,
        global_accuracy=row.global_,
        loss=row.tal,
        sent_bytes=row.sent_bytes,
        received_bytes=row.received_bytes,
    )
