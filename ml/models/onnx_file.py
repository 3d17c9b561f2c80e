"""ONNX: a model as one file that runs without torch and without fednode, checked against torch where onnxruntime is
installed.

It takes samples x float32 [N, C, H, W] in 0..1, or features [N, F, 1, 1], normalises them by the constants of genesis'
input, and returns a probability for each class, [N, classes]: those of the classifier. Answers by prototypes are not in
it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from ml.errors import MlError
from ml.models.base import Model
from ml.models.normalised import Normalised

INPUT, OUTPUT = "x", "probabilities"
MAX_BYTES = (1 << 31) - (1 << 20)  # protobuf's limit is 2 GiB, and the graph needs some of it
TOLERANCE = 1e-4  # of a probability
_CHECKED = 3  # samples: another number than in recording, which checks that any number works
_NEEDED = ("onnx", "onnxscript")


class OnnxRefused(MlError):
    """The error for a model that cannot be written as ONNX, or not on this machine."""


class _Classifier(Normalised):
    """A model with normalisation before it and softmax after it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(super().forward(x), dim=1)


def require_onnx() -> None:
    """Raises OnnxRefused, with the line that installs the missing packages, if there are any."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise OnnxRefused(f"expected {' and '.join(missing)} to be installed for ONNX: pip install 'fednode[onnx]'")


def encode_onnx(
    model: Model,
    shape: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    card: Mapping[str, str],
    *,
    fills: bool = False,
) -> tuple[bytes, float | None]:
    """Returns the ONNX file of a model for samples of `shape`, with `card` as its metadata; if it `fills`, the file
    replaces empty cells. Returns also the largest difference of onnxruntime's probabilities from torch's, None where
    onnxruntime is not installed. Raises OnnxRefused."""
    require_onnx()
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if size > MAX_BYTES:
        raise OnnxRefused(f"expected a model of at most {MAX_BYTES:,} bytes for an ONNX file, got {size:,}")
    net = _Classifier(model, mean, std, fills=fills).eval()
    data = _record(net, tuple(shape), card)
    return data, _compare(net, tuple(shape), data)


def _record(net: nn.Module, shape: tuple[int, ...], card: Mapping[str, str]) -> bytes:
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                net,
                (x,),
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("N")},),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        first = str(error).strip().partition("\n")[0]
        raise OnnxRefused(f"torch cannot write this model as ONNX ({type(error).__name__}: {first})") from error
    if program is None:
        raise OnnxRefused("torch cannot write this model as ONNX")
    proto = program.model_proto
    for key, value in sorted(card.items()):
        proto.metadata_props.add(key=key, value=value)
    data: bytes = proto.SerializeToString()
    return data


def _compare(net: nn.Module, shape: tuple[int, ...], data: bytes) -> float | None:
    """Returns the largest difference of a probability. Raises OnnxRefused where it is too large."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    x = torch.rand(_CHECKED, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = net(x).numpy()
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        (got,) = session.run([OUTPUT], {INPUT: x.numpy()})
    except Exception as error:
        raise OnnxRefused(f"onnxruntime cannot run what torch wrote ({type(error).__name__}: {error})") from error
    difference = float(abs(expected - got).max()) if got.shape == expected.shape else float("inf")
    if not difference <= TOLERANCE:  # NaN counts as a difference
        raise OnnxRefused(f"expected onnxruntime's probabilities within {TOLERANCE:g} of torch's, got {difference:g}")
    return difference


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch's notes about missing packages and about its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
