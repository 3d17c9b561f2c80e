"""Local prototypes: the mean embedding of each class a client owns (ALGORITHMS §2.2, Eq. (1)).

Legend: N samples, D length of the embedding, C classes, n classes owned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ml.data.chunks import get_chunk
from ml.models.base import Model
from ml.payload import Array
from ml.training.private import PrototypePrivacy


@dataclass(frozen=True, slots=True, eq=False)
class LocalPrototypes:
    """Holds classes int64[n] sorted, prototypes float32[n, D], and counts int64[n] of the samples in each mean."""

    classes: Array
    prototypes: Array
    counts: Array


@dataclass(frozen=True, slots=True, eq=False)
class PrototypeRows:
    """Holds the prototypes that a client has received: classes int64[n], prototypes float32[n, D], and authors
    int64[n], their places in the block that was applied; None if prototypes are means over authors."""

    classes: Array
    prototypes: Array
    authors: Array | None = None


class ClassSums(NamedTuple):
    """Holds a client's sums by class: of its samples' embeddings, float64[C, D], and on the host the number of samples,
    int64[C]."""

    sums: Tensor
    counts: Tensor


@torch.no_grad()
def sum_embeddings(
    model: Model, x: Tensor, y_N: Tensor, num_classes: int, privacy: PrototypePrivacy | None = None
) -> ClassSums:
    """Computes the sums of Eq. (1) over all samples, with `privacy` over embeddings that are cut. Leaves the model in
    eval mode.

    Sums are in float64, so that the result hardly depends on the order of the samples.
    """
    model.eval()
    size = get_chunk(x.shape)
    sums_CD: Tensor | None = None
    for x_chunk, y_chunk in zip(torch.split(x, size), torch.split(y_N, size), strict=True):
        z_ND = model.embed(x_chunk)
        part_CD = sum_by_class(z_ND if privacy is None else privacy.cut(z_ND), y_chunk, num_classes)
        sums_CD = part_CD if sums_CD is None else sums_CD + part_CD
    if sums_CD is None:
        raise ValueError("prototypes: expected at least one sample, got none")
    return ClassSums(sums_CD, torch.bincount(y_N.cpu(), minlength=num_classes))  # on a GPU it would wait more than once


def average(summed: ClassSums, min_class_samples: int, privacy: PrototypePrivacy | None = None) -> LocalPrototypes:
    """Computes the means of Eq. (1) from its sums. Noise is drawn on the device of the sums."""
    sums_CD, counts_C = summed
    (classes,) = torch.nonzero(find_sent_classes(counts_C, min_class_samples), as_tuple=True)
    counts_n = counts_C[classes]
    if privacy is None:
        means_nD = sums_CD.cpu()[classes] / counts_n[:, None]
    else:
        means_nD = privacy.average(sums_CD[classes.to(sums_CD.device)], counts_n.to(sums_CD.device)).cpu()
    return LocalPrototypes(classes.numpy(), means_nD.float().numpy(), counts_n.numpy())


def find_sent_classes(counts_C: Tensor, min_class_samples: int) -> Tensor:
    """Finds the classes of which a client sends prototypes, bool[C]: those of a smaller class would be too close to its
    samples. `counts_C` are its samples of each class."""
    return counts_C >= max(1, min_class_samples)


def sum_by_class(z_ND: Tensor, y_N: Tensor, num_classes: int) -> Tensor:
    """Computes the sum of the embeddings of each class, float64[C, D]. A sample of no class is in none."""
    is_class_NC = y_N[:, None] == torch.arange(num_classes, device=z_ND.device)
    return is_class_NC.double().T @ z_ND.double()
