"""The part of a model that does not train: `model.frozen` of any architecture, and the statistics that are frozen with
it.

    model: {name: resnet18, frozen: ["*", "!fc.*"]}

Each entry is a pattern of parameter names, in which `*` stands for any letters and `?` for one; with `!` in front it
removes names again. The last pattern that matches a name decides. What is frozen is in the initial model, and is never
sent again.

The running statistics of a module are frozen if all parameters of that module, or of one around it, are frozen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any

from ml.errors import SpecError
from ml.specs.architectures.layout import Layout

MAX_PATTERNS = 64

_PATTERN = re.compile(r"!?[A-Za-z0-9_.*?]{1,128}", re.ASCII)


def check_patterns(model: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns `model.frozen`, empty if it is not set. Raises SpecError."""
    if "frozen" not in model:
        return ()
    patterns = model["frozen"]
    if not isinstance(patterns, list | tuple) or not 1 <= len(patterns) <= MAX_PATTERNS:
        raise _fail(f"expected a list of 1 to {MAX_PATTERNS} patterns, got {patterns!r}")
    for pattern in patterns:
        if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
            raise _fail(f"expected names of parameters with * and ?, as in encoder.* or !fc.*, got {pattern!r}")
    return tuple(patterns)


def match_patterns(patterns: Sequence[str], names: Collection[str]) -> frozenset[str]:
    """Returns the names that are frozen. Raises SpecError for a pattern that matches nothing, or if none is left to
    train."""
    frozen: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern.removeprefix("!"))}
        if not matched:
            raise _fail(f"{pattern!r} matches no parameter: expected names such as {', '.join([*names][:3])}")
        frozen = frozen - matched if pattern.startswith("!") else frozen | matched
    if patterns and not frozen:
        raise _fail("expected some parameters to be frozen, got none")
    if frozen and len(frozen) == len(names):
        raise _fail("expected some parameters left to train, got none")
    return frozenset(frozen)


def list_resting(buffers: Iterable[str], parameters: Collection[str], frozen: Collection[str]) -> tuple[str, ...]:
    """Lists the buffers of modules whose parameters are all among `frozen`."""
    is_still = cache(partial(_is_still, parameters, frozen))
    return tuple(name for name in buffers if any(map(is_still, _list_modules(name))))


def freeze_layout(layout: Layout, patterns: Sequence[str]) -> Layout:
    """Returns the layout with what `patterns` name, and the statistics that are frozen with it, moved to its frozen
    part. Raises SpecError."""
    if not patterns:
        return layout
    still = match_patterns(patterns, layout.parameters)
    resting = list_resting(layout.buffers, layout.parameters, still)
    everything = {**layout.parameters, **layout.buffers}
    gone = still.union(resting)
    return replace(
        layout,
        parameters={name: shape for name, shape in layout.parameters.items() if name not in gone},
        buffers={name: shape for name, shape in layout.buffers.items() if name not in gone},
        frozen={**layout.frozen, **{name: shape for name, shape in everything.items() if name in gone}},
        classifier=tuple(name for name in layout.classifier if name not in gone),
        stem=() if gone.intersection(layout.stem) else layout.stem,
    )


def _list_modules(name: str) -> list[str]:
    """Lists the modules around an array, the innermost first; the model itself is none of them."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _is_still(parameters: Collection[str], frozen: Collection[str], module: str) -> bool:
    own = [name for name in parameters if name.startswith(f"{module}.")]
    return bool(own) and all(name in frozen for name in own)


def _fail(message: str) -> SpecError:
    return SpecError("model.frozen", message)
