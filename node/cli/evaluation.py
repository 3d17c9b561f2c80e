"""An evaluation as people read it: the federation's model, and beside it the one trained alone, and both mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ml.measures.alone import ALONE, FEDERATION, MIXED
from node.cli.measures import (
    MAX_CONFUSED,
    OF_TARGETS,
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
OF_CLASSES = {
    "sensitivity": "SENSITIVITY",
    "specificity": "SPECIFICITY",
    "auc": "AUC",
    "precision": "PRECISION",
    "f1": "F1",
}
AT_POINT = {"sensitivity": "SENSITIVITY", "specificity": "SPECIFICITY", "ppv": "PPV", "npv": "NPV"}
OF_GROUPS = ("auc", "balanced_accuracy", "accuracy", "exact_match", "micro_f1", "brier", "r2", "mae", "rmse")


def print_evaluation(found: Evaluation, model: str) -> None:
    """All that is measured of `model`, and beside each figure that of the model trained alone and of both mixed, where
    there is one."""
    alone = found.alone
    if found.temperature is not None:
        model += f", calibrated at temperature {found.temperature:.2f}"
    if alone is None or not alone.HasField("measures"):
        why = NOT_COMPARED if alone is None else describe_lack(alone)
        print_facts([("model", model), *describe_measures(found.measures), ("alone", why)])
        print_classes(found.measures)
        return
    samples = str(found.measures.num_samples)
    facts = [
        ("model", model),
        ("alone", describe_progress(alone)),
        *_describe_mixture(found),
        ("test samples", samples),
    ]
    print_facts([*describe_verdict(alone), *facts])
    columns = [(FEDERATION, found.measures), (ALONE, alone.measures)]
    columns += [] if found.mixed is None else [(MIXED, found.mixed)]
    figures = {name: dict(list_figures(measures)) for name, measures in columns}
    rows = [(title, *(of.get(title, "-") for of in figures.values())) for title in figures[FEDERATION]]
    print()
    print_table(("MEASURE", *(f">{name.upper()}" for name in figures)), rows)
    print_classes_beside(columns)


def _describe_mixture(found: Evaluation) -> list[tuple[str, str]]:
    """The shares of both models in what is mixed, and whose answers the node usually gives."""
    if found.mixed is None or found.weight is None:
        return []
    by = "" if found.answer_by is None else f"; predict answers by: {found.answer_by}"
    return [("mixed", f"{describe_shares(found.weight)}{by}")]


def describe_lack(alone: pb.TrainedAlone) -> str:
    """Why there is nothing to set beside."""
    if alone.HasField("failure"):
        return f"training alone has ended: {alone.failure}"
    return f"no round is done yet, {alone.owed_steps} steps to do"


def print_classes_beside(columns: Sequence[tuple[str, pb.Measures]]) -> None:
    """A row by model for each class that occurs among the samples or the answers, and how each model confused them
    where these are few."""
    names = [name for name, _ in columns]
    classes = list(zip(*(measures.classes for _, measures in columns), strict=True))
    places = [i for i, of in enumerate(classes) if any(one.num_samples or one.num_given for one in of)]
    if not places:
        return
    met = [_label(names, classes[i]) for i in places]
    some = [one for rows in met for _, _, one in rows]
    print()
    if any("mae" in one.values for one in some):
        _print_rows("TARGET", met, OF_TARGETS)
        return
    is_class = any(one.given for one in some)
    _print_rows("CLASS" if is_class else "LABEL", met, OF_CLASSES, with_samples=True)
    if is_class and len(met) <= MAX_CONFUSED:
        rows = [(name, model, *(str(one.given[i]) for i in places)) for of in met for name, model, one in of]
        headings = [f">AS {of[0][2].class_name}" for of in met]
        print()
        print_table(("CLASS", "MODEL", *headings), rows)


_Row = tuple[str, str, "pb.ClassMeasures"]  # the class, which is named once, and the model


def _print_rows(
    heading: str, met: Sequence[Sequence[_Row]], titles: dict[str, str], *, with_samples: bool = False
) -> None:
    rows = [
        (
            name,
            model,
            *([str(one.num_samples) if name else ""] if with_samples else []),
            *(show_of_class(one, figure) for figure in titles),
        )
        for of in met
        for name, model, one in of
    ]
    headings = (heading, "MODEL", *([">SAMPLES"] if with_samples else []), *(f">{title}" for title in titles.values()))
    print_table(headings, rows)


def _label(models: Sequence[str], of: Sequence[pb.ClassMeasures]) -> list[_Row]:
    return [
        (one.class_name if not i else "", model, one) for i, (model, one) in enumerate(zip(models, of, strict=True))
    ]


def print_points(points: Sequence[OperatingPoint]) -> None:
    """A row for each class or label that is called from a threshold on; nothing where none was asked for."""
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
    print_table(("CLASS", ">THRESHOLD", ">PREVALENCE", ">CALLED", *(f">{title}" for title in AT_POINT.values())), rows)


def print_groups(column: str, groups: Sequence[Group]) -> None:
    """A row for each group of samples by a column, and for each class in it; nothing where none was asked for."""
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
    """What each class is found and excluded with in each group; targets have rows of theirs alike."""
    found = [(one, value) for value, told in measured for one in told.classes if one.num_samples]
    titles = OF_TARGETS if any("mae" in one.values for one, _ in found) else OF_CLASSES
    if len(found) <= len(measured):  # one target, which the rows above tell of
        return
    order = list(dict.fromkeys(one.class_name for one, _ in found))
    rows = [
        (one.class_name, value, str(one.num_samples), *(show_of_class(one, name) for name in titles))
        for one, value in sorted(found, key=lambda pair: order.index(pair[0].class_name))
    ]
    print()
    print_table(("CLASS", f"BY {column}", ">SAMPLES", *(f">{title}" for title in titles.values())), rows)
