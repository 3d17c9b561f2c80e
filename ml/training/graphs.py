"""A training step on a GPU that is recorded once in a phase, and then replayed.

A step of a small network is a hundred kernels of a few microseconds each, and launching them one by one takes ten times
as long as running them. A CUDA graph launches all of them at once. It repeats those kernels on the addresses with which
they were recorded. So whatever differs from step to step has to be in tensors that stay where they are: a batch is
copied to the place of the recorded one, weights and momentum are changed in place, and the learning rate may not
change. Nothing is kept from one phase to the next.

The first step of a phase is made as on a CPU. It shows whether the loss waits for the GPU (by `.item()`, or a shape
that depends on values), which no graph can repeat. In that case, and for batches of another shape, all steps are made
as on a CPU.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ml.training.loop import Batch

Step = Callable[["Batch"], Tensor]  # returns a step's loss, or those of many clients, detached

MIN_STEPS = 6  # in a phase of fewer, a recording costs more than it saves

_log = logging.getLogger(__name__)


def on_device(step: Step, device: torch.device, num_steps: int, *, can_replay: bool) -> Step:
    """Returns `step` as it is made `num_steps` times on `device`, within `own_stream`."""
    if device.type != "cuda" or not can_replay or num_steps < MIN_STEPS:
        return step
    return _ReplayedStep(step, device)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Uses, on a GPU, a stream of its own within, as recording needs one. The stream waits for work that was launched
    before, and later work waits for the stream."""
    if device.type != "cuda":
        yield
        return
    stream, around = _get_stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(around)
    with torch.cuda.stream(stream):
        yield
    around.wait_stream(stream)


@cache
def _get_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it bare


@cache
def _get_pool(device: torch.device) -> Any:
    """Returns the memory that recordings on a device share, one after the other. An empty recording keeps it allocated,
    so that it is used again instead of being allocated in each phase."""
    holder = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(), torch.cuda.stream(_get_stream(device)):
        warnings.simplefilter("ignore")  # torch warns that the recording is empty
        holder.capture_begin()
        holder.capture_end()
    return holder, holder.pool()


class _ReplayedStep:
    """Makes a step, records it, and replays it; in this order, one of these for each call."""

    def __init__(self, step: Step, device: torch.device) -> None:
        self._step = step
        self._device = device
        self._layout: Any = None  # the layout of the batches that the recording is for
        self._may_record = False
        self._recording: tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor] | None = None

    def __call__(self, batch: Batch) -> Tensor:
        layout = tuple((name, tensor.shape, tensor.dtype) for name, tensor in _list_tensors(batch))
        if self._layout is None:
            self._layout = layout
            loss, self._may_record = make_watched(self._step, batch)
            return loss
        if layout != self._layout or not self._may_record:
            return self._step(batch)
        if self._recording is None:
            self._record(batch)
        if self._recording is None:
            return self._step(batch)
        graph, slots, loss = self._recording
        torch._foreach_copy_(slots, [tensor for _, tensor in _list_tensors(batch)])
        graph.replay()
        return loss.clone()

    def _record(self, batch: Batch) -> None:
        """Records the step without computing anything."""
        _, pool = _get_pool(self._device)
        slots = {name: tensor.clone() for name, tensor in _list_tensors(batch)}
        static = batch._replace(
            x=slots["x"], y=slots["y"], extra={name: slots["extra." + name] for name in batch.extra}
        )
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                loss = self._step(static)
            finally:
                graph.capture_end()
        except RuntimeError as error:  # a kernel cannot be recorded
            _log.warning("a step could not be recorded, so steps are launched one by one: %s", error)
            self._may_record = False
            return
        self._recording = graph, list(slots.values()), loss


def make_watched(step: Step, batch: Batch) -> tuple[Tensor, bool]:
    """Returns the loss of a step, and whether the step never waited for the GPU."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "Synchronization debug mode")  # torch warns that it is new
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            loss = step(batch)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    has_waited = False
    for warning in found:
        if "synchronizing CUDA operation" in str(warning.message):
            has_waited = True
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return loss, not has_waited


def _list_tensors(batch: Batch) -> list[tuple[str, Tensor]]:
    return [("x", batch.x), ("y", batch.y), *(("extra." + name, tensor) for name, tensor in batch.extra.items())]
