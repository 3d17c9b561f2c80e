"""`make bench-images`: the cost of training on images that stay in their file, against the same steps on images in
memory, all in one run.

Images are made up, as JPEG, and decoded into a cache of this run. Steps are `Client.run` of a local phase. Each phase
of the one comes right after one of the other. Seconds are those of the processor: what waits for a disk, or for
others on the machine, is in those of the clock alone. Without `held` nothing is in memory, so that a limit may be set
on the process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ml.clients.build import Compute, Federation, make_client, make_initial_aggregate
from ml.clients.client import Client
from ml.data.image_cache import ImageCache
from ml.simulation.run import use_threads
from node.bench.figures import Report
from node.experiments.measured import describe_spread, describe_torch
from node.host.machine import get_machine

BEACON = bytes(32)
CLASSES = ("a", "b")


def run_images_bench(
    directory: Path,
    *,
    num: int,
    held: int,
    side: int,
    model: Mapping[str, Any],
    batch_size: int,
    steps: int,
    repeats: int,
    threads: int,
    report: Report,
) -> dict[str, Any]:
    """Seconds of a step on `num` images in a file below `directory`, and on `held` in memory. Raises DataError."""
    report(f"{num} images of {side}x{side} in a file")
    for folder, count in (("file", num), ("memory", held)):
        _write_images(directory / folder, count, side)
    options: dict[str, Any] = {"side": side, "model": model, "batch_size": batch_size, "steps": steps}
    with use_threads(threads):
        start = time.perf_counter()
        cache = ImageCache(directory / "kept", 1 << 50, min_bytes=1)
        mapped = _make_client(directory / "file", cache, **options)
        decode_s = time.perf_counter() - start
        beside = None if not held else _make_client(directory / "memory", None, **options)
        found: dict[str, list[tuple[float, float]]] = {"file": [], "memory": []}
        for repeat in range(repeats + 1):
            for name, client in (("file", mapped), ("memory", beside)):
                if client is not None and (timed := _time_steps(client, steps)) and repeat:  # the first warms up
                    found[name].append(timed)
        machine = {**get_machine(), **describe_torch(mapped.device, threads)}
    ratios = [own[0] / other[0] for own, other in zip(found["memory"], found["file"], strict=False)]
    return {
        "machine": machine,
        "job": {"images": num, "held": held, "side": side, "model": dict(model), "batch_size": batch_size},
        "decode_s": decode_s,
        "kept_bytes": sum(path.stat().st_size for path in (directory / "kept").iterdir()),
        "cpu_s": {name: describe_spread([cpu for cpu, _ in times]) for name, times in found.items() if times},
        "clock_s": {name: describe_spread([clock for _, clock in times]) for name, times in found.items() if times},
        "speed": describe_spread(ratios) if ratios else None,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _write_images(folder: Path, count: int, side: int) -> None:
    rng = np.random.default_rng(0)
    coarse = [rng.integers(0, 256, (14, 14, 3), np.uint8) for _ in range(16)]
    whole = [np.asarray(Image.fromarray(pixels).resize((side, side))) for pixels in coarse]
    for kind in CLASSES:
        (folder / kind).mkdir(parents=True)
    for i in range(count):
        pixels = np.roll(whole[i % len(whole)], (7 * i % side, 13 * i % side), (0, 1))
        Image.fromarray(pixels).save(folder / CLASSES[i % 2] / f"{i:06}.jpg")


def _make_client(
    folder: Path, cache: ImageCache | None, *, side: int, model: Mapping[str, Any], batch_size: int, steps: int
) -> Client:
    input_: dict[str, Any] = {"shape": [3, side, side], "resize": None, "mean": [0.5], "std": [0.25]}
    method = {"name": "fedavg", "local_iterations": steps, "batch_size": batch_size, "lr": 1e-4}
    return make_client(
        Federation(method=method, model=model, classes=CLASSES, input=input_, num_members=1),
        data={"format": "imagefolder", "path": str(folder)},
        seed=1,
        initial=make_initial_aggregate(model, input_["shape"], len(CLASSES), 1),
        compute=Compute("cpu"),
        cache=cache,
    )


def _time_steps(client: Client, steps: int) -> tuple[float, float]:
    """Seconds of a step: the processor's, and the clock's."""
    with client.undone_on_failure(), client.seeded(1):
        phase = client.begin(1, BEACON)
        cpu_s, clock_s = time.process_time(), time.perf_counter()
        client.run(phase)
        return (time.process_time() - cpu_s) / steps, (time.perf_counter() - clock_s) / steps
