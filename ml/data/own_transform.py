"""A transform of a site's own: a plugin's function that is applied to every sample, in training, in tests and in
requests to the model.

    def transform(x):      # float32 [N, C, H, W] as genesis' input has it, yet to be normalised: pixels in 0..1,
        ...                # or features as they are
        return x           # of the same type and shape

`data: {transform: {own: NAME}}` names an entry point in `fednode.transforms`. It is this site's own: no other node runs
it, and it is not sent to any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ml.data.base import Images
from ml.data.fit_input import round_to_bytes
from ml.data.readers.images import ImageRules
from ml.errors import DataError
from ml.plugins import PluginRefused, Plugins

Transform = Callable[[Images], Images]


def load_transform(data: Mapping[str, Any]) -> Transform:
    """Returns the transform that `data` names, from one of its `plugins`; `keep` where it names none. Raises
    DataError."""
    name = (data.get("transform") or {}).get("own")
    if name is None:
        return keep
    plugins = Plugins.of(data.get("plugins") or ())
    try:
        function = plugins.load(plugins.find("transforms", str(name)))
    except PluginRefused as error:
        raise DataError(f"data.transform.own: {error}") from error
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        raise DataError(f"data.transform.own: {name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise DataError(f"data.transform.own: {name}: expected a function, got {function!r}")

    def transform(x: Images) -> Images:
        try:
            made = function(x.copy())
        except (Exception, SystemExit) as error:  # a plugin's code may raise anything
            raise DataError(f"data.transform.own: {name}: {type(error).__name__}: {error}") from error
        if not isinstance(made, np.ndarray) or (made.dtype, made.shape) != (x.dtype, x.shape):
            got = f"{made.dtype} {list(made.shape)}" if isinstance(made, np.ndarray) else type(made).__name__
            raise DataError(f"data.transform.own: {name}: expected {x.dtype} {list(x.shape)}, got {got}")
        return made

    return transform


def load_asked(data: Mapping[str, Any]) -> Transform:
    """Returns the transform for samples in a request to a model: that of `load_transform`, after rounding images to 8
    bits where the site's own are 8-bit. Raises DataError."""
    transform = load_transform(data)
    if not ImageRules.from_mapping(data.get("images")).is_rounded:
        return transform

    def round_first(x: Images) -> Images:
        is_table = x.shape[2:] == (1, 1)
        return transform(x if is_table else round_to_bytes(x).astype(np.float32) / np.float32(255))

    return round_first


def keep(x: Images) -> Images:
    """Returns the samples unchanged."""
    return x
