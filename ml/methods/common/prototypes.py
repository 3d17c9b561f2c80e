"""Local prototypes: the mean embedding of each class a client owns (ALGORITHMS §2.2, Eq. (1)).

Legend: N samples, D length of the embedding, C classes, n classes owned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.models.base import Model
from ml.payload import Array
from ml.training.private import PrototypePrivacy

CHUNK = 2048  # samples in one forward pass


@dataclass(frozen=True, slots=True, eq=False)
class LocalPrototypes:
    """classes int64[n] sorted, prototypes float32[n, D], counts int64[n]: what they are means of."""

    classes: Array
    prototypes: Array
    counts: Array


@dataclass(frozen=True, slots=True, eq=False)
class PrototypeRows:
    """The prototypes that a client holds of everyone: classes int64[n], prototypes float32[n, D], and authors int64[n],
    their places in the block that was applied; None where prototypes are means over authors."""

    classes: Array
    prototypes: Array
    authors: Array | None = None


@torch.no_grad()
def compute_prototypes(
    model: Model,
    x: Tensor,
    y_N: Tensor,
    num_classes: int,
    min_class_samples: int = 1,
    privacy: PrototypePrivacy | None = None,
) -> LocalPrototypes:
    """Eq. (1) over all samples, the model in eval mode, for the classes with at least `min_class_samples` of them; with
    `privacy` each hides every sample.

    Summed in float64, so that the result hardly depends on the order of the samples. Leaves the model in eval mode.
    """
    model.eval()
    sums_CD: Tensor | None = None
    for x_chunk, y_chunk in zip(torch.split(x, CHUNK), torch.split(y_N, CHUNK), strict=True):
        z_ND = model.embed(x_chunk)
        part_CD = sum_by_class(z_ND if privacy is None else privacy.cut(z_ND), y_chunk, num_classes)
        sums_CD = part_CD if sums_CD is None else sums_CD + part_CD
    if sums_CD is None:
        raise ValueError("prototypes: expected at least one sample, got none")
    counts_C = torch.bincount(y_N, minlength=num_classes)
    (classes,) = torch.nonzero(find_sent_classes(counts_C, min_class_samples), as_tuple=True)
    counts_n = counts_C[classes]
    sums_nD = sums_CD[classes]
    means_nD = sums_nD / counts_n[:, None] if privacy is None else privacy.average(sums_nD, counts_n)
    prototypes_nD = means_nD.float()
    return LocalPrototypes(classes.cpu().numpy(), prototypes_nD.cpu().numpy(), counts_n.cpu().numpy())


def find_sent_classes(counts_C: Tensor, min_class_samples: int) -> Tensor:
    """The classes of which a client sends prototypes, bool[C]: of a smaller one they would be too close to its samples.
    `counts_C` are its samples of each."""
    return counts_C >= max(1, min_class_samples)


def sum_by_class(z_ND: Tensor, y_N: Tensor, num_classes: int) -> Tensor:
    """The sum of the embeddings of each class, float64[C, D]."""
    one_hot_CC = torch.eye(num_classes, dtype=torch.float64, device=z_ND.device)
    return one_hot_CC[y_N].T @ z_ND.double()
