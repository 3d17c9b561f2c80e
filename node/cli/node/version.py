"""`fednode version`: lists what is installed here."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

_LIBRARIES = ("torch", "numpy", "grpcio", "protobuf", "cryptography")


def register(app: typer.Typer) -> None:
    app.command("version")(show_version)


def show_version(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, with the libraries' versions.")] = False,
) -> None:
    """Print the version of fednode.

    Example: fednode version --json
    """
    if as_json:
        libraries = {name: get_version(name) for name in _LIBRARIES}
        facts = {"version": get_version("fednode"), "python": platform.python_version(), "libraries": libraries}
        print(json.dumps(facts))
    else:
        print(f"fednode {get_version('fednode')}")


def get_version(distribution: str) -> str | None:
    """Returns the installed version, read without importing anything; None when it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
