"""Data sets that consist of several domains: a directory with one for each, itself in any of the other formats.

    digit5/     mnist/train-images-idx3-ubyte.gz …   svhn/train_32x32.mat …   usps/usps.npz   mnistm/train/3/*.png …
    office10/   amazon/mug/*.jpg …   caltech/mug/*.jpg …   dslr/…   webcam/…
    heart/      cleveland.csv   hungarian.csv …

Where a directory contains none, its tables and archives are the domains. Domains are sorted by name, or chosen and
ordered by `data.domains`, which may also name deeper directories. A domain's format is guessed from its files. Its
training and test samples are found as if it were alone: if it has no test split, a fifth of each of its classes is held
out, whatever other domains have; with `data.split_seed` it holds out samples as a site does, by a seed derived from it.
Classes are matched by name, and are those of all domains: sorted, numbers by value. A label 7 and a directory called 7
are the same class; so are SVHN's 10 and the digit 0, as everywhere.

Tables are matched by the names of their columns; columns that some domains lack are passed over.

Samples are read domain by domain into one array of the shape in genesis: scaled, made grey or colour. Without such a
shape it is the largest height and width of the domains' first samples, in colour if any is. Columns of tables are found
by name: those of a run's `input.columns`, or else of the first domain.

Data sets in other forms have to be converted first, to an .npz or to directories of images: USPS (usps.h5, or .bz2
files in libsvm's form), MNIST-M (images beside lists of their labels), Synthetic Digits (MATLAB files of its own), and
all pickles. Of DomainNet's 345 classes `data.classes` selects some, ten in the papers; its lists of training and test
files are not read, so that a fifth is held out unless there are directories train and test.

Legend: d a domain, _N its samples or those of all domains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ml.data.base import AnyLabels, Samples, Shape
from ml.data.cut import cut, hold_out_val
from ml.data.detect_format import guess_format
from ml.data.fit_input import fit, validate_finite, validate_fit
from ml.data.labels import are_numbers, number_labels
from ml.data.memory import validate_fits
from ml.data.outputs import arrange
from ml.data.part import Part, Parts
from ml.data.readers.csv_dialect import ENDINGS
from ml.data.readers.folders import list_folders
from ml.data.registry import open_splits, translated
from ml.data.source import HELD_OUT, DataSource
from ml.data.split import Sides
from ml.data.table_input import Column, TableInput
from ml.errors import DataError, suggest
from ml.seeding import derive_key
from ml.tasks import CLASSIFICATION

_FILES = (*ENDINGS, ".parquet", ".npz")  # each has a whole data set
_CHUNK = 4096  # samples fitted at a time


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """A domain of a data set, not fitted to the others; `train_y` and `test_y` are indices into its own `classes`.
    `is_numbered` says that its classes have numbers and no names. `others` are splits that are not used."""

    name: str
    path: Path
    format: str
    train: Part
    test: Part
    train_y: AnyLabels
    test_y: AnyLabels
    classes: tuple[str, ...]
    is_numbered: bool
    is_held_out: bool
    others: tuple[str, ...]

    @classmethod
    def open(cls, name: str, path: Path, source: DataSource, index: int) -> Domain:
        """Opens the domain at the directory or file `path`, by what `source` sets for all domains; `index` is its
        number. Raises DataError naming the domain."""
        with _named(name, path):
            own = replace(source, format=_guess(path), path=path, domains=None)
            splits = open_splits(own)
            labels: list[AnyLabels]
            if own.task == CLASSIFICATION:
                numbers, classes = number_labels(splits.parts, splits.classes, None)
                labels = [*numbers]
            else:
                labels, classes = arrange(splits.parts, own)
            for part, y in zip(splits.parts, labels, strict=True):
                if not len(y):
                    of = "" if source.classes is None else " of data.classes"
                    raise DataError(f"{part.place}: expected samples{of}, got none")
            train, test = splits.train, splits.test
            if test is None:
                rows = cut(train, _take_own_sides(own, index), labels[0], classes)
                test, train = train.select(rows.test), replace(train.select(rows.train), is_val=rows.is_val)
                labels = [labels[0][rows.train], labels[0][rows.test]]
            else:
                train = replace(train, is_val=hold_out_val(train, _take_own_sides(own, index), labels[0])[0])
            return cls(
                name=name,
                path=path,
                format=own.format,
                train=train,
                test=test,
                train_y=labels[0],
                test_y=labels[1],
                classes=classes,
                is_numbered=splits.classes is None and are_numbers(classes),
                is_held_out=splits.test is None,
                others=splits.others,
            )


def open_parts(source: DataSource) -> Parts:
    """Opens all domains as one source of two splits; the test split is called "held out" where no domain has one."""
    domains = open_domains(source)
    if source.task != CLASSIFICATION:
        return _join_outputs(domains, source)
    classes = _unite_classes(domains)
    index = {name: i for i, name in enumerate(classes)}
    tables = [np.array([index[name] for name in domain.classes], np.int64) for domain in domains]
    has_no_names = all(domain.is_numbered for domain in domains)
    if has_no_names:
        tables = [np.array([int(name) for name in domain.classes], np.int64) for domain in domains]
    train_y = [table[domain.train_y] for table, domain in zip(tables, domains, strict=True)]
    test_y = [table[domain.test_y] for table, domain in zip(tables, domains, strict=True)]
    train = _join(domains, [domain.train for domain in domains], train_y, str(source.path))
    test = _join(domains, [domain.test for domain in domains], test_y, str(source.path))
    return Parts(
        place=str(source.path),
        splits={source.train_split: train, _name_test(domains, source): test},
        classes=None if has_no_names else classes,
        domains=tuple(domain.name for domain in domains),
    )


def _join_outputs(domains: Sequence[Domain], source: DataSource) -> Parts:
    """Opens all domains, as `open_parts` does, for labels or targets, which have the same names in all domains. Raises
    DataError."""
    names, place = domains[0].classes, str(source.path)
    for domain in domains:
        if domain.classes != names:
            raise DataError(
                f"domain {domain.name}: {domain.path}: expected the labels {', '.join(names)} as domain "
                f"{domains[0].name} has them, got {', '.join(domain.classes)}"
            )
    train = _join(domains, [domain.train for domain in domains], [domain.train_y for domain in domains], place)
    test = _join(domains, [domain.test for domain in domains], [domain.test_y for domain in domains], place)
    train, test = replace(train, outputs=names), replace(test, outputs=names)
    splits = {source.train_split: train, _name_test(domains, source): test}
    return Parts(place, splits, domains=tuple(domain.name for domain in domains))


def _name_test(domains: Sequence[Domain], source: DataSource) -> str:
    return source.test_split or ("test" if any(not domain.is_held_out for domain in domains) else HELD_OUT)


def open_domains(source: DataSource) -> list[Domain]:
    """Opens the domains in their order, with labels read and samples not. Raises DataError."""
    path = source.get_path()
    if not path.is_dir():
        raise DataError(f"{path}: expected a directory with one for each domain in it, got a file")
    files = {
        entry.name: entry
        for entry in sorted(path.iterdir())
        if not entry.name.startswith(".") and entry.name.endswith(_FILES)
    }
    places = {folder.name: folder for folder in list_folders(path)}
    if not places and len(files) > 1:
        places = files
    places |= {name: path / name for name in source.domains or () if (path / name).exists()}
    if not places:
        raise DataError(f"{path}: expected a directory for each domain, or tables, got none")
    for name in source.domains or ():
        if name not in places:
            raise DataError(f"data.domains: {path} has no directory {name!r}: {suggest(name, places)}")
    return [Domain.open(name, places[name], source, i) for i, name in enumerate(source.domains or places)]


def _take_own_sides(source: DataSource, index: int) -> DataSource:
    """Returns the source of one domain with a split of its own, drawn by a rehearsal's seed, if there is one."""
    if source.split_seed is None or source.sides is not None:
        return source
    return replace(source, sides=Sides(derive_key(source.split_seed, "split", index)))


