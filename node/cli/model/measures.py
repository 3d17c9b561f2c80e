"""Measures of a model's answers, as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from node.cli.output import print_table
from node.ledger.measure_titles import TITLES, show_figure, show_with_interval

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb

BRIEF = ("balanced_accuracy", "exact_match", "auc", "r2", "mae", "rmse")
OF_TARGETS = ("r2", "mae", "rmse", "bias")
OF_CLASSES = ("sensitivity", "specificity", "auc", "precision", "f1")
MAX_CONFUSED = 12  # classes whose counts fit next to each other


def describe_measures(measures: pb.Measures) -> list[tuple[str, str]]:
    """Returns the figures over all classes, each with its interval where there is one."""
    return [("test samples", f"{measures.num_samples}"), *list_figures(measures)]


def list_figures(measures: pb.Measures) -> list[tuple[str, str]]:
    """Lists the figures over all classes: titles, and values with their intervals."""
    figures = []
    for name, title in TITLES.items():
        if name in measures.summary:
            figures.append((title, show_with_interval(measures.summary, measures.intervals, name)))
    return figures


def describe_briefly(measures: pb.Measures) -> str:
    """Returns the figures that an accuracy hides, in a line."""
    told = [f"{TITLES[name]} {show_figure(measures.summary[name])}" for name in BRIEF if name in measures.summary]
    found = [(one.values["sensitivity"], i) for i, one in enumerate(measures.classes) if "sensitivity" in one.values]
    if found:
        ends = sorted([min(found), max(found)], key=lambda end: end[1])  # so that both models list classes alike
        told.append(
            f"sensitivity {' to '.join(f'{value:.3f} ({measures.classes[i].class_name})' for value, i in ends)}"
        )
    return ", ".join(told)


def describe_privacy(privacy: pb.PrivacySpent) -> str:
    """Returns the epsilon that a site has spent on any of its samples, in a line."""
    phases = f"{privacy.phases} local phase{'' if privacy.phases == 1 else 's'}"
    if privacy.guessable and not privacy.set_aside:
        return f"{phases} told of, {privacy.guessable} of them with noise that can be guessed: epsilon is infinite"
    if not privacy.HasField("epsilon") and privacy.epsilon_phases:
        return f"{phases} told of, with noise so small that nothing is hidden"
    if not privacy.HasField("epsilon"):
        return f"{phases} told of; epsilon is being added up, or dp-accounting is not installed"
    of = phases if privacy.epsilon_phases == privacy.phases else f"{privacy.epsilon_phases} of {phases}"
    budget = f", of {privacy.budget:g}" if privacy.HasField("budget") else ""
    aside = f", with {privacy.guessable} set aside whose noise can be guessed" if privacy.guessable else ""
    return f"epsilon {privacy.epsilon:.2f}{budget}, delta {privacy.delta:g}, after {of}{aside}"


def describe_alone(alone: pb.TrainedAlone) -> str:
    """Returns the accuracy of the site's model trained alone, and how far its training is."""
    if alone.HasField("failure") or not alone.HasField("measures"):
        return describe_lack(alone)
    return f"{_describe_scores(alone.measures)}; {describe_progress(alone)}"


def describe_lack(alone: pb.TrainedAlone) -> str:
    """Returns why there is no model to compare with."""
    if alone.HasField("failure"):
        return f"training alone has ended: {alone.failure}"
    return f"no round is done yet, {alone.owed_steps} steps to do"


def _describe_scores(measures: pb.Measures) -> str:
    told = describe_briefly(measures)
    if "accuracy" in measures.summary:
        told = ", ".join(filter(None, (f"accuracy {measures.summary['accuracy']:.3f}", told)))
    return told


def list_alone(alone: pb.TrainedAlone) -> list[tuple[str, str]]:
    """Lists the figures of the model trained alone, and of both models' answers mixed."""
    facts = [("alone", describe_alone(alone))]
    if alone.HasField("mixed"):
        facts.append(("mixed", f"{_describe_scores(alone.mixed)}; {describe_shares(alone.weight)}"))
    return facts


def describe_shares(weight: float) -> str:
    """Returns the shares of both models in the mixture."""
    share = round(weight, 2)
    return f"{share:.2f} federation, {1 - share:.2f} alone"


def describe_verdict(alone: pb.TrainedAlone) -> list[tuple[str, str]]:
    """Returns how the federation's model compares with the one trained alone; empty where nothing could be compared."""
    return [("verdict", alone.verdict.sentence)] if alone.HasField("verdict") else []


def describe_progress(alone: pb.TrainedAlone) -> str:
    """Returns how far training alone is."""
    behind = f", {alone.owed_steps} steps behind" if alone.owed_steps else ""
    return f"after the work of {alone.rounds} round{'s' if alone.rounds != 1 else ''}{behind}"


def print_classes(models: Mapping[str, pb.Measures]) -> None:
    """Prints a row by model for each class that occurs among the samples or the answers, and each model's confusion
    matrix where these are few. One model needs no name."""
    classes = list(zip(*(measures.classes for measures in models.values()), strict=True))
    places = [i for i, of in enumerate(classes) if any(one.num_samples or one.num_given for one in of)]
    if not places:
        return
    several = ["MODEL"] * (len(models) > 1)
    met = [
        ([one.class_name if not k else "", *[model] * len(several)], one)  # the class is named once
        for i in places
        for k, (model, one) in enumerate(zip(models, classes[i], strict=True))
    ]
    print()
    if any("mae" in one.values for _, one in met):
        rows = [(*names, *(show_of_class(one, figure) for figure in OF_TARGETS)) for names, one in met]
        print_table(("TARGET", *several, *(f">{name.upper()}" for name in OF_TARGETS)), rows)
        return
    is_class = any(one.given for _, one in met)
    figures = [name for name in OF_CLASSES if any(name in one.values for _, one in met)]
    rows = [
        (*names, str(one.num_samples) if names[0] else "", *(show_of_class(one, figure) for figure in figures))
        for names, one in met
    ]
    headings = ("CLASS" if is_class else "LABEL", *several, ">SAMPLES", *(f">{name.upper()}" for name in figures))
    print_table(headings, rows)
    if is_class and len(places) <= MAX_CONFUSED:
        print()
        given = [f">AS {classes[i][0].class_name}" for i in places]
        print_table(("CLASS", *several, *given), [(*names, *(str(one.given[i]) for i in places)) for names, one in met])


def print_published(entry: pb.Round) -> None:
    """Prints a row for each member that has published measures of its own model."""
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
    for one in entry.published:
        if one.HasField("verdict"):
            print(f"{one.name}: {one.verdict.sentence}")


def show_of_class(one: pb.ClassMeasures, name: str) -> str:
    """Returns a figure of a class, with its interval where there is one."""
    return show_with_interval(one.values, one.intervals, name)


def get_scores(record: pb.Round) -> tuple[str, float | None, float | None]:
    """Returns the main measure of a round, before its exchange and after: the accuracy, or R2 of a regression, with its
    name."""
    if "r2" in record.apply or "r2" in record.train:
        before, after = (dict(values).get("r2") for values in (record.train, record.apply))
        return "R2", before, after
    before = record.local_accuracy if record.HasField("local_accuracy") else None
    return "accuracy", before, record.accuracy if record.HasField("accuracy") else None
