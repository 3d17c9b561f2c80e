"""A clone of a tree with its own environment: a mutant is put on its disk, where a test's processes meet it too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mutants.sample import Mutant, Place, apply_edits, find_places, make_edit

PLUGIN = Path(__file__).parent / "plugin.py"
PLUGIN_NAME = "fednode_mutants_plugin"
START_S = 180.0  # torch is loaded, hundreds of files are collected
SLACK = 5.0  # a shared machine


@dataclass(frozen=True, slots=True)
class Ran:
    """The tests that passed, and those that failed; of a file that was not collected all failed."""

    passed: frozenset[str]
    failed: tuple[str, ...]


class Clone:
    """One working directory; who uses it uses it alone."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = directory / ".venv/bin/python"
        self._chosen = directory / ".git/chosen"
        self._log = directory / ".git/log"

    @classmethod
    def make(cls, tree: Path, python: Path, directory: Path) -> Clone:
        """Clones the last commit of `tree`, whose `python` has it installed as editable."""
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run(["git", "clone", "--quiet", tree, directory], check=True)
        _copy_environment(python, directory)
        return cls(directory)

    def find_places(self, mutants: Sequence[Mutant]) -> dict[Mutant, Place]:
        """Finds the mutants that there are here."""
        return find_places(self.directory, mutants)

    def collect(self, *options: str) -> list[str]:
        """Lists the tests that pytest collects with these options."""
        command = [*self._pytest(), "--collect-only", *options]
        done = subprocess.run(command, cwd=self.directory, check=True, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if "::" in line]

    def run(
        self,
        places: Sequence[Place],
        tests: Sequence[str],
        durations: Mapping[str, float],
        *,
        timeout_s: float,
        to_the_end: bool = False,
    ) -> Ran:
        """Runs the tests, up to the first that fails, with all these mutants at once."""
        self._chosen.write_text("".join(f"{test}\n" for test in tests))
        self._log.write_text("")
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        options = ["-m", "", f"--timeout={timeout_s}", f"--chosen={self._chosen}", f"--log={self._log}"]
        with self._mutated(places):
            code = self._wait(
                [*self._pytest(), *options, "--continue-on-collection-errors" if to_the_end else "-x", *files],
                START_S + timeout_s + SLACK * sum(durations.get(test, timeout_s) for test in tests),
            )
        return self._read_log(tests, is_whole=code in (0, 5))

    def run_all(self, *options: str, env: Mapping[str, str]) -> None:
        """Runs pytest as it is, with more in the environment."""
        subprocess.run([*self._pytest(), *options], cwd=self.directory, env={**os.environ, **env}, check=False)

    def _pytest(self) -> list[str]:
        return [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN_NAME]

    def _wait(self, command: Sequence[str], timeout_s: float) -> int | None:
        with (self.directory / ".git/output").open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.directory, stdout=output, stderr=output, start_new_session=True
            )
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:  # with all that a broken test has left behind
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _read_log(self, tests: Sequence[str], *, is_whole: bool) -> Ran:
        said: dict[str, list[str]] = defaultdict(list)
        for line in self._log.read_text().splitlines():
            word, test = line.split("\t", 1)
            said[word].append(test)
        failed = dict.fromkeys(said["failed"])
        failed |= dict.fromkeys(test for test in tests if test.partition("::")[0] in said["uncollected"])
        passed = [test for test in said["ended"] if test not in failed]
        if not is_whole and not failed:  # died, hung, or was never begun
            failed = dict.fromkeys(said["started"][-1:] if len(said["started"]) > len(passed) else tests[:1])
        return Ran(frozenset(passed), tuple(failed))

    @contextmanager
    def _mutated(self, places: Sequence[Place]) -> Iterator[None]:
        edits = defaultdict(list)
        for place in places:
            edits[place.mutant.file].append(make_edit(self.directory, place))
        sources = {file: (self.directory / file).read_text() for file in edits}
        try:
            for file, source in sources.items():
                self._write(file, apply_edits(source, edits[file]))
            yield
        finally:
            for file, source in sources.items():
                self._write(file, source)

    def _write(self, file: str, source: str) -> None:
        path = self.directory / file
        path.write_text(source)
        # Python knows what it has compiled by second and size, which two mutants may share.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


_WHERE = """
import importlib.util, os, sysconfig
print(sysconfig.get_path("purelib"))
print(os.path.dirname(os.path.dirname(importlib.util.find_spec("fednode").origin)))
"""


def _copy_environment(python: Path, directory: Path) -> None:
    """Makes the clone a virtual environment that has all of `python`'s but is editable here."""
    subprocess.run([python, "-m", "venv", "--without-pip", directory / ".venv"], check=True)
    theirs, root = subprocess.run(
        [python, "-I", "-c", _WHERE], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    (ours,) = (directory / ".venv").glob("lib/python*/site-packages")
    for entry in Path(theirs).iterdir():
        if entry.name.startswith("__editable__") and entry.is_file():
            (ours / entry.name).write_text(entry.read_text().replace(root, str(directory)))
        elif entry.name != "__pycache__":
            (ours / entry.name).symlink_to(entry)
    shutil.copy(PLUGIN, ours / f"{PLUGIN_NAME}.py")
    for script in python.parent.iterdir():
        target = directory / ".venv/bin" / script.name
        if script.is_file() and not target.exists() and (words := script.read_bytes()).startswith(b"#!"):
            target.write_bytes(words.replace(str(python.parent).encode(), str(target.parent).encode()))
            target.chmod(0o755)
