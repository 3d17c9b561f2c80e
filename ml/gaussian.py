"""The Gaussian mechanism on a grid: adds noise to sums so that the last bits of floating point reveal nothing.

Noise that is added in floating point leaves traces of the sum in the last bits of the result (Mironov, *On Significance
of the Least Significant Bits for Differential Privacy*, 2012). Here both are rounded to multiples of g before they are
added,

    g (round(S / g) + round(z / g)),    z normal, of deviation sigma (C (1 + 2^-14) + g sqrt(P)),

with S the P sums, to which one sample contributes a length of at most C, and g a power of two between sigma C / 2^28
and twice that. As round(S / g) is whole, this is round((g round(S / g) + z) / g): a rounded value of the Gaussian
mechanism on sums on the grid, and rounding the result of a mechanism reveals no more. Rounding makes two sums differ by
at most g sqrt(P) more, and 2^-14 is more than the error in C of cutting samples in float32 and adding up to half a
million of them in float64: so sigma, which is counted, is that of the mechanism. Everything is exact in float64 while
the result is below 2^24 sigma C.

Two limits remain. z is as normal as float64 allows: its own rounding is about 2^-21 of g, so that the probability of a
multiple of g may be off by some millionth of itself. And no z is beyond 9.42 deviations. The accountant ignores both. A
discrete Gaussian (Canonne, Kamath and Steinke, 2020) would have no such limits, and needs exact whole numbers of any
size for every single draw.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ml.secret_stream import SecretStream

GRID_BITS = 28  # bits of sigma C
SLACK = 2.0**-14
_LEAST_EXPONENT = -900  # of sigma C: below it a grid might be zero
_CHUNK = {"cpu": 1 << 15}  # numbers at once, by device: so many stay in a cache and on one thread
_LARGE_CHUNK = 1 << 23


def add_noise(sums: Tensor, noise: float, length: float, stream: SecretStream) -> Tensor:
    """Returns float64 `sums` with noise of `noise` times `length`, the most that one sample contributes to all of
    them."""
    grid = math.ldexp(1.0, max(math.frexp(noise * length)[1], _LEAST_EXPONENT) - GRID_BITS)
    deviation = noise * (length * (1 + SLACK) + grid * math.sqrt(sums.numel()))
    hidden_P = sums.double().flatten().clone()
    for part in torch.split(hidden_P, _CHUNK.get(sums.device.type, _LARGE_CHUNK)):
        z = stream.draw_normals(len(part), sums.device)
        _round(part.div_(grid)).add_(_round(z.mul_(deviation / grid))).mul_(grid)
    return hidden_P.view(sums.shape)


def _round(values: Tensor) -> Tensor:
    """Rounds to whole numbers on the values' device; on a CPU by numpy, which also makes the normal numbers there."""
    if values.device.type != "cpu":
        return values.round_()
    array = values.numpy()
    np.rint(array, out=array)
    return values
