"""Figures of answers as numbers: how the models of some runs confuse classes, their ROC curves, and their calibration.

They are drawn of the snapshots that `node.experiments.embeddings` is drawn of, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ml.measures.classification import Ints, compute_areas, count_confusion
from ml.measures.curves import Reliability, Roc, compute_reliability, compute_roc
from node.experiments.embeddings import Snapshots, list_panels
from node.experiments.plan import Experiment
from node.experiments.results import Kept
from node.experiments.sections import AnswersSection

Kind = Literal["confusion", "roc", "calibration"]

TITLES: Mapping[Kind, str] = {
    "confusion": "Confusion of classes",
    "roc": "ROC, each class against all others",
    "calibration": "Calibration",
}
HEADINGS: Mapping[Kind, tuple[str, ...]] = {
    "confusion": ("panel", "class", "given", "samples"),
    "roc": ("panel", "class", "false_positive_rate", "true_positive_rate", "threshold"),
    "calibration": ("panel", "from", "to", "samples", "confidence", "accuracy"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The answers of one run: `confusion` int64[C, C] by the true class of samples and the class predicted, the ROC
    curve of each class that has one, with the area under it, and how well the confidence is calibrated."""

    label: str
    seed: str
    names: tuple[str, ...]  # names of the classes
    confusion: Ints
    rocs: Mapping[str, tuple[Roc, float]]
    reliability: Reliability

    @property
    def num_samples(self) -> int:
        return int(self.confusion.sum())


@dataclass(frozen=True, slots=True, eq=False)
class AnswersFigure:
    """A panel for each run, all of one kind."""

    title: str
    kind: Kind
    panels: tuple[Answers, ...]

    @property
    def note(self) -> str:
        seeds = dict.fromkeys(panel.seed for panel in self.panels)
        return (
            "Answers of a client, 0 where none is named, after the last round to samples of the global test set. Each "
            f"panel is of one run: seed {', '.join(seeds)}. The CSV of the same name has every number."
        )

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(panel.label, "; ".join(say_figures(self.kind, panel))) for panel in self.panels]

    def list_numbers(self) -> Iterator[Sequence[object]]:
        """Yields headings, and every number that is drawn."""
        yield HEADINGS[self.kind]
        for panel in self.panels:
            if self.kind == "confusion":
                for c, row in enumerate(panel.confusion.tolist()):
                    yield from ((panel.label, panel.names[c], panel.names[k], count) for k, count in enumerate(row))
            elif self.kind == "roc":
                for name, (roc, _) in panel.rocs.items():
                    points = zip(*(values.tolist() for values in roc), strict=True)
                    yield from ((panel.label, name, *point) for point in points)
            else:
                bins = zip(*(values.tolist() for values in panel.reliability), strict=True)
                yield from ((panel.label, *each) for each in bins)


def make_answers_figures(experiment: Experiment, section: AnswersSection, snapshots: Snapshots) -> list[AnswersFigure]:
    panels = list_panels(experiment, section, TITLES[section.answers], snapshots, compute_answers)
    return [AnswersFigure(title, section.answers, own) for title, own in panels]


def compute_answers(label: str, seed: str, kept: Kept) -> Answers:
    """Computes all that is drawn of one run's model. Of two classes only the second has a curve: the first's is its
    mirror image."""
    snapshot, names = kept.snapshot, kept.names
    probabilities = snapshot.probabilities.astype("float64")
    rocs = {}
    for c in range(1 if len(names) == 2 else 0, len(names)):
        is_of, scores = snapshot.labels == c, probabilities[:, c]
        area, _ = compute_areas(is_of, scores)
        if (roc := compute_roc(is_of, scores)) is not None and area is not None:
            rocs[names[c]] = roc, area
    return Answers(
        label=label,
        seed=seed,
        names=names,
        confusion=count_confusion(snapshot.labels, snapshot.predicted, len(names)),
        rocs=rocs,
        reliability=compute_reliability(snapshot.labels, probabilities),
    )


def say_figures(kind: Kind, panel: Answers) -> list[str]:
    """Returns the figures of a panel, in words."""
    said = [f"{panel.num_samples} samples"]
    if kind == "confusion":
        right = int(panel.confusion.trace())
        return [*said, f"{100 * right / panel.num_samples:.1f} % classified rightly"]
    if kind == "calibration":
        return [*said, f"expected calibration error {panel.reliability.error:.3f}"]
    return [*said, *(f"AUC of {name} {area:.3f}" for name, (_, area) in panel.rocs.items())]
