"""An evaluation as people read it: the federation's model, and beside it the one trained alone, and both mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ml.measures.alone import ALONE, FEDERATION, MIXED
from node.cli.model.measures import (
    OF_CLASSES,
    OF_TARGETS,
    describe_lack,
    describe_measures,
    describe_progress,
    describe_shares,
    describe_verdict,
    list_figures,
    print_classes,
    show_of_class,
)
from node.cli.output import print_facts, print_table
from node.ledger.measure_titles import TITLES, show_figure, show_with_interval

if TYPE_CHECKING:
    from ml.measures.operating import OperatingPoint
    from node.admin.judging import Evaluation, Group
    from node.pb import admin_pb2 as pb

NOT_COMPARED = "not compared: set training.compare_local: true to train a model without the others beside it"
AT_POINT = ("sensitivity", "specificity", "ppv", "npv")
OF_GROUPS = ("auc", "balanced_accuracy", "accuracy", "exact_match", "micro_f1", "brier", "r2", "mae", "rmse")


def print_evaluation(found: Evaluation, model: str) -> None:
    """Prints all that is measured of `model`, and beside each figure that of the model trained alone and of both mixed,
    where they exist."""
    alone = found.alone
    if found.temperature is not None:
        model += f", calibrated at temperature {found.temperature:.2f}"
    if alone is None or not alone.HasField("measures"):
        why = NOT_COMPARED if alone is None else describe_lack(alone)
        print_facts([("model", model), *describe_measures(found.measures), ("alone", why)])
        print_classes({"": found.measures})
        return
    samples = str(found.measures.num_samples)
    facts = [
        ("model", model),
        ("alone", describe_progress(alone)),
        *_describe_mixture(found),
        ("test samples", samples),
    ]
    print_facts([*describe_verdict(alone), *facts])
    models = {FEDERATION: found.measures, ALONE: alone.measures}
    models |= {} if found.mixed is None else {MIXED: found.mixed}
    figures = {name: dict(list_figures(measures)) for name, measures in models.items()}
    rows = [(title, *(of.get(title, "-") for of in figures.values())) for title in figures[FEDERATION]]
    print()
    print_table(("MEASURE", *(f">{name.upper()}" for name in figures)), rows)
    print_classes(models)


def _describe_mixture(found: Evaluation) -> list[tuple[str, str]]:
    """Returns the shares of both models in the mixture, and which model the node usually answers by."""
    if found.mixed is None or found.weight is None:
        return []
    by = "" if found.answer_by is None else f"; predict answers by: {found.answer_by}"
    return [("mixed", f"{describe_shares(found.weight)}{by}")]


def print_points(points: Sequence[OperatingPoint]) -> None:
    """Prints a row for each class or label at its threshold; nothing where none was asked for."""
    if not points:
        return
    rows = [
        (
            point.name,
            f"{point.threshold:g}",
            "-" if point.prevalence is None else show_figure(point.prevalence),
            str(point.num_called),
            *(show_with_interval(point.get_values(), point.get_intervals(), name) for name in AT_POINT),
        )
        for point in points
    ]
    print()
    print_table(("CLASS", ">THRESHOLD", ">PREVALENCE", ">CALLED", *(f">{name.upper()}" for name in AT_POINT)), rows)


def print_groups(column: str, groups: Sequence[Group]) -> None:
    """Prints a row for each group of samples by a column, and for each class in it; nothing where none was asked
    for."""
    if not groups:
        return
    measured = [(group.value, group.measures) for group in groups if group.measures is not None]
    names = [name for name in OF_GROUPS if any(name in measures.summary for _, measures in measured)]
    rows = []
    for group in groups:
        told = group.measures
        figures = ["-" if told is None else show_with_interval(told.summary, told.intervals, name) for name in names]
        rows.append((group.value, str(group.num_samples), *figures))
    print()
    print_table((f"BY {column}", ">SAMPLES", *(f">{TITLES[name].upper()}" for name in names)), rows)
    _print_classes_by_group(column, measured)


def _print_classes_by_group(column: str, measured: Sequence[tuple[str, pb.Measures]]) -> None:
    """Prints sensitivity and specificity of each class in each group; targets have rows in the same form."""
    found = [(one, value) for value, told in measured for one in told.classes if one.num_samples]
    names = OF_TARGETS if any("mae" in one.values for one, _ in found) else OF_CLASSES
    if len(found) <= len(measured):  # one target, which the rows above show
        return
    order = list(dict.fromkeys(one.class_name for one, _ in found))
    rows = [
        (one.class_name, value, str(one.num_samples), *(show_of_class(one, name) for name in names))
        for one, value in sorted(found, key=lambda pair: order.index(pair[0].class_name))
    ]
    print()
    print_table(("CLASS", f"BY {column}", ">SAMPLES", *(f">{name.upper()}" for name in names)), rows)
