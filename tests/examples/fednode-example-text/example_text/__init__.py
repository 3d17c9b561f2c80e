"""An example of a tokeniser: samples are texts, and a model gets how often words occur in them.

A text is a row of LENGTH numbers, its letters in UTF-8 and zeros after them, as `encode_texts` makes it. With
`data: {transform: {own: words}}` each row becomes as many counts: of the words that fall into each place by their hash.
So there is no vocabulary that sites would have to agree on, and none that a site could tell something by.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

LENGTH = 256  # letters of a text; genesis has `input.shape: [256, 1, 1]`

_WORD = re.compile(r"\w+")


def encode_texts(texts: Sequence[str]) -> np.ndarray:
    """float32 [N, LENGTH], for an .npz; of longer texts the beginning."""
    rows = [text.encode()[:LENGTH].ljust(LENGTH, b"\0") for text in texts]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, LENGTH).astype(np.float32)


def tokenise(text: str) -> list[str]:
    """The words, in lower case."""
    return _WORD.findall(text.lower())


def count_words(x: np.ndarray) -> np.ndarray:
    """Of texts, float32 [N, LENGTH, 1, 1], the counts of their words, of the same type and shape."""
    counts = np.zeros_like(x)
    for i, row in enumerate(x.reshape(len(x), -1)):
        text = row.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="ignore")
        for word in tokenise(text):
            counts[i, zlib.crc32(word.encode()) % x.shape[1]] += 1
    return counts
