"""`fednode predict`: classifies samples with a running node's model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.options import AsJson, CalibratedOption, LabelOption, RoundOption, TimeoutOption
from node.cli.output import print_json, print_table, show_id
from node.cli.target import NodeConfigFile, Socket, open_node

if TYPE_CHECKING:
    from node.admin.asking import Answered, Told
    from node.pb import admin_pb2 as pb


MIN_ALIKE = 20  # so many samples that all get one class look suspicious


def register(app: typer.Typer) -> None:
    app.command("predict")(predict)


def predict(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT", help="An .npz, a .csv or image files.")],
    top: Annotated[int, typer.Option("--top", metavar="K", min=1, help="How many classes to show of each.")] = 3,
    prior: Annotated[
        float | None,
        typer.Option(
            "--prior",
            metavar="KAPPA",
            min=0,
            max=100,
            help="Lean to the classes this site has: 0 not at all, 1 as often as it has them.",
        ),
    ] = None,
    calibrated: CalibratedOption = False,
    answer_by: Annotated[
        str,
        typer.Option(
            "--answer-by",
            metavar="federation|alone|mixed",
            help="Whose answers: the federation's model's, those of the one trained alone, or of both mixed. Default: "
            "training.answer_by.",
        ),
    ] = "",
    label: LabelOption = None,
    timeout_s: TimeoutOption = 60.0,
    round_: RoundOption = "",
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Classify samples with the model of a running node.

    An .npz has an array x: [N, C, H, W], [N, H, W], [N, H, W, C] or, for a model of features, [N, F]; an array of
    exactly one sample's shape is that sample. A .csv or .tsv, also gzipped, is written as the node's own tables are.
    Where a file has labels, y or a column, each answer is compared with them: in the column that --label names, or else
    in that that the node's own configuration names (data.columns.label), or label, if the table has it.

    In a run whose task is multilabel, LABELS are those that are likelier than not; in a regression there is a column
    for each target, in the target's own unit. Labels or targets in several columns are those that the run calls so,
    or that --label names, each time one.

    With --prior the answers lean to the shares that classes have among the node's own training samples: from 0, as
    everyone's, to 1, as this site's and beyond. Nothing is trained again, and the shares stay here.

    With --calibrated no answer changes, only how sure it is: each probability is that of the logits divided by one
    temperature, which this site's val samples give. Where the node also trains a model alone,
    --answer-by mixed gives the mean of both models' probabilities, or values, by a weight that the val samples give.

    A sample is named by its file, and by its place in the archive or its line in the table. PROBABILITY is the
    classifier's. Where a method's prototypes answer, DISTANCE is that of the nearest, and NEAREST the member it is of.

    The columns of a table are matched by name, where genesis names them; one that lacks any is refused. NOTE says how
    many cells of a row were empty, and which values lie outside of what this node trains on.

    Examples: fednode predict scan1.png scan2.png --config node0.yaml, or fednode predict test.npz --prior 0.25 --json
    """
    from node.admin.asking import Labelled, NodeAtRound, Terms, ask

    try:
        with open_node(socket, config) as node:
            labelled = Labelled.fetch(node, read_columns(label))
            asked = NodeAtRound(node, round_, calibrated=calibrated, answer_by=answer_by)
            answers = list(ask(asked, Terms.fetch(node), inputs, top, labelled, timeout_s, prior=prior))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        told = asked.told._asdict()
        print_json({"predictions": [describe(answered) for answered in answers], **told})
        return
    print_table(*make_table(answers))
    print(f"fednode: {summarise(answers, asked.told)}", file=sys.stderr)


def read_columns(label: list[str] | None) -> str | tuple[str, ...] | None:
    """Returns `--label` as given, once or several times."""
    return None if not label else label[0] if len(label) == 1 else tuple(label)


def describe(answered: Answered) -> dict[str, Any]:
    """Returns one sample as JSON shows it."""
    from node.admin.answer_record import make_record

    return make_record(answered, str(answered.file))


