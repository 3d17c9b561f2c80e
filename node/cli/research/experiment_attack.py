"""`fednode experiment attack`: what is learned of a site's samples from what it sends, in figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.bench.figures import ThreadsOption, print_figures, report, show_ratio
from node.cli.options import AsJson, make_group, read_counts
from node.cli.research.experiment_options import RepeatsOption
from node.cli.trial.testnet import DataOption, ModelOption, SeedOption, SizeOption

if TYPE_CHECKING:
    from ml.simulation.run import SimulationConfig

SizesOption = Annotated[
    str, typer.Option("--sizes", metavar="N,…", help="How many samples of each class the site has, one after another.")
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", metavar="R", min=1, help="What is sent in the last is attacked; by property, in all.")
]


def make_attack_group() -> typer.Typer:
    group = make_group("Measure what members learn of each other's samples.")
    group.command("inversion")(inversion)
    group.command("membership")(membership)
    group.command("property")(tell_property)
    return group


def membership(
    sizes: SizesOption = "1,2,5,20,100",
    rounds: RoundsOption = 10,
    data: DataOption = "digits",
    model: ModelOption = "mlp",
    size: SizeOption = None,
    seed: SeedOption = 1,
    repeats: RepeatsOption = 9,
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """Measure whether a site's training samples can be told.

    Prototypes by the distance of the sample from them, models by their loss on it: of dfpl, mpfedcl, fedavg and uapdfl.

    Example: fednode experiment attack membership --sizes 1,5 --repeats 3
    """
    from node.experiments.leaks.membership import run_membership_bench

    with _asked(data, model, size, rounds, seed, threads) as config:
        figures = run_membership_bench(config, sizes=_read_sizes(sizes), repeats=repeats, report=report)
    print_figures(figures, _show_membership, as_json)


def inversion(
    sizes: SizesOption = "1,2,5,20,100",
    rounds: RoundsOption = 10,
    data: DataOption = "digits",
    model: ModelOption = "mlp",
    size: SizeOption = None,
    seed: SeedOption = 1,
    repeats: RepeatsOption = 9,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw what comes back, too.")] = None,
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """Measure what of a site's samples its prototypes give back.

    A decoder that the attacker trains on samples of its own undoes the embedding, and descent on its image matches the
    prototype: of dfpl and mpfedcl.

    Example: fednode experiment attack inversion --sizes 1,5,100 --repeats 3 --png back.png
    """
    from node.experiments.leaks.inversion import run_inversion_bench
    from node.experiments.reconstruct_plot import draw_panels
    from node.report.drawing import check_picture

    if png is not None:
        check_picture(png)
    with _asked(data, model, size, rounds, seed, threads) as config:
        made = run_inversion_bench(config, sizes=_read_sizes(sizes), repeats=repeats, report=report)
    if png is not None:
        job = made.figures["job"]
        title = f"prototypes on {job['data']['format']}: the site's nearest sample, and what comes back"
        draw_panels(png, made.panels, f"{title} ({job['model']['name']})")
    print_figures(made.figures, _show_inversion, as_json)


def tell_property(
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=10, help="Samples of the class that the site has most of.")
    ] = 50,
    rounds: RoundsOption = 10,
    data: DataOption = "digits",
    model: ModelOption = "mlp",
    size: SizeOption = None,
    seed: SeedOption = 1,
    repeats: RepeatsOption = 9,
    threads: ThreadsOption = 1,
    as_json: AsJson = False,
) -> None:
    """Measure what is told of a site's classes and their sizes.

    Of half of the classes the site has none. Prototypes, models and unit representations are asked which those are, and
    of which others it has more: of dfpl, mpfedcl, fedavg and uapdfl.

    Example: fednode experiment attack property --most 20 --repeats 3
    """
    from node.experiments.leaks.property import run_property_bench

    with _asked(data, model, size, rounds, seed, threads) as config:
        figures = run_property_bench(config, most=most, repeats=repeats, report=report)
    print_figures(figures, _show_property, as_json)


@contextmanager
def _asked(data: str, model: str, size: int | None, rounds: int, seed: int, threads: int) -> Iterator[SimulationConfig]:
    """Yields the configuration of a federation of two; errors of `ml` inside the context become a ConfigError."""
    from ml.simulation.run import SimulationConfig
    from node.config.genesis_file import translate_errors
    from node.config.settings import apply_settings, complete_data, make_data, make_input, make_model

    asked: dict[str, Any] = {"method": {"name": "fedavg"}, "model": make_model(model), "data": make_data(data)}
    own = complete_data(asked["data"])
    with translate_errors(apply_settings(asked, (), tuple(asked))):
        yield SimulationConfig(
            method=asked["method"],
            data=own,
            model=asked["model"],
            input=make_input(own, asked["model"], size),
            partition="iid",
            clients=2,
            rounds=rounds,
            seed=seed,
            threads=threads,
        )


def _read_sizes(text: str) -> tuple[int, ...]:
    return read_counts("--sizes", text, "1,5,20", are_different=True)


def _show_job(figures: dict[str, Any]) -> None:
    machine, job = figures["machine"], figures["job"]
    print(f"torch          {machine['torch']} on {machine['device']}, {machine['threads']} threads")
    print(
        f"federation     a site and an attacker with {job['own']} samples of each class, {job['data']['format']}, "
        f"{job['model']['name']}, {job['rounds']} rounds, {len(job['seeds'])} run{'s' * (len(job['seeds']) > 1)}"
    )


def _show_membership(figures: dict[str, Any]) -> None:
    _show_job(figures)
    print("AUC            of telling the site's samples from others: median (least to greatest); 0.5 tells nothing")
    print(f"{'of each class':37}" + "".join(f"{size:>18}" for size in figures["job"]["sizes"]))
    for name, by_size in figures["attacks"].items():
        print(f"{name:37}" + "".join(f"{show_ratio(spread):>18}" for spread in by_size.values()))


def _show_inversion(figures: dict[str, Any]) -> None:
    _show_job(figures)
    print("recovered      PSNR in dB to the nearest of the site's samples of the class, and how many images are nearer")
    print("               to that one than to any held out; medians")
    print(f"{'of each class':37}" + "".join(f"{size:>14}" for size in figures["job"]["sizes"]))
    print(f"{'a guess':37}" + "".join(f"{chance:>14.0%}" for chance in figures["chance"].values()))
    for name, by_size in figures["attacks"].items():
        cells = [f"{scores['psnr']['median']:.1f}  {scores['told']['median']:4.0%}" for scores in by_size.values()]
        print(f"{name:37}" + "".join(f"{cell:>14}" for cell in cells))


def _show_property(figures: dict[str, Any]) -> None:
    _show_job(figures)
    print(f"site           by class, in an order of its own: {', '.join(map(str, figures['job']['sizes']))} samples")
    print(
        "told           classes rightly taken to be there or absent; rank correlation with the true numbers, over all"
    )
    print("               classes and over those that are there: median (least to greatest); 50% and 0 tell nothing")
    print(f"{'':37}{'there or absent':>20}{'rank':>24}{'rank, of those there':>24}")
    for name, scores in figures["attacks"].items():
        there = scores["present"]
        cells = f"{there['median']:.0%} ({there['min']:.0%} to {there['max']:.0%})"
        ranks = "".join(f"{show_ratio(scores[key]):>24}" for key in ("rank", "rank_of_present"))
        print(f"{name:37}{cells:>20}{ranks}")
