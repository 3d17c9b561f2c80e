"""`fednode predict`: classifies samples with a running node's model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from node.cli.options import AsJson
from node.cli.target import NodeConfigFile, Socket
from node.errors import NodeError

if TYPE_CHECKING:
    from chain.genesis import Genesis
    from ml.data.inference_files import InferenceFile
    from node.admin.client import AdminClient
    from node.admin.samples import Batch
    from node.pb import admin_pb2 as pb


class Labelled(NamedTuple):
    """Which column of a table has its labels: `column`, as it was asked for, or else `default`, if it is there."""

    column: str | None
    default: str


class Answered(NamedTuple):
    """What was said of one sample: the one in `row` of `file`, which calls it `expected`, where it says so."""

    file: Path
    row: int | None
    expected: str | None
    prediction: pb.Prediction
    applied_round: int

    @property
    def is_correct(self) -> bool | None:
        return None if self.expected is None else self.expected == self.prediction.class_name


def register(app: typer.Typer) -> None:
    app.command("predict")(predict)


def predict(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT", help="An .npz, a .csv or image files.")],
    top: Annotated[int, typer.Option("--top", metavar="K", min=1, help="How many classes to show of each.")] = 3,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="COLUMN", help="The labels in a .csv. Default: as --config says, or label."),
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
    of data.columns.label in --config, or label, if the table has it.

    A sample is named by its file, and by its place in the archive or its line in the table. PROBABILITY is the
    classifier's. Where a method's prototypes answer, DISTANCE is that of the nearest, and NEAREST the member it is of.

    Examples: fednode predict scan1.png scan2.png --config node0.yaml, or fednode predict test.npz --top 5 --json
    """
    from node.cli.output import print_json, print_table
    from node.cli.target import open_node

    try:
        with open_node(socket, config) as node:
            answers = list(_ask(node, inputs, top, Labelled(label, get_default_label(config)), timeout_s))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        print_json({"predictions": [describe(answered) for answered in answers]})
        return
    print_table(*make_table(answers))
    print(f"fednode: {summarise(answers)}", file=sys.stderr)


def get_default_label(config: Path | None) -> str:
    """The column that a node's labels are in, by its configuration. Raises ConfigError."""
    from ml.data.inference_files import DEFAULT_LABEL
    from node.config.node_config import load_config

    named = None if config is None else load_config(config, (), os.environ).data.columns.label
    return named or DEFAULT_LABEL


def _ask(
    node: AdminClient, inputs: Sequence[Path], top: int, labelled: Labelled, timeout_s: float
) -> Iterator[Answered]:
    """In as many requests as it takes. Raises NodeError for files that cannot be read, before anything is asked where
    that can be seen without reading them."""
    from ml.data.base import InputFormat
    from ml.data.inference_files import validate_kind
    from ml.errors import DataError
    from node.admin.samples import encode_batch, get_max_samples, get_top, make_batches

    genesis = node.genesis
    try:
        for path in inputs:
            validate_kind(path)
        shape = InputFormat.from_mapping(genesis.run.input).shape
        top = get_top(top, len(genesis.run.classes))
        max_samples = get_max_samples(shape, len(genesis.run.classes), top)
        for batch in make_batches(_read(inputs, genesis, labelled), shape, max_samples):
            yield from _match(genesis, batch, node.predict(encode_batch(batch), top, timeout_s))
    except DataError as error:
        raise NodeError(str(error)) from error


def _read(inputs: Sequence[Path], genesis: Genesis, labelled: Labelled) -> Iterator[InferenceFile]:
    from ml.data.base import InputFormat
    from ml.data.inference_files import read_inference_file

    shape = InputFormat.from_mapping(genesis.run.input).shape
    for path in inputs:
        yield read_inference_file(path, shape, genesis.run.classes, labelled.column, default_label=labelled.default)


def _match(genesis: Genesis, batch: Batch, reply: pb.PredictReply) -> Iterator[Answered]:
    """Each prediction with the sample it is of."""
    samples = [(piece.file, i) for piece in batch for i in range(piece.start, piece.stop)]
    if len(samples) != len(reply.predictions):
        raise NodeError(f"expected {len(samples)} predictions of the node, got {len(reply.predictions)}")
    for (file, i), prediction in zip(samples, reply.predictions, strict=True):
        row = None if file.rows is None else file.rows[i]
        expected = None if file.labels is None else genesis.run.classes[int(file.labels[i])]
        yield Answered(file.path, row, expected, prediction, reply.applied_round)


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


def summarise(answers: Sequence[Answered]) -> str:
    """Which model it was, and how often it agreed with the files' own labels."""
    first, last = (choose(answered.applied_round for answered in answers) for choose in (min, max))
    model = f"model after round {last}" if first == last else f"model after rounds {first} to {last}"
    model = model if last else "initial model"
    text = f"{len(answers)} sample{'s' if len(answers) != 1 else ''}, by the {model}"
    judged = [answered.is_correct for answered in answers if answered.is_correct is not None]
    return f"{text}; {sum(judged)} of {len(judged)} as labelled" if judged else text
