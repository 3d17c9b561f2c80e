"""Mutation testing on a sample: small changes of the rules' source, and the tests that notice them.

python -m tests.mutants reach                    which tests reach each mutant: one run of the default tests
python -m tests.mutants run RESULTS              tries the mutants; once more, it goes on where it was stopped
python -m tests.mutants run RESULTS --known BEFORE    each before the test that killed it then; needs no `reach`
python -m tests.mutants run RESULTS --slow       what still lives, before the slow tests and the real processes
python -m tests.mutants table RESULTS            the share killed
python -m tests.mutants compare BEFORE AFTER     of two trees, and what died before and lives now
python -m tests.mutants sample --seed 2          draws another sample, with which no older results compare
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants import reach, report, sample  # their place is in the path only now
from mutants.clone import Clone
from mutants.trial import Laboratory, Results

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    match options.command:
        case "sample":
            sample.save_sample(sample.draw_sample(options.tree, options.seed, options.size))
        case "reach":
            _reach(options)
        case "run":
            _run(options)
        case "table":
            print(report.format_table(report.read_verdicts(options.results)))
        case "compare":
            print(*report.compare(*map(report.read_verdicts, (options.before, options.after))), sep="\n\n")
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("sample")
    draw.add_argument("--seed", type=int, default=1)
    draw.add_argument("--size", type=int, default=240)
    reach_ = commands.add_parser("reach")
    reach_.add_argument("--recorded", action="store_true", help="from the data of the last run")
    run = commands.add_parser("run")
    run.add_argument("results", type=Path)
    run.add_argument("--slow", action="store_true")
    run.add_argument("--known", type=Path, metavar="BEFORE")
    run.add_argument("--workers", type=int, default=2)
    run.add_argument("--first", type=int, help="so many of the sample")
    for command in (draw, reach_, run):
        command.add_argument(
            "--tree", type=Path, default=ROOT, help="another checkout, of which the last commit counts"
        )
    for command in (reach_, run):
        command.add_argument("--python", type=Path, default=Path(sys.executable), help="with the tree as editable")
        command.add_argument("--work", type=Path, default=ROOT / ".mutants", help="clones and what reaches the mutants")
    table = commands.add_parser("table")
    table.add_argument("results", type=Path)
    compare = commands.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    return parser.parse_args(arguments)


def _reach(options: argparse.Namespace) -> None:
    clone, recorded = _make_clone(options, 0), options.work.absolute() / "reach"
    if not options.recorded:
        shutil.rmtree(recorded, ignore_errors=True)
        reach.record(clone, recorded)
    reach.read(clone, recorded, sample.load_sample()).save(options.work / "reach.json")


def _run(options: argparse.Namespace) -> None:
    mutants = sample.load_sample()[: options.first]
    clones = [_make_clone(options, i) for i in range(options.workers)]
    killers = report.read_killers(options.known) if options.known else {}
    reached = options.work / "reach.json"
    known = reach.Reach(dict.fromkeys(killers.values(), 1.0), {}) if killers else reach.Reach.load(reached, mutants)
    laboratory = Laboratory(clones, known, clones[0].find_places(mutants), Results(options.results), _say)
    laboratory.report_gone(mutants)
    if options.known:
        laboratory.try_known(killers)
    elif options.slow:
        laboratory.try_slow()
    else:
        laboratory.try_unit()
        laboratory.try_default()
    print(report.format_table(report.read_verdicts(options.results)))


def _make_clone(options: argparse.Namespace, number: int) -> Clone:
    options.work.mkdir(parents=True, exist_ok=True)
    return Clone.make(options.tree.absolute(), options.python.absolute(), options.work.absolute() / f"clone{number}")


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
