"""Projections of vectors onto a plane: by the two directions in which they vary most, or so that neighbours stay
neighbours.

Legend: N samples, n other vectors laid into the same plane, D their length. The same vectors give the same plane.
"""

from __future__ import annotations

import numpy as np

from ml.payload import Array

PERPLEXITY = 30.0  # roughly how many neighbours t-SNE considers
_SEED = 0
_START_STD = 1e-4  # spread of t-SNE's first layout along its first axis, as in scikit-learn


def project_pca(samples_ND: Array, others_nD: Array) -> tuple[Array, Array]:
    """Projects both onto the samples' two first principal components, [N, 2] and [n, 2]."""
    mean_D = samples_ND.mean(0, dtype=np.float64)
    _, _, directions = np.linalg.svd(samples_ND - mean_D, full_matrices=False)
    plane_2D = np.zeros((2, samples_ND.shape[1]))
    plane_2D[: len(directions[:2])] = directions[:2]
    largest = np.abs(plane_2D).argmax(1)
    plane_2D *= np.where(plane_2D[[0, 1], largest] < 0, -1.0, 1.0)[:, None]  # a component's sign is arbitrary
    return (samples_ND - mean_D) @ plane_2D.T, (others_nD - mean_D) @ plane_2D.T


def project_tsne(samples_ND: Array, others_nD: Array) -> tuple[Array, Array]:
    """Projects both by one t-SNE that starts from the principal components; with very few samples by the components
    alone."""
    start_N2, start_n2 = project_pca(samples_ND, others_nD)
    start = np.concatenate([start_N2, start_n2])
    spread = start[:, 0].std()
    if len(start) < 5 or not spread > 0:
        return start_N2, start_n2
    from sklearn.manifold import TSNE  # takes a second to import
    from threadpoolctl import threadpool_limits

    tsne = TSNE(
        perplexity=min(PERPLEXITY, (len(start) - 1) / 3),
        init=(start / spread * _START_STD).astype(np.float32),
        random_state=_SEED,
    )
    with threadpool_limits(1):  # more are no faster on so few samples, and add in another order
        flat = tsne.fit_transform(np.concatenate([samples_ND, others_nD]).astype(np.float32))
    return flat[: len(samples_ND)], flat[len(samples_ND) :]
