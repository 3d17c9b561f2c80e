"""The GPUs of one machine, dealt out to processes: each sees its own, and no other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from node.errors import ConfigError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gpus:
    """`names` as the driver takes them. On each `jobs_per_gpu` processes compute at a time."""

    names: tuple[str, ...]
    jobs_per_gpu: int = 1

    @staticmethod
    def count() -> int:
        """Those that this process sees."""
        import torch

        return torch.cuda.device_count()

    @classmethod
    def find(cls, count: int, jobs_per_gpu: int = 1) -> Self:
        """The first `count` of those that this process sees. Raises ConfigError where there are fewer."""
        found = cls.count()
        if count > found:
            raise ConfigError(f"--gpus {count}: torch finds {found} CUDA devices here")
        visible = os.environ.get(_VISIBLE)
        names = [str(i) for i in range(found)] if visible is None else [name.strip() for name in visible.split(",")]
        return cls(tuple(names[:count]), jobs_per_gpu)

    @property
    def jobs(self) -> int:
        return len(self.names) * self.jobs_per_gpu

    def list_variables(self) -> list[Mapping[str, str]]:
        """The environment of each process, of neighbours on different GPUs."""
        return [{_VISIBLE: name} for name in self.names]
