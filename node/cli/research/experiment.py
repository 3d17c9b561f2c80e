"""`fednode experiment`: sweeps of simulations, and the page that shows what came of them."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli import INTERRUPTED
from node.cli.options import AsJson, make_group
from node.cli.output import print_json, print_table
from node.cli.research.experiment_attack import make_attack_group
from node.cli.research.experiment_options import (
    DataRootOption,
    FileArgument,
    GpusOption,
    JobsOption,
    JobsPerGpuOption,
    OutputOption,
    OverridesOption,
    open_experiment,
)
from node.cli.research.experiment_plan import plan
from node.cli.research.experiment_reconstruct import reconstruct
from node.errors import ConfigError, NodeError

if TYPE_CHECKING:
    from node.experiments.plan import Experiment, Run
    from node.experiments.runner import Progress
    from node.experiments.stock import Stock

ESTIMATE_S = 600.0  # so much of the past is used to estimate the time left


def register(app: typer.Typer) -> None:
    group = make_group("Run sweeps of simulations, and report them.")
    group.command("run")(run)
    group.command("plan")(plan)
    group.command("report")(report)
    group.command("reconstruct")(reconstruct)
    group.add_typer(make_attack_group(), name="attack")
    app.add_typer(group, name="experiment")


def run(
    file: FileArgument,
    out: OutputOption = None,
    jobs: JobsOption = None,
    gpus: GpusOption = None,
    jobs_per_gpu: JobsPerGpuOption = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="WHERE", help="ray for a cluster of Ray's on this machine, or ray://HOST:10001."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Run the I-th of N shares of the runs, in a DIR shared with the others: a Slurm array.",
        ),
    ] = None,
    save_every_s: Annotated[
        float | None,
        typer.Option(
            "--save-every",
            metavar="SECONDS",
            min=0,
            help="How often a run keeps what it would go on from; by default once a minute. Not with --on.",
        ),
    ] = None,
    data_root: DataRootOption = None,
    overrides: OverridesOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and start nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run what FILE describes and is not finished yet. Ctrl-C loses little of runs under way; call it again to go on.

    With --gpus each process sees one of this machine's GPUs and trains on it, whatever device FILE names. With --on ray
    other machines compute, and results come here; data are where FILE says on each of them, and runs under way begin
    again. With --shard N calls on machines that share DIR do a share of the runs each; call one that has died again.

    With --json how far it is goes to stderr, and stdout has one object when it ends, well or not.

    Example: fednode experiment run deploy/experiments/dfpl-table1-digits.yaml --set base.rounds=2 --dry-run
    """
    from node.experiments.runner import SAVE_EVERY_S, Where, run_experiment, validate_runs

    place = _read_on(on, jobs, gpus, jobs_per_gpu)
    if on is not None and save_every_s is not None:
        raise ConfigError("--save-every: expected it or --on, where runs keep no state, not both")
    every_s = SAVE_EVERY_S if save_every_s is None else save_every_s
    share = _read_shard(shard, on)
    where = Where(**place, is_shared=shard is not None, save_every_s=every_s)
    experiment, directory, stock = open_experiment(file, overrides, out)
    runs, pending = experiment.list_shard(share), stock.list_pending(experiment, share)
    if dry_run:
        _list_runs(experiment, runs, pending, directory, stock, as_json)
        return
    for run_id in (run.id for run in runs if run.id in stock.broken):
        print(f"{stock.broken[run_id]}; it is run again", file=sys.stderr)
    root = (data_root or file.parent).absolute()
    validate_runs(pending, root)
    if on is not None and jobs is None and gpus is not None:
        jobs = gpus * (jobs_per_gpu or 1)
    with _until_interrupted() as interrupts:
        progress = run_experiment(
            experiment,
            directory,
            pending,
            jobs=jobs,
            data_root=root,
            should_stop=lambda: bool(interrupts),
            where=where,
        )
        ended = [news for news in _shown(progress, pending, to_stderr=as_json) if news.done]
    failed = [news for news in ended if news.error is not None]
    left = len(pending) - len(ended)
    if as_json:
        _print_summary(experiment, directory, len(runs), len(pending), left, failed)
    else:
        for news in failed:
            print(f"failed: {news.run.label}: {news.error}", file=sys.stderr)
        for misfit in _list_misfits(experiment):
            print(f"does not fit: {misfit}", file=sys.stderr)
        done = len(ended) - len(failed)
        print(f"{_count(experiment, runs, pending)}; now {done} more done, {len(failed)} failed")
        print(f"see them: fednode experiment report {directory}")
    if interrupts:
        print(f"stopped: {left} runs are left; the same command goes on with them", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if failed:
        raise NodeError(f"{len(failed)} of {len(pending)} runs failed; the same command tries them again")


def _read_on(on: str | None, jobs: int | None, gpus: int | None, jobs_per_gpu: int | None) -> dict[str, Any]:
    """Returns the settings of `Where` for these options. Raises ConfigError."""
    from node.experiments.gpus import find_gpus, list_environments

    if on is not None:
        if not re.fullmatch(r"ray|ray://.+", on):
            raise ConfigError(f"--on: expected ray or ray://HOST:PORT (got {on})")
        uses_gpus = gpus is not None or jobs_per_gpu is not None
        return {"ray": on, "gpu_share": 1 / (jobs_per_gpu or 1) if uses_gpus else 0.0}
    if gpus is None:
        if jobs_per_gpu is not None:
            raise ConfigError("--jobs-per-gpu: expected --gpus N or --on ray with it")
        return {}
    if jobs is not None:
        raise ConfigError("--jobs: expected it or --gpus, which comes with --jobs-per-gpu, not both")
    return {"environments": list_environments(find_gpus(gpus), jobs_per_gpu or 1)}


def _read_shard(text: str | None, on: str | None) -> tuple[int, int]:
    """Returns the number of a shard and of all shards. Raises ConfigError."""
    if text is None:
        return 1, 1
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigError(f"--shard: expected I/N with I from 1 to N, as in 3/16 (got {text})")
    if on is not None:
        raise ConfigError("--shard: expected it or --on, which shares runs by itself, not both")
    return int(found[1]), int(found[2])


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `experiment run` has written.")],
    as_json: AsJson = False,
) -> None:
    """Write DIR/report.html with its tables and figures. It works while runs are missing, too.

    Example: fednode experiment report results/dfpl-table1-digits
    """
    from node.experiments.report import write_report

    written = write_report(directory)
    if as_json:
        tables, figures = ([str(path) for path in paths] for paths in (written.tables, written.figures))
        print_json({"page": str(written.page), "summary": written.summary, "tables": tables, "figures": figures})
        return
    print(f"{written.page}: {written.summary}")
    for what, paths in (("runs and tables", written.tables), ("figures", written.figures)):
        print(f"{what}: {', '.join(str(path.relative_to(directory)) for path in paths) or 'none'}")