def _guess(path: Path) -> str:
    try:
        return guess_format(path)
    except DataError as error:
        raise DataError(
            f"{path}: expected data in one of the other formats, and it looks like none of them (data.domains leaves "
            "out what is no domain)"
        ) from error


def _unite_classes(domains: Sequence[Domain]) -> tuple[str, ...]:
    """Returns the classes of all domains. Raises DataError where some have names and others only numbers."""
    names = {name for domain in domains for name in domain.classes}
    if are_numbers(names):
        return tuple(sorted(names, key=int))
    for domain in domains:
        if domain.is_numbered:
            named = next(other for other in domains if not are_numbers(other.classes))
            raise DataError(
                f"domain {domain.name}: {domain.path}: expected labels with names, as domain {named.name} has them "
                f"({named.classes[0]!r}), got the numbers {domain.classes[0]} to {domain.classes[-1]}"
            )
    return tuple(sorted(names))


def _join(domains: Sequence[Domain], parts: Sequence[Part], labels: Sequence[AnyLabels], place: str) -> Part:
    """Joins one split of all domains, one domain after the other."""
    columns = _find_columns(parts)
    shape = _find_shape(domains) if columns is None else (len(columns), 1, 1)
    ends = list(accumulate(map(len, labels)))
    starts = [0, *ends[:-1]]
    domain_N = np.repeat(np.arange(len(domains)), [len(y) for y in labels])

    def locate(i: int) -> str:
        d = int(domain_N[i])
        return f"domain {domains[d].name}: {parts[d].locate(i - starts[d])}"

    def read(wanted: Shape | None) -> Samples:
        target = wanted or shape
        is_alike = all(part.shape[1:] == target[1:] and part.shape[0] in (1, target[0]) for part in parts)
        validate_fits((1 if is_alike else 4) * ends[-1] * prod(target), f"{place}: {ends[-1]} samples {list(target)}")
        whole: Samples = np.empty((ends[-1], *target), np.uint8)
        if not is_alike:
            whole = np.empty((ends[-1], *target), np.float32)
        for domain, part, start, end in zip(domains, parts, starts, ends, strict=True):
            with _named(domain.name, domain.path):
                x = part.read(target)
                validate_finite(x, part.locate)
                validate_fit((x.shape[1], x.shape[2], x.shape[3]), target)
            if whole.dtype == np.uint8 and not (x.dtype == np.uint8 and x.shape[2:] == target[1:]):
                validate_fits(4 * whole.nbytes, f"{place}: {len(whole)} samples as numbers")
                whole = whole.astype(np.float32)
                whole /= np.float32(255)
            if whole.dtype == np.uint8:
                whole[start:end] = x  # grey is repeated
                continue
            for i in range(0, end - start, _CHUNK):
                whole[start + i : min(start + i + _CHUNK, end)] = fit(x[i : i + _CHUNK], target)
        return whole

    notes = tuple(
        replace(note, text=f"domain {domain.name}: {note.text}")
        for domain, part in zip(domains, parts, strict=True)
        for note in part.notes
    )
    whole_y: Any = np.concatenate(labels)
    is_val = [
        np.zeros(len(y), np.bool_) if own.is_val is None else own.is_val for own, y in zip(parts, labels, strict=True)
    ]
    marked = np.concatenate(is_val) if any(own.is_val is not None for own in parts) else None
    part = Part(place, whole_y, shape, read, locate, domain_of=domain_N, notes=notes, is_val=marked)
    return part if columns is None else _join_tables(part, domains, parts, columns)


