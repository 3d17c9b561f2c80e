"""The Gaussian mechanism on a grid: sums behind noise, without the last bits that floating point would tell them by.

Noise that is added in floating point leaves traces of the sum in the last bits of what comes out (Mironov, *On
Significance of the Least Significant Bits for Differential Privacy*, 2012). Here both are rounded to multiples of g
before they are added,

    g (round(S / g) + round(z / g)),    z normal, of deviation sigma (C (1 + 2^-14) + g sqrt(P)),

with S the P sums, in which one sample has a length of C at most, and g a power of two between sigma C / 2^28 and twice
that. As round(S / g) is whole, this is round((g round(S / g) + z) / g): a rounded value of the Gaussian mechanism on
sums on the grid, and rounding what comes of a mechanism tells no more. Rounding sums makes two of them differ by no
more than g sqrt(P) besides, and the 2^-14 is more than what cutting samples in float32 and adding up to half a million
of them in float64 makes of C: so sigma, which is counted, is that of the mechanism. Everything is exact in float64
while what comes out is below 2^24 sigma C.

What stays: z is as normal as float64 has it. Its own rounding is 2^-21 of g or so, so that the chance of a multiple of
g may be off by some millionth of itself, and nothing is beyond 9.42 deviations. The accountant knows neither. A
discrete Gaussian (Canonne, Kamath and Steinke, 2020) would have no such limits, and takes exact whole numbers of any
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
