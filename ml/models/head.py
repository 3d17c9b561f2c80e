"""`mlp_mnist` and `head_256`: MP-FedCL's head, on an encoder that is trained with it or frozen (ALGORITHMS §3, §6).

    v(x) = normalize(ReLU(FC1(e(x)))) in R^256        logits = FC2(v(x))

The embedding is v: prototypes are k-means centres of it, Eqs. (6) and (7). The classifier takes the same v, not the
features before normalisation: the table of §6 has [normalise] between the two layers, the network of FedPCL, which
MP-FedCL's numbers match, normalises there too, and f = h o g leaves no second way from x to the logits. With
`normalize: false` v is ReLU(FC1(e(x))) for both, as `mp.normalize: false` says.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.models.base import Model
from ml.models.resnet import ResNet18Body
from ml.specs.architectures.mlp import ENCODER_WIDTH, HEAD_WIDTH


class _Headed(Model):
    """A model with its encoder under `encoder.`, then fc1 and fc2 on its features [B, 512]."""

    def __init__(self, encoder: nn.Module, num_classes: int, *, normalize: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.fc1 = nn.Linear(ENCODER_WIDTH, HEAD_WIDTH)
        self.fc2 = nn.Linear(HEAD_WIDTH, num_classes)
        self._normalize = normalize

    def classify(self, z_BD: Tensor) -> Tensor:
        logits: Tensor = self.fc2(z_BD)
        return logits

    def _embed_features(self, features_BE: Tensor) -> Tensor:
        v_BD = F.relu(self.fc1(features_BE))
        return F.normalize(v_BD, dim=1) if self._normalize else v_BD


class MlpMnist(_Headed):
    """A model whose encoder is two layers of 512 with ReLU, on the flattened image."""

    encoder: _MlpEncoder

    def __init__(self, num_inputs: int, num_classes: int, *, normalize: bool = True) -> None:
        super().__init__(_MlpEncoder(num_inputs), num_classes, normalize=normalize)

    def embed(self, x: Tensor) -> Tensor:
        return self.embed_layers(x)[-1]

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        first = F.relu(self.encoder.fc1(x.flatten(1)))
        second = F.relu(self.encoder.fc2(first))
        return [first, second, self._embed_features(second)]


class _MlpEncoder(nn.Module):
    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(num_inputs, ENCODER_WIDTH)
        self.fc2 = nn.Linear(ENCODER_WIDTH, ENCODER_WIDTH)


class Head256(_Headed):
    """A model whose encoder is a ResNet18 fixed as in block 0: it stays in eval mode and without a gradient in all
    training. Its output for an image can be computed once."""

    frozen_prefix: ClassVar[str] = "encoder."
    encoder: ResNet18Body

    def __init__(self, channels: int, num_classes: int, *, normalize: bool = True) -> None:
        super().__init__(ResNet18Body(channels), num_classes, normalize=normalize)
        self.encoder.requires_grad_(False)
        self.encoder.eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.encoder.eval()
        return self

    def precompute(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return x
        with torch.no_grad():
            return self.encoder.average(x)

    def embed(self, x: Tensor) -> Tensor:
        return self._embed_features(self.precompute(x))
