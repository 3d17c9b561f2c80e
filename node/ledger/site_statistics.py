"""The statistics that a run's members agreed on: those of all sites together, and of each.

The sums are on the chain: the aggregate has those of all, and each site's contribution its own, as long as its blob is
here. With masked sums nobody has the sums of one site. Differences between sites that look like different units are
named, and so is a feature that only some sites have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from chain.block import Block, Contribution
from chain.calendar import Place
from chain.run import Run
from chain.signing import encode_id
from chain.store.sqlite import SqliteStore
from ml.aggregation.sums import PER_BIN, PER_CLASS, PRESENT
from ml.data.base import InputFormat
from ml.errors import PayloadError
from ml.payload import Arrays, kind_code, read_arrays
from ml.specs import MaskedStatisticsSpec, StatisticsSpec, get_kind
from ml.specs.correlations import compute_correlations, describe_classes
from ml.specs.masked.aggregate import MASKED, explain_lost
from ml.specs.masked.spec import is_empty_input
from ml.specs.statistics import STATISTICS, Constants, get_num_values
from ml.specs.statistics_checks import split_bins
from node.errors import NotFound
from node.ledger.names import get_name
from node.pb import admin_pb2 as pb
from node.runs.specs import RunRound, RunSpecs

UNITS = {
    10.0: "a unit that is ten times the other",
    1000.0: "a unit that is a thousand times the other",
    18.016: "glucose in mg/dL and in mmol/L",
    38.67: "cholesterol in mg/dL and in mmol/L",
    88.57: "triglycerides in mg/dL and in mmol/L",
    88.42: "creatinine in µmol/L and in mg/dL",
}
TOLERANCE = 0.15  # of a ratio of means, as samples differ
MIN_DEVIATIONS = 1.0  # between two sites' means: below it no other unit is suspected
QUANTILES = {"lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75}
RARE = 0.01  # a column with a smaller share of filled cells is called next to empty
MUCH = 0.05  # a value in a larger share of one site's rows is expected at other sites, too


def read_statistics(store: SqliteStore, runs: RunSpecs, number: int) -> pb.StatisticsReply:
    """Returns the statistics of the run of this number, 0 for the newest. Runs on the store's thread. Raises
    NotFound."""
    number = number or runs.calendar.newest.run.number
    height = runs.calendar.get_height(Place(number, 1))
    round_ = None if height is None else runs.find(height)
    if round_ is None:
        raise NotFound(f"run {number}: there is none, or this release does not know its method")
    if isinstance(round_.spec, MaskedStatisticsSpec):
        return _read_masked(store, runs, round_, round_.spec.inner)
    spec = round_.spec
    if not isinstance(spec, StatisticsSpec) or not spec.is_statistics(round_.number):
        raise NotFound(f"run {number} agrees on no statistics: its input has no normalize: agreed")
    block = _get_block(store, round_.run, round_.height)
    state = store.get_state(round_.height - 1)
    sites = [_show_site(spec, one, get_name(state, one.author), _read_own(store, one)) for one in block.contributions]
    agreed = get_kind(_read_held(store, block.header.aggregate), STATISTICS)
    reply = _reply(round_.run, round_.height, spec, sites, agreed)
    if spec.rules_of_statistics[STATISTICS] == "trimmed_sum":
        count_all(reply)
    return reply


def count_all(reply: pb.StatisticsReply) -> None:
    """Sets how many values all sites have of each feature, from the sites' own counts, as a trimmed sum leaves out
    sites feature by feature. Where a site's statistics are not here, it is the number of samples."""
    held = all(site.held for site in reply.sites)
    for i, feature in enumerate(reply.all.features):
        known = sum(site.features[i].values for site in reply.sites) if held else 0
        feature.values = known or max(feature.values, reply.all.samples)


