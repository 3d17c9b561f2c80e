"""The settings that a new federation begins with where nobody says otherwise: those that learn on images and on tables
alike.

A method's own defaults are its paper's, and `simulate` and the experiments keep them. Measured on the digits and on
breast_cancer, 30 unscaled features, skewed over three sites:

- Inputs as they come stop every method: a table's largest feature drowns the others, or the first steps diverge; grey
  levels that are all positive hold networks of images at chance. Normalised inputs learn. Real sites agree on the mean
  and the deviation in their first round; a rehearsal on one data set measures them.
- The pull of DFPL's Eq. (3) is a unit vector at any distance from a prototype. At lambda 1 it outweighs the first
  rounds' cross-entropy, and all classes' embeddings fall together. A pull relative to the other prototypes, between
  embeddings of unit length, does not, and learns more than training alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ml.errors import SpecError
from ml.specs import METHODS

RECOMMENDED: Mapping[str, Mapping[str, Any]] = {"dfpl": {"aux": "contrast", "normalize": True}}
_NORMALISES = ("normalize", "mean", "std")


def find_recommended(method: Any) -> dict[str, Any]:
    """The recommended settings of genesis' `method`; none where it has one of them itself, as they belong together, or
    where it is no method."""
    if not isinstance(method, Mapping) or method.get("name") not in METHODS:
        return {}
    asked = dict(RECOMMENDED.get(method["name"], {}))
    if any(key in method for key in asked):
        return {}
    with suppress(SpecError):  # what reads the method refuses it by name
        METHODS[method["name"]].settings.from_mapping({**method, **asked})
        return asked
    return {}


def recommend_input(settings: Any, normalize: str) -> Any:
    """Genesis' `input` settings, normalised in this way unless they say something of it themselves."""
    if settings is None:
        return {"normalize": normalize}
    if not isinstance(settings, Mapping) or is_told(settings):
        return settings
    return {**settings, "normalize": normalize}


def is_told(settings: Any) -> bool:
    """Whether genesis' `input` settings say how samples are normalised."""
    return isinstance(settings, Mapping) and any(key in settings for key in _NORMALISES)
