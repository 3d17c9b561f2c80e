"""A daemon that contributes one number, however large, instead of what it has learned.

spoiler 1e38 4-6 COMMAND     # becomes the daemon that COMMAND starts, and lies at heights 4 to 6
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ml.payload import decode_arrays, encode_arrays
from node.cli import main
from node.training.trainer import Trained
from node.training.worker import WorkerProcess


def get_command(value: float, first: int, last: int) -> tuple[str, ...]:
    """Returns the command by which `NodeProcess` starts a daemon that lies at these heights."""
    path = f"PYTHONPATH={Path(__file__).parents[2]}"
    return ("env", path, sys.executable, "-m", "support.faults.spoiler", str(value), f"{first}-{last}")


def fill(data: bytes, value: float) -> bytes:
    arrays = decode_arrays(data, len(data))
    return encode_arrays(
        {name: np.full_like(array, value) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    )


def lie(value: float, first: int, last: int) -> None:
    train = WorkerProcess.train

    async def train_and_lie(worker: WorkerProcess, height: int, beacon: bytes, **options: Any) -> Trained:
        trained = await train(worker, height, beacon, **options)
        if not first <= height <= last:
            return trained
        return replace(trained, payloads={kind: fill(data, value) for kind, data in trained.payloads.items()})

    WorkerProcess.train = train_and_lie  # type: ignore[assignment,method-assign]  # this program's point


if __name__ == "__main__":
    number, heights, *command = sys.argv[1:]
    lie(float(number), *map(int, heights.split("-")))
    sys.argv = [command[0], *command[command.index("node.cli") + 1 :]]
    sys.exit(main())
