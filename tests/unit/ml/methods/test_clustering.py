"""Prototypes of a class as centroids of its clusters (ALGORITHMS §3.2, §12.3), on numbers that can be done by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import Generator
from torch import Tensor

import ml.methods.common.clustering
from ml.methods.common.clustering import Clusters, cluster_by_density, cluster_by_kmeans, cluster_by_mean, run_lloyd
from ml.payload import Array
from ml.seeding import numpy_rng

torch.set_num_threads(1)

TYPES = [np.dtype(np.int64), np.dtype(np.float32)]
SQUARE = [[0.0, 0.0], [0.0, 1.0], [10.0, 0.0], [10.0, 1.0]]


def rng_of(seed: int) -> Callable[[int], Generator]:
    return lambda c: numpy_rng(seed, "kmeans", c)


def lloyd(points: list[list[float]], starts: list[list[float]]) -> list[list[float]]:
    """From given starts, for a single group."""
    z_ND = torch.tensor(points)
    (found,) = run_lloyd(z_ND, torch.zeros(len(z_ND), dtype=torch.int64), torch.tensor([starts])).tolist()
    return list(found)


def kmeans(z: Any, y: Any, k: int, seed: int = 1) -> Clusters:
    return cluster_by_kmeans(torch.as_tensor(z, dtype=torch.float32), torch.as_tensor(y), k, rng_of(seed))


def make_clouds(sizes: list[int], dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """So many samples of each class, in no order."""
    generator = torch.Generator().manual_seed(seed)
    y_N = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y_N = y_N[torch.randperm(len(y_N), generator=generator)]
    centres = torch.randn(len(sizes), dim, generator=generator)
    return centres[y_N] + torch.randn(len(y_N), dim, generator=generator), y_N


def iterate_plainly(samples: Array, starts: Array) -> Array:
    """Lloyd's algorithm for one class as a textbook has it, where no centroid is left without a sample."""
    z_ND, centroids_KD = samples.astype(np.float64), starts.astype(np.float64)
    for _ in range(100):
        nearest_N = ((z_ND[:, None] - centroids_KD) ** 2).sum(2).argmin(1)
        new_KD = np.stack([z_ND[nearest_N == k].mean(0) for k in range(len(centroids_KD))])
        moved = np.linalg.norm(new_KD - centroids_KD, axis=1).max()
        centroids_KD = new_KD
        if moved < 1e-4:
            break
    return centroids_KD


# ---- Lloyd's algorithm


def test_lloyd_finds_the_optimum_from_a_good_start_and_stops_where_a_bad_one_leads() -> None:
    assert lloyd(SQUARE, [[0, 0], [10, 0]]) == [[0, 0.5], [10, 0.5]]
    assert lloyd(SQUARE, [[10, 1], [0, 1]]) == [[10, 0.5], [0, 0.5]]
    assert lloyd(SQUARE, [[0, 0], [0, 1]]) == [[5, 0], [5, 1]]


def test_one_centroid_is_the_mean() -> None:
    assert lloyd(SQUARE, [[0, 0]]) == [[5, 0.5]]


def test_a_sample_as_near_to_two_centroids_goes_to_the_first() -> None:
    assert lloyd([[0.0], [2.0], [4.0]], [[0.0], [4.0]]) == [[1.0], [4.0]]


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_every_group_comes_to_what_it_would_alone_and_in_a_textbook(offset: float) -> None:
    """Groups of fewer samples than a block, of exactly one, and of several; far from the origin too."""
    z_ND, y_N = make_clouds([5, 32, 33, 150], 4)
    z_ND = z_ND[torch.argsort(y_N, stable=True)] + offset
    y_N = y_N.sort().values
    starts_GKD = torch.stack([z_ND[y_N == c][:3] for c in range(4)])
    together = run_lloyd(z_ND, y_N, starts_GKD)
    for c in range(4):
        own_ND = z_ND[y_N == c]
        alone = run_lloyd(own_ND, torch.zeros(len(own_ND), dtype=torch.int64), starts_GKD[c : c + 1])[0]
        assert torch.equal(together[c], alone)
        expected = iterate_plainly(own_ND.numpy(), starts_GKD[c].numpy())
        np.testing.assert_allclose(together[c].numpy(), expected, rtol=1e-6, atol=1e-5)


