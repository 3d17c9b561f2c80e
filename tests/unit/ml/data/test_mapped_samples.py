"""Samples in a file answer as the tensor of them does; only what asks for some of them reads no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ml.data.base import Images
from ml.data.fitted import FittedImages
from ml.data.mapped_samples import MappedSamples

CPU = torch.device("cpu")
NUM = 300


class Reads:
    """Samples that count how many of them were read."""

    def __init__(self) -> None:
        x = np.random.default_rng(0).integers(0, 256, (NUM, 3, 4, 4), np.uint8)
        self.count = 0
        self.mapped = MappedSamples(FittedImages.of(x, (3, 4, 4)), self._make, CPU)
        self.whole = torch.tensor(np.asarray(FittedImages.of(x, (3, 4, 4))))

    def _make(self, x: Images) -> Tensor:
        self.count += len(x)
        return torch.tensor(x)


@pytest.fixture
def reads() -> Reads:
    return Reads()


ROWS = torch.tensor([3, 1, 299, 3])


@pytest.mark.parametrize(
    ("ask", "num_read"),
    [
        (lambda x: x.index_select(0, ROWS), 4),
        (lambda x: x[ROWS], 4),
        (lambda x: x[torch.arange(NUM) < 7], 7),
        (lambda x: x[:5] + 0, 5),
        (lambda x: x[290:] + 0, 10),
        (lambda x: x[::100] + 0, 3),
        (lambda x: torch.split(x, 128)[1] + 0, 128),
        (lambda x: x.split([100, 200])[0] + 0, 100),
        (lambda x: x.detach()[:2] + 0, 2),
        (lambda x: torch.split(x[10:20], 4)[2] + 0, 2),
        (lambda x: x.flatten(1), NUM),
        (lambda x: torch.cat([x, x]), 2 * NUM),
        (lambda x: x.double().sum(0), NUM),
        (lambda x: nn.functional.conv2d(x[:3], torch.ones(2, 3, 3, 3)), 3),
    ],
)
def test_an_operation_gives_what_it_gives_of_a_tensor(
    reads: Reads, ask: Callable[[Tensor], Tensor], num_read: int
) -> None:
    got = ask(reads.mapped)
    assert type(got) is Tensor
    assert torch.equal(got, ask(reads.whole))
    assert reads.count == num_read


def test_what_describes_samples_reads_none(reads: Reads) -> None:
    mapped = reads.mapped
    assert (len(mapped), mapped.shape, mapped.dtype, mapped.device) == (NUM, (NUM, 3, 4, 4), torch.float32, CPU)
    assert (mapped[:1].numel(), mapped.element_size(), repr(mapped)) == (48, 4, "MappedSamples([300, 3, 4, 4])")
    assert len(mapped.pick(np.arange(5))) == 5
    assert reads.count == 0


def test_a_mean_over_samples_is_taken_in_chunks(reads: Reads) -> None:
    assert torch.allclose(reads.mapped.mean(0, keepdim=True), reads.whole.mean(0, keepdim=True), atol=1e-6)
    assert torch.allclose(reads.mapped.mean(0), reads.whole.mean(0), atol=1e-6)
    assert reads.count == 2 * NUM


def test_gradients_flow_through_samples_that_were_read(reads: Reads) -> None:
    gradients: list[Any] = []
    for x in (reads.mapped, reads.whole):
        layer = nn.Conv2d(3, 2, 3)
        with torch.no_grad():
            layer.weight.fill_(0.5)
            assert layer.bias is not None
            layer.bias.zero_()
        layer(x[:4]).square().sum().backward()
        gradients.append(layer.weight.grad)
    assert torch.equal(*gradients)
