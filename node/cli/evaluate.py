"""`fednode evaluate`: what a running node's model is worth on labelled samples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import AsJson, CalibratedOption, LabelOption, RoundOption
from node.cli.target import NodeConfigFile, Socket

TRAINED_ON = "members may have trained on rows of this: only samples that nobody trained on say what the model is worth"


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="INPUT", help="An .npz or .csv with labels, or a directory with one for each class."),
    ],
    label: LabelOption = None,
    resamples: Annotated[
        int,
        typer.Option("--resamples", metavar="N", min=0, max=100_000, help="Of the bootstrap; 0: no such intervals."),
    ] = 1000,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, max=3600, help="How long the node may train on first."),
    ] = 60.0,
    calibrated: CalibratedOption = False,
    round_: RoundOption = "",
    socket: Socket = None,
    config: NodeConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Measure a running node's model on labelled samples.

    Files are read as fednode predict reads them, and each sample must have a label. Intervals hold with 95 %
    confidence: those of accuracy, sensitivity and specificity are Wilson's, the others' are found by the bootstrap. AUC
    and average precision of a class are against all others, by the classifier's probabilities. In a run whose task is
    multilabel there are those of each label, exact match and Hamming loss; in a regression mean absolute error, root
    mean squared error and R2 of each target, in its own unit.

    Where the node also trains without the others (training.compare_local: true), each measure of that model stands
    beside, on the same samples, and a sentence says which of the two is better, if so many samples can show it. MIXED
    is the mean of both models' probabilities, or values, by a weight that this site's val samples give: what
    fednode predict --answer-by mixed answers. With --calibrated all probabilities are by a temperature of val samples.

    A node cannot know which rows of a file it, or another member, has trained on; on such rows any model looks better
    than it is.

    Examples: fednode evaluate test.csv --config node.yaml, or fednode evaluate scans/ --json
    """
    from ml.data.column_checks import describe_passed_over
    from ml.measures.collapse import NOT_LEARNED
    from node.admin.asking import Labelled
    from node.admin.judging import evaluate_node
    from node.cli.evaluation import print_evaluation
    from node.cli.output import print_json
    from node.cli.predict import name_model, read_columns
    from node.cli.target import open_node

    try:
        with open_node(socket, config) as node:
            labelled = Labelled.fetch(node, read_columns(label))
            found = evaluate_node(
                node,
                inputs,
                labelled,
                resamples=resamples,
                timeout_s=timeout_s,
                round_=round_,
                calibrated=calibrated,
            )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        print_json(found.to_record())
        return
    print_evaluation(found, name_model([found.applied_round], is_best=found.is_best))
    for file, passed_over in found.passed_over.items():
        print(f"fednode: {file}: {describe_passed_over(passed_over)}", file=sys.stderr)
    print(f"fednode: {TRAINED_ON}", file=sys.stderr)
    for name, text in found.signs.items():
        print(f"fednode: this model{' has not learned' if name in NOT_LEARNED else ''}: {text}", file=sys.stderr)
