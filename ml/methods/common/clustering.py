"""Several prototypes of a class: centroids of clusters of its embeddings (ALGORITHMS §3.2, Eq. (7)).

`kmeans` works on all classes at once. Lloyd's algorithm starts from K distinct random samples of each class and goes on
until no centroid of a class moves by 1e-4, at most 100 times. A class that has finished does not change any more, so
that its result does not depend on the others. A class of no more than K samples is its own samples. `mean` is one
prototype a class (SP-FedCL), `dbscan` as many as there are dense regions (DP-FedCL).

Legend: N samples, D length of an embedding, C classes, K centroids, G groups of samples (the classes that are
clustered), T samples in a block, Q blocks. A block's samples are of one group, so that samples are compared with the
centroids of their own group alone, in two batched products, whatever the sizes of the groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from ml.methods.common.prototypes import sum_by_class
from ml.payload import Array
from ml.training.private import PrototypePrivacy

MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # a centroid that moves by less has converged
BLOCK = 32  # samples

GetRng = Callable[[int], Generator]


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Holds classes int64[n] ascending, with repeats, and prototypes float32[n, D]."""

    classes: Array
    prototypes: Array


# ---- k-means


def cluster_by_kmeans(z_ND: Tensor, y_N: Tensor, k: int, get_rng: GetRng) -> Clusters:
    """Computes at most `k` centroids of each class, Eq. (7). The start of a class is drawn from `get_rng(class)`."""
    order = torch.argsort(y_N, stable=True)
    z_ND = z_ND[order]
    classes, counts = (t.cpu().numpy() for t in torch.unique_consecutive(y_N[order], return_counts=True))
    first, is_large = np.cumsum(counts) - counts, counts > k
    starts = [
        begin + (get_rng(int(c)).choice(count, k, replace=False) if large else np.arange(count))
        for c, count, begin, large in zip(classes, counts, first, is_large, strict=True)
    ]
    sizes = np.minimum(counts, k)
    centroids_nD = z_ND[_put(np.concatenate(starts), z_ND.device)]
    if is_large.any():
        is_member, is_moving = (_put(np.repeat(is_large, n), z_ND.device) for n in (counts, sizes))
        group_N = _put(np.repeat(np.arange(is_large.sum()), counts[is_large]), z_ND.device)
        starts_GKD = centroids_nD[is_moving].view(-1, k, z_ND.shape[1])
        centroids_nD[is_moving] = run_lloyd(z_ND[is_member], group_N, starts_GKD).flatten(0, 1)
    return Clusters(np.repeat(classes, sizes), centroids_nD.cpu().numpy())


