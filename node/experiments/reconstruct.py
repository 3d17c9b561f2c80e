"""`fednode experiment reconstruct`: what an attacker recovers of the samples behind an encrypted set of FedEDS.

The victim is the first site of a simulation and shares what a node would: the payload of its sharing round. The
attacker is a member with samples of its own, and has all that members have: that set with its soft labels and its
layer, genesis, the initial model. Half of the shared samples are held out, and on those everything is measured:

    mean image            the mean of the attacker's own samples: what is known without looking at the set
    mean of the class     the same of the class that the soft label shows
    x' as it is           the shared image, at the brightness and contrast (found on the other half) that suit best
    no pairs              the attacker trains encryptors of its own through the victim's layer, each after a warm-up
                          on its own samples, a decoder on what those make of its samples, and applies it to the set
    16 pairs, 64 pairs …  it has that many of the victim's samples in the clear, and trains a decoder on those alone

The last case is realistic: a record that a patient shows, a published case, a former colleague. Each attack is a first
attempt of minutes, so its result is the least that a set reveals.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ml.clients.client import Client
from ml.data.base import Images, InputFormat
from ml.errors import SpecError
from ml.fededs.encryptor import EncryptorSettings, make_encrypted_set, train_encryptor
from ml.fededs.reconstruction_attack import (
    SSIM_WINDOW,
    Decoder,
    Scaling,
    compute_matched,
    compute_psnr,
    compute_ssim,
    fit_affine,
    train_decoder,
)
from ml.fededs.shared_set import EncryptedSet
from ml.methods.base import Round
from ml.methods.fededs import FedEds
from ml.payload import Arrays
from ml.seeding import numpy_rng
from ml.simulation.run import SimulationConfig, begin_simulation, use_threads
from ml.specs.methods.fededs import FedEdsHyperparameters
from ml.training.loop import Prepared
from node.errors import ConfigError
from node.experiments.measured import describe_spread, describe_torch
from node.experiments.reconstruct_plot import Panel
from node.host.machine import get_machine

BEACON = bytes(32)
HEIGHT = 1  # the height of the sharing round
LAYERS = ("gaussian", "orthogonal", "diag", "conv1x1", "identity")
PAIRS = (16, 64, 256)
SHOWN = 6  # samples in a picture
MIN_HELD_OUT = 8
SLIGHT = 0.1  # share of samples identified up to which an attack hardly works

MEAN, CLASS_MEAN, AS_IT_IS, NO_PAIRS = "mean image", "mean of the class", "x' as it is", "no pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """The effort of the attacker: numbers of known pairs to try besides half of the set, the number of own encryptors,
    and steps, width and learning rate of each decoder."""

    pairs: Sequence[int] = PAIRS
    encryptors: int = 2
    steps: int = 400
    width: int = 8
    lr: float = 0.003
    batch_size: int = 16


@dataclass(frozen=True, slots=True, eq=False)
class Reconstruction:
    """The measurements, for JSON, and a panel of the first repetition for each layer."""

    figures: dict[str, Any]
    panels: tuple[Panel, ...]


def run_reconstruct_bench(
    config: SimulationConfig, attack: Attack, *, layers: Sequence[str], repeats: int, report: Callable[[str], None]
) -> Reconstruction:
    """Measures PSNR, SSIM and the share of samples identified, by layer and attack; repetition r uses the seed
    `config.seed` + r for everything. `config.method` is fededs. Raises ConfigError, and as `simulate`."""
    _check(config, layers)
    measured: dict[str, list[_Measured]] = {layer: [] for layer in layers}
    with use_threads(config.threads):
        for seed in range(config.seed, config.seed + repeats):
            for layer in layers:
                report(f"layer {layer}, seed {seed}")
                method = {**config.method, "layer": layer}
                measured[layer].append(_measure(dataclasses.replace(config, method=method, seed=seed), attack))
    first = measured[layers[0]][0]
    found = {layer: _summarise(runs) for layer, runs in measured.items()}
    figures = {
        "machine": {**get_machine(), **describe_torch(first.device, config.threads)},
        "job": {
            "data": dict(config.data),
            "model": dict(config.model),
            "shape": list(first.shape),
            "partition": config.partition,
            "seeds": list(range(config.seed, config.seed + repeats)),
            "method": {key: value for key, value in first.method.items() if key != "layer"},
            "attack": {**dataclasses.asdict(attack), "pairs": list(attack.pairs)},
            "samples": first.samples,
        },
        "layers": found,
        "meaning": explain(layers[0], found[layers[0]]),
    }
    return Reconstruction(figures, tuple(Panel(f"layer {layer}", runs[0].rows) for layer, runs in measured.items()))


def explain(layer: str, found: Mapping[str, Any]) -> str:
    """Explains one layer's figures in a sentence, for people who run a site."""
    told = {name: scores["told_apart"]["median"] for name, scores in found["attacks"].items()}
    known = [name for name in told if name[0].isdigit()]
    few, most = known[0], known[-1]
    if told[most] < SLIGHT:
        return (
            f"with layer {layer} this attacker tells {told[most]:.0%} of a site's samples apart even if it knows "
            f"{_count(most)} others: that is what a first attempt gets, and no proof that another gets no more"
        )
    return (
        f"with layer {layer}, who knows {_count(few)} of a site's samples recovers {told[few]:.0%} of the others so "
        f"well that each is told from all the rest, who knows {_count(most)} {told[most]:.0%}, and who knows none "
        f"{told[NO_PAIRS]:.0%} by this attack: this is obfuscation, not encryption, and for none who may not see the "
        "samples"
    )