def _read_masked(store: SqliteStore, runs: RunSpecs, first: RunRound, spec: StatisticsSpec) -> pb.StatisticsReply:
    """Returns the statistics of a run with masked inputs, whose sums are opened at the height after them. Raises
    NotFound."""
    run = first.run
    inputs, openings = (runs.calendar.get_height(Place(run.number, number)) for number in (2, 3))
    block = _get_block(store, run, openings)
    aggregate = _read_held(store, block.header.aggregate)
    agreed, state = get_kind(aggregate, STATISTICS), store.get_state(block.height - 1)
    if aggregate is not None and agreed is None:
        why = explain_lost(aggregate, lambda key: get_name(state, key)) or "nobody had a part in its sum"
        raise NotFound(f"run {run.number} has ended without statistics: {why}. Propose it again")
    sent = () if inputs is None else _get_block(store, run, inputs).contributions
    sites = [
        pb.SiteStatistics(id=encode_id(one.author), name=get_name(state, one.author))
        for one in sent
        if not is_empty_input({MASKED: sum(ref.size for ref in one.payloads if ref.kind == kind_code(MASKED))})
    ]
    reply = _reply(run, block.height, spec, sites, agreed)
    reply.masked = True
    return reply


def _get_block(store: SqliteStore, run: Run, height: int | None) -> Block:
    """Returns the block at a height. Raises NotFound where it is not made yet."""
    stored = store.get_block(height) if height is not None and height <= store.head_height else None
    if stored is None:
        raise NotFound(f"run {run.number}: its members have not agreed on statistics yet")
    return stored.block


def _reply(
    run: Run, height: int, spec: StatisticsSpec, sites: Sequence[pb.SiteStatistics], agreed: Arrays | None
) -> pb.StatisticsReply:
    reply = pb.StatisticsReply(
        run=run.number,
        height=height,
        min_count=spec.agreement.min_count,
        classes=run.classes,
        features=_list_features(run, spec),
        sites=sites,
    )
    if agreed is not None:
        reply.all.CopyFrom(_show(spec, agreed, int(agreed["samples"]), agreed["counts"].tolist()))
    reply.differences.extend(list_differences(reply))
    return reply


def _list_features(run: Run, spec: StatisticsSpec) -> Iterator[pb.StatisticsFeature]:
    table, channels = InputFormat.from_mapping(run.input).table, spec.task.input_shape[0]
    names: Sequence[str] = [f"channel {i}" for i in range(channels)]
    is_number = [True] * channels
    if table is not None and table.columns is not None:
        names, is_number = table.get_features(table.columns), table.get_numbers(channels).tolist()
    edges: Sequence[Sequence[float]] = spec.agreement.edges or [()] * channels
    for name, number, own in zip(names, is_number, edges, strict=True):
        yield pb.StatisticsFeature(name=name, category=not number, edges=own)


def _read_own(store: SqliteStore, one: Contribution) -> Arrays | None:
    """Returns a site's own statistics; None where its blob is not here."""
    digest = next((ref.digest for ref in one.payloads if ref.kind == kind_code(STATISTICS)), None)
    return None if digest is None else _read_held(store, digest)


def _read_held(store: SqliteStore, digest: bytes) -> Arrays | None:
    """Returns the arrays of a blob; None where it is not here."""
    if not store.has_blob(digest):
        return None
    try:
        return read_arrays(store.locate_blob(digest))
    except (OSError, PayloadError):  # pruned meanwhile, or damaged: the store reports it elsewhere
        return None


def _show_site(spec: StatisticsSpec, one: Contribution, name: str, arrays: Arrays | None) -> pb.SiteStatistics:
    shown = pb.SiteStatistics(held=False)
    if arrays is not None:
        count = int(arrays["count"])
        present = arrays[PRESENT].tolist() if PRESENT in arrays else [count] * len(arrays["sums"])
        told = {**arrays, "counts": np.array(present), "sites": np.array(1), "samples": np.array(count)}
        shown = _show(spec, told, count, present)
    shown.id, shown.name = encode_id(one.author), name
    return shown


