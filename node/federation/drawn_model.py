"""First parameters drawn for a run that somebody proposes: by a child process, since torch draws them. They are kept
while the operator looks at the change, so that what was shown is what is signed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chain.schema import describe
from ml.plugins import Plugins
from node.errors import ChangeRefused
from node.federation.builders import ZEROS, Built, ChangeContext, ChangeRequest, build_change
from node.host.child import make_command

NEW = "new"  # the initial model of a run whose first parameters are drawn for it
DRAW_S = 300.0  # torch is loaded in seconds, a large model is drawn in more


class DrawnModel:
    """The model that this node has drawn last. It is kept until its run is proposed or another is drawn; there is one
    at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._blob: bytes | None = None

    async def build(self, wish: ChangeRequest, ground: ChangeContext, *, is_shown: bool, dry_run: bool) -> Built:
        """Builds the run that `wish` asks for, from parameters drawn for it: with `is_shown` those that were drawn
        before and shown to the operator, else new ones. Raises ChangeRefused."""
        async with self._turn:
            kept, self._blob = self._blob, None
            if not is_shown:
                built = await _build_drawn(wish, ground)
            elif kept is None:
                raise ChangeRefused("initial: the parameters that were shown are gone by now; look at it again")
            else:
                digest = hashlib.sha256(kept).hexdigest()
                built = replace(await asyncio.to_thread(build_change, _begin_from(wish, digest), ground), blob=kept)
            if dry_run:
                self._blob = built.blob
            return built


async def _build_drawn(wish: ChangeRequest, ground: ChangeContext) -> Built:
    draft = await asyncio.to_thread(build_change, _begin_from(wish, ZEROS), ground)
    with TemporaryDirectory(prefix="fednode-initial-") as folder:
        file = Path(folder) / "initial_model.safetensors"
        await _draw(draft.change.kind.to_terms()["run"], file, ground.plugins)
        return await asyncio.to_thread(build_change, _begin_from(wish, str(file)), ground)


def _begin_from(wish: ChangeRequest, initial: str) -> ChangeRequest:
    return replace(wish, terms={**wish.terms, "initial": initial})


async def _draw(run: Mapping[str, Any], file: Path, plugins: Plugins) -> None:
    """Draws the parameters of a run into a file. If it is cancelled, it ends its process. Raises ChangeRefused."""
    asked = {
        "model": run["model"],
        "shape": run["input"]["shape"],
        "num_classes": len(run["classes"]),
        "seed": secrets.randbits(62),
        "plugins": sorted(plugins.names),
    }
    process = await asyncio.create_subprocess_exec(
        *make_command("node.federation.drawing_child", str(file)), stdin=PIPE, stdout=DEVNULL, stderr=PIPE
    )
    try:
        async with asyncio.timeout(DRAW_S):
            _, said = await process.communicate(json.dumps(asked).encode())
    except TimeoutError as error:
        raise ChangeRefused(f"initial: no parameters were drawn within {DRAW_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        why = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise ChangeRefused(f"initial: {describe(Exception(why))}")
