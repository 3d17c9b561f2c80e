"""The image files of one split: first their headers are read, then they are decoded one by one.

The form of all images is planned before memory or disk is taken. They stay uint8 as long as none changes: another size,
colour made grey, or grey of 16 bits makes all of them float32, unless the site's rules round changed images to 8 bits.
Grey among colour is repeated. Without a shape to fit them to, they must be of one size, and are in colour where any is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ml.data.base import Samples, Shape
from ml.data.findings import Finding
from ml.data.fit_input import fit, round_to_bytes, validate_fit
from ml.data.memory import validate_fits
from ml.data.readers.images import AS_THEY_ARE, WHITE, GetEncoded, ImageRules, decode_image, hash_encoded, read_header
from ml.errors import DataError

_DARK_BITS = 14  # grey of 16 bits that uses no more is of a device with fewer
_LEAST_BITS = 8


@dataclass(frozen=True, slots=True)
class Survey:
    """A summary of the headers of images: the first image of each shape, how many have 16 bits, how many have several
    pages, and the most pages of any."""

    count: int
    firsts: Mapping[Shape, int]
    num_deep: int
    num_paged: int
    most_pages: int

    @property
    def shape(self) -> Shape:
        """The size of the first image, with three channels if any image is in colour."""
        _, height, width = next(iter(self.firsts))
        return max(channels for channels, _, _ in self.firsts), height, width


@dataclass(frozen=True, slots=True)
class Plan:
    """The form that images are decoded to: `count` samples of one shape and type. `survey` is that of all images which
    are decoded alike, of which these may be some."""

    survey: Survey
    count: int
    shape: Shape
    dtype: np.dtype[np.uint8] | np.dtype[np.float32]

    @property
    def num_bytes(self) -> int:
        return self.count * prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Images by number: those at `rows` of the ones that `open_encoded()` opens, decoded by `rules`. `locate(i)` is the
    place of image i, `place` that of all."""

    place: str
    open_encoded: Callable[[], GetEncoded]
    rows: NDArray[np.int64]
    locate: Callable[[int], str]
    rules: ImageRules = AS_THEY_ARE

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: NDArray[np.int64]) -> ImageSet:
        """Returns these images, in this order."""
        return replace(self, rows=self.rows[rows], locate=lambda i: self.locate(int(rows[i])))

    def get_digests(self) -> list[bytes]:
        """Returns the SHA-256 of each encoded image. Raises DataError."""
        get_encoded = self.open_encoded()
        return [hash_encoded(get_encoded(row), self.locate(i)) for i, row in enumerate(self.rows.tolist())]

    def get_first_shape(self) -> Shape:
        """Returns [C, H, W] of the first image, by its header. Raises DataError."""
        return read_header(self.open_encoded()(int(self.rows[0])), self.locate(0), self.rules).shape

    def survey(self) -> Survey:
        """Reads the headers of all images. Raises DataError for one that is no image."""
        get_encoded, firsts = self.open_encoded(), dict[Shape, int]()
        num_deep = num_paged = most_pages = 0
        for i, row in enumerate(self.rows.tolist()):
            header = read_header(get_encoded(row), self.locate(i), self.rules)
            firsts.setdefault(header.shape, i)
            num_deep += header.is_deep
            num_paged += header.num_pages > 1
            most_pages = max(most_pages, header.num_pages)
        return Survey(len(self), firsts, num_deep, num_paged, most_pages)

    def plan(self, shape: Shape | None) -> Plan:
        """Plans how the images are decoded: each fitted to `shape` or, without one, unchanged. Raises DataError."""
        survey = self.survey()
        wanted = survey.shape if shape is None else shape
        is_alike = not survey.num_deep
        for own, i in survey.firsts.items():
            if shape is None and own[1:] != wanted[1:]:
                raise DataError(
                    f"{self.locate(i)}: {own[2]}x{own[1]} pixels, where {self.locate(0)} has {wanted[2]}x{wanted[1]}: "
                    "expected images of one size, or a size to bring them to (--size)"
                )
            try:
                validate_fit(own, wanted)
            except DataError as error:
                raise DataError(f"{self.locate(i)}: {error}") from error
            is_alike = is_alike and _is_alike(own, wanted)
        is_bytes = is_alike or self.rules.is_rounded
        return Plan(survey, len(self), wanted, np.dtype(np.uint8) if is_bytes else np.dtype(np.float32))

    def decode(self, plan: Plan) -> Iterator[tuple[Samples, float]]:
        """Yields each image as [1, C, H, W] by the plan, in order, with its highest value as a share of white if it has
        16 bits. Raises DataError."""
        get_encoded = self.open_encoded()
        for i, row in enumerate(self.rows.tolist()):
            image = decode_image(get_encoded(row), self.locate(i), rules=self.rules)[None]
            peak = float(image.max()) if image.dtype == np.float32 else 0.0
            yield self._make(image, plan, i), peak

    def _make(self, image: Samples, plan: Plan, i: int) -> Samples:
        channels, height, width = image.shape[1:]
        if plan.dtype != np.uint8:
            return fit(image, plan.shape)
        if image.dtype == np.uint8 and _is_alike((channels, height, width), plan.shape):
            return image  # writing it into colour repeats grey
        if self.rules.is_rounded:
            return round_to_bytes(fit(image, plan.shape))
        raise DataError(
            f"{self.locate(i)}: expected {list(plan.shape)} of 8 bits, as its header says, "
            f"got {image.dtype} {list(image.shape[1:])}"
        )

    def read(self, plan: Plan) -> tuple[Samples, float]:
        """Returns all images [N, C, H, W] in memory, and the highest value of those with 16 bits. Raises DataError."""
        validate_fits(plan.num_bytes, f"{self.place}: {plan.count} images made {list(plan.shape)}")
        stacked: Samples = np.empty((plan.count, *plan.shape), plan.dtype)
        highest = 0.0
        for i, (image, peak) in enumerate(self.decode(plan)):
            stacked[i] = image[0]
            highest = max(highest, peak)
        return stacked, highest

    def describe(self, survey: Survey, peak: float) -> list[Finding]:
        """Returns findings about odd images, each with its remedy."""
        found = []
        if survey.num_paged and self.rules.page is None:
            found.append(
                Finding(
                    "warning",
                    f"{survey.num_paged} of {survey.count} images of {self.place} have several pages or frames, up to "
                    f"{survey.most_pages}: the first is read. data.images.page names another, from 1",
                )
            )
        value = round(peak * WHITE)
        bits = max(value.bit_length(), _LEAST_BITS)
        if survey.num_deep and self.rules.white == WHITE and bits <= _DARK_BITS:
            found.append(
                Finding(
                    "warning",
                    f"{survey.num_deep} of {survey.count} images of {self.place} have 16 bits, and no value above "
                    f"{value:,} of {WHITE:,}: nearly black. data.images.white={(1 << bits) - 1} makes that white",
                )
            )
        return found


def _is_alike(got: Shape, wanted: Shape) -> bool:
    """Says whether bytes can be copied unchanged: same size, same channels or grey into colour."""
    return got[1:] == wanted[1:] and got[0] in (1, wanted[0])