def _show(spec: StatisticsSpec, arrays: Arrays, samples: int, present: Sequence[int]) -> pb.SiteStatistics:
    constants = Constants.from_arrays(arrays, num_values := get_num_values(spec.task.input_shape))
    bins = split_bins(arrays, edges := spec.agreement.edges) if PER_BIN in arrays else {}
    by_class = describe_classes(arrays, num_values)
    correlations = compute_correlations(arrays, num_values)
    shown = pb.SiteStatistics(samples=samples, held=True)
    if PER_CLASS in arrays:
        shown.classes.extend(arrays[PER_CLASS].tolist())
    for i, (count, mean, std) in enumerate(zip(present, constants.mean, constants.std, strict=True)):
        feature = shown.features.add(values=count * num_values, bins=bins[i].tolist() if i in bins else ())
        if count:
            feature.mean, feature.std = mean, std
        if i in bins:
            for name, share in QUANTILES.items():
                if (value := find_quantile(edges[i], bins[i].tolist(), share)) is not None:
                    setattr(feature, name, value)
        for own, r in zip(by_class, correlations[i] if correlations else (), strict=True):
            feature.classes.append(_show_class(*own[i], r))
    return shown


def _show_class(values: int, mean: float, std: float, correlation: float | None) -> pb.ClassFeature:
    known = {"mean": mean, "std": std} if values else {}
    return pb.ClassFeature(values=values, correlation=correlation, **known)


def find_quantile(edges: Sequence[float], bins: Sequence[int], share: float) -> float | None:
    """Returns the value below which this share of a histogram lies, as if values were spread evenly between two edges;
    None where it is below the first edge or above the last one, or nothing is counted."""
    below = np.cumsum(bins[:-1])  # [len(edges)]: how many lie below each edge
    rank = share * sum(bins)
    if not sum(bins) or not below[0] <= rank <= below[-1]:
        return None
    return float(np.interp(rank, below, edges))


# ---- what differs


def list_differences(reply: pb.StatisticsReply) -> list[str]:
    """Describes, each in a sentence, the differences between sites that are likely to come from how they record
    data."""
    sites = [site for site in reply.sites if site.held and site.samples]
    found: list[str] = []
    for i, feature in enumerate(reply.features):
        own = {site.name: site.features[i] for site in sites}
        if feature.category:
            found += _compare_shares(feature.name, {name: one.mean for name, one in own.items()})
        else:
            samples = {site.name: site.samples for site in sites}
            found += _find_unfilled(feature.name, {name: one.values / samples[name] for name, one in own.items()})
            found += _compare_units(feature.name, {name: one for name, one in own.items() if one.values})
    return found


def _compare_shares(name: str, shares: Mapping[str, float]) -> Iterator[str]:
    """Describes a category that only one site has, if a relevant share of its rows has it."""
    having = [site for site, share in shares.items() if share > 0]
    if len(having) == 1 < len(shares) and shares[having[0]] > MUCH and not name.endswith("(empty)"):
        yield f"{name}: only {having[0]} has it: do the others write it in another way?"


def _find_unfilled(name: str, filled: Mapping[str, float]) -> Iterator[str]:
    lacking = [site for site, share in filled.items() if share < RARE]
    if lacking and len(lacking) < len(filled):
        yield f"{name}: {', '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} next to no values"


def _compare_units(name: str, own: Mapping[str, pb.FeatureStatistics]) -> Iterator[str]:
    """Describes a site whose mean and deviation differ from the others' by the ratio of two units. Of two such sites
    only the first is named."""
    for site, one in own.items():
        others = [other for name_, other in own.items() if name_ != site]
        if not others:
            return
        mean, std = (float(np.median([getattr(other, key) for other in others])) for key in ("mean", "std"))
        if abs(one.mean - mean) < MIN_DEVIATIONS * max(one.std, std):
            continue
        for factor, unit in UNITS.items():
            for ratio, share in ((factor, f"{factor:g} times"), (1 / factor, f"1/{factor:g} of")):
                is_spread = _is_near(one.std, std * ratio, 3 * TOLERANCE)  # a deviation varies more than a mean
                if is_spread and _is_near(one.mean, mean * ratio, TOLERANCE):
                    yield f"{name}: the mean of {site} is about {share} the others', as of {unit}"
                    return


def _is_near(value: float, other: float, tolerance: float) -> bool:
    return abs(value - other) < tolerance * abs(other)