@contextmanager
def _until_interrupted() -> Iterator[list[int]]:
    """Notes SIGINT and SIGTERM in the list, until the context is left, instead of ending."""
    noted: list[int] = []
    before = {
        name: signal.signal(name, lambda number, _: noted.append(number)) for name in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield noted
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _shown(progress: Iterator[Progress], pending: Sequence[Run], *, to_stderr: bool) -> Iterator[Progress]:
    """Passes on all of `progress`, with a bar on a terminal, and a line for each run that ends where the output is a
    pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    out = sys.stderr if to_stderr else sys.stdout
    lines = not out.isatty()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(
        *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=ESTIMATE_S
    ) as bar:
        task = bar.add_task(f"0 of {len(pending)} runs", total=sum(run.num_heights for run in pending))
        rounds: dict[str, int] = {}
        done = failures = 0
        for news in progress:
            if not news.done:
                rounds[news.run.id] = rounds.get(news.run.id, 0) + 1
                bar.advance(task)
            else:
                done += 1
                failures += news.error is not None
                bar.advance(task, news.run.num_heights - rounds.get(news.run.id, 0))  # a failed run has none left
                suffix = f", {failures} failed" if failures else ""
                bar.update(task, description=f"{done} of {len(pending)} runs{suffix}")
                if lines:
                    print(f"{done:{len(str(len(pending)))}}/{len(pending)}  {_describe(news)}", file=out, flush=True)
                elif news.error is not None:
                    console.print(f"{news.run.label}: {_first_line(news.error)}", highlight=False, markup=False)
            yield news


def _describe(news: Progress) -> str:
    best = "no round" if news.best_taa is None else f"best TAA {news.best_taa:.4f}"
    came = best if news.error is None else f"failed: {_first_line(news.error)}"
    taken = f", taken from {news.taken_from}" if news.taken_from is not None else ""
    return f"{news.run.label}  {came}  {news.seconds:.1f} s{taken}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _list_runs(
    experiment: Experiment, runs: Sequence[Run], pending: Sequence[Run], directory: Path, stock: Stock, as_json: bool
) -> None:
    rows = []
    left = {one.id for one in pending}
    for one in runs:
        state = "done" if one.id not in left else "failed" if one.id in stock.failed else "to run"
        rows.append((one.id, "broken" if one.id in stock.broken else state, one.label))
    if as_json:
        listed = [{"id": name, "state": state, "run": label} for name, state, label in rows]
        print_json({"directory": str(directory), "runs": listed, "misfits": _list_misfits(experiment)})
        return
    print_table(("ID", "STATE", "RUN"), rows)
    for misfit in _list_misfits(experiment):
        print(f"does not fit: {misfit}")
    print(_count(experiment, runs, pending))


def _print_summary(
    experiment: Experiment, directory: Path, runs: int, pending: int, left: int, failed: Sequence[Progress]
) -> None:
    facts = {
        "directory": str(directory),
        "runs": runs,
        "done_before": runs - pending,
        "done_now": pending - left - len(failed),
        "failed": [{"id": news.run.id, "run": news.run.label, "error": news.error} for news in failed],
        "left": left,
        "misfits": _list_misfits(experiment),
    }
    print_json(facts)


def _list_misfits(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys(point.misfit for point in experiment.points if point.misfit is not None))


def _count(experiment: Experiment, runs: Sequence[Run], pending: Sequence[Run]) -> str:
    ids = {run.id for run in runs}
    points = sum(point.run is not None and point.run.id in ids for point in experiment.points)
    shared = f" for {points} combinations" if points != len(runs) else ""
    return f"{len(runs)} runs{shared}, {len(runs) - len(pending)} of them done before"
