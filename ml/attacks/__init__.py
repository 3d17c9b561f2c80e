"""Attacks: members that lie in a simulation, by what they send instead of what they have learned (SECURITY §6).

    label_flip               trains on samples of other labels                  any method
    sign_flip                reverses what it has learned                       models, prototypes
    scaled_update            sends ten times what it has learned                models, prototypes
    noise                    random changes                                     models, prototypes
    huge                     finite and absurd numbers                          models, prototypes
    little                   slightly wrong in every element                    models, prototypes
    inner_product            against the honest members' direction              models, prototypes
    shifted_prototypes       prototypes, moved                                  prototypes
    mislabelled_prototypes   prototypes, under the names of other classes       prototypes
    poisoned_set             wrong labels or noise in the encrypted set         fededs
    silent                   sends nothing                                      any method

`ml.attacks.base` has the threat model; `ml.simulation.liars` runs an attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.attacks.base import Attack
from ml.attacks.collusion import InnerProduct, Little
from ml.attacks.labels import LabelFlip, MislabelledPrototypes
from ml.attacks.sets import PoisonedSet
from ml.attacks.silence import Silent
from ml.attacks.updates import Huge, Noise, ScaledUpdate, ShiftedPrototypes, SignFlip
from ml.errors import SpecError, suggest
from ml.specs import MethodSpec

__all__ = ["ATTACKS", "Attack", "check_fits", "make_attack", "read_attack"]

ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        LabelFlip,
        SignFlip,
        ScaledUpdate,
        Noise,
        Huge,
        Little,
        InnerProduct,
        ShiftedPrototypes,
        MislabelledPrototypes,
        PoisonedSet,
        Silent,
    )
}


def read_attack(mapping: Mapping[str, Any]) -> Attack:
    """Returns the attack that `mapping` names, with its settings. Raises SpecError."""
    name = mapping.get("name")
    if not isinstance(name, str) or name not in ATTACKS:
        hint = suggest(name, ATTACKS) if isinstance(name, str) else f"expected one of {', '.join(ATTACKS)}"
        raise SpecError("attack.name", f"unknown attack {name!r}: {hint}")
    return ATTACKS[name].from_mapping(mapping)


def make_attack(mapping: Mapping[str, Any], spec: MethodSpec, num_clients: int) -> Attack:
    """Returns the attack that `mapping` names, on `num_clients` that follow `spec`. Raises SpecError where it makes no
    sense there."""
    attack = read_attack(mapping)
    attack.check_liars(num_clients)
    check_fits(attack, spec)
    return attack


def check_fits(attack: Attack, spec: MethodSpec) -> None:
    """Raises SpecError for an attack that is impossible in this method, and names those that are possible."""
    if spec.sends_changes:
        raise SpecError("method.model_dtype", "expected float32 where some lie: attacks are on whole models")
    if attack.applies_to(spec):
        attack.check_claims(spec)
        return
    fit = [name for name, other in ATTACKS.items() if other().applies_to(spec)]
    if not fit:
        why = f"expected none, for members of {spec.name} send nothing that could be a lie; got {attack.name}"
    else:
        why = f"{attack.name} changes nothing that members of {spec.name} send: expected one of {', '.join(fit)}"
    raise SpecError("attack.name", why)
