"""Coverage-guided fuzzing by atheris: each target in a process of its own, for so many seconds.

A process starts from the kept corpus and from what earlier runs on this machine came upon (`.fuzz/<target>/`). The
product's Python is instrumented as it is imported, so nothing here imports any of it before; that takes some seconds
and is done once, for all the processes that are forked afterwards.

A finding ends its process and leaves its bytes in `.fuzz/findings/<target>/`.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.claims import Target

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
WORK = ROOT / ".fuzz"
INSTRUMENTED = ["chain", "ml", "node", "yaml"]
LIMIT_S = 30  # for one input: a reader that takes longer is a finding
RSS_MIB = 1024  # and so is one that has more than this; the imports alone take a tenth

_FEATURES = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")
_EXECUTIONS = re.compile(r"stat::number_of_executed_units: (\d+)")
_RATE = re.compile(r"stat::average_exec_per_sec: *(\d+)")


@dataclass(frozen=True, slots=True)
class Run:
    """One target's process, and where what it says and finds is kept."""

    target: str
    log: Path
    findings: Path
    found_before: frozenset[Path]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run: 0 when nothing was found."""

    run: Run
    exit_status: int
    log: str

    @property
    def findings(self) -> list[Path]:
        return sorted(set(self.run.findings.iterdir()) - self.run.found_before)

    def describe(self) -> str:
        coverage, features, corpus = (_FEATURES.findall(self.log) or [("0", "0", "0")])[-1]
        executions, rate = ((pattern.findall(self.log) or ["?"])[-1] for pattern in (_EXECUTIONS, _RATE))
        text = (
            f"{self.run.target:13} {executions:>9} inputs {rate:>6}/s"
            f" {coverage:>5} blocks {features:>5} features {corpus:>4} kept"
        )
        return text if self.exit_status == 0 else f"{text}  FINDING"


def run_campaign(names: Sequence[str], seconds: int, jobs: int) -> int:
    """Fuzzes these targets (all, if empty), `jobs` at a time, and says how it went.

    The exit status: 0 when nothing was found, 1 when something was, 2 for a target that there is not.
    """
    targets = _load_targets()
    if unknown := sorted(set(names) - targets.keys()):
        print(f"expected targets of {', '.join(targets)}, got {unknown[0]}", file=sys.stderr)
        return 2
    began_s = time.monotonic()
    waiting = list(names or targets)
    count = len(waiting)
    running: dict[int, Run] = {}
    failed: list[Outcome] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            pid, run = _start(name, targets[name], seconds)
            running[pid] = run
        pid, status = os.wait()
        run = running.pop(pid)
        outcome = Outcome(run, os.waitstatus_to_exitcode(status), run.log.read_text(errors="replace"))
        print(outcome.describe(), flush=True)
        if outcome.exit_status != 0:
            failed.append(outcome)
    for outcome in failed:
        print(f"\n{outcome.run.target}: ended with {outcome.exit_status}, after\n{outcome.log[-4000:]}")
        for path in outcome.findings:
            print(f"reproduce with: python -m tests.fuzz replay {outcome.run.target} {path.relative_to(ROOT)}")
    verdict = f"findings in {', '.join(outcome.run.target for outcome in failed)}" if failed else "no findings"
    print(f"{count} targets of {seconds} s in {time.monotonic() - began_s:.0f} s: {verdict}")
    return 1 if failed else 0


def _load_targets() -> Mapping[str, Target]:
    import atheris  # only here: nothing else needs it

    # It says on stderr what it instruments: a hundred lines.
    with redirect_stderr(StringIO()), atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        from fuzz.targets import TARGETS

    return TARGETS


def _start(name: str, target: Target, seconds: int) -> tuple[int, Run]:
    kept, findings = WORK / name, WORK / "findings" / name
    for directory in (kept, findings):
        directory.mkdir(parents=True, exist_ok=True)
    run = Run(name, WORK / f"{name}.log", findings, frozenset(findings.iterdir()))
    dictionary = WORK / f"{name}.dict"
    dictionary.write_text("".join(f'"{_escape(word)}"\n' for word in ("\0\0\0\0", *target.words)))
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={target.max_bytes}",
        f"-timeout={LIMIT_S}",
        f"-rss_limit_mb={RSS_MIB}",
        f"-dict={dictionary}",
        f"-artifact_prefix={findings}/",
        "-len_control=20",  # towards longer inputs sooner: objects here are not short
        "-print_final_stats=1",
        str(kept),
        str(CORPUS / name),
    ]
    pid = os.fork()
    if pid == 0:
        _fuzz(target, run.log, arguments)
    return pid, run


def _fuzz(target: Target, log: Path, arguments: Sequence[str]) -> None:
    """In the forked process, which this ends: with 0 after its time, else as the interpreter does. Only then libFuzzer
    writes what it had just tried."""
    import atheris

    from ml.data.memory import limit_memory  # instrumented by now, as all of the product is

    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for data in target.seeds().values():
        target.check(data)  # loads what is loaded on the first use, which is not the inputs' to pay for
    if target.memory_bytes is not None:
        limit_memory(target.memory_bytes)
    atheris.Setup([sys.argv[0], *arguments], target.check)
    atheris.Fuzz()
    sys.exit(1)


def _escape(word: str) -> str:
    """As libFuzzer's dictionaries have it."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in word.encode())
