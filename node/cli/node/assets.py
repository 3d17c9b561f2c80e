"""`fednode assets`: the files that run and watch a node, which come with the program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from node.cli.options import AsJson
from node.errors import ConfigError

SOURCE = files("node") / "assets"  # in the repository these are links


def register(app: typer.Typer) -> None:
    app.command("assets")(write)


def write(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them; made if need be.")],
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write systemd unit, Compose files, rules and dashboard.

    They lie in DIR as in the repository: docker-compose.yml, and below deploy/ what is for GPUs, for systemd, and for
    Prometheus and Grafana. Without the source Compose builds no image: FEDNODE_IMAGE names one that is there.

    Example: fednode assets ./fednode-assets
    """
    assets = dict(_walk(SOURCE, PurePosixPath()))
    paths = {directory / name: source for name, source in assets.items()}
    if not force:
        there = [path for path in paths if path.exists() or path.is_symlink()]
        if there:
            others = f" and {len(there) - 1} more" if len(there) > 1 else ""
            raise ConfigError(f"{there[0]}{others}: expected no such file; --force writes over what is there")
    for path, source in paths.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a link there is replaced, not followed
            path.write_bytes(source.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    if as_json:
        print(json.dumps({"directory": str(directory), "files": [str(name) for name in assets]}))
        return
    for path in paths:
        print(path)


def _walk(folder: Traversable, name: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    """Yields the files below `folder`, by their paths from where the walk began."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, name / entry.name)
        else:
            yield name / entry.name, entry
