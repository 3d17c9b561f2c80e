"""The reconstruction attack on an encrypted set: an attacker's decoder, and measures of the similarity of its images to
the original samples.

FedEDS shares x' = unet(x) of every sample (ALGORITHMS §4.3). It is no cipher, so the protection has to be measured: a
decoder is trained on pairs (x', x) and applied to samples it has not seen. PSNR and SSIM (Wang, Bovik, Sheikh,
Simoncelli, *Image Quality Assessment: From Error Visibility to Structural Similarity*, 2004) measure how near an image
is to its original; `compute_matched` measures whether the original can be identified.

Legend: N samples, C channels, H, W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

from ml.fededs.encryptor import AdamW
from ml.models.unet import UNet2

MAX_PSNR = 100.0  # dB, for an exact reconstruction
SSIM_WINDOW, SSIM_SIGMA = 11, 1.5
SSIM_K1, SSIM_K2 = 0.01, 0.03
CHUNK = 256  # images in one pass


# ---- similarity


def compute_psnr(x_NCHW: Tensor, y_NCHW: Tensor, data_range: float) -> Tensor:
    """Computes 10 log10(range² / mean squared error) of each image in dB, float64 [N], at most `MAX_PSNR`."""
    error_N = (x_NCHW.double() - y_NCHW.double()).square().flatten(1).mean(1)
    psnr_N: Tensor = 10 * torch.log10(data_range**2 / error_N)
    return psnr_N.clamp(max=MAX_PSNR)


def compute_ssim(x_NCHW: Tensor, y_NCHW: Tensor, data_range: float) -> Tensor:
    """Computes the mean structural similarity of each image, float64 [N], at most 1: over all places where the Gaussian
    window lies within the image, and over its channels.

    Raises ValueError for images that are smaller than the window.
    """
    if min(x_NCHW.shape[2:]) < SSIM_WINDOW:
        size = "x".join(map(str, x_NCHW.shape[2:]))
        raise ValueError(f"expected images of at least {SSIM_WINDOW}x{SSIM_WINDOW} pixels, got {size}")
    parts = zip(torch.split(x_NCHW, CHUNK), torch.split(y_NCHW, CHUNK), strict=True)
    return torch.cat([_compute_ssim(x.double(), y.double(), data_range) for x, y in parts])


def _compute_ssim(x: Tensor, y: Tensor, data_range: float) -> Tensor:
    mean_x, mean_y = _blur(x), _blur(y)
    var_x = _blur(x * x) - mean_x.square()
    var_y = _blur(y * y) - mean_y.square()
    cov = _blur(x * y) - mean_x * mean_y
    c1, c2 = (SSIM_K1 * data_range) ** 2, (SSIM_K2 * data_range) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    structure = (2 * cov + c2) / (var_x + var_y + c2)
    return (luminance * structure).flatten(1).mean(1)  # Wang et al., Eq. (13) and (17)


def _blur(x_NCHW: Tensor) -> Tensor:
    """Computes means under the window, wherever all of it lies within the image."""
    places = torch.arange(SSIM_WINDOW, dtype=torch.float64, device=x_NCHW.device) - SSIM_WINDOW // 2
    weights = torch.exp(-places.square() / (2 * SSIM_SIGMA**2))
    weights /= weights.sum()
    x = x_NCHW.flatten(0, 1)[:, None]
    x = F.conv2d(F.conv2d(x, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1))
    return x.view(*x_NCHW.shape[:2], *x.shape[2:])


def compute_matched(recovered_NCHW: Tensor, x_NCHW: Tensor) -> float:
    """Computes the share of images that are nearer, by squared error, to their own original than to that of any other.
    If all images are the same, it is at most 1/N."""
    x = x_NCHW.double().flatten(1)
    lengths_N = x.square().sum(1)
    nearest = [
        (lengths_N - 2 * part.double().flatten(1) @ x.T).argmin(1) for part in torch.split(recovered_NCHW, CHUNK)
    ]
    own = torch.arange(len(x), device=x.device)
    return (torch.cat(nearest) == own).double().mean().item()


# ---- the attack


@dataclass(frozen=True, slots=True)
class Scaling:
    """The mean and deviation of each channel [1, C, 1, 1]."""

    mean: Tensor
    std: Tensor

    @classmethod
    def measure(cls, x_NCHW: Tensor) -> Scaling:
        mean = x_NCHW.mean((0, 2, 3), keepdim=True)
        std = (x_NCHW - mean).square().mean((0, 2, 3), keepdim=True).sqrt()
        return cls(mean, std.clamp(min=1e-6))

    def apply(self, x_NCHW: Tensor) -> Tensor:
        return (x_NCHW - self.mean) / self.std

    def undo(self, x_NCHW: Tensor) -> Tensor:
        return x_NCHW * self.std + self.mean


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A network that estimates x from x'. It scales x' by mean and deviation of the set that it belongs to: so a
    decoder trained on other sets can be applied."""

    unet: UNet2
    out: Scaling

    @torch.no_grad()
    def decode(self, encrypted_NCHW: Tensor, scaling: Scaling) -> Tensor:
        """Returns estimates of x [N, C, H, W]. `scaling` is that of the whole set which the samples belong to."""
        self.unet.eval()
        parts = [self.unet(scaling.apply(part)) for part in torch.split(encrypted_NCHW, CHUNK)]
        return self.out.undo(torch.cat(parts))


def train_decoder(
    encrypted_NCHW: Tensor, x_NCHW: Tensor, *, width: int, steps: int, batch_size: int, lr: float, rng: Generator
) -> Decoder:
    """Trains a UNet2 with parameters of its own to minimise the squared error over known pairs, with x' scaled by
    `Scaling`.

    A step draws `batch_size` pairs, or all if they are fewer; over the last half of the steps the learning rate falls
    to zero.
    """
    device, num_pairs = x_NCHW.device, len(x_NCHW)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(1 << 63)))
        unet = UNet2(tuple(x_NCHW.shape[1:]), width).to(device)
    out = Scaling.measure(x_NCHW)
    target_NCHW = out.apply(x_NCHW)
    optimizer = AdamW(unet.parameters(), lr)
    unet.train()
    for step in range(steps):
        rows = torch.from_numpy(rng.choice(num_pairs, min(batch_size, num_pairs), replace=False)).to(device)
        loss = F.mse_loss(unet(encrypted_NCHW.index_select(0, rows)), target_NCHW.index_select(0, rows))
        optimizer.lr = lr * min(1.0, 2 * (1 - step / steps))
        optimizer.step(loss)
    return Decoder(unet, out)


def fit_affine(encrypted_NCHW: Tensor, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
    """Returns factor and offset [1, C, 1, 1] of each channel that bring x' nearest to x by squared error: what x' shows
    of x after a change of brightness and contrast alone."""
    encrypted, x = encrypted_NCHW.double(), x_NCHW.double()
    mean_e, mean_x = encrypted.mean((0, 2, 3), keepdim=True), x.mean((0, 2, 3), keepdim=True)
    centred = encrypted - mean_e
    spread = centred.square().mean((0, 2, 3), keepdim=True)
    factor = (centred * (x - mean_x)).mean((0, 2, 3), keepdim=True) / spread.clamp(min=1e-12)
    return factor.float(), (mean_x - factor * mean_e).float()
