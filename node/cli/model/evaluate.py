"""`fednode evaluate`: what a running node's model is worth on labelled samples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from node.cli.model.predict import name_model, read_columns
from node.cli.options import AsJson, CalibratedOption, LabelOption, RoundOption, TimeoutOption
from node.cli.output import print_json
from node.cli.target import NodeConfigFile, Socket, open_node
from node.errors import ConfigError, NodeError

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
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="P", min=0, max=1, help="Call the class from this probability on: 0.5."),
    ] = None,
    prevalence: Annotated[
        float | None,
        typer.Option(
            "--prevalence",
            metavar="P",
            min=0,
            max=1,
            help="How common the class is where the model is used. Default: as among the samples.",
        ),
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(
            "--positive", metavar="CLASS", help="The class of a threshold: the second of two, or of labels each."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="Measure the rows of a .csv also by the values of a column."),
    ] = None,
    cuts: Annotated[
        str | None,
        typer.Option("--cuts", metavar="A,B,…", help="Where to cut the numbers of --by. Default: at the quartiles."),
    ] = None,
    timeout_s: TimeoutOption = 60.0,
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

    With --threshold, --prevalence or --positive there is a table of what a class, or each label, is found and excluded
    with when it is called from a probability on: sensitivity and specificity, and the positive (PPV) and negative (NPV)
    predictive value at a prevalence.

    With --by there are measures of the rows of each value of a column, which need not be one that the run names; many
    different numbers are cut into ranges. Groups of fewer than ten samples are counted and not measured. The column is
    sent to nobody; where it is a feature of the model this node gets it with the samples.

    A node cannot know which rows of a file it, or another member, has trained on; on such rows any model looks better
    than it is.

    Examples: fednode evaluate test.csv --config node.yaml, or fednode evaluate scans/ --json, or fednode evaluate
    test.csv --threshold 0.3 --prevalence 0.05, or fednode evaluate test.csv --by age --cuts 40,60
    """
    from ml.data.column_checks import describe_passed_over
    from ml.measures.collapse import NOT_LEARNED
    from node.admin.asking import Labelled
    from node.admin.judging import Details, evaluate_node
    from node.cli.model.evaluation import print_evaluation, print_groups, print_points

    details = Details(threshold, prevalence, positive, by, list_cuts(cuts, by))
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
                details=details,
                calibrated=calibrated,
            )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        print_json(found.to_record())
        return
    print_evaluation(found, name_model([found.applied_round], is_best=found.is_best))
    print_points(found.points)
    print_groups(by or "", found.groups)
    for file, passed_over in found.passed_over.items():
        print(f"fednode: {file}: {describe_passed_over(passed_over)}", file=sys.stderr)
    print(f"fednode: {TRAINED_ON}", file=sys.stderr)
    for name, text in found.signs.items():
        print(f"fednode: this model{' has not learned' if name in NOT_LEARNED else ''}: {text}", file=sys.stderr)


def list_cuts(cuts: str | None, by: str | None) -> tuple[float, ...]:
    """Reads the numbers of `--cuts`. Raises ConfigError."""
    if cuts is None:
        return ()
    if by is None:
        raise ConfigError("--cuts: expected --by beside it, the column that they cut")
    from node.admin.judging import read_cuts

    try:
        return read_cuts(cuts)
    except NodeError as error:
        raise ConfigError(f"--cuts: {error}") from error