def test_a_group_that_has_arrived_stands_still_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its centroids still move a little in every iteration where what counts as arrived is coarse."""
    monkeypatch.setattr(ml.methods.common.clustering, "TOLERANCE", 0.5)
    z_ND, y_N = make_clouds([300, 300, 300], 3, seed=1)
    z_ND, y_N = z_ND[torch.argsort(y_N, stable=True)] * torch.tensor([1.0, 4.0, 1.0]), y_N.sort().values
    starts_GKD = torch.stack([z_ND[y_N == c][:8] for c in range(3)])
    together = run_lloyd(z_ND, y_N, starts_GKD)
    for c in range(3):
        alone = run_lloyd(z_ND[y_N == c], torch.zeros(300, dtype=torch.int64), starts_GKD[c : c + 1])[0]
        assert torch.equal(together[c], alone)


@pytest.mark.parametrize(
    ("sample", "start", "expected"),
    [(0.5001, 0.4999, [0.75005, 2.0]), (0.50004, 0.49998, [0.50004, 1.5])],
)
def test_a_move_of_a_ten_thousandth_goes_on_and_a_smaller_one_does_not(
    sample: float, start: float, expected: list[float]
) -> None:
    """1 is nearer to the first centroid only once that has come to its sample; the second has not moved."""
    found = lloyd([[sample], [1.0], [2.0]], [[start], [1.5]])
    assert [x for (x,) in found] == pytest.approx(expected, abs=1e-6)


def test_iterations_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml.methods.common.clustering, "MAX_ITERATIONS", 1)
    assert lloyd([[0.0], [1.0], [2.0], [9.0]], [[0.0], [1.0]]) == [[0.0], [4.0]]  # not yet [1], [9]
    monkeypatch.undo()
    assert lloyd([[0.0], [1.0], [2.0], [9.0]], [[0.0], [1.0]]) == [[1.0], [9.0]]


def test_an_empty_cluster_goes_to_the_farthest_sample() -> None:
    """Both starts are the same sample: all go to the first centroid, from which 9 is farthest."""
    assert lloyd([[0.0], [0.0], [1.0], [9.0]], [[0.0], [0.0]]) == [[pytest.approx(1 / 3)], [9.0]]


def test_several_empty_clusters_go_to_different_samples() -> None:
    points = [[0.0], [0.0], [0.0], [10.0], [11.0], [-20.0]]
    assert sorted(lloyd(points, [[0.0], [0.0], [0.0]])) == [[-20.0], [0.0], [10.5]]


def test_what_fills_up_a_block_is_no_sample_to_go_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """All five go to the first centroid, 10, and 19 is farthest from it, then 11: not 0, nor their mean, 12."""
    monkeypatch.setattr(ml.methods.common.clustering, "MAX_ITERATIONS", 1)
    assert lloyd([[10.0], [10.0], [10.0], [19.0], [11.0]], [[10.0], [10.0], [10.0]]) == [[12.0], [19.0], [11.0]]


def test_empty_clusters_of_two_groups_stay_in_their_groups() -> None:
    z_ND = torch.tensor([[0.0], [0.0], [5.0], [100.0], [100.0], [107.0]])
    group_N = torch.tensor([0, 0, 0, 1, 1, 1])
    starts_GKD = torch.tensor([[[0.0], [0.0]], [[100.0], [100.0]]])
    assert run_lloyd(z_ND, group_N, starts_GKD).tolist() == [[[0.0], [5.0]], [[100.0], [107.0]]]


def test_samples_that_are_all_alike_give_the_same_centroid_several_times() -> None:
    found = kmeans([[1.0, 2.0]] * 7, [3] * 7, 3)
    assert found.classes.tolist() == [3, 3, 3]
    assert found.prototypes.tolist() == [[1.0, 2.0]] * 3


def test_what_is_no_number_ends_at_once() -> None:
    found = kmeans([[float("nan")], [1.0], [2.0]], [0, 0, 0], 2)
    assert found.prototypes.shape == (2, 1)
    assert not np.isfinite(found.prototypes).all()


# ---- k-means of every class


def test_centroids_are_of_every_class_in_order() -> None:
    z, y = [*SQUARE, [50.0, 50.0], [70.0, 70.0]], [7, 7, 7, 7, 2, 2]
    found = kmeans(z, y, 1)
    assert [found.classes.dtype, found.prototypes.dtype] == TYPES
    assert found.classes.tolist() == [2, 7]
    assert found.prototypes.tolist() == [[60.0, 60.0], [5.0, 0.5]]


def test_every_random_start_gives_one_of_the_two_outcomes() -> None:
    outcomes = {str(np.sort(kmeans(SQUARE, [0] * 4, 2, seed).prototypes, 0).tolist()) for seed in range(30)}
    assert outcomes == {"[[0.0, 0.5], [10.0, 0.5]]", "[[5.0, 0.0], [5.0, 1.0]]"}


def test_a_class_of_few_samples_is_its_samples() -> None:
    z = [[3.0], [1.0], [2.0], [8.0], [9.0], [0.0], [5.0]]
    found = kmeans(z, [1, 1, 4, 6, 6, 6, 6], 3)
    assert found.classes.tolist() == [1, 1, 4, 6, 6, 6]
    assert found.prototypes[:3].tolist() == [[3.0], [1.0], [2.0]]


def test_more_centroids_than_any_class_has_samples_are_all_samples() -> None:
    found = kmeans(SQUARE, [0, 1, 0, 1], 5)
    assert found.classes.tolist() == [0, 0, 1, 1]
    assert found.prototypes.tolist() == [SQUARE[0], SQUARE[2], SQUARE[1], SQUARE[3]]


def test_starts_are_different_samples() -> None:
    """Otherwise a cluster would begin empty, and of well apart samples these are then found in any case."""
    z = [[float(10 * i)] for i in range(6)]
    for seed in range(20):
        found = kmeans(z, [0] * 6, 5, seed)
        assert len(np.unique(found.prototypes)) == 5


def test_the_draws_of_a_class_are_its_own() -> None:
    """Neither other classes nor the order in which samples of classes lie change what becomes of one."""
    z_ND, y_N = make_clouds([40, 60, 50], 5)
    everything = kmeans(z_ND, y_N, 3)
    for c in range(3):
        alone = kmeans(z_ND[y_N == c], y_N[y_N == c], 3)
        assert np.array_equal(everything.prototypes[everything.classes == c], alone.prototypes)
    again, other = kmeans(z_ND, y_N, 3), kmeans(z_ND, y_N, 3, seed=2)
    assert np.array_equal(everything.prototypes, again.prototypes)
    assert not np.array_equal(everything.prototypes, other.prototypes)


def test_more_centroids_are_nearer() -> None:
    z_ND, y_N = make_clouds([80, 120], 6)

    def measure(k: int) -> float:
        found = kmeans(z_ND, y_N, k)
        rows, own_y = torch.from_numpy(found.prototypes), torch.from_numpy(found.classes)
        differences = [z_ND[y_N == c, None] - rows[own_y == c] for c in (0, 1)]
        return sum(float(difference.square().sum(2).amin(1).sum()) for difference in differences)

    assert measure(1) > measure(3) > measure(8) > measure(200) == 0.0


# ---- means, and dense regions


def test_a_mean_is_of_all_samples_of_a_class() -> None:
    found = cluster_by_mean(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]]), torch.tensor([3, 3, 1]), 5)
    assert found.classes.tolist() == [1, 3]
    assert found.prototypes.tolist() == [[5.0, 0.0], [2.0, 3.0]]
    assert [found.classes.dtype, found.prototypes.dtype] == TYPES


def density(z: list[list[float]], y: list[int], **settings: Any) -> Clusters:
    return cluster_by_density(
        torch.tensor(z), torch.tensor(y), **({"eps": 0.5, "min_samples": 2, "max_clusters": 16} | settings)
    )


DENSE = [[0.0], [0.4], [5.0], [5.2], [5.4], [99.0]]


def test_dense_regions_are_found_class_by_class_the_largest_first() -> None:
    found = density([*DENSE, [5.1], [5.3]], [4] * 6 + [2] * 2)
    assert found.classes.tolist() == [2, 4, 4]
    np.testing.assert_allclose(found.prototypes, [[5.2], [5.2], [0.2]], rtol=1e-6)  # 99 is noise
    assert [found.classes.dtype, found.prototypes.dtype] == TYPES


def test_the_largest_clusters_are_kept() -> None:
    np.testing.assert_allclose(density(DENSE, [0] * 6, max_clusters=1).prototypes, [[5.2]], rtol=1e-6)


def test_a_class_of_noise_has_its_mean() -> None:
    found = density([[0.0], [2.0], [10.0]], [1, 1, 1])
    assert (found.classes.tolist(), found.prototypes.tolist()) == ([1], [[4.0]])


def test_what_is_no_number_is_handed_on_to_be_refused() -> None:
    assert np.isnan(density([[float("nan")], [1.0]], [0, 0]).prototypes).all()