def make_table(answers: Sequence[Answered]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Returns headings and a row for each sample; a column is left out where no sample has a value for it."""
    if answers and answers[0].prediction.values:
        return _make_value_table(answers)
    is_multilabel = bool(answers) and not answers[0].prediction.class_name
    headings = ["SAMPLE", "LABELS", "TOP"] if is_multilabel else ["SAMPLE", "CLASS", ">PROBABILITY", "TOP"]
    has_distance = any(answered.prediction.HasField("distance") for answered in answers)
    has_nearest = any(answered.prediction.HasField("nearest") for answered in answers)
    has_expected = any(answered.expected is not None for answered in answers)
    has_notes = any(answered.notes for answered in answers)
    headings += [">DISTANCE"] * has_distance + ["NEAREST"] * has_nearest + ["LABEL"] * has_expected
    headings += ["NOTE"] * has_notes
    rows: list[Sequence[str]] = []
    for answered in answers:
        said = answered.prediction
        row = [_name(answered), said.class_name, f"{said.probability:.4f}", _show_top(said)]
        if is_multilabel:
            row = [_name(answered), _show_labels([label.class_name for label in said.labels]), _show_top(said)]
        row += [f"{said.distance:.4f}" if said.HasField("distance") else "-"] * has_distance
        row += [_show_nearest(said)] * has_nearest
        row += [_show_expected(answered)] * has_expected + [_show_notes(answered)] * has_notes
        rows.append(row)
    return headings, rows


def _make_value_table(answers: Sequence[Answered]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Returns the values of a regression, and beside each the expected one in the file."""
    targets = [each.target for each in answers[0].prediction.values]
    has_expected = any(answered.expected is not None for answered in answers)
    headings = ["SAMPLE", *(f">{target}" for target in targets)]
    headings += [f">{target} IN FILE" for target in targets] * has_expected
    has_notes = any(answered.notes for answered in answers)
    headings += ["NOTE"] * has_notes
    rows: list[Sequence[str]] = []
    for answered in answers:
        row = [_name(answered), *(f"{each.value:.6g}" for each in answered.prediction.values)]
        if has_expected:
            known = answered.expected or ()
            row += [f"{value:.6g}" for value in known] if known else ["-"] * len(targets)
        rows.append([*row, *[_show_notes(answered)] * has_notes])
    return headings, rows


def _show_notes(answered: Answered) -> str:
    return "; ".join(answered.notes) or "-"


def _show_labels(names: Sequence[str]) -> str:
    return "; ".join(names) or "none"


def _name(answered: Answered) -> str:
    if answered.row is None:
        return str(answered.file)
    from ml.data.inference_files import is_table

    return f"{answered.file}:{answered.row}" if is_table(answered.file) else f"{answered.file}[{answered.row}]"


def _show_top(said: pb.Prediction) -> str:
    return ", ".join(f"{other.class_name} {other.probability:.3f}" for other in said.top)


def _show_nearest(said: pb.Prediction) -> str:
    return f"{said.nearest_name} {show_id(said.nearest)}" if said.HasField("nearest") else "-"


def _show_expected(answered: Answered) -> str:
    if answered.expected is None:
        return "-"
    expected = answered.expected if isinstance(answered.expected, str) else _show_labels([*map(str, answered.expected)])
    return "correct" if answered.is_correct else f"wrong: {expected}"


def name_model(rounds: Sequence[int], *, is_best: bool = False) -> str:
    """Returns the model that answered after these rounds, in words."""
    first, last = min(rounds), max(rounds)
    if not last:
        return "initial model"
    best = ", the best of its run" if is_best else ""
    return f"model after round {last}{best}" if first == last else f"model after rounds {first} to {last}"


def name_answering(rounds: Sequence[int], told: Told) -> str:
    """Returns the model that answered after these rounds, or both, and its temperature, in words."""
    from ml.measures.alone import ALONE, MIXED

    model = name_model(rounds, is_best=told.is_best)
    if told.answer_by == ALONE:
        model = "model trained alone"
    elif told.answer_by == MIXED and told.weight is not None:
        share = round(told.weight, 2)
        model += f", mixed with the one trained alone {share:.2f} to {1 - share:.2f}"
    return model if told.temperature is None else f"{model}, calibrated at temperature {told.temperature:.2f}"


def summarise(answers: Sequence[Answered], told: Told | None = None) -> str:
    """Returns which model it was, how often it agreed with the files' own labels, and which of their columns it
    ignored."""
    from ml.data.column_checks import describe_passed_over
    from node.admin.asking import Told

    model = name_answering([answered.applied_round for answered in answers], told or Told())
    text = f"{len(answers)} sample{'s' if len(answers) != 1 else ''}, by the {model}"
    judged = [answered.is_correct for answered in answers if answered.is_correct is not None]
    if judged:
        text += f"; {sum(judged)} of {len(judged)} as labelled"
    for file, passed_over in {
        answered.file: answered.passed_over for answered in answers if answered.passed_over
    }.items():
        text += f"\nfednode: {file}: {describe_passed_over(passed_over)}"
    if len(answers) >= MIN_ALIKE and len(given := {_show_answer(answered.prediction) for answered in answers}) == 1:
        text += f"\nfednode: all are called {given.pop()}: a model that has learned tells samples apart"
    return text


def _show_answer(said: pb.Prediction) -> str:
    if said.values:
        return ", ".join(f"{each.value:.6g}" for each in said.values)
    return said.class_name or _show_labels([label.class_name for label in said.labels])
