"""The bill of materials of a node: the two files that `cyclonedx-py` writes, as one (`make sbom`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.sbom import EnvironmentDiffers, encode, merge, summarise

HASHES = [{"alg": "SHA-256", "content": "ab" * 32}]


def make_locked(**versions: str) -> dict[str, Any]:
    """As of a lock: names as the index has them, hashes of all but torch, no licences."""
    components: list[dict[str, Any]] = []
    for name, version in versions.items():
        reference: dict[str, Any] = {"type": "distribution", "url": f"https://index.example/{name}/"}
        components.append(
            {
                "bom-ref": f"requirements-L{len(components)}",
                "name": name.replace("_", "-"),
                "version": version,
                "externalReferences": [reference if name == "torch" else reference | {"hashes": HASHES}],
            }
        )
    return {"components": components, "dependencies": [], "metadata": {}}


def make_installed(needs: dict[str, list[str]], **versions: str) -> dict[str, Any]:
    """As of an environment: who needs whom by name, from "root" on, and everyone's licence but numpy's."""
    components: list[dict[str, Any]] = []
    for name, version in versions.items():
        component: dict[str, Any] = {"bom-ref": f"{name}=={version}", "name": name, "version": version}
        component["externalReferences"] = [
            {"type": "website", "url": f"https://{name}.example"},
            {"type": "distribution", "url": f"file:///home/me/{name}"},
        ]
        components.append(component if name == "numpy" else {**component, "licenses": [{"license": {"id": "MIT"}}]})
    refs = {"root": "root", **{component["name"]: component["bom-ref"] for component in components}}
    return {
        "$schema": "https://schema.example",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"bom-ref": "root", "name": "fednode"}},
        "components": components,
        "dependencies": [
            {"ref": refs[name], "dependsOn": [refs[need] for need in needs.get(name, [])]} for name in refs
        ],
    }


LOCKED = make_locked(torch="2.0+cpu", numpy="1.5", typing_extensions="4.0")
VERSIONS = {"typing_extensions": "4.0", "torch": "2.0+cpu", "numpy": "1.5", "pytest": "9.0"}
NEEDS = {"root": ["pytest", "torch", "numpy"], "torch": ["typing_extensions"], "numpy": ["pytest"]}


def test_what_is_locked_has_hashes_licences_and_needs_and_what_is_not_is_left_out() -> None:
    bom = merge(LOCKED, make_installed(NEEDS, **VERSIONS))
    assert [component["name"] for component in bom["components"]] == ["numpy", "torch", "typing_extensions"]
    assert bom["components"][2] == {
        "bom-ref": "typing_extensions==4.0",
        "name": "typing_extensions",
        "version": "4.0",
        "licenses": [{"license": {"id": "MIT"}}],
        "externalReferences": [
            {"type": "distribution", "url": "https://index.example/typing_extensions/", "hashes": HASHES},
            {"type": "website", "url": "https://typing_extensions.example"},
        ],
    }
    assert bom["dependencies"] == [
        {"ref": "root", "dependsOn": ["numpy==1.5", "torch==2.0+cpu"]},
        {"ref": "numpy==1.5", "dependsOn": []},
        {"ref": "torch==2.0+cpu", "dependsOn": ["typing_extensions==4.0"]},
        {"ref": "typing_extensions==4.0", "dependsOn": []},
    ]
    assert bom["metadata"]["component"]["name"] == "fednode"
    assert "/home/me" not in encode(bom).decode()
    assert summarise(bom) == "3 components; without hashes: torch; without a licence: numpy"


def test_what_torch_alone_brings_is_part_of_it() -> None:
    needs = {**NEEDS, "torch": ["cusolver", "typing_extensions"], "cusolver": ["cublas"]}
    bom = merge(LOCKED, make_installed(needs, **VERSIONS, cusolver="13.0", cublas="13.1"))
    assert [component["name"] for component in bom["components"]] == [
        "cublas",
        "cusolver",
        "numpy",
        "torch",
        "typing_extensions",
    ]
    assert {"ref": "cusolver==13.0", "dependsOn": ["cublas==13.1"]} in bom["dependencies"]


def test_the_order_of_what_was_found_shows_in_no_byte() -> None:
    installed = make_installed(NEEDS, **VERSIONS)
    other = json.loads(json.dumps(installed))
    other["components"].reverse()
    other["dependencies"].reverse()
    for component in other["components"]:
        component["externalReferences"].reverse()
    for entry in other["dependencies"]:
        entry["dependsOn"].reverse()
    locked = {**LOCKED, "components": LOCKED["components"][::-1]}
    assert encode(merge(locked, other)) == encode(merge(LOCKED, installed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numpy": "1.6"}, "^expected numpy 1.5, got 1.6$"),
        ({"torch": "2.0"}, r"^expected torch 2.0\+cpu, got 2.0$"),
        ({"numpy": None, "typing_extensions": "4.1"}, "numpy 1.5, got none; expected typing-extensions 4.0, got 4.1"),
    ],
)
def test_nothing_is_said_of_an_environment_of_other_versions(change: dict[str, Any], message: str) -> None:
    versions = {name: version for name, version in {**VERSIONS, **change}.items() if version is not None}
    needs = {name: [need for need in those if need in versions] for name, those in NEEDS.items() if name != "numpy"}
    with pytest.raises(EnvironmentDiffers, match=message):
        merge(LOCKED, make_installed(needs, **versions))