@torch.no_grad()
def run_lloyd(z_ND: Tensor, group_N: Tensor, starts_GKD: Tensor) -> Tensor:
    """Computes the centroids float32[G, K, D] of Lloyd's algorithm from `starts_GKD`, for each group on its own.

    `group_N` ascends from 0 to G - 1, and every group has at least K samples. A centroid that is nearest to no sample
    moves to the sample of its group that is farthest from its own centroid; several move to different ones.
    """
    num_groups, k, _ = starts_GKD.shape
    blocks = _Blocks.cut(z_ND, group_N, num_groups)
    centroids_GKD = starts_GKD - blocks.mean[:, None]
    one_hot_KK = torch.eye(k, device=z_ND.device)
    moves_G = torch.ones(num_groups, dtype=torch.bool, device=z_ND.device)
    for _ in range(MAX_ITERATIONS):
        score_QT, chosen_QT = blocks.compute_scores(centroids_GKD).min(2)
        is_chosen_QTK = one_hot_KK[chosen_QT] * blocks.is_sample[..., None]
        counts_GK = blocks.sum_by_group(is_chosen_QTK.sum(1))
        sums_GKD = blocks.sum_by_group(is_chosen_QTK.transpose(1, 2) @ blocks.x)
        new_GKD = sums_GKD / counts_GK.clamp(min=1)[..., None]
        is_empty_GK = (counts_GK == 0) & moves_G[:, None]
        if is_empty_GK.any():
            new_GKD[is_empty_GK] = blocks.get_farthest(score_QT, is_empty_GK)
        new_GKD = torch.where(moves_G[:, None, None], new_GKD, centroids_GKD)
        moved_G = (new_GKD - centroids_GKD).square().sum(2).amax(1)
        centroids_GKD = new_GKD
        moves_G = moved_G >= TOLERANCE**2  # NaN has converged too
        if not moves_G.any():
            break
    return centroids_GKD + blocks.mean[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Holds samples by blocks of T, minus the mean of their group, so that products far from the origin lose no digits
    by cancellation. The last block of a group is padded with rows that do not count."""

    x: Tensor  # [Q, T, D]
    is_sample: Tensor  # [Q, T], 1.0 or 0.0
    group: Tensor  # [Q], ascending
    first: Tensor  # [G], each group's first block
    mean: Tensor  # [G, D]

    @classmethod
    def cut(cls, z_ND: Tensor, group_N: Tensor, num_groups: int) -> _Blocks:
        counts_G = torch.bincount(group_N, minlength=num_groups)
        blocks_G = (counts_G + BLOCK - 1) // BLOCK
        first_G, first_sample_G = blocks_G.cumsum(0) - blocks_G, counts_G.cumsum(0) - counts_G
        group_Q = torch.repeat_interleave(blocks_G)
        place_N = torch.arange(len(z_ND), device=z_ND.device) + (first_G * BLOCK - first_sample_G)[group_N]
        is_sample_QT = z_ND.new_zeros(len(group_Q) * BLOCK).index_fill_(0, place_N, 1.0).view(-1, BLOCK)
        x_QTD = z_ND.new_zeros(len(group_Q) * BLOCK, z_ND.shape[1]).index_copy_(0, place_N, z_ND)
        x_QTD = x_QTD.view(len(group_Q), BLOCK, -1)
        sums_GD = z_ND.new_zeros(num_groups, z_ND.shape[1]).index_add_(0, group_Q, x_QTD.sum(1))
        mean_GD = sums_GD / counts_G[:, None]
        x_QTD.sub_(mean_GD[group_Q][:, None])
        return cls(x_QTD, is_sample_QT, group_Q, first_G, mean_GD)

    def compute_scores(self, centroids_GKD: Tensor) -> Tensor:
        """Computes [Q, T, K]: half the squared distance of each sample from each centroid of its group, minus half the
        sample's square."""
        half_GK = centroids_GKD.square().sum(2) / 2
        of_block = centroids_GKD[self.group].transpose(1, 2)
        return torch.baddbmm(half_GK[self.group][:, None], self.x, of_block, alpha=-1)

    def sum_by_group(self, values_Q: Tensor) -> Tensor:
        """Sums [Q, …] over the blocks of each group, to [G, …]."""
        return values_Q.new_zeros(len(self.first), *values_Q.shape[1:]).index_add_(0, self.group, values_Q)

    def get_farthest(self, score_QT: Tensor, is_empty_GK: Tensor) -> Tensor:
        """Returns, for each empty centroid, in order, another sample of its group: the farthest, the next farthest, and
        so on."""
        distance_QT = score_QT + self.x.square().sum(2) / 2
        distance_QT = distance_QT.masked_fill(self.is_sample == 0, -torch.inf)
        by_distance = distance_QT.flatten().argsort(descending=True, stable=True)
        group_of = self.group[by_distance // BLOCK]
        in_groups = by_distance[group_of.argsort(stable=True)]  # a group's begin where its first block does
        rank_GK = is_empty_GK.cumsum(1) - 1
        farthest = in_groups[(self.first[:, None] * BLOCK + rank_GK)[is_empty_GK]]
        return self.x.flatten(0, 1)[farthest]


def _put(array: Array, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)


# ---- mean and DBSCAN


def cluster_by_mean(z_ND: Tensor, y_N: Tensor, num_classes: int, privacy: PrototypePrivacy | None = None) -> Clusters:
    """Computes one prototype of each class, the mean: what SP-FedCL sends. With `privacy` each hides every sample."""
    sums_CD = sum_by_class(z_ND if privacy is None else privacy.cut(z_ND), y_N, num_classes)
    counts_C = torch.bincount(y_N, minlength=num_classes)
    (classes,) = torch.nonzero(counts_C, as_tuple=True)
    sums_nD, counts_n = sums_CD[classes], counts_C[classes]
    means_nD = sums_nD / counts_n[:, None] if privacy is None else privacy.average(sums_nD, counts_n)
    return Clusters(classes.cpu().numpy(), means_nD.float().cpu().numpy())


def cluster_by_density(z_ND: Tensor, y_N: Tensor, eps: float, min_samples: int, max_clusters: int) -> Clusters:
    """Computes the mean of each cluster that DBSCAN finds in a class, the largest first and at most `max_clusters` of
    them: what DP-FedCL sends. Noise is left out; a class that is only noise has its mean.

    DBSCAN holds every pair of samples that are near each other: about a GB for 6,000 of a class in one dense region.
    """
    z_host_ND, y_host_N = z_ND.cpu().numpy(), y_N.cpu().numpy()
    classes = np.unique(y_host_N)
    found = [_find_dense_means(z_host_ND[y_host_N == c], eps, min_samples, max_clusters) for c in classes]
    return Clusters(np.repeat(classes, [len(means) for means in found]), np.concatenate(found))


def _find_dense_means(z_ND: Array, eps: float, min_samples: int, max_clusters: int) -> Array:
    from sklearn import config_context
    from sklearn.cluster import DBSCAN

    z_ND = z_ND.astype(np.float64)
    labels_N = np.zeros(len(z_ND), np.int64)
    if np.isfinite(z_ND).all():  # DBSCAN refuses others; the caller refuses their mean
        with config_context(assume_finite=True, skip_parameter_validation=True):  # halves the time for small classes
            labels_N = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(z_ND)
    if (labels_N < 0).all():
        labels_N = np.zeros(len(z_ND), np.int64)
    sizes = np.bincount(labels_N[labels_N >= 0])
    largest = np.argsort(-sizes, kind="stable")[:max_clusters]
    return np.stack([z_ND[labels_N == label].mean(0) for label in largest]).astype(np.float32)
