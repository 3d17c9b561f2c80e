"""`vgg11` with torchvision's names for its convolutions, UA-PDFL's (ALGORITHMS §6).

Simonyan, Zisserman, *Very Deep Convolutional Networks for Large-Scale Image Recognition*, 2015. Initialised as
torchvision does: convolutions normal with fan-out, linear layers normal with 0.01, biases at 0, batch norm at 1 and 0.
"""

from __future__ import annotations

from torch import Tensor, nn

from ml.models.base import Model, average_maps
from ml.models.batch_norm import BatchNorm2d
from ml.models.resnet import initialise_convolutions
from ml.specs.architectures.vgg import CLASSIFIER_WIDTH, GROUPS

LEAVING = 2  # modules at the end of the wide classifier: a dropout, and the last Linear


class Vgg11(Model):
    """A VGG11. g is `features` and the average of its last maps, 512; h is `classifier`, one linear layer or three."""

    def __init__(self, channels: int, num_classes: int, *, batch_norm: bool = False, wide: bool = False) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        inputs = channels
        for group in GROUPS:
            for width in group:
                modules.append(nn.Conv2d(inputs, width, 3, padding=1))
                modules += [BatchNorm2d(width)] * batch_norm + [nn.ReLU()]
                inputs = width
            modules.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*modules)
        self.classifier = _make_classifier(inputs, num_classes) if wide else nn.Linear(inputs, num_classes)
        initialise_convolutions(self)
        for module in self.classifier.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def embed(self, x: Tensor) -> Tensor:
        return average_maps(self.features(x))

    def embed_layers(self, x: Tensor) -> list[Tensor]:
        layers = []
        for module in self.features:
            x = module(x)
            if isinstance(module, nn.MaxPool2d):
                layers.append(average_maps(x))
        return layers

    def classify(self, z_BD: Tensor) -> Tensor:
        logits: Tensor = self.classifier(z_BD)
        return logits

    def enter_slot(self, z_BD: Tensor) -> Tensor:
        if isinstance(self.classifier, nn.Linear):
            return z_BD
        s_BS: Tensor = self.classifier[:-LEAVING](z_BD)
        return s_BS

    def leave_slot(self, s_BS: Tensor) -> Tensor:
        if isinstance(self.classifier, nn.Linear):
            return self.classify(s_BS)
        logits: Tensor = self.classifier[-LEAVING:](s_BS)
        return logits


def _make_classifier(inputs: int, num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, CLASSIFIER_WIDTH),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(CLASSIFIER_WIDTH, CLASSIFIER_WIDTH),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(CLASSIFIER_WIDTH, num_classes),
    )
