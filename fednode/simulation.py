"""`fednode.simulate`: a method with all its nodes in this process, and what it came to round by round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednode._settings import USUAL_DATA, read_sites, write_drop, write_settings
from node.errors import NodeError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from ml.simulation.run import RoundResult, SimulationResult


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a simulation. Accuracies and the loss are means over the nodes; under an attack, over honest ones.

    `accuracy` is on test samples of the classes that a node itself trains on, once it has taken in what the others
    sent; `accuracy_before` is the same before that, and `loss` belongs to `accuracy`. `global_accuracy` is on
    everyone's test samples. `sent_bytes` and `received_bytes` are what all nodes together sent and received.
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
    last round."""

    method: str
    settings: Mapping[str, Any]
    rounds: tuple[Round, ...]
    accuracies: tuple[float, ...]
    seconds: float
    _result: SimulationResult = field(repr=False, compare=False)

    @property
    def accuracy(self) -> float:
        """After the last round; not a number where no round could be made."""
        return self.rounds[-1].accuracy if self.rounds else math.nan

    @property
    def best_accuracy(self) -> float:
        """After the best round."""
        return max((round_.accuracy for round_ in self.rounds), default=math.nan)

    @property
    def global_accuracy(self) -> float:
        """On everyone's test samples, after the last round."""
        return self.rounds[-1].global_accuracy if self.rounds else math.nan

    def to_pandas(self) -> pandas.DataFrame:
        """A row for each round, by its number, with the columns that `Round` describes.

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
        """Accuracies and loss round by round, as a figure of matplotlib's that a notebook shows by itself.

            run.plot().savefig("run.png")

        Raises NodeError where matplotlib is not installed.
        """
        from fednode.chart import draw

        return draw(self)

    def to_json(self) -> dict[str, Any]:
        """The object that `fednode simulate --json` prints of the same run, with every figure there is."""
        return self._result.to_json()


def simulate(
    method: str = "dfpl",
    data: str = USUAL_DATA,
    *,
    nodes: int = 10,
    rounds: int = 10,
    partition: str = "classes:3,1",
    shots: int | None = None,
    model: str = "mlp",
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
    site: Sequence[str | PathLike[str]] | None = None,
    drop: str | Sequence[str] | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Simulation:
    """Runs `method` for `rounds` rounds, with all its nodes one after the other in this process and no network.

        run = fednode.simulate("mpfedcl", "npz:scans.npz", nodes=4, rounds=20, partition="dirichlet:0.3")
        run.accuracy, run.best_accuracy          # after the last round, after the best
        run.rounds[0].sent_bytes                 # by all nodes in the first
        run.to_json()                            # everything, as fednode simulate --json

    Each argument is the option of `fednode simulate` of the same name (`nodes` is `--clients`), with its default:

    - `method` is dfpl, mpfedcl, uapdfl, fededs or one of the baselines.
    - `data` is `digits`, `FORMAT:PATH`, or a path whose format can be seen; `partition` says who gets which samples,
      as in `iid`, `dirichlet:0.3` or `classes:3,1`; `shots` limits each node's samples per class.
    - `site` are paths in the place of `data`, `partition` and `nodes`: each node has the data of one. `drop` are
      columns of a table that become no feature.
    - `model` is one of ours or your own as `package.module:factory`; images are resized to `size` x `size`;
      `pretrained` is a file with a state dict to begin from.
    - `settings` are the method's, as in `{"lr": 0.05}`, or of a section, as in `{"model.hidden": [32]}`.
    - `attack` makes some nodes lie, as in `sign_flip:1`; `max_loss_ratio` refuses a peer's model that is much worse.
    - `participation` is the share of nodes that take part in a round, drawn anew each time.
    - `device` is cpu, auto, cuda or cuda:N; `batched` trains all nodes in one pass: on, off or auto (on a GPU).
    - `task` is classification, multilabel or regression; of the last, accuracies are R2.
    - `on_round` is called after each round.

    The same arguments give the same accuracies on one machine. Raises ConfigError for what cannot be run, NodeError
    for what goes wrong in the run.
    """
    from node.experiments.simulation import SimulationSpec, run_simulation

    sites = read_sites(site, data)
    spec = SimulationSpec(
        method=method,
        data=data,
        sites=sites,
        partition="domains" if sites else partition,
        shots=shots,
        model=model,
        size=size,
        clients=len(sites) or nodes,
        rounds=rounds,
        seed=seed,
        settings=(*write_settings(settings), *write_drop(drop)),
        device=device,
        pretrained=None if pretrained is None else Path(pretrained),
        batched=batched,
        max_loss_ratio=max_loss_ratio,
        attack=attack,
        participation=participation,
        task=task,
    )
    result = run_simulation(spec, None if on_round is None else lambda row: on_round(_make_round(row)))
    return Simulation(
        method=result.method["name"],
        settings={key: value for key, value in result.method.items() if key != "name"},
        rounds=tuple(map(_make_round, result.rounds)),
        accuracies=tuple(client.accuracy for client in result.clients),
        seconds=result.seconds,
        _result=result,
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
