"""Sources of data by the name of their format, and the partitions that rehearse a federation on one of them.

Numpy only; torch is imported where an image has to be resized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ml.data.base import ArrayDataset, InputFormat
from ml.data.digits import CLASSES as DIGITS_CLASSES
from ml.data.digits import NATIVE_SIZE as DIGITS_SIZE
from ml.data.digits import load_digits
from ml.errors import DataError, suggest

Split = tuple[ArrayDataset, ArrayDataset]


def load_dataset(data: Mapping[str, Any], input_: Mapping[str, Any]) -> Split:
    """The (training, test) sets of `data.format`, as the model of this `input` takes them. Raises DataError."""
    wanted = InputFormat.from_mapping(input_)
    train, test = _LOADERS[get_format(data)](wanted)
    return (
        ArrayDataset(wanted.normalise(train.x), train.y, train.classes),
        ArrayDataset(wanted.normalise(test.x), test.y, test.classes),
    )


def get_format(data: Mapping[str, Any]) -> str:
    """`data.format`, known. Raises DataError."""
    name = data.get("format", "digits")
    if not isinstance(name, str) or name not in _LOADERS:
        raise DataError(f"data.format: unknown format {name!r}: {suggest(str(name), _LOADERS)}")
    return name


def get_classes(name: str) -> tuple[str, ...]:
    """What genesis's `classes` are for a format whose classes are known in advance. Raises DataError."""
    return _CLASSES[get_format({"format": name})]


def get_default_input(name: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Genesis's `input` for a format and a model: the data's own size unless the model takes only another one."""
    height, width = _SIZES[get_format({"format": name})]
    fixed = _MODEL_SIZES.get(str(model.get("name")))
    if fixed is None or fixed == (height, width):
        return {"shape": [1, height, width], "resize": None, "mean": [0.0], "std": [1.0]}
    return {"shape": [1, *fixed], "resize": list(fixed), "mean": [0.0], "std": [1.0]}


def _load_digits(wanted: InputFormat) -> Split:
    channels, height, width = wanted.shape
    if channels not in (1, 3):
        raise DataError(f"input.shape: digits come in 1 or 3 channels, got {channels}")
    return load_digits((height, width), grayscale=channels == 1)


_LOADERS: dict[str, Callable[[InputFormat], Split]] = {"digits": _load_digits}
_CLASSES: dict[str, tuple[str, ...]] = {"digits": DIGITS_CLASSES}
_SIZES: dict[str, tuple[int, int]] = {"digits": DIGITS_SIZE}
_MODEL_SIZES: dict[str, tuple[int, int]] = {"cnn_mnist": (28, 28)}
