"""`fednode experiment attack inversion`: what an attacker recovers of a site's samples from its prototypes.

The attacker is the other member. It has the prototypes that the site sent last, with their classes, and samples of its
own, and an embedding: with DFPL its own model's, as the site's never leaves it, or the site's, as if that had leaked;
with MP-FedCL that of the model that the site sends with them. For each prototype it makes an image:

    mean of the class     of its own samples: what is known without any prototype
    decoder               a small network, trained to undo the embedding on its own samples, applied to the prototype
    matched               an image that gradient descent draws from the decoder's to where its embedding is nearest to
                          the prototype, held back a little to where it began

A prototype of several samples equals none of them, so an image is compared with the nearest of the site's samples of
that class: its PSNR, and whether that sample is nearer than all held-out samples of the class. By chance this is so as
often as the site's samples are among all. Each attack is a first attempt of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml.data.base import Images
from ml.fededs.encryptor import AdamW
from ml.fededs.reconstruction_attack import compute_psnr
from ml.methods.base import Samples
from ml.models.base import Model
from ml.seeding import derive_seed
from ml.simulation.run import SimulationConfig, use_threads
from node.errors import ConfigError
from node.experiments.leaks.played import Played, describe_job, list_embeddings, list_played, read_prototypes
from node.experiments.measured import describe_spread, describe_torch
from node.experiments.reconstruct_plot import Panel
from node.host.machine import get_machine

METHODS = ("dfpl", "mpfedcl")
MEAN, DECODER, MATCHED = "mean of the class", "decoder", "matched"
WIDTH, DECODER_STEPS, DECODER_LR = 128, 500, 0.003
NOISE = 0.1  # of what the decoder is trained on, in standard deviations: prototypes lie beside embeddings
STILL = 0.2  # of the mean deviation: units that are constant on the attacker's samples may vary on the site's
MATCH_STEPS, MATCH_LR = 300, 0.05
PRIOR = 0.01  # weight of the distance from where the descent began
SHOWN = 6  # classes in a picture


@dataclass(frozen=True, slots=True, eq=False)
class Inversion:
    """The measurements, for JSON, and for each embedding a panel of the first repetition."""

    figures: dict[str, Any]
    panels: tuple[Panel, ...]


def run_inversion_bench(
    config: SimulationConfig, *, sizes: Sequence[int], repeats: int, report: Callable[[str], None]
) -> Inversion:
    """Measures PSNR and the share of images identified, by what is attacked, attack and number of samples in each
    class; repetition r uses the seed `config.seed` + r for everything. The name in `config.method` is ignored. Raises
    ConfigError, and as `simulate`."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    chance: dict[str, float] = {}
    rows: dict[str, dict[str, Images]] = {}
    with use_threads(config.threads):
        for size, seed, played in list_played(config, METHODS, sizes, repeats, report):
            _check(played)
            chance[str(size)] = compute_chance(played)
            for whose, model in list_embeddings(played).items():
                name, images = f"{played.site.spec.name}{whose}", invert(played, model, seed)
                for attack, recovered in images.items():
                    key = MEAN if attack == MEAN else f"{name}: {attack}"
                    found.setdefault(key, {}).setdefault(str(size), []).append(score(played, recovered))
                if seed == config.seed:
                    rows.setdefault(name, {}).update(_draw(played, images[MATCHED], size))
    figures = {
        "machine": {**get_machine(), **describe_torch(played.site.device, config.threads)},
        "job": describe_job(config, sizes=sizes, repeats=repeats),
        "chance": chance,
        "attacks": {
            name: {
                size: {key: describe_spread([run[key] for run in runs]) for key in runs[0]} for size, runs in of.items()
            }
            for name, of in found.items()
        },
    }
    return Inversion(figures, tuple(Panel(name, drawn) for name, drawn in rows.items()))


def invert(played: Played, model: Model, seed: int) -> dict[str, Tensor]:
    """Returns an image [K, C, H, W] for each of the site's prototypes, by attack."""
    classes, prototypes = read_prototypes(played)
    own = played.attacker.state.data.train
    means = torch.stack([own.x[own.y == c].mean(0) for c in classes.tolist()])
    with torch.no_grad():
        z = played.represent(model, own.x)
    decoded = decode(z, own.x, prototypes, seed)
    matched = match(lambda x: played.represent(model, x), prototypes, decoded, scale=z.var(0).sum().item())
    return {MEAN: means, DECODER: decoded, MATCHED: matched}


