"""Terms added to cross-entropy: the distance of local prototypes from the global ones (ALGORITHMS §2.2), and of a model
from another (§9).

Legend: B samples of the mini-batch, D length of the embedding, C classes, P parameters. Gradients flow through z or w
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ml.payload import Array

FARTHEST = -1e30  # the logit of a class that nobody holds
EPSILON = 1e-12  # under the root of the norm, whose gradient is undefined at 0


@dataclass(frozen=True, slots=True, eq=False)
class GlobalPrototypes:
    """Holds the prototype of every class that someone holds: row i of `vectors` if held[i] is 1, zeros elsewhere."""

    vectors: Tensor  # [C, D]
    held: Tensor  # [C]
    classes: Tensor  # [C], all of them

    @classmethod
    def from_arrays(cls, classes: Array, prototypes: Array, num_classes: int, device: torch.device) -> GlobalPrototypes:
        """Spreads `classes` int64[n] and `prototypes` float32[n, D] over C rows."""
        rows = torch.tensor(classes)
        vectors_CD, held_C = torch.zeros(num_classes, prototypes.shape[1]), torch.zeros(num_classes)
        vectors_CD[rows] = torch.tensor(prototypes)
        held_C[rows] = 1
        return cls(vectors_CD.to(device), held_C.to(device), torch.arange(num_classes, device=device))

    def normalize(self) -> GlobalPrototypes:
        """Returns the prototypes at unit length."""
        return GlobalPrototypes(F.normalize(self.vectors, dim=1), self.held, self.classes)

    def to_tensors(self) -> dict[str, Tensor]:
        """Returns the prototypes as part of a loss's context."""
        return {"vectors": self.vectors, "held": self.held, "classes": self.classes}

    @classmethod
    def from_tensors(cls, context: Mapping[str, Tensor]) -> GlobalPrototypes:
        return cls(context["vectors"], context["held"], context["classes"])


def compute_prototype_loss(z_BD: Tensor, y_B: Tensor, target: GlobalPrototypes, kind: str = "l2") -> Tensor:
    """Computes R_k of Eq. (4), a scalar; 0 if no class of the batch has a global prototype.

    `l2` is the mean over those classes of the norm of the difference, `sq` of its square. `mse` is FedProto's: the mean
    over the batch and the dimensions of the squared difference, a sample without a global prototype counting 0.
    """
    z_BD = z_BD.float()  # autocast returns bfloat16
    if kind == "mse":
        difference_BD = z_BD - target.vectors[y_B]
        return (difference_BD.square() * target.held[y_B, None]).mean()
    with torch.no_grad():  # these depend on the labels alone; six operations remain below
        is_class_CB = target.classes[:, None] == y_B
        counts_C = is_class_CB.sum(1)
        mean_CB = is_class_CB / counts_C.clamp(min=1)[:, None]
        present_C = (counts_C > 0) * target.held
        weight_C = present_C / present_C.sum().clamp(min=1)
    with torch.autocast(z_BD.device.type, enabled=False):  # it would round what prototypes are compared by
        # p_B^i, Eq. (1) on the mini-batch, minus P^i
        difference_CD = torch.addmm(target.vectors, mean_CB, z_BD, beta=-1)
        squared_C = difference_CD.square().sum(1)
        distance_C = squared_C if kind == "sq" else (squared_C + EPSILON).sqrt()
        return distance_C.dot(weight_C)  # Eq. (4)


def compute_prototype_contrast(z_BD: Tensor, y_B: Tensor, target: GlobalPrototypes, tau: float) -> Tensor:
    """Computes DFPL's R_k with `aux: contrast`, a scalar: the cross-entropy of -||z - P^a||^2 / (2 tau) over the
    classes a that have a global prototype, in the mean over the samples whose own class has one; 0 if there is none."""
    with torch.autocast(z_BD.device.type, enabled=False):  # it would round what prototypes are compared by
        squared_BC = (z_BD.float()[:, None] - target.vectors).square().sum(2)
        logits_BC = torch.where(target.held > 0, -squared_BC / (2 * tau), FARTHEST)
        losses_B = -F.log_softmax(logits_BC, 1).gather(1, y_B[:, None])[:, 0]
        counted_B = target.held[y_B]
        return (losses_B * counted_B).sum() / counted_B.sum().clamp(min=1)


def compute_proximal_term(w_P: Tensor, anchor_P: Tensor) -> Tensor:
    """Computes FedProx's 1/2 * ||w - w_G||^2, a scalar."""
    return (w_P - anchor_P).square().sum() / 2
