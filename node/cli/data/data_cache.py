"""`fednode data clear-cache`: removes the decoded images that a node keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import AsJson
from node.cli.output import print_json, show_bytes
from node.cli.target import read_data_dir
from node.errors import NodeError


def clear_cache(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The node's configuration.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Its data directory.")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove the decoded images that a node keeps.

    Where images take much, a node decodes each once and trains from what lies in its data directory then, which shows
    what the images show. It is made again at the node's next start, unless data.cache_gb is 0. A node that is running
    goes on with what it has, and the space on disk comes free when it stops.

    Examples: fednode data clear-cache -c node.yaml; fednode data clear-cache --data-dir data/node3
    """
    from ml.data.image_cache import DIRECTORY, ImageCache

    data_dir = read_data_dir(config, data_dir)
    try:
        removed = ImageCache(data_dir / DIRECTORY, 0).clear()
    except OSError as error:
        raise NodeError(f"{error.filename}: cannot be deleted ({error.strerror})") from error
    if as_json:
        print_json({"data_dir": str(data_dir), "removed_bytes": removed})
        return
    print(f"{data_dir}: removed {show_bytes(removed)} of decoded images" if removed else f"{data_dir}: none are kept")
