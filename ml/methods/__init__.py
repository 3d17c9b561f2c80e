"""The training of each method. A method is imported when it is first made, since methods need torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ml.errors import SpecError, suggest
from ml.specs.methods import METHODS

if TYPE_CHECKING:
    from ml.methods.base import Method
    from ml.specs import MethodSpec


def make_method(spec: MethodSpec) -> Method:
    """Returns the method of this spec: for `MoonSpec` of `ml.specs.methods.moon` that is `Moon` of `ml.methods.moon`.
    Raises SpecError for a spec that has no training here."""
    room, _, file = type(spec).__module__.rpartition(".")
    place = spec.training or f"ml.methods.{file}:{type(spec).__name__.removesuffix('Spec')}"
    if not spec.training and room != "ml.specs.methods":
        raise SpecError("method.name", f"unknown method {spec.name!r}: {suggest(spec.name, METHODS)}")
    module, _, name = place.partition(":")
    try:
        method: Method = getattr(import_module(module), name)(spec)
    except (ImportError, AttributeError) as error:
        if not spec.training:
            raise
        raise SpecError("method.name", f"importing {place}: {type(error).__name__}: {error}") from error
    return method
