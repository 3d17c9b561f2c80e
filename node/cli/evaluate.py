"""`fednode evaluate`: what a running node's model is worth on labelled samples."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import AsJson
from node.cli.target import NodeConfigFile, Socket
from node.errors import NodeError

if TYPE_CHECKING:
    from ml.measures.classification import Measures
    from ml.measures.intervals import Interval
    from node.admin.asking import Answered


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT", help="An .npz or .csv with labels, or a directory with one for each class."),
    ],
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="COLUMN", help="The labels in a .csv. Default: as --config says, or label."),
    ] = None,
    resamples: Annotated[
        int,
        typer.Option("--resamples", metavar="N", min=0, max=100_000, help="Of the bootstrap; 0: no such intervals."),
    ] = 1000,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, max=3600, help="How long the node may train on first."),
    ] = 60.0,
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure a running node's model on labelled samples.

    Files are read as fednode predict reads them, and each sample must have a label. Intervals hold with 95 %
    confidence: those of accuracy, sensitivity and specificity are Wilson's, the others' are found by the bootstrap. AUC
    and average precision of a class are against all others, by the classifier's probabilities.

    Examples: fednode evaluate test.csv --config node.yaml, or fednode evaluate scans/ --json
    """
    from ml.measures.collapse import find_signs
    from node.admin.asking import Labelled, Terms, ask
    from node.admin.json_view import to_json
    from node.cli.measures import describe_measures, print_classes
    from node.cli.output import print_facts, print_json
    from node.cli.predict import get_default_label, name_model
    from node.cli.target import open_node
    from node.ledger.measures_view import show_measures

    try:
        with open_node(socket, config) as node:
            terms = Terms.fetch(node)
            labelled = Labelled(label, get_default_label(config))
            answers = list(ask(node, terms, inputs, len(terms.classes), labelled, timeout_s))
        measures, intervals = judge(answers, terms.classes, resamples)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    shown, signs = show_measures(measures, intervals), find_signs(measures, {})
    if as_json:
        print_json({"model": name_model(answers), "measures": to_json(shown), "signs": dict(signs)})
        return
    print_facts([("model", name_model(answers)), *describe_measures(shown)])
    print_classes(shown)
    for text in signs.values():
        print(f"fednode: this model has not learned: {text}", file=sys.stderr)


def judge(
    answers: Sequence[Answered], classes: tuple[str, ...], resamples: int
) -> tuple[Measures, Mapping[str, Interval]]:
    """The evaluation of labelled answers that tell of every class. Raises NodeError where labels are missing."""
    import numpy as np

    from ml.measures.evaluation import evaluate

    if not answers:
        raise NodeError("expected labelled samples, got none")
    for answered in answers:
        if answered.expected is None:
            raise NodeError(f"{answered.file}: expected a label for each sample (fednode predict does without)")
    expected = np.array([classes.index(str(answered.expected)) for answered in answers])
    given = np.array([answered.prediction.label for answered in answers])
    probabilities = np.zeros((len(answers), len(classes)))
    for row, answered in zip(probabilities, answers, strict=True):
        for told in answered.prediction.top:
            row[told.label] = told.probability
    return evaluate(expected, given, probabilities, classes, resamples)
