"""An example of a reader: a text file with a label and the pixels of a square image in each line.

    seven: 0 0 5 13 9 1 0 0 ...

Pixels are from 0 to 255. `data: {format: pixels, path: images.txt}` has it read, and with `transform: {own: stretched}`
each image uses all of the range from 0 to 1.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from fednode.plugin import ALL, DataError, DataSource, Part, Parts


def open_parts(source: DataSource) -> Parts:
    path = source.get_path()
    labels: list[str] = []
    rows: list[np.ndarray] = []
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        label, colon, pixels = line.partition(":")
        try:
            row = np.array(pixels.split(), dtype=np.uint8)
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path}:{i}: expected pixels from 0 to 255: {error}") from error
        if not colon or isqrt(len(row)) ** 2 != len(row) or (rows and len(row) != len(rows[0])):
            raise DataError(f"{path}:{i}: expected LABEL: and the pixels of a square image, as many as before")
        labels.append(label.strip())
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: expected a line for each image, got none")
    side = isqrt(len(rows[0]))
    x = np.stack(rows).reshape(-1, 1, side, side)
    return Parts(str(path), {ALL: Part.of_array(str(path), x, np.array(labels))})


def stretch(x: np.ndarray) -> np.ndarray:
    """Each image of x, float32 [N, C, H, W], from its darkest pixel to its brightest."""
    low = x.min((1, 2, 3), keepdims=True)
    high = x.max((1, 2, 3), keepdims=True)
    stretched: np.ndarray = (x - low) / np.maximum(high - low, np.float32(1 / 255))
    return stretched