def _count(name: str) -> str:
    return name.removesuffix(" pairs")


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """One layer with one seed: each attack's scores, and `labels`, the share of soft labels that show the class."""

    scores: Mapping[str, Mapping[str, float]]
    labels: float
    rows: Mapping[str, Images]
    samples: dict[str, int]
    method: Mapping[str, Any]
    shape: tuple[int, ...]
    device: torch.device


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """An encrypted set as members read it, and its samples in the same order."""

    encrypted: Tensor
    soft: Tensor
    layer: Tensor | None
    x: Tensor
    y: Tensor

    @classmethod
    def read(cls, arrays: Arrays, x: Tensor, y: Tensor) -> _Shared:
        opened = EncryptedSet.open(arrays, x.device)
        encrypted, soft = opened.read(np.arange(len(x)))
        return cls(encrypted, soft, opened.layer, x, y)

    def take(self, rows: slice) -> _Shared:
        return _Shared(self.encrypted[rows], self.soft[rows], self.layer, self.x[rows], self.y[rows])


@dataclass(frozen=True, slots=True)
class _Pixels:
    """The conversion of normalised samples to pixels, and the range that pixels are clamped to."""

    mean: Tensor
    std: Tensor
    low: float
    high: float

    @classmethod
    def of(cls, config: SimulationConfig, x: Tensor) -> _Pixels:
        assert config.input is not None  # noqa: S101 - set when the configuration was made
        input_ = InputFormat.from_mapping(config.input)
        mean, std = (torch.tensor(values, device=x.device).view(1, -1, 1, 1) for values in (input_.mean, input_.std))
        seen = x * std + mean
        low, high = min(0.0, seen.min().item()), max(1.0, seen.max().item())
        return cls(mean, std, low, high)

    def show(self, x: Tensor) -> Tensor:
        return (x * self.std + self.mean).clamp(self.low, self.high)

    def score(self, recovered: Tensor, x: Tensor) -> dict[str, float]:
        seen, own, data_range = self.show(recovered), self.show(x), self.high - self.low
        return {
            "psnr": compute_psnr(seen, own, data_range).mean().item(),
            "ssim": compute_ssim(seen, own, data_range).mean().item(),
            "told_apart": compute_matched(seen, own),
        }

    def draw(self, x: Tensor) -> Images:
        drawn = (self.show(x) - self.low) / (self.high - self.low)
        return drawn.float().cpu().numpy()


def _check(config: SimulationConfig, layers: Sequence[str]) -> None:
    for layer in layers:
        if layer not in LAYERS:
            raise ConfigError(f"--layers: expected some of {', '.join(LAYERS)} (got {layer!r})")
    assert config.input is not None  # noqa: S101 - set when the configuration was made
    if "normalize" in config.input:
        raise ConfigError(
            "--set input.normalize: expected auto, which measures here what members would agree on "
            f"(got {config.input['normalize']!r})"
        )
    if "layer" in config.method:
        raise ConfigError("--set layer: expected --layers instead")
    if min(config.input["shape"][1:]) < SSIM_WINDOW:
        size = "x".join(map(str, config.input["shape"][1:]))
        raise ConfigError(f"--size: expected at least {SSIM_WINDOW} pixels, SSIM's window (got {size})")
    if config.method.get("share") is False:
        raise SpecError("method.share", "expected true, or there is nothing to recover")


def _measure(config: SimulationConfig, attack: Attack) -> _Measured:
    clients, _, _ = begin_simulation(config)
    victim, attacker = clients[:2]
    shared = _share(victim)
    num_known = len(shared.x) // 2
    known, held_out = shared.take(slice(num_known)), shared.take(slice(num_known, None))
    if min(num_known, len(held_out.x)) < MIN_HELD_OUT:
        raise ConfigError(f"--data: expected a site of {2 * MIN_HELD_OUT} samples at least (got {len(shared.x)})")
    pixels = _Pixels.of(config, shared.x)
    scaling = Scaling.measure(shared.encrypted)
    recovered = _recover_without_pairs(attacker, known, held_out, config.seed, attack, scaling)
    for num_pairs in (*sorted({num for num in attack.pairs if num < num_known}), num_known):
        pairs = known.take(slice(num_pairs))
        encrypted = scaling.apply(pairs.encrypted)
        decoder = _train(encrypted, pairs.x, attack, numpy_rng(config.seed, "decoder", num_pairs))
        recovered[f"{num_pairs} pairs"] = decoder.decode(held_out.encrypted, scaling)
    picked = _pick(held_out.y)
    span = torch.quantile(held_out.encrypted[picked].flatten(), torch.tensor([0.01, 0.99], device=victim.device))
    seen = (held_out.encrypted[picked] - span[0]) / (span[1] - span[0]).clamp(min=1e-12)
    rows = {"original": pixels.draw(held_out.x[picked]), "shared": seen.clamp(0, 1).cpu().numpy()}
    return _Measured(
        {name: pixels.score(images, held_out.x) for name, images in recovered.items()},
        (shared.soft.argmax(1) == shared.y).double().mean().item(),
        {**rows, **{name: pixels.draw(images[picked]) for name, images in recovered.items() if name.endswith("pairs")}},
        {"victim": len(shared.x), "attacker": attacker.num_train, "held_out": len(held_out.x)},
        victim.spec.to_mapping(),
        tuple(shared.x.shape[1:]),
        victim.device,
    )