def decode(z: Tensor, x: Tensor, prototypes: Tensor, seed: int) -> Tensor:
    """Returns images of `prototypes` from a network that was trained to reproduce `x` from their embeddings `z`."""
    mean, std = z.mean(0), z.std(0)
    std = std.clamp(min=STILL * std.mean().item())
    known, target = (z - mean) / std, x.flatten(1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "decoder"))
        network = nn.Sequential(nn.Linear(z.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, target.shape[1])).to(z.device)
        optimizer = AdamW(network.parameters(), DECODER_LR)
        for _ in range(DECODER_STEPS):
            noise = NOISE * torch.randn(known.shape).to(z.device)
            optimizer.step(F.mse_loss(network(known + noise), target))
    with torch.no_grad():
        decoded: Tensor = network((prototypes - mean) / std)
    return decoded.view(-1, *x.shape[1:])


def match(embed: Callable[[Tensor], Tensor], prototypes: Tensor, begin: Tensor, *, scale: float) -> Tensor:
    """Returns images whose embeddings are near `prototypes`, by descent from `begin`; `scale` is the embedding's
    variance."""
    x = begin.clone().requires_grad_()
    optimizer = AdamW([x], MATCH_LR, weight_decay=0.0)
    for _ in range(MATCH_STEPS):
        distances = (embed(x) - prototypes).square().sum(1) / max(scale, 1e-12)
        held_back = (x - begin).square().flatten(1).mean(1)
        optimizer.step((distances + PRIOR * held_back).sum())
    return x.detach()


def score(played: Played, recovered: Tensor) -> dict[str, float]:
    """Scores the images: their mean PSNR in dB to the nearest of the site's samples of their class, and the share that
    is `told`, or identified: nearer to one of those than to all held out."""
    classes, _ = read_prototypes(played)
    own, others = played.site.state.data.train, played.held_out
    low, high = _get_range(played)
    psnr, told = [], []
    for c, image in zip(classes.tolist(), recovered.clamp(low, high), strict=True):
        nearest, is_told = compare(image, own.x[own.y == c], others.x[others.y == c])
        psnr.append(compute_psnr(image[None], nearest[None], high - low).item())
        told.append(is_told)
    return {"psnr": sum(psnr) / len(psnr), "told": sum(told) / len(told)}


def compare(image: Tensor, own: Tensor, others: Tensor) -> tuple[Tensor, bool]:
    """Finds the nearest of the site's `own` samples to an image, by squared error, and whether it is nearer than all of
    `others`."""
    to_own, to_others = ((x - image).square().flatten(1).sum(1) for x in (own, others))
    return own[to_own.argmin()], bool(to_own.min() < to_others.min())


def compute_chance(played: Played) -> float:
    """Computes the share of guesses that would identify a sample by chance."""
    own, others = len(played.site.state.data.train), len(played.held_out)
    return own / (own + others)


def _check(played: Played) -> None:
    shape = tuple(played.held_out.x.shape[1:])
    if len(shape) != 3:
        raise ConfigError(f"--model: expected one that trains on images, not on what a frozen part makes (got {shape})")


def _get_range(played: Played) -> tuple[float, float]:
    """Returns the range of pixel values, as the attacker knows it from its own samples."""
    x = played.attacker.state.data.train.x
    return x.min().item(), x.max().item()


def _draw(played: Played, recovered: Tensor, size: int) -> Mapping[str, Images]:
    """Returns two rows: for the first prototype of each class, the image, and above it the site's nearest sample."""
    classes, _ = read_prototypes(played)
    own: Samples = played.site.state.data.train
    low, high = _get_range(played)
    firsts = [classes.tolist().index(c) for c in torch.unique(classes).tolist()][:SHOWN]
    images = recovered[firsts].clamp(low, high)
    nearest = torch.stack(
        [compare(image, own.x[own.y == c], image[None])[0] for c, image in zip(classes[firsts], images, strict=True)]
    )
    shown = [((x - low) / (high - low)).float().clamp(0, 1).cpu().numpy() for x in (nearest, images)]
    return {f"nearest of {size}": shown[0], f"back, of {size}": shown[1]}
