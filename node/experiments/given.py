"""The settings that a file gives for one point: `base` and a value of each axis, each with the place where it stood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ml.specs.sections import flatten
from node.config.yaml_source import Keys, suggest
from node.experiments.sections import ExperimentFile

Given = tuple[Any, Keys]  # a setting, and where it stands


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an axis: what it is called, what it sets, and where it stands in the file."""

    fact: Any
    sets: Mapping[str, Any]
    keys: Keys


@dataclass(slots=True)
class Part:
    """The settings of one method, or of one attack: those of its own entry, those for every one that has them, and
    swept ones."""

    own: dict[str, Given] = field(default_factory=dict)
    shared: dict[str, Given] = field(default_factory=dict)
    swept: dict[str, Given] = field(default_factory=dict)

    def choose(self, known: Iterable[str]) -> dict[str, Given]:
        """Returns all settings that apply to a method or attack with the settings `known`; of those given more than
        once, the last."""
        known = frozenset(known)
        given = _override({key: value for key, value in self.shared.items() if key in known}, self.own)
        return _override(given, {key: value for key, value in self.swept.items() if key in known})

    def list_given_twice(self) -> list[str]:
        """Lists the settings of its own entry that are swept as well."""
        return [key for key in self.swept if key in self.own]


@dataclass(slots=True)
class Settings:
    """The settings of a point, gathered from `base` and one value of each axis."""

    values: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    method: Part = field(default_factory=Part)
    attack: Part = field(default_factory=Part)
    model: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def gather(cls, file: ExperimentFile, chosen: Mapping[str, Value]) -> Settings:
        base = file.base
        parts = ("method", "attack")
        settings = cls({name: getattr(base, name) for name in type(base).model_fields if name not in parts})
        for name in parts:
            part: Part = getattr(settings, name)
            part.shared = _place(getattr(base, name), ("base", name))
        for axis, value in chosen.items():
            settings.facts[axis] = value.fact
            for name, given in value.sets.items():
                section, dot, key = name.partition(".")
                if section not in parts:
                    (settings.model if dot else settings.values)[key or name] = given
                    continue
                part = getattr(settings, section)
                if dot:
                    part.swept[key] = (given, value.keys)
                elif axis == "task":
                    part.shared = _override(part.shared, _place(given, (*value.keys, name)))
                else:
                    part.own = _place(given.get_settings(), value.keys)
        return settings


def _place(settings: Mapping[str, Any], keys: Keys) -> dict[str, Given]:
    """Returns settings with the keys that each was written at; those of sections get dotted keys."""
    return {key: (value, (*keys, *key.split("."))) for key, value in flatten(settings).items()}


def _override(given: dict[str, Given], stronger: Mapping[str, Given]) -> dict[str, Given]:
    """Returns both, the second before the first; local work in iterations replaces local work in epochs."""
    for key, other in (("local_iterations", "local_epochs"), ("local_epochs", "local_iterations")):
        if key in stronger and other not in stronger:
            given = {name: value for name, value in given.items() if name != other}
    return {**given, **stronger}


class Unused:
    """Settings that are meant for every method or attack (`what`) that has them, to find those that none has."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._places: dict[Keys, str] = {}
        self._used: set[Keys] = set()
        self._known: set[str] = set()

    def note(self, part: Part, known: Iterable[str]) -> None:
        """Notes the keys of `part` that apply to a method, or an attack, with the settings `known`."""
        known = frozenset(known)
        self._known |= known
        for key, (_, place) in {**part.shared, **part.swept}.items():
            self._places[place] = key
            if key in known:
                self._used.add(place)

    def list_problems(self) -> list[tuple[Keys, str]]:
        return [
            (place, f"no {self._what} here has such a setting.{suggest(key, self._known)}")
            for place, key in self._places.items()
            if place not in self._used
        ]
