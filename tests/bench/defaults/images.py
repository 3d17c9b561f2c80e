"""`make bench-defaults-images`: digits and Fashion-MNIST, dealt so that sites have other classes, by what `testnet`
writes for images, beside each site alone, both mixed as a site answers by default, all samples pooled, and other
methods. Accuracy on a site's own classes, and on everybody's."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ml.clients.client import Client
from ml.data.chunks import get_chunk
from ml.measures.alone import MIXED
from ml.methods.base import Samples
from ml.tasks import CLASSIFICATION
from ml.training.mixture import find_weight, mix
from node.bench.figures import Report
from node.config.recommended import IMAGE_POOL
from node.experiments.simulation import Outcome, SimulationSpec, run_simulation
from node.host.machine import get_machine

FASHION = Path("/usr/share/datasets/fashion-mnist")  # as Debian's dataset-fashion-mnist has it
STEPS = tuple(f"{key}={value}" for key, value in IMAGE_POOL[0].items())  # the same for all
ARMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "together": ("auto", ()),
    "alone": ("local", STEPS),
    "pooled": ("fedavg", STEPS),
    "fedavg": ("fedavg", STEPS),
    "dfpl": ("dfpl", (*STEPS, "aux=contrast", "normalize=true")),
    "fedper": ("fedper", STEPS),
    "fedrep": ("fedrep", STEPS),
    "ditto": ("ditto", STEPS),
    "fedala": ("fedala", STEPS),
    "feddbe": ("feddbe", STEPS),
}
DATA = ("digits", "fashion")


def run_images_bench(
    names: Sequence[str],
    partitions: Sequence[str],
    clients: Sequence[int],
    *,
    seeds: int,
    samples: int,
    rounds: int,
    report: Report,
) -> dict[str, Any]:
    """By data set, number of sites and partition: what each arm comes to, and at how many sites it is not behind each
    alone. `samples` of Fashion-MNIST are trained on, and half as many tested. Raises as `simulate`."""
    figures: dict[str, Any] = {"machine": get_machine(), "rows": []}
    with tempfile.TemporaryDirectory(prefix="fednode-images-") as directory:
        for name in names:
            if name == "fashion" and not FASHION.exists():
                report("fashion: not here: apt-get install dataset-fashion-mnist")
                continue
            data = "digits" if name == "digits" else f"npz:{_draw_fashion(Path(directory) / 'fashion.npz', samples)}"
            for number in clients:
                for partition in partitions:
                    report(f"{name}: {number} sites, {partition}")
                    arms = _play(data, "mlp" if name == "digits" else "cnn_mnist", number, partition, seeds, rounds)
                    figures["rows"].append({"data": name, "sites": number, "partition": partition, "arms": arms})
    return figures


def _draw_fashion(path: Path, samples: int) -> Path:
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, prefix, number in (("train", "train", samples), ("test", "t10k", samples // 2)):
        x = np.frombuffer(gzip.decompress((FASHION / f"{prefix}-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
        y = np.frombuffer(gzip.decompress((FASHION / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
        rows = draw.permutation(len(y))[:number]
        arrays |= {f"x_{part}": x.reshape(-1, 1, 28, 28)[rows], f"y_{part}": y[rows].astype(np.int64)}
    np.savez(path, **arrays)
    return path


def _play(data: str, model: str, clients: int, partition: str, seeds: int, rounds: int) -> dict[str, Any]:
    own: dict[str, list[float]] = {}
    everyone: dict[str, list[float]] = {}
    ended: dict[str, Sequence[Client]] = {}
    for seed in range(1, seeds + 1):
        for name, (method, settings) in ARMS.items():
            spec = SimulationSpec(
                method=method,
                data=data,
                model=model,
                partition="iid" if name == "pooled" else partition,
                clients=1 if name == "pooled" else clients,
                rounds=rounds,
                seed=seed,
                settings=(*settings, "input.normalize=auto"),
            )
            outcomes: list[Outcome] = []
            result = run_simulation(spec, on_end=outcomes.append)
            ended[name] = outcomes[0].clients
            own.setdefault(name, []).extend(client.accuracy for client in result.clients)
            everyone.setdefault(name, []).append(result.rounds[-1].global_)
        mixed = [_judge_mixed(*pair) for pair in zip(ended["together"], ended["alone"], strict=True)]
        own.setdefault(MIXED, []).extend(accuracy for accuracy, _ in mixed)
        everyone.setdefault(MIXED, []).append(float(np.mean([accuracy for _, accuracy in mixed])))
    alone = np.array(own["alone"])
    return {
        name: {
            "own": float(np.mean(own[name])),
            "all": float(np.mean(everyone[name])),
            **({} if name == "pooled" else {"not_behind": float(np.mean(np.array(own[name]) >= alone - 0.01))}),
        }
        for name in own
    }


def _judge_mixed(together: Client, alone: Client) -> tuple[float, float]:
    """The accuracies, on the site's own classes and on all, of both models mixed as a site without val samples does."""
    data = together.state.data

    def measure(samples: Samples) -> float:
        said, said_alone = (
            torch.cat([client.predict(x).logits.double() for x in torch.split(samples.x, get_chunk(samples.x.shape))])
            for client in (together, alone)
        )
        mixed = mix(said, said_alone, find_weight(said, said_alone, samples.y[:0], CLASSIFICATION), CLASSIFICATION)
        return float((mixed.argmax(1) == samples.y).double().mean())

    with torch.no_grad():
        return measure(data.matched), measure(data.everyone)
