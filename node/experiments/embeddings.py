"""Figures of embeddings as numbers: the panel of each run, and the positions of its samples and prototypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ml.payload import Array
from node.experiments.axes import Key, name_figure, name_key, select, split
from node.experiments.plan import Experiment, Point, show_fact
from node.experiments.projection import project_pca, project_tsne
from node.experiments.results import Kept
from node.experiments.sections import EmbeddingSection, SnapshotSection

T = TypeVar("T")
Snapshots = Mapping[tuple[str, int], Kept]  # snapshots by run and client

NAMES = {"tsne": "t-SNE", "pca": "PCA"}


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """One run's embeddings on a plane: `samples` [N, 2] of `labels`, `prototypes` [n, 2] of `classes` by `authors`
    (None: no author).

    Two counts are made before the projection: the samples classified correctly, and those whose nearest prototype is of
    their own class, None without prototypes.
    """

    label: str
    seed: str
    names: tuple[str, ...]  # names of the classes
    samples: Array
    labels: Array
    prototypes: Array
    classes: Array
    authors: Array | None
    num_right: int
    num_nearest: int | None

    @property
    def said(self) -> list[str]:
        """Returns the counts in words."""
        num = len(self.labels)
        said = [f"{num} samples", f"{100 * self.num_right / num:.1f} % classified rightly"]
        if self.num_nearest is None:
            return [*said, "no prototypes"]
        said.append(f"{100 * self.num_nearest / num:.1f} % nearest to a prototype of their class")
        authors = "" if self.authors is None else f" of {len(np.unique(self.authors))} clients"
        return [*said, f"{len(self.classes)} prototypes{authors}"]

    def list_marks(self) -> list[tuple[int, int | None]]:
        """Lists the class and the author of each group of prototypes."""
        authors = [None] * len(self.classes) if self.authors is None else self.authors.tolist()
        return list(dict.fromkeys(zip(self.classes.tolist(), authors, strict=True)))

    def is_mark(self, label: int, author: int | None) -> Any:
        own = self.classes == label
        return own if author is None else own & (self.authors == author)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingFigure:
    """Maps that share only the colours of their classes."""

    title: str
    method: str  # the projection
    panels: tuple[Map, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; their numbers where the panels have different ones."""
        longest = max((panel.names for panel in self.panels), key=len)
        alike = all(panel.names == longest[: len(panel.names)] for panel in self.panels)
        return longest if alike else tuple(map(str, range(len(longest))))

    @property
    def note(self) -> str:
        seeds = dict.fromkeys(panel.seed for panel in self.panels)
        return (
            "Samples of the global test set as a client, 0 where none is named, embeds them after the last round, laid "
            f"flat by {self.method}, with the prototypes it holds. Each panel is a map of its own, of one run: seed "
            f"{', '.join(seeds)}. A sample says its class while the pointer rests on it."
        )

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(panel.label, "; ".join(panel.said)) for panel in self.panels]


@dataclass(frozen=True, slots=True)
class Shown:
    """A panel to draw: the key of its figure, its name, and the run and client whose model it shows."""

    figure: Key
    label: str
    point: Point
    client: int

    @property
    def seed(self) -> str:
        return show_fact(self.point.facts["seed"])

    def find(self, snapshots: Snapshots) -> Kept | None:
        return None if self.point.run is None else snapshots.get((self.point.run.id, self.client))


def list_shown(experiment: Experiment, section: SnapshotSection) -> Iterator[Shown]:
    """Yields every panel. Its run is that of the first seed in the sweep."""
    points = [point for point in select(experiment.points, section.where) if point.run is not None]
    for key, own in split(points, section.each):
        for panel_key, inside in split(own, section.panels):
            label = name_key(section.panels, panel_key)
            for client in section.clients:
                whose = f"client {client}" if len(section.clients) > 1 else ""
                yield Shown(key, ", ".join(filter(None, (label, whose))), inside[0], client)


def list_snapshot_runs(experiment: Experiment) -> Mapping[str, tuple[int, ...]]:
    """Lists the runs, and their clients, whose embeddings or answers some figure shows."""
    sections = [one for one in experiment.file.report.figures or () if isinstance(one, SnapshotSection)]
    clients: dict[str, set[int]] = {}
    for section in sections:
        for shown in list_shown(experiment, section):
            if shown.point.run is not None:
                clients.setdefault(shown.point.run.id, set()).add(shown.client)
    return {run: tuple(sorted(own)) for run, own in clients.items()}


def list_panels(
    experiment: Experiment,
    section: SnapshotSection,
    title: str,
    snapshots: Snapshots,
    make: Callable[[str, str, Kept], T],
) -> Iterator[tuple[str, tuple[T, ...]]]:
    """Yields the title of each figure, one for each value of `each`, and what `make` returns for each panel's label,
    seed and snapshot; panels and figures whose runs have no snapshot yet are left out."""
    figures: dict[Key, list[T]] = {}
    for shown in list_shown(experiment, section):
        if (kept := shown.find(snapshots)) is not None:
            figures.setdefault(shown.figure, []).append(make(shown.label, shown.seed, kept))
    for key, panels in figures.items():
        yield name_figure(section.title or title, section.each, key), tuple(panels)


def make_embedding_figures(
    experiment: Experiment, section: EmbeddingSection, snapshots: Snapshots
) -> list[EmbeddingFigure]:
    how, make = NAMES[section.embedding], partial(_make_map, section.embedding)
    panels = list_panels(experiment, section, f"Embeddings by {how}", snapshots, make)
    return [EmbeddingFigure(title, how, own) for title, own in panels]


def _make_map(embedding: str, label: str, seed: str, kept: Kept) -> Map:
    snapshot, project = kept.snapshot, project_tsne if embedding == "tsne" else project_pca
    samples, prototypes = project(snapshot.embeddings, snapshot.prototypes)
    return Map(
        label=label,
        seed=seed,
        names=kept.names,
        samples=samples,
        labels=snapshot.labels,
        prototypes=prototypes,
        classes=snapshot.classes,
        authors=snapshot.authors,
        num_right=int((snapshot.predicted == snapshot.labels).sum()),
        num_nearest=snapshot.count_nearest(),
    )
