"""The method, the model and the settings that a new federation has by default, by the kind of its data. *Learning,
measured* in the docs has the table that they follow from.

A method's own defaults are its paper's, and `simulate` and the experiments keep them.

- No method learns from raw inputs: a table's largest feature dominates the others, or the first steps diverge; with
  grey levels that are all positive, networks of images stay at chance. With normalised inputs methods learn. Real sites
  agree on the mean and the deviation in their first round; a rehearsal on one data set measures them.
- On tables a model is trained one epoch a round in small steps of AdamW, and has a linear path: sites of a hundred rows
  then learn as much as logistic regression does, and larger ones more.
- Images are classified by prototypes of the averaged model, with a site's own samples beside them and some of its own
  prior: where sites have few classes each, an averaged classifier alone is worse than training alone.
- The pull of DFPL's Eq. (3) is a unit vector at any distance from a prototype. At lambda 1 it outweighs the first
  rounds' cross-entropy, and the embeddings of all classes collapse. A pull relative to the other prototypes, between
  embeddings of unit length, does not, and learns more than training alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ml.errors import SpecError
from ml.specs import METHODS
from ml.tasks import CLASSIFICATION, REGRESSION

AUTO = "auto"  # in place of the name of a method or a model: choose one that suits the data

Groups = Sequence[Mapping[str, Any]]  # each group of settings is used as a whole or not at all

RECOMMENDED: Mapping[str, Groups] = {"dfpl": [{"aux": "contrast", "normalize": True}]}
TABLE_STEPS: Groups = [{"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01}, {"local_epochs": 1}]
IMAGE_POOL: Groups = [
    {"lr": 0.03, "momentum": 0.9},
    *({"num_prototypes": 8}, {"reembed": True}, {"own_samples": 2000}, {"prior": 0.25}),
]
_NORMALISES = ("normalize", "mean", "std")

# Settings of new federations against lying members, where the method has them. Papers and experiments have none.
GUARDS: Mapping[str, Any] = {"aggregation": "trimmed_mean", "weight_cap": 4}
# Settings of new federations that protect the sites, whoever the members are: nothing is sent of a class with few
# samples, and a site's number of samples is sent rounded to a power of two.
CARE: Mapping[str, Any] = {"min_class_samples": 5, "weights": "bucketed"}
MIN_GUARDED = 4  # members: among fewer, none may lie


def choose_method(name: str, settings: Any, task: str, *, is_table: bool) -> Any:
    """Chooses genesis' `method` of this name under `settings`, with the settings recommended for such samples. Settings
    that are no mapping are returned as they are: whoever reads them refuses them."""
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
    """Chooses genesis' `model` of this name under `settings`, or one that suits such samples and the method."""
    if not isinstance(settings, Mapping):
        return settings
    if name == AUTO:
        is_wide = is_table and isinstance(method, Mapping) and _averages(method.get("name"))
        name = "wide_deep" if is_wide else "mlp"
    return {"name": name, **settings}


def _averages(name: Any) -> bool:
    """Says whether a method averages models without prototypes: those belong to classes, and such a method trains other
    tasks, too."""
    return name in METHODS and REGRESSION in METHODS[name].tasks


def _find_fitting(method: Mapping[str, Any], groups: Groups) -> dict[str, Any]:
    """Returns the settings of those groups that the method accepts and has not set. A method with a wrong setting gets
    none: whoever reads it refuses that setting by name."""
    found: dict[str, Any] = {}
    for group in groups if method["name"] in METHODS else ():
        if not any(key in method for key in group):
            with suppress(SpecError):
                METHODS[method["name"]].settings.from_mapping({**method, **found, **group})
                found |= group
    return found


def find_guards(method: Any, wanted: Mapping[str, Any] = GUARDS) -> dict[str, Any]:
    """Returns those of `wanted` that genesis' `method` accepts and does not set itself; none where it is no method."""
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
    """Returns the settings with which a federation of so many members begins: CARE and, where some may lie, GUARDS."""
    return find_guards(method, {**CARE, **GUARDS} if num_members >= MIN_GUARDED else CARE)


def recommend_input(settings: Any, normalize: str) -> Any:
    """Returns genesis' `input` settings, normalised in this way unless they set that themselves."""
    if settings is None:
        return {"normalize": normalize}
    if not isinstance(settings, Mapping) or is_told(settings):
        return settings
    return {**settings, "normalize": normalize}


def is_told(settings: Any) -> bool:
    """Says whether genesis' `input` settings set how samples are normalised."""
    return isinstance(settings, Mapping) and any(key in settings for key in _NORMALISES)