def _find_columns(parts: Sequence[Part]) -> tuple[str, ...] | None:
    """Returns the columns that all of these tables have, in the order of the first; None where not all are tables.
    Raises DataError where they have none in common."""
    if any(part.cells is None for part in parts):
        return None
    common = tuple(name for name in parts[0].features if all(name in part.features for part in parts))
    if not common:
        raise DataError(
            f"{parts[0].place}: expected a column that all have, got {', '.join(parts[0].features)} here and "
            f"{', '.join(parts[-1].features)} in {parts[-1].place}"
        )
    return common


def _join_tables(part: Part, domains: Sequence[Domain], parts: Sequence[Part], columns: tuple[str, ...]) -> Part:
    """Returns `part` with these columns of all domains; their other columns are passed over."""
    named = [
        replace(own, place=f"domain {domain.name}: {own.place}") for own, domain in zip(parts, domains, strict=True)
    ]

    def get_cells() -> dict[str, list[Any]]:
        tables = [own.cells() for own in parts if own.cells is not None]
        return {name: [cell for table in tables for cell in table[name]] for name in columns}

    table = TableInput(tuple(Column(name) for name in columns))
    return replace(
        part,
        read=lambda _: table.encode(get_cells(), part.locate),
        features=columns,
        cells=get_cells,
        pieces=tuple(named),
        passed_over=tuple({name: None for own in parts for name in table.list_passed_over(own.features)}),
    )


def _find_shape(domains: Sequence[Domain]) -> Shape:
    """Returns a shape that samples of all domains can be fitted to. Raises DataError where there is none."""
    shapes = [domain.train.shape for domain in domains]
    if all(domain.train.features for domain in domains):
        return shapes[0]  # the other domains' columns are found by name
    for domain, shape in zip(domains, shapes, strict=True):
        if not _is_like(shape, shapes[0]):
            raise DataError(
                f"domain {domain.name}: {domain.path}: expected samples like those of domain {domains[0].name}, "
                f"{list(shapes[0])} (channels, height, width), got {list(shape)}"
            )
    return max(s[0] for s in shapes), max(s[1] for s in shapes), max(s[2] for s in shapes)


def _is_like(one: Shape, other: Shape) -> bool:
    """Says whether both are images that can be fitted to each other, or the same number of features."""
    if (1, 1) in (one[1:], other[1:]):
        return one == other
    return one[0] == other[0] or {one[0], other[0]} == {1, 3}


@contextmanager
def _named(name: str, path: Path) -> Iterator[None]:
    """Adds the name of a domain to errors about it."""
    try:
        with translated(path):
            yield
    except DataError as error:
        raise DataError(f"domain {name}: {error}") from error
