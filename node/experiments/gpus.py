"""The GPUs of one machine, dealt out to processes: each sees its own, and no other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from node.errors import ConfigError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def count_gpus() -> int:
    """Counts the GPUs that this process sees."""
    import torch

    return torch.cuda.device_count()


def find_gpus(count: int) -> tuple[str, ...]:
    """Returns the names, in the driver's form, of the first `count` GPUs that this process sees. Raises ConfigError
    where there are fewer."""
    found = count_gpus()
    if count > found:
        raise ConfigError(f"--gpus {count}: torch finds {found} CUDA devices here")
    visible = os.environ.get(_VISIBLE)
    names = [str(i) for i in range(found)] if visible is None else [name.strip() for name in visible.split(",")]
    return tuple(names[:count])


def list_environments(names: Sequence[str], jobs_per_gpu: int) -> Sequence[Mapping[str, str]]:
    """Returns the environment variables of each process, `jobs_per_gpu` on each GPU; processes next to each other get
    different GPUs."""
    return [{_VISIBLE: name} for name in names] * jobs_per_gpu
