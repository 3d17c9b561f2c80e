"""The settings that a new federation begins with where nobody says otherwise: those that learn on images and on tables
alike.

A method's own defaults are its paper's, and `simulate` and the experiments keep them. Measured on the digits and on
breast_cancer, 30 unscaled features, skewed over three sites:

- Inputs as they come stop every method: a table's largest feature drowns the others, or the first steps diverge; grey
  levels that are all positive hold networks of images at chance. Normalised inputs learn.
- The pull of DFPL's Eq. (3) is a unit vector at any distance from a prototype. At lambda 1 it outweighs the first
  rounds' cross-entropy, and all classes' embeddings fall together. At 0.1 they do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ml.errors import SpecError
from ml.specs import METHODS

RECOMMENDED: Mapping[str, Mapping[str, Any]] = {"dfpl": {"lambda": 0.1}}
# Of pixels in 0..1 that nobody can measure: they become -1..1.
MIDDLE_GREY: Mapping[str, Any] = {"mean": [0.5], "std": [0.5]}
_NORMALISES = ("normalize", "mean", "std")


def find_recommended(method: Any) -> dict[str, Any]:
    """The recommended settings that genesis' `method` does not have itself; none where it is no method."""
    if not isinstance(method, Mapping) or method.get("name") not in METHODS:
        return {}
    asked = {key: value for key, value in RECOMMENDED.get(method["name"], {}).items() if key not in method}
    with suppress(SpecError):  # what reads the method refuses it by name
        METHODS[method["name"]].settings.from_mapping({**method, **asked})
        return asked
    return {}


def recommend_input(settings: Any) -> Any:
    """Genesis' `input` settings, normalised by what is measured unless they say something of it themselves."""
    if settings is None:
        return {"normalize": "auto"}
    if not isinstance(settings, Mapping) or any(key in settings for key in _NORMALISES):
        return settings
    return {**settings, "normalize": "auto"}


def recommend_stated_input(shape: tuple[int, int, int], settings: Any) -> Mapping[str, Any]:
    """The mean and deviation of genesis' `input` where nobody has data to measure: nothing is known of features."""
    is_told = isinstance(settings, Mapping) and any(key in settings for key in _NORMALISES)
    if is_told or shape[1:] == (1, 1):
        return {"mean": [0.0], "std": [1.0]}
    return MIDDLE_GREY


def is_normalised(input_: Mapping[str, Any]) -> bool:
    """Whether genesis' `input` changes values at all."""
    return any(input_["mean"]) or any(std != 1 for std in input_["std"])