def _share(victim: Client) -> _Shared:
    """Returns what the victim sends in the sharing round, and which samples those are: their order is drawn from its
    seed, which only the victim, and this measurement, knows."""
    trained = victim.train(HEIGHT, BEACON)
    samples = victim.state.data.train
    round_ = Round(HEIGHT, victim.spec.get_round_number(HEIGHT), BEACON, victim.seed)
    assert isinstance(victim.method, FedEds)  # noqa: S101 - asked for by name
    chosen = samples.take(victim.method.choose_shared(samples.y.cpu().numpy(), round_))
    return _Shared.read(trained.payloads["encrypted_set"], chosen.x, chosen.y)


def _recover_without_pairs(
    attacker: Client, known: _Shared, held_out: _Shared, seed: int, attack: Attack, scaling: Scaling
) -> dict[str, Tensor]:
    """Recovers the held-out samples without any sample in the clear; only for x' as it is are two numbers, brightness
    and contrast, found on `known`."""
    own = attacker.state.data.train
    classes = torch.stack([_average(own.x[own.y == c], own.x) for c in range(attacker.state.data.num_classes)])
    factor, offset = fit_affine(known.encrypted, known.x)
    sets = _make_own_sets(attacker, held_out.layer, seed, attack.encryptors)
    encrypted = torch.cat([Scaling.measure(made).apply(made) for made in sets])
    decoder = _train(encrypted, own.x.repeat(len(sets), 1, 1, 1), attack, numpy_rng(seed, "decoder", 0))
    return {
        MEAN: own.x.mean(0, keepdim=True).expand_as(held_out.x),
        CLASS_MEAN: classes[held_out.soft.argmax(1)],
        AS_IT_IS: factor * held_out.encrypted + offset,
        NO_PAIRS: decoder.decode(held_out.encrypted, scaling),
    }


def _average(x: Tensor, everything: Tensor) -> Tensor:
    """Returns the mean sample of a class; of all samples, if none is of that class."""
    return (x if len(x) else everything).mean(0)


def _make_own_sets(attacker: Client, layer: Tensor | None, seed: int, num_sets: int) -> list[Tensor]:
    """Makes encrypted sets of the attacker's own samples by the victim's procedure and through the victim's layer."""
    hyper, own = _get_hyperparameters(attacker), attacker.state.data.train
    with attacker.seeded(HEIGHT):
        phase = attacker.begin(HEIGHT, BEACON)
        attacker.run(dataclasses.replace(phase, prepared=Prepared()))  # without others' sets: the warm-up alone
    model, made = attacker.state.model, []
    for i in range(num_sets):
        unet = train_encryptor(
            model,
            layer,
            own.x,
            own.y,
            EncryptorSettings.from_hyperparameters(hyper),
            rng=numpy_rng(seed, "own encryptor", i),
        )
        theta = None if layer is None else layer.cpu().numpy()
        rows = np.arange(len(own))
        arrays = make_encrypted_set(
            model, theta, unet, own.x, rows, dtype=hyper.share_dtype, batch_size=hyper.batch_size
        )
        made.append(_Shared.read(arrays, own.x, own.y).encrypted)
    return made


def _train(encrypted: Tensor, x: Tensor, attack: Attack, rng: np.random.Generator) -> Decoder:
    return train_decoder(
        encrypted, x, width=attack.width, steps=attack.steps, batch_size=attack.batch_size, lr=attack.lr, rng=rng
    )


def _get_hyperparameters(client: Client) -> FedEdsHyperparameters:
    hyper = client.spec.hyperparameters
    if not isinstance(hyper, FedEdsHyperparameters):
        raise SpecError("method.name", f"expected fededs, got {client.spec.name}")
    return hyper


def _pick(y: Tensor) -> list[int]:
    """Picks SHOWN samples, of different classes as far as possible, and returns their places."""
    labels = y.tolist()
    firsts = sorted({label: i for i, label in reversed(list(enumerate(labels)))}.items())
    picked = [i for _, i in firsts][:SHOWN]
    return [*picked, *(i for i in range(len(labels)) if i not in picked)][:SHOWN]


def _summarise(runs: Sequence[_Measured]) -> dict[str, Any]:
    attacks = {
        name: {key: describe_spread([run.scores[name][key] for run in runs]) for key in scores}
        for name, scores in runs[0].scores.items()
    }
    return {"labels_shown": statistics.median(run.labels for run in runs), "attacks": attacks}
