"""Measures of a model's answers, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.cli.output import print_table

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "weighted_f1": "weighted F1",
    "auc": "AUC",
    "average_precision": "average precision",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "loss": "loss",
}
MAX_CONFUSED = 12  # classes whose counts fit beside each other


def describe_measures(measures: pb.Measures) -> list[tuple[str, str]]:
    """The figures of all classes, each with its interval where there is one."""
    facts = [("test samples", f"{measures.num_samples}")]
    for name, title in TITLES.items():
        if name in measures.summary:
            interval = f" ({show_interval(measures.intervals[name])})" if name in measures.intervals else ""
            facts.append((title, f"{measures.summary[name]:.3f}{interval}"))
    return facts


def describe_briefly(measures: pb.Measures) -> str:
    """The figures that an accuracy hides, in a line."""
    told = [
        f"{TITLES[name]} {measures.summary[name]:.3f}"
        for name in ("balanced_accuracy", "auc")
        if name in measures.summary
    ]
    found = [(one.values["sensitivity"], one.class_name) for one in measures.classes if "sensitivity" in one.values]
    if found:
        (least, hardest), (most, easiest) = min(found), max(found)
        told.append(f"sensitivity {least:.3f} ({hardest}) to {most:.3f} ({easiest})")
    return ", ".join(told)


def describe_alone(alone: pb.TrainedAlone) -> str:
    """What the site's model is worth without the others, and how far that is."""
    if alone.HasField("failure"):
        return f"training alone has ended: {alone.failure}"
    if not alone.HasField("measures"):
        return f"no round is done yet, {alone.owed_steps} steps to do"
    told = f"accuracy {alone.measures.summary['accuracy']:.3f}"
    if brief := describe_briefly(alone.measures):
        told += f", {brief}"
    behind = f", {alone.owed_steps} steps behind" if alone.owed_steps else ""
    return f"{told}; after the work of {alone.rounds} round{'s' if alone.rounds != 1 else ''}{behind}"


def print_classes(measures: pb.Measures) -> None:
    """A row for each class that occurs among the samples or the answers, and how they were confused where these are
    few."""
    places = [i for i, one in enumerate(measures.classes) if one.num_samples or one.num_given]
    if not places:
        return
    met = [measures.classes[i] for i in places]
    rows = [
        (
            one.class_name,
            str(one.num_samples),
            *(_show(one, name) for name in ("sensitivity", "specificity", "auc", "precision", "f1")),
        )
        for one in met
    ]
    print()
    print_table(("CLASS", ">SAMPLES", ">SENSITIVITY", ">SPECIFICITY", ">AUC", ">PRECISION", ">F1"), rows)
    if len(rows) <= MAX_CONFUSED:
        print()
        headings = ("CLASS", *(f">AS {one.class_name}" for one in met))
        print_table(headings, [(one.class_name, *(str(one.given[i]) for i in places)) for one in met])


def print_published(entry: pb.Round) -> None:
    """A row for each member that has said something of its own model."""
    told = [name for name in TITLES if any(name in one.values for one in entry.published)]
    if not entry.published:
        return
    rows = [
        (
            one.name,
            str(one.num_samples),
            *(f"{one.values[name]:.4f}" if name in one.values else "-" for name in told),
        )
        for one in entry.published
    ]
    print("\nWhat members say of their own models, on their own test samples:")
    print_table(("MEMBER", ">SAMPLES", *(f">{TITLES[name].upper()}" for name in told)), rows)


def _show(one: pb.ClassMeasures, name: str) -> str:
    if name not in one.values:
        return "-"
    interval = f" ({show_interval(one.intervals[name])})" if name in one.intervals else ""
    return f"{one.values[name]:.3f}{interval}"


def show_interval(interval: pb.Interval) -> str:
    """In which a figure lies with 95 % confidence."""
    return f"{interval.low:.3f} to {interval.high:.3f}"
