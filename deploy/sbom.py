"""The parts of a node, as one CycloneDX file of the two that `cyclonedx-py` writes; `make sbom` runs it.

    python deploy/sbom.py LOCKED INSTALLED OUT

LOCKED is of deploy/requirements.txt and torch's line: which versions, and the hashes of the files that pip takes for
them. INSTALLED is of an environment with these: their licences, where they come from, and what stands on what, also
where that is optional. OUT has the components of the first, each as the second describes it and with the hashes, and
besides what torch alone brings: CUDA's libraries, where it is the build for those. Equal inputs give equal bytes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Bom = Mapping[str, Any]
Component = Mapping[str, Any]

TORCH = "torch"


class EnvironmentDiffers(Exception):
    """The environment does not have what is locked; the text says what it should have, and has."""


def merge(locked: Bom, installed: Bom) -> dict[str, Any]:
    """The components of `locked`, and what torch alone stands on, as `installed` has them, with the hashes of `locked`.

    Raises EnvironmentDiffers, since a licence is known of the version that was looked at and of no other.
    """
    wanted, found = _by_name(locked["components"]), _by_name(installed["components"])
    different = [
        f"expected {name} {component['version']}, got {found[name]['version'] if name in found else 'none'}"
        for name, component in sorted(wanted.items())
        if name not in found or found[name]["version"] != component["version"]
    ]
    if different:
        raise EnvironmentDiffers("; ".join(different))
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in installed["dependencies"]}
    refs = {found[name]["bom-ref"] for name in wanted}
    kept = refs | _find_brought(needs, refs, found[TORCH]["bom-ref"])
    root = installed["metadata"]["component"]["bom-ref"]
    return {
        "$schema": installed["$schema"],
        "bomFormat": installed["bomFormat"],
        "specVersion": installed["specVersion"],
        "version": 1,
        "metadata": installed["metadata"],
        "components": [
            _describe(component, wanted.get(name))
            for name, component in sorted(found.items())
            if component["bom-ref"] in kept
        ],
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(kept.intersection(needs.get(ref, [])))} for ref in (root, *sorted(kept))
        ],
    }


def _find_brought(needs: Mapping[str, Iterable[str]], locked: set[str], torch: str) -> set[str]:
    """What torch stands on, and what that stands on, as far as it is not locked by itself."""
    brought: set[str] = set()
    open_ = [torch]
    while open_:
        new = set(needs.get(open_.pop(), [])) - locked - brought
        brought |= new
        open_.extend(new)
    return brought


def _describe(installed: Component, locked: Component | None) -> dict[str, Any]:
    """A component as it is installed, with the hashes that it is locked by, and without paths of this machine."""
    known = [one for one in installed.get("externalReferences", []) if not one["url"].startswith("file:")]
    hashed = [one for one in (locked or {}).get("externalReferences", []) if "hashes" in one]
    return {**installed, "externalReferences": sorted(known + hashed, key=json.dumps)}


def _by_name(components: Iterable[Component]) -> dict[str, Component]:
    """Components by their names as an index compares them."""
    return {re.sub(r"[-_.]+", "-", component["name"]).lower(): component for component in components}


def encode(bom: Bom) -> bytes:
    return (json.dumps(bom, indent=2, sort_keys=True) + "\n").encode()


def summarise(bom: Bom) -> str:
    """A summary in a line: the number of components, and those without hashes or a licence."""
    components = bom["components"]
    unhashed = [c["name"] for c in components if not any("hashes" in one for one in c["externalReferences"])]
    unlicensed = [c["name"] for c in components if not c.get("licenses")]
    lacking = f"without hashes: {', '.join(unhashed) or 'none'}; without a licence: {', '.join(unlicensed) or 'none'}"
    return f"{len(components)} components; {lacking}"


def validate(data: bytes) -> None:
    """Against CycloneDX's schema, by the library that comes with `cyclonedx-py`. Raises ValueError."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    version = SchemaVersion.from_version(json.loads(data)["specVersion"])
    if (error := JsonStrictValidator(version).validate_str(data.decode())) is not None:
        raise ValueError(f"the merged file is no CycloneDX: {error}")


def main(locked: str, installed: str, out: str) -> None:
    try:
        bom = merge(json.loads(Path(locked).read_bytes()), json.loads(Path(installed).read_bytes()))
    except EnvironmentDiffers as error:
        sys.exit(f"the environment is not as locked (ENVIRONMENT, and docs/deploy/image.md): {error}")
    data = encode(bom)
    validate(data)
    Path(out).write_bytes(data)
    print(f"{out}: {summarise(bom)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
