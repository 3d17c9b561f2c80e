"""An evaluation as people read it: the federation's model, and beside it the one trained alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.cli.measures import (
    MAX_CONFUSED,
    OF_TARGETS,
    describe_measures,
    describe_progress,
    describe_verdict,
    list_figures,
    print_classes,
    show_of_class,
)
from node.cli.output import print_facts, print_table

if TYPE_CHECKING:
    from node.admin.judging import Evaluation
    from node.pb import admin_pb2 as pb

NOT_COMPARED = "not compared: set training.compare_local: true to train a model without the others beside it"
SHARED, ALONE = "federation", "alone"  # the models
OF_CLASSES = {
    "sensitivity": "SENSITIVITY",
    "specificity": "SPECIFICITY",
    "auc": "AUC",
    "precision": "PRECISION",
    "f1": "F1",
}


def print_evaluation(found: Evaluation, model: str) -> None:
    """All that is measured of `model`, and beside each figure that of the model trained alone, where there is one."""
    alone = found.alone
    if alone is None or not alone.HasField("measures"):
        why = NOT_COMPARED if alone is None else describe_lack(alone)
        print_facts([("model", model), *describe_measures(found.measures), ("alone", why)])
        print_classes(found.measures)
        return
    samples = str(found.measures.num_samples)
    facts = [("model", model), ("alone", describe_progress(alone)), ("test samples", samples)]
    print_facts([*describe_verdict(alone), *facts])
    beside = dict(list_figures(alone.measures))
    rows = [(title, figure, beside.get(title, "-")) for title, figure in list_figures(found.measures)]
    print()
    print_table(("MEASURE", f">{SHARED.upper()}", f">{ALONE.upper()}"), rows)
    print_classes_beside(found.measures, alone.measures)


def describe_lack(alone: pb.TrainedAlone) -> str:
    """Why there is nothing to set beside."""
    if alone.HasField("failure"):
        return f"training alone has ended: {alone.failure}"
    return f"no round is done yet, {alone.owed_steps} steps to do"


def print_classes_beside(measures: pb.Measures, alone: pb.Measures) -> None:
    """Two rows for each class that occurs among the samples or the answers, and how each model confused them where
    these are few."""
    pairs = list(zip(measures.classes, alone.classes, strict=True))
    places = [i for i, pair in enumerate(pairs) if any(one.num_samples or one.num_given for one in pair)]
    if not places:
        return
    met = [pairs[i] for i in places]
    print()
    if any("mae" in one.values for one, _ in met):
        _print_rows("TARGET", met, OF_TARGETS)
        return
    is_class = any(one.given for one, _ in met)
    _print_rows("CLASS" if is_class else "LABEL", met, OF_CLASSES, with_samples=True)
    if is_class and len(met) <= MAX_CONFUSED:
        rows = [
            (name, model, *(str(one.given[i]) for i in places)) for pair in met for name, model, one in _label(pair)
        ]
        print()
        print_table(("CLASS", "MODEL", *(f">AS {one.class_name}" for one, _ in met)), rows)


def _print_rows(
    heading: str,
    met: list[tuple[pb.ClassMeasures, pb.ClassMeasures]],
    titles: dict[str, str],
    *,
    with_samples: bool = False,
) -> None:
    rows = [
        (
            name,
            model,
            *([str(one.num_samples) if name else ""] if with_samples else []),
            *(show_of_class(one, figure) for figure in titles),
        )
        for pair in met
        for name, model, one in _label(pair)
    ]
    headings = (heading, "MODEL", *([">SAMPLES"] if with_samples else []), *(f">{title}" for title in titles.values()))
    print_table(headings, rows)


def _label(
    pair: tuple[pb.ClassMeasures, pb.ClassMeasures],
) -> list[tuple[str, str, pb.ClassMeasures]]:
    """Each of a pair with the class, which is named once, and its model."""
    shared, alone = pair
    return [(shared.class_name, SHARED, shared), ("", ALONE, alone)]
