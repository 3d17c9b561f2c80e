"""The stream of secret numbers: the key stream of AES-256 in counter mode, under a key of 256 random bits.

All numbers that hide something are drawn from it: noise, and the choice of samples for a step. Knowing some of these
numbers, or sums with them, helps to compute none of the others. Generators of torch and numpy do not promise that:
torch's for a CPU keeps 32 bits of its seed, so that trying all of them finds it, and none is made to resist a search
for its state.

Normal numbers are computed by Box and Muller (*A Note on the Generation of Random Normal Deviates*, 1958), from two
words w and v of 64 bits each,

    r = sqrt(-2 ln((w mod 2^63 + 1/2) / 2^63)),    r cos(pi v / 2^63)  and  r sin(pi v / 2^63),

in float64: none is beyond 9.42, which a true normal number exceeds with a probability of 2^-67. The words are made on
the host and sent to a GPU, which turns them into normal numbers.
"""

from __future__ import annotations

import math
import os
from typing import Self

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

KEY_BYTES = 32
BLOCK_BYTES = 16  # block size of AES
WORD_BYTES = 8
_POSITIVE = (1 << 63) - 1
_ZEROS = bytes(1 << 20)


class SecretStream:
    """A stream of random numbers that only the key determines. No two streams that hide anything have the same key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key: expected {KEY_BYTES} bytes, got {len(key)}")
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(BLOCK_BYTES))).encryptor()

    @classmethod
    def fresh(cls) -> Self:
        """Makes a stream with a key of its own, from the system's randomness."""
        return cls(os.urandom(KEY_BYTES))

    def draw_words(self, count: int) -> NDArray[np.int64]:
        """Draws whole numbers of 64 bits, each equally likely."""
        num_bytes = count * WORD_BYTES
        buffer = np.empty(num_bytes + BLOCK_BYTES, np.uint8)  # with the room that the cipher needs
        for start in range(0, num_bytes, len(_ZEROS)):
            zeros = memoryview(_ZEROS)[: min(len(_ZEROS), num_bytes - start)]
            self._encryptor.update_into(zeros, buffer.data[start : start + len(zeros) + BLOCK_BYTES])
        return buffer[:num_bytes].view("<i8")

    def random(self, count: int) -> NDArray[np.float64]:
        """Draws multiples of 2^-53 from 0 to below 1, each equally likely."""
        return np.ldexp((self.draw_words(count).view("<u8") >> np.uint64(11)).astype(np.float64), -53)

    def draw_normals(self, count: int, device: torch.device) -> Tensor:
        """Draws normal numbers, float64[count] on the device."""
        words = self.draw_words(count + count % 2)
        if device.type == "cpu":
            return torch.from_numpy(_make_normals(words)[:count])
        return _make_normals_there(torch.from_numpy(words).to(device))[:count]


def _make_normals(words: NDArray[np.int64]) -> NDArray[np.float64]:
    """Makes as many normal numbers as there are words. Uses numpy on the calling thread: on a busy machine torch's
    threads wait for each other, which took many times as long."""
    w, v = np.split(words, 2)
    radii = np.sqrt(-2.0 * np.log(((w & _POSITIVE) + 0.5) * 2.0**-63))
    angles = v * (math.pi * 2.0**-63)
    return np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])


def _make_normals_there(words: Tensor) -> Tensor:
    """Makes as many normal numbers as there are words, on the words' device."""
    w, v = words.chunk(2)
    radii = (((w & _POSITIVE).double() + 0.5) * 2.0**-63).log_().mul_(-2.0).sqrt_()
    angles = v.double() * (math.pi * 2.0**-63)
    return torch.cat([radii * angles.cos(), radii * angles.sin()])
