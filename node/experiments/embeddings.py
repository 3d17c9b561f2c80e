"""Figures of embeddings as numbers: the panel of each run, and the positions of its samples and prototypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ml.payload import Array
from node.experiments.axes import Key, name_figure, name_key, select, split
from node.experiments.plan import Experiment, Point, show_fact
from node.experiments.projection import project_pca, project_tsne
from node.experiments.results import Kept
from node.experiments.sections import EmbeddingSection, SnapshotSection

Snapshots = Mapping[tuple[str, int], Kept]  # by run and client

NAMES = {"tsne": "t-SNE", "pca": "PCA"}


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """One run on a plane: `samples` [N, 2] of `labels`, `prototypes` [n, 2] of `classes` by `authors` (None: nobody's).

    Counted before they were laid flat: the samples that were classified rightly, and those whose nearest prototype is
    of their own class, None without prototypes.
    """

    label: str
    seed: str
    names: tuple[str, ...]  # of the classes
    samples: Array
    labels: Array
    prototypes: Array
    classes: Array
    authors: Array | None
    num_right: int
    num_nearest: int | None


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingFigure:
    """Maps that share nothing but the colours of their classes."""

    title: str
    method: str  # of laying flat
    panels: tuple[Map, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes; their numbers where the panels have different ones."""
        longest = max((panel.names for panel in self.panels), key=len)
        alike = all(panel.names == longest[: len(panel.names)] for panel in self.panels)
        return longest if alike else tuple(map(str, range(len(longest))))


@dataclass(frozen=True, slots=True)
class Shown:
    """A panel: the key of its figure, what it is called, and whose model of which run it shows."""

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
    """Every panel. The run is of the first seed asked for."""
    points = [point for point in select(experiment.points, section.where) if point.run is not None]
    for key, own in split(points, section.each):
        for panel_key, inside in split(own, section.panels):
            label = name_key(section.panels, panel_key)
            for client in section.clients:
                whose = f"client {client}" if len(section.clients) > 1 else ""
                yield Shown(key, ", ".join(filter(None, (label, whose))), inside[0], client)


def list_snapshot_runs(experiment: Experiment) -> Mapping[str, tuple[int, ...]]:
    """The runs that some figure shows the embeddings or the answers of, and of which clients."""
    sections = [one for one in experiment.file.report.figures or () if isinstance(one, SnapshotSection)]
    clients: dict[str, set[int]] = {}
    for section in sections:
        for shown in list_shown(experiment, section):
            if shown.point.run is not None:
                clients.setdefault(shown.point.run.id, set()).add(shown.client)
    return {run: tuple(sorted(own)) for run, own in clients.items()}


def make_embedding_figures(
    experiment: Experiment, section: EmbeddingSection, snapshots: Snapshots
) -> list[EmbeddingFigure]:
    """One figure for each value of `each`; panels and figures whose runs have no snapshot yet are left out."""
    figures: dict[Key, list[Map]] = {}
    for shown in list_shown(experiment, section):
        kept = shown.find(snapshots)
        if kept is not None:
            figures.setdefault(shown.figure, []).append(_make_map(shown.label, shown.seed, kept, section.embedding))
    how = NAMES[section.embedding]
    made = []
    for key, panels in figures.items():
        title = name_figure(section.title or f"Embeddings by {how}", section.each, key)
        made.append(EmbeddingFigure(title, how, tuple(panels)))
    return made


def _make_map(label: str, seed: str, kept: Kept, embedding: str) -> Map:
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
