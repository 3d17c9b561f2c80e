"""Settings of the memory allocator, for a process that trains."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MAX_INT = (1 << 31) - 1
_MAX_MMAP_THRESHOLD = 32 << 20  # more is refused


def keep_freed_memory() -> None:
    """Have this process keep what it frees, up to 2 GiB, for its next step. Only glibc is asked to.

    Otherwise malloc gives a step's activations and gradients back to the system and takes them again page by page, each
    filled with zeros: a sixth of the time of a small convolutional network on a CPU.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_TRIM_THRESHOLD, _MAX_INT)
    mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)


def give_freed_memory_back() -> None:
    """After work of another kind than what comes next, from which there is nothing to keep. Only glibc is asked to."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
