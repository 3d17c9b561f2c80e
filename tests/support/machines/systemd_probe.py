"""Tries, as a service confined like a node, what a node must not be able to do; prints what came of each as JSON.

Run by the unit in the node's place, with the process id of a node of another instance: null where it was possible,
else the name of the error.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

CLONE_NEWUSER = 0x10000000
PTRACE_ATTACH = 16
ADDR_NO_RANDOMIZE = 0x0040000

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def name_error(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def make_suid(path: Path) -> None:
    path.touch()
    path.chmod(0o4755)


def main(other: str, pid: int) -> None:
    state, runtime = Path(os.environ["STATE_DIRECTORY"]), Path(os.environ["RUNTIME_DIRECTORY"])
    credentials = Path(os.environ["CREDENTIALS_DIRECTORY"])
    folders = ("/etc", "/usr", "/opt/fednode", "/var/log", "/var/lib/fednode", "/etc/fednode", "/sys/kernel")
    attempts: dict[str, Callable[[], object]] = {
        # what a node needs
        "write state": lambda: (state / "tried").write_text("x"),
        "write runtime": lambda: (runtime / "tried").write_text("x"),
        "write /tmp": lambda: Path("/tmp/probe").write_text("x"),
        "read key": lambda: (credentials / "identity.key").read_bytes(),
        "give way": lambda: os.nice(1),
        "inet": lambda: socket.socket(socket.AF_INET),
        # the machine's own
        "list /home": lambda: os.listdir("/home"),
        "list /root": lambda: os.listdir("/root"),
        **{f"write {folder}": partial(Path(folder, "tried").write_text, "x") for folder in folders},
        "read key file": lambda: Path(f"/etc/fednode/{other}.key").read_bytes(),
        "change key": lambda: (credentials / "identity.key").write_text("x"),
        "set host name": lambda: socket.sethostname("probe"),
        "set clock": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
        "read kernel log": lambda: os.open("/dev/kmsg", os.O_RDONLY),
        "packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        # further rights
        "become root": lambda: os.setuid(0),
        "make set-uid file": lambda: make_suid(state / "suid"),
        "real time": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        "mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
        "new user namespace": lambda: call("unshare", CLONE_NEWUSER),
        "personality": lambda: call("personality", ADDR_NO_RANDOMIZE),
        # another node's files and process
        "list its state": lambda: os.listdir(f"/var/lib/fednode/{other}"),
        "use its admin socket": lambda: connect(f"/run/fednode/{other}/node.sock"),
        "list its credentials": lambda: os.listdir(f"/run/credentials/fednode@{other}.service"),
        "see it run": lambda: Path(f"/proc/{pid}/cmdline").read_bytes(),
        "read its memory": lambda: os.open(f"/proc/{pid}/mem", os.O_RDONLY),
        "trace it": lambda: call("ptrace", PTRACE_ATTACH, pid, 0, 0),
    }
    print(json.dumps({name: name_error(attempt) for name, attempt in attempts.items()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
