"""`fednode predict`: classifies samples with a running node's model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.options import AsJson
from node.cli.target import NodeConfigFile, Socket

if TYPE_CHECKING:
    from node.admin.asking import Answered
    from node.pb import admin_pb2 as pb


MIN_ALIKE = 20  # samples that all get one class, from which on that looks odd


def register(app: typer.Typer) -> None:
    app.command("predict")(predict)


def predict(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT", help="An .npz, a .csv or image files.")],
    top: Annotated[int, typer.Option("--top", metavar="K", min=1, help="How many classes to show of each.")] = 3,
    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            metavar="COLUMN",
            help="The labels in a .csv. Default: as the node is configured, or label.",
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, max=3600, help="How long the node may train on first."),
    ] = 60.0,
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Classify samples with the model of a running node.

    An .npz has an array x: [N, C, H, W], [N, H, W], [N, H, W, C] or, for a model of features, [N, F]; an array of
    exactly one sample's shape is that sample. A .csv has a header and a column of numbers for each feature. Where a
    file has labels, y or a column, each answer is compared with them: in the column that --label names, or else in that
    that the node's own configuration names (data.columns.label), or label, if the table has it.

    A sample is named by its file, and by its place in the archive or its line in the table. PROBABILITY is the
    classifier's. Where a method's prototypes answer, DISTANCE is that of the nearest, and NEAREST the member it is of.

    Examples: fednode predict scan1.png scan2.png --config node0.yaml, or fednode predict test.npz --top 5 --json
    """
    from node.admin.asking import Labelled, Terms, ask
    from node.cli.output import print_json, print_table
    from node.cli.target import open_node

    try:
        with open_node(socket, config) as node:
            labelled = Labelled.fetch(node, label)
            answers = list(ask(node, Terms.fetch(node), inputs, top, labelled, timeout_s))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        print_json({"predictions": [describe(answered) for answered in answers]})
        return
    print_table(*make_table(answers))
    print(f"fednode: {summarise(answers)}", file=sys.stderr)


def describe(answered: Answered) -> dict[str, Any]:
    """One sample as JSON shows it."""
    from node.admin.json_view import to_json

    return {
        "file": str(answered.file),
        "row": answered.row,
        **to_json(answered.prediction),
        "expected": answered.expected,
        "correct": answered.is_correct,
        "applied_round": answered.applied_round,
    }


def make_table(answers: Sequence[Answered]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Headings and a row for each sample; only what there is to tell of any has a column."""
    headings = ["SAMPLE", "CLASS", ">PROBABILITY", "TOP"]
    has_distance = any(answered.prediction.HasField("distance") for answered in answers)
    has_nearest = any(answered.prediction.HasField("nearest") for answered in answers)
    has_expected = any(answered.expected is not None for answered in answers)
    headings += [">DISTANCE"] * has_distance + ["NEAREST"] * has_nearest + ["LABEL"] * has_expected
    rows: list[Sequence[str]] = []
    for answered in answers:
        said = answered.prediction
        row = [_name(answered), said.class_name, f"{said.probability:.4f}", _show_top(said)]
        row += [f"{said.distance:.4f}" if said.HasField("distance") else "-"] * has_distance
        row += [_show_nearest(said)] * has_nearest
        row += [_show_expected(answered)] * has_expected
        rows.append(row)
    return headings, rows


def _name(answered: Answered) -> str:
    if answered.row is None:
        return str(answered.file)
    is_table = answered.file.suffix.lower() == ".csv"
    return f"{answered.file}:{answered.row}" if is_table else f"{answered.file}[{answered.row}]"


def _show_top(said: pb.Prediction) -> str:
    return ", ".join(f"{other.class_name} {other.probability:.3f}" for other in said.top)


def _show_nearest(said: pb.Prediction) -> str:
    from node.cli.output import show_id

    return f"{said.nearest_name} {show_id(said.nearest)}" if said.HasField("nearest") else "-"


def _show_expected(answered: Answered) -> str:
    if answered.expected is None:
        return "-"
    return "correct" if answered.is_correct else f"wrong: {answered.expected}"


def name_model(rounds: Sequence[int]) -> str:
    """The model that gave answers after these rounds."""
    first, last = min(rounds), max(rounds)
    if not last:
        return "initial model"
    return f"model after round {last}" if first == last else f"model after rounds {first} to {last}"


def summarise(answers: Sequence[Answered]) -> str:
    """Which model it was, and how often it agreed with the files' own labels."""
    model = name_model([answered.applied_round for answered in answers])
    text = f"{len(answers)} sample{'s' if len(answers) != 1 else ''}, by the {model}"
    judged = [answered.is_correct for answered in answers if answered.is_correct is not None]
    if judged:
        text += f"; {sum(judged)} of {len(judged)} as labelled"
    if len(answers) >= MIN_ALIKE and len(given := {answered.prediction.class_name for answered in answers}) == 1:
        text += f"\nfednode: all are called {given.pop()}: a model that has learned tells samples apart"
    return text
