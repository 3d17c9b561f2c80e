"""Codebooks: MP-FedCL's pool of prototypes, in the form in which training and prediction use it (ALGORITHMS §3.2).

A codebook has one prototype of each class. Client i and slot k have one, with the k-th prototype that the client sent
of each class; if it sent fewer than K of a class, all its slots have Ubar_j there, the mean of the class's whole pool:

    (9)  Ubar_j    = mean of all rows of U_j
    (10) u^k_{i,j} = k-th prototype if |u_{i,j}| = K, else Ubar_j
    (11') L_R(x,y) = - 1/(N*K) * sum over i, k of log( exp(v(x).u^k_{i,y} / tau) / sum_a exp(v(x).u^k_{i,a} / tau) )
    (13) yhat      = argmin_j min over u in U_j of || v(x) - u ||

(11') is a cross-entropy over the classes that somebody holds, with the prototypes of a codebook as class weights; a
sample of a class that nobody holds adds 0 to it. Without padding, a codebook leaves out the classes of which its client
has no k-th prototype, and is dropped if it has no class left. A sample's loss is then the mean over the codebooks that
have its class, so that a class that few clients hold counts as much as one that all do.

Legend: n rows of the pool, D length of a prototype, N clients, K slots, S codebooks (N*K, or those that are left), C
classes, H of them held by someone, B samples of a batch, M samples, R rows used by a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ml.payload import Array, Arrays
from ml.training.criterion import NO_CLASS

OWN = -1  # the author of a client's own row, which is not sent


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Holds rows as the rule `pool` orders them, by class, then author, then as they came: classes int64[n], prototypes
    float32[n, D], authors int64[n]."""

    classes: Array
    prototypes: Array
    authors: Array

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Pool:
        return cls(arrays["classes"], arrays["prototypes"], arrays["authors"])

    def to_arrays(self) -> dict[str, Array]:
        return {"classes": self.classes, "prototypes": self.prototypes, "authors": self.authors}

    def add_own(self, classes: Array, embeddings: Array) -> Pool:
        """Returns the pool followed by rows of a client's own, which nobody else has."""
        return Pool(
            np.concatenate([self.classes, classes]),
            np.concatenate([self.prototypes, embeddings]),
            np.concatenate([self.authors, np.full(len(classes), OWN, np.int64)]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Codebooks:
    """Holds the codebooks of Eq. (10): `prototypes` float32[H, S, D] of the `classes` int64[H] that somebody holds,
    sorted. Codebook s is that of client `authors[s]`, int64[S]; `has` bool[H, S] is false if it lacks a class, and then
    the row is zeros."""

    classes: Array
    prototypes: Array
    authors: Array
    has: NDArray[np.bool_]

    @classmethod
    def from_pool(cls, pool: Pool, num_slots: int | None = None, *, padding: bool = True) -> Codebooks:
        """Makes the codebooks of the pool's N clients, each with `num_slots` slots, and at least as many as the most
        prototypes that a client has of a class, which is also the default: an earlier run's pool may have more than
        this run's slots."""
        classes, held_n = np.unique(pool.classes, return_inverse=True)
        senders, sender_n = np.unique(pool.authors, return_inverse=True)
        num_clients = len(senders)
        sets_n = held_n * num_clients + sender_n  # u_{i,j} of each row; they ascend
        sizes_HN = np.bincount(sets_n, minlength=len(classes) * num_clients).reshape(-1, num_clients)
        first = np.cumsum(sizes_HN) - sizes_HN.reshape(-1)
        slots_n = np.arange(len(sets_n)) - first[sets_n]
        num_slots = max(num_slots or 0, int(sizes_HN.max()))
        dim = pool.prototypes.shape[1]
        if padding:
            mean_HD = np.stack([pool.prototypes[held_n == h].mean(0, dtype=np.float64) for h in range(len(classes))])
            rows = np.empty((len(classes), num_clients, num_slots, dim), np.float32)
            rows[:] = mean_HD[:, None, None]  # Eq. (9)
            taken = (sizes_HN == num_slots).reshape(-1)[sets_n]
            has = np.ones(rows.shape[:3], bool)
        else:
            rows = np.zeros((len(classes), num_clients, num_slots, dim), np.float32)
            taken = np.ones(len(sets_n), bool)
            has = np.zeros(rows.shape[:3], bool)
            has[held_n, sender_n, slots_n] = True
        rows[held_n[taken], sender_n[taken], slots_n[taken]] = pool.prototypes[taken]
        has = has.reshape(len(classes), -1)
        kept = has.any(0)
        authors = np.repeat(senders, num_slots)
        return cls(classes, rows.reshape(len(classes), -1, dim)[:, kept], authors[kept], has[:, kept])

    def to_pool(self) -> Pool:
        """Returns the codebooks' entries as rows to predict by; the author of a mean in place of a prototype is its
        codebook's client."""
        h, s = np.nonzero(self.has)
        return Pool(self.classes[h], self.prototypes[h, s], self.authors[s])

    def to_tensors(self, num_classes: int, tau: float, device: torch.device) -> dict[str, Tensor]:
        """Returns the context of `compute_contrastive_loss`: `keys` [D, S*H], the prototypes over tau, and `targets`
        int64[C, S], the place of each class in each codebook. If some codebook lacks a class also `bias` [S*H], -inf at
        those, and `shares` [C, S], the weight of a codebook for a sample of a class."""
        with np.errstate(over="ignore"):  # too large values show in the loss
            keys_SHD = self.prototypes.swapaxes(0, 1) / np.float32(tau)
        targets_CS = np.full((num_classes, len(self.authors)), NO_CLASS)
        targets_CS[self.classes] = np.where(self.has, np.arange(len(self.classes))[:, None], NO_CLASS)
        context: dict[str, Array] = {"keys": keys_SHD.reshape(-1, keys_SHD.shape[2]).T, "targets": targets_CS}
        if not self.has.all():
            context["bias"] = np.where(self.has.T, 0, -np.inf).astype(np.float32).reshape(-1)
            context["shares"] = np.zeros(targets_CS.shape, np.float32)
            context["shares"][self.classes] = self.has / self.has.sum(1, keepdims=True)
        return {name: torch.tensor(np.ascontiguousarray(array), device=device) for name, array in context.items()}


def compute_contrastive_loss(
    v_BD: Tensor, y_B: Tensor, context: Mapping[str, Tensor], reduction: str = "mean", *, is_letter: bool = False
) -> Tensor:
    """Computes L_R, a scalar: Eq. (11') in the mean over the batch, or its sum. `context` is that of
    `Codebooks.to_tensors`. With `is_letter`, Eq. (11)'s positives are all classes other than the sample's; codebooks
    are padded then."""
    targets_BS = context["targets"][y_B]
    divisor, num_codebooks = len(y_B) if reduction == "mean" else 1, targets_BS.shape[1]
    with torch.autocast(v_BD.device.type, enabled=False):  # it would round the comparison with prototypes
        logits = v_BD.float() @ context["keys"]
        if is_letter:
            return _compare_with_others(logits, targets_BS) / (divisor * num_codebooks)
        if "bias" not in context:
            return _compare(logits, targets_BS, "sum") / (divisor * num_codebooks)
        losses_BS = _compare(logits + context["bias"], targets_BS, "none").view_as(targets_BS)
        return (losses_BS * context["shares"][y_B]).sum() / divisor


def _compare(logits: Tensor, targets_BS: Tensor, reduction: str) -> Tensor:
    """Computes the cross-entropy of each sample with each codebook, 0 if that lacks its class."""
    targets = targets_BS.flatten()
    return F.cross_entropy(logits.view(len(targets), -1), targets, reduction=reduction, ignore_index=NO_CLASS)


def _compare_with_others(logits: Tensor, targets_BS: Tensor) -> Tensor:
    """Computes the sum over samples and codebooks of the mean cross-entropy with the classes that are not the
    sample's."""
    logits_BSH = logits.view(*targets_BS.shape, -1)
    num_others = logits_BSH.shape[2] - 1
    is_held_BS = targets_BS != NO_CLASS
    own_BS = logits_BSH.gather(2, targets_BS.clamp(min=0)[..., None])[..., 0]
    others_BS = (logits_BSH.sum(2) - own_BS) / max(num_others, 1)
    return ((logits_BSH.logsumexp(2) - others_BS) * is_held_BS).sum() * min(num_others, 1)


def measure_by_class(
    v_MD: Tensor, pool: Pool, num_classes: int, left_out_MR: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the distance of each sample from the nearest row of each class, [M, C], and that row's author. The
    distance is infinite if a class has no row other than those in `left_out_MR`, which do not answer for the sample."""
    prototypes_RD = torch.tensor(pool.prototypes, device=v_MD.device)
    authors_R = torch.tensor(pool.authors, device=v_MD.device)
    distances_MR = torch.cdist(v_MD, prototypes_RD, compute_mode="donot_use_mm_for_euclid_dist")
    if left_out_MR is not None:
        distances_MR = distances_MR.masked_fill(left_out_MR, torch.inf)
    distances_MC = torch.full((len(v_MD), num_classes), torch.inf, device=v_MD.device)
    authors_MC = torch.full(distances_MC.shape, OWN, device=v_MD.device)
    for class_ in np.unique(pool.classes).tolist():
        (at,) = np.nonzero(pool.classes == class_)
        rows = torch.from_numpy(at).to(v_MD.device)
        distances_MC[:, class_], nearest_M = distances_MR[:, rows].min(1)
        authors_MC[:, class_] = authors_R[rows][nearest_M]
    return distances_MC, authors_MC


def find_nearest(v_MD: Tensor, pool: Pool) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the class of the nearest row to each sample, Eq. (13), the distance from it, and its author, each [M].

    Of rows equally near it takes the first, so of classes the lowest. Distances are computed directly, since a product
    of matrices would lose the small differences between close prototypes.
    """
    prototypes_RD, classes_R, authors_R = (
        torch.tensor(array, device=v_MD.device) for array in (pool.prototypes, pool.classes, pool.authors)
    )
    distances_MR = torch.cdist(v_MD, prototypes_RD, compute_mode="donot_use_mm_for_euclid_dist")
    distances_M, nearest_M = distances_MR.min(1)
    return classes_R[nearest_M], distances_M, authors_R[nearest_M]
