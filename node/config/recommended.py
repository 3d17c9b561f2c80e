"""The method, the model and the settings that a new federation begins with where nobody says otherwise, by the kind of
its data. Learning, measured, in the docs has the table that they follow from.

A method's own defaults are its paper's, and `simulate` and the experiments keep them.

- Inputs as they come stop every method: a table's largest feature drowns the others, or the first steps diverge; grey
  levels that are all positive hold networks of images at chance. Normalised inputs learn. Real sites agree on the mean
  and the deviation in their first round; a rehearsal on one data set measures them.
- Of a table, whatever trains a model does so an epoch a round in small steps of AdamW, and the model has a linear path:
  sites of a hundred rows then learn what logistic regression does, and larger ones more.
- Images are told apart by prototypes of the averaged model, with a site's own samples beside them and some of its own
  prior: where sites have few classes each, an averaged classifier alone is worse than training alone.
- The pull of DFPL's Eq. (3) is a unit vector at any distance from a prototype. At lambda 1 it outweighs the first
  rounds' cross-entropy, and all classes' embeddings fall together. A pull relative to the other prototypes, between
  embeddings of unit length, does not, and learns more than training alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ml.errors import SpecError
from ml.specs import METHODS
from ml.tasks import CLASSIFICATION, REGRESSION

AUTO = "auto"  # in the place of the name of a method or a model: what suits the data

Groups = Sequence[Mapping[str, Any]]  # settings that say something together alone

RECOMMENDED: Mapping[str, Groups] = {"dfpl": [{"aux": "contrast", "normalize": True}]}
TABLE_STEPS: Groups = [{"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01}, {"local_epochs": 1}]
IMAGE_POOL: Groups = [
    {"lr": 0.03, "momentum": 0.9},
    *({"num_prototypes": 8}, {"reembed": True}, {"own_samples": 2000}, {"prior": 0.25}),
]
_NORMALISES = ("normalize", "mean", "std")

# What sites begin with against lying members, as far as their method takes it; papers, and what tries them, do without.
GUARDS: Mapping[str, Any] = {"aggregation": "trimmed_mean", "weight_cap": 4}
# What sites begin with for their own sake, whoever the members are: of a class with few samples nothing leaves, and how
# many samples a site has is told to a power of two.
CARE: Mapping[str, Any] = {"min_class_samples": 5, "weights": "bucketed"}
MIN_GUARDED = 4  # members: of fewer, none may lie


def choose_method(name: str, settings: Any, task: str, *, is_table: bool) -> Any:
    """Chooses genesis' `method` of this name under `settings`, with what is recommended for such samples. What is no
    method stays as it is, for whoever reads it to refuse."""
    if not isinstance(settings, Mapping):
        return settings
    if name != AUTO:
        groups = RECOMMENDED.get(name) or (TABLE_STEPS if is_table and _averages(name) else [])
    elif is_table or task != CLASSIFICATION:
        name, groups = "fedavg", TABLE_STEPS if is_table else []
    else:
        name, groups = "mpfedcl", IMAGE_POOL
    return {"name": name, **settings, **_find_fitting({"name": name, **settings}, groups)}


def choose_model(name: str, settings: Any, method: Any, *, is_table: bool) -> Any:
    """Chooses genesis' `model` of this name under `settings`, or what suits such samples and the method."""
    if not isinstance(settings, Mapping):
        return settings
    if name == AUTO:
        is_wide = is_table and isinstance(method, Mapping) and _averages(method.get("name"))
        name = "wide_deep" if is_wide else "mlp"
    return {"name": name, **settings}


def _averages(name: Any) -> bool:
    """Tells whether a method knows of no prototypes: those are of classes, and it trains other tasks, too."""
    return name in METHODS and REGRESSION in METHODS[name].tasks


def _find_fitting(method: Mapping[str, Any], groups: Groups) -> dict[str, Any]:
    """Finds those of the groups that the method takes, and none of which it has already. A method with a wrong setting
    takes none: what reads it refuses that by name."""
    found: dict[str, Any] = {}
    for group in groups if method["name"] in METHODS else ():
        if not any(key in method for key in group):
            with suppress(SpecError):
                METHODS[method["name"]].settings.from_mapping({**method, **found, **group})
                found |= group
    return found


def find_guards(method: Any, wanted: Mapping[str, Any] = GUARDS) -> dict[str, Any]:
    """Those of `wanted` that genesis' `method` takes and does not set itself; none where it is no method."""
    if not isinstance(method, Mapping) or method.get("name") not in METHODS:
        return {}
    settings, guards = METHODS[method["name"]].settings, dict[str, Any]()
    for key, value in wanted.items():
        if key not in method:
            with suppress(SpecError):
                settings.from_mapping({**method, **guards, key: value})
                guards[key] = value
    return guards


def choose_guards(method: Any, num_members: int) -> dict[str, Any]:
    """Finds what a federation of so many members begins with, of CARE and, where some may lie, of GUARDS."""
    return find_guards(method, {**CARE, **GUARDS} if num_members >= MIN_GUARDED else CARE)


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
