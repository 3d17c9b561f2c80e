"""Vectors laid flat: by hand where that can be done, and the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from node.experiments.projection import project_pca, project_tsne

Project = Callable[[Any, Any], tuple[Any, Any]]
NONE = np.zeros((0, 3))


def test_principal_components_come_by_their_variance() -> None:
    samples = np.array([[5.0, 10.0, 0.0], [5.0, -10.0, 0.0], [5.0, 0.0, 2.0], [5.0, 0.0, -2.0]])
    flat, others = project_pca(samples, np.array([[7.0, 1.0, 3.0]]))
    assert flat == pytest.approx(np.array([[10, 0], [-10, 0], [0, 2], [0, -2]]), abs=1e-9)
    assert others == pytest.approx(np.array([[1, 3]]), abs=1e-9)  # what lies across the plane is not seen


@pytest.mark.parametrize("project", [project_pca, project_tsne])
@pytest.mark.parametrize("samples", [np.ones((1, 3)), np.ones((40, 3)), np.arange(9.0)[:, None], np.zeros((2, 1))])
def test_next_to_nothing_is_laid_flat_too(project: Project, samples: Any) -> None:
    flat, others = project(samples, samples[:1])
    assert (flat.shape, others.shape) == ((len(samples), 2), (1, 2))
    assert np.isfinite(flat).all()


def test_neighbours_stay_neighbours() -> None:
    rng = np.random.default_rng(1)
    centres = np.eye(3, 16) * 8
    samples = np.concatenate([centre + rng.normal(size=(30, 16)) for centre in centres]).astype(np.float32)
    flat, marks = project_tsne(samples, centres)
    for i, mark in enumerate(marks):
        distances = np.linalg.norm(flat - mark, axis=1).reshape(3, 30).mean(1)
        assert distances.argmin() == i
    again, _ = project_tsne(samples, centres)
    assert (flat == again).all()
