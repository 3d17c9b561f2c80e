"""The collector of cycles: it looks seldom, and leaves out what has been loaded."""

from __future__ import annotations

import subprocess
import sys

COUNT = """
import gc
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]) if phase == "start" else None)
{first}
kept = [[] for _ in range(100_000)]
print(len(looks), gc.get_freeze_count())
"""


def count(first: str) -> tuple[int, int]:
    """Looks while 100,000 lists are made, and what they leave out, in a process that does `first`."""
    command = [sys.executable, "-c", COUNT.format(first=first)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    looks, frozen = map(int, done.stdout.split())
    return looks, frozen


def test_seldom_is_a_few_times_and_not_some_hundred() -> None:
    often, _ = count("")
    seldom, _ = count("from node.host.collector import collect_seldom; collect_seldom()")
    assert often > 100
    assert 1 <= seldom <= 10  # what cycles hold is found in time


def test_what_is_loaded_is_left_out_afterwards() -> None:
    loads = "from node.host.collector import leave_out_loaded; import json; "
    assert count(loads)[1] == 0
    assert count(loads + "leave_out_loaded()")[1] > 1000
