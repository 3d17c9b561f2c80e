"""The program behind `node.host.forking`: it loads what many processes need, and each of them begins as a copy of it.

It has one thread, no other connections, and does nothing but load and fork. Each asker holds one end of a channel, a
socket that keeps messages apart; every process that it starts gets a channel of its own. It ends with the last one.

    to the server      {number, module, arguments, loads, own_group, dies_with_asker} [output, and stdin if any]
    from the server    {number, pid} [a file descriptor of the process]    {number, failed: why}
                       {number, exit: code} once it has ended

All are JSON, but for the files in brackets. A process imports `module`, calls its `main` and exits with what that
returns.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from node.host import forking
from node.host.collector import collect_seldom, leave_out_loaded

# Sent to a whole group, as by Ctrl-C or a closed terminal: the other processes obey. This one ends with the last.
LEFT_TO_OTHERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class _Job:
    """Holds the work of a new process: the request, the files that came with it, and its own channel."""

    request: Mapping[str, Any]
    files: tuple[int, ...]
    channel: socket.socket

    def run(self) -> None:
        if self.request["own_group"]:
            os.setpgid(0, 0)
        output, *stdin = self.files
        for file, place in ((output, 1), (output, 2), *((file, 0) for file in stdin)):
            os.dup2(file, place)
        for file in self.files:
            os.close(file)
        forking.inherited = self.channel
        program = import_module(self.request["module"])
        sys.argv = [str(program.__file__), *self.request["arguments"]]
        sys.exit(program.main())


@dataclass(frozen=True, slots=True)
class _Child:
    """A process that runs; `file` becomes readable once it has ended."""

    number: int
    pid: int
    file: int
    asker: socket.socket
    dies_with_asker: bool


class _Server:
    """Answers on all channels, in one loop."""

    def __init__(self, first: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._channels: set[socket.socket] = set()
        self._children: dict[int, _Child] = {}  # by file
        self._add(first)

    def run(self) -> _Job | None:
        """Runs until no asker is left, and then returns None. In each new process it returns that process's job."""
        while self._channels:
            for key, _ in self._selector.select():
                if isinstance(key.fileobj, socket.socket):
                    if (job := self._on_message(key.fileobj)) is not None:
                        return job
                elif (child := self._children.pop(key.fd, None)) is not None:
                    self._bury(child)
        return None

    def _add(self, channel: socket.socket) -> None:
        self._channels.add(channel)
        self._selector.register(channel, selectors.EVENT_READ)

    def _on_message(self, channel: socket.socket) -> _Job | None:
        try:
            data, files, _, _ = socket.recv_fds(channel, forking.MAX_MESSAGE, 2, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:  # the asker was killed before it had read all
            data, files = b"", []
        if not data:
            self._forget(channel)
            return None
        request = json.loads(data)
        try:
            return self._fork(channel, request, tuple(files))
        except Exception as error:  # noqa: BLE001  # whatever a module that is loaded may raise
            _send(channel, {"number": request["number"], "failed": f"{type(error).__name__}: {error}"})
            return None
        finally:
            if channel in self._channels:  # not in the new process, which uses them
                for file in files:
                    os.close(file)

    def _fork(self, channel: socket.socket, request: Mapping[str, Any], files: tuple[int, ...]) -> _Job | None:
        for name in request["loads"]:
            import_module(name)
        leave_out_loaded()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._close()
            return _Job(request, files, theirs)
        theirs.close()
        self._add(ours)
        child = _Child(request["number"], pid, os.pidfd_open(pid), channel, request["dies_with_asker"])
        self._children[child.file] = child
        self._selector.register(child.file, selectors.EVENT_READ)
        _send(channel, {"number": child.number, "pid": pid}, child.file)
        return None

    def _bury(self, child: _Child) -> None:
        self._selector.unregister(child.file)
        os.close(child.file)
        _, status = os.waitpid(child.pid, 0)
        if child.asker in self._channels:
            _send(child.asker, {"number": child.number, "exit": os.waitstatus_to_exitcode(status)})

    def _forget(self, channel: socket.socket) -> None:
        """Removes a channel whose other end is closed, and kills the processes that die with their asker."""
        self._selector.unregister(channel)
        self._channels.remove(channel)
        channel.close()
        for child in self._children.values():
            if child.asker is channel and child.dies_with_asker:
                signal.pidfd_send_signal(child.file, signal.SIGKILL)

    def _close(self) -> None:
        """Closes the server's files in a new process."""
        self._selector.close()
        for channel in self._channels:
            channel.close()
        for file in self._children:
            os.close(file)
        self._channels, self._children = set(), {}


def _send(channel: socket.socket, message: Mapping[str, Any], *files: int) -> None:
    with suppress(OSError):  # the asker is gone: its channel ends next
        socket.send_fds(channel, [json.dumps(message).encode()], files)


def main() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_OTHERS)  # blocked here, and unblocked in each new process
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # numpy's library handles a fork itself
    collect_seldom()
    first = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    job = _Server(first).run()
    if job is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        job.run()


if __name__ == "__main__":
    main()
