"""Processes that begin as copies of one server: what they share, what they do not, and who ends whom."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from node.host.forking import LOST, ForkedProcess, ForkError, ForkServer, is_supported
from support.federation.processes import is_alive
from support.federation.recording import wait_until

pytestmark = pytest.mark.skipif(not is_supported(), reason="Linux alone has what it takes")

MakeProgram = Callable[[str, str], str]

SLEEPER = """
    def main():
        import time
        time.sleep(60)
"""
ASKER = """
    import asyncio
    import time
    from node.host.forking import get_fork_server

    async def ask():
        process = await get_fork_server().{ask}
        print(process.pid, flush=True)
        await asyncio.sleep(60)

    def main():
        asyncio.run(ask())
"""


@pytest.fixture
def make_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeProgram:
    """Writes a module that a server will find; returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(dedent(text), encoding="utf-8")
        return name

    return make


async def run(server: ForkServer, path: Path, module: str, *arguments: str, loads: tuple[str, ...] = ()) -> int:
    with path.open("ab") as output:
        process = await server.fork(module, *arguments, output=output.fileno(), loads=loads)
    return await process.wait()


async def read_line(process: ForkedProcess) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().strip()


async def test_what_is_loaded_is_loaded_once_and_each_has_arguments_and_an_exit_code_of_its_own(
    tmp_path: Path, make_program: MakeProgram
) -> None:
    loaded = tmp_path / "loaded"
    make_program("heavy", f"import os\nwith open({str(loaded)!r}, 'a') as file:\n    print(os.getpid(), file=file)")
    make_program(
        "light",
        'def main():\n    import sys, heavy\n    sys.stdout.write(f"{sys.argv[1:]}\\n")\n    return int(sys.argv[1])',
    )
    async with ForkServer.started() as server:
        codes = await asyncio.gather(
            *(run(server, tmp_path / "out", "light", str(code), loads=("heavy",)) for code in (3, 0))
        )
    assert codes == [3, 0]
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["['0']", "['3']"]
    assert len(loaded.read_text().splitlines()) == 1


async def test_a_piped_process_is_beyond_ctrl_c_and_reads_what_it_was_given(make_program: MakeProgram) -> None:
    make_program("echo", "def main():\n    import os, sys\n    print(os.getpgrp() == os.getpid(), sys.stdin.read())")
    reading, writing = os.pipe()
    os.write(writing, b"said")
    os.close(writing)
    async with ForkServer.started() as server:
        process = await server.fork_piped("echo", stdin=reading)
        os.close(reading)
        assert await read_line(process) == "True said"
        assert await process.wait() == 0


async def test_a_new_process_has_no_files_of_those_before_it(tmp_path: Path, make_program: MakeProgram) -> None:
    make_program("files", "def main():\n    import os\n    print(len(os.listdir('/proc/self/fd')))")
    make_program("sleeper", SLEEPER)
    async with ForkServer.started() as server:
        await run(server, tmp_path / "first", "files")
        sleepers = [await server.fork_piped("sleeper") for _ in range(3)]
        await run(server, tmp_path / "later", "files")
        for sleeper in sleepers:
            sleeper.kill()
    assert (tmp_path / "later").read_text() == (tmp_path / "first").read_text()


async def test_what_was_killed_says_by_which_signal(make_program: MakeProgram) -> None:
    make_program("sleeper", SLEEPER)
    async with ForkServer.started() as server:
        process = await server.fork_piped("sleeper")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == -signal.SIGTERM
        process.kill()  # and nobody else, who might have its number by now


async def test_a_server_that_ends_leaves_no_pipe_open_though_somebody_still_holds_it(make_program: MakeProgram) -> None:
    make_program(
        "parent",
        """
        def main():
            import subprocess, time
            print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
            time.sleep(60)
        """,
    )
    before = os.listdir("/proc/self/fd")
    async with ForkServer.started() as server:
        process = await server.fork_piped("parent")
        holder = int(await read_line(process))
        process.kill()
        await process.wait()
    await asyncio.sleep(0)
    assert os.listdir("/proc/self/fd") == before
    os.kill(holder, signal.SIGKILL)


async def test_a_signal_is_heeded_however_early_it_comes(make_program: MakeProgram) -> None:
    make_program("sleeper", SLEEPER)
    async with ForkServer.started() as server, asyncio.timeout(20):
        for _ in range(50):
            process = await server.fork("sleeper", output=2)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("ask", "dies"),
    [("fork_piped('sleeper', stdin=0)", True), ("fork('sleeper', output=2)", False)],
    ids=["piped", "not"],
)
async def test_only_what_dies_with_its_asker_does(make_program: MakeProgram, ask: str, dies: bool) -> None:
    make_program("sleeper", SLEEPER)
    make_program("asker", ASKER.format(ask=ask))
    async with ForkServer.started() as server:
        asker = await server.fork_piped("asker")
        pid = int(await read_line(asker))
        assert is_alive(pid)
        asker.kill()
        await asker.wait()
        if dies:
            await wait_until(lambda: not is_alive(pid), "end with its asker")
        else:
            await asyncio.sleep(0.3)
            assert is_alive(pid)
            os.kill(pid, signal.SIGKILL)


async def test_an_asker_that_is_killed_with_news_unread_ends_nobody_else(make_program: MakeProgram) -> None:
    make_program("sleeper", SLEEPER)
    make_program("asker", ASKER.format(ask="fork('sleeper', output=2)").replace("await asyncio.sleep", "time.sleep"))
    async with ForkServer.started() as server:
        asker, other = await server.fork_piped("asker"), await server.fork_piped("sleeper")
        pid = int(await read_line(asker))
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: not Path(f"/proc/{pid}").exists(), "buried, and the asker told")
        asker.kill()
        assert await asker.wait() == -signal.SIGKILL
        assert not server.is_gone
        assert other.returncode is None
        other.kill()


async def test_a_server_that_was_killed_is_said_to_be_gone_and_its_processes_are_still_waited_for(
    make_program: MakeProgram,
) -> None:
    # In short sleeps: a signal that comes just before a sleep begins is seen after it.
    napping = "for _ in range(600):\n        time.sleep(0.1)"
    make_program("parent", f"def main():\n    import os, time\n    print(os.getppid(), flush=True)\n    {napping}")
    async with ForkServer.started() as server:
        process = await server.fork_piped("parent")
        os.kill(int(await read_line(process)), signal.SIGKILL)
        await wait_until(lambda: server.is_gone, "say that it is gone")
        with pytest.raises(ForkError, match="gone"):
            await server.fork_piped("parent")
        assert process.returncode is None
        process.kill()
        assert await process.wait() == LOST


async def test_what_cannot_be_loaded_is_told_and_the_server_goes_on(tmp_path: Path, make_program: MakeProgram) -> None:
    make_program("fine", "def main():\n    pass")
    make_program("broken", "raise RuntimeError('no such device')")
    async with ForkServer.started() as server:
        for name, why in (("no_such_module", "no_such_module"), ("broken", "no such device")):
            with pytest.raises(ForkError, match=why):
                await run(server, tmp_path / "out", "fine", loads=(name,))
        assert await run(server, tmp_path / "out", "fine") == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
async def test_what_ends_all_of_a_terminal_ends_what_was_started_and_not_the_server(
    make_program: MakeProgram, number: signal.Signals
) -> None:
    # In short sleeps: a signal that comes just before a sleep begins is seen after it.
    napping = "for _ in range(600):\n        time.sleep(0.1)"
    make_program("parent", f"def main():\n    import os, time\n    print(os.getppid(), flush=True)\n    {napping}")
    async with ForkServer.started() as server:
        process = await server.fork_piped("parent")
        os.kill(int(await read_line(process)), number)
        process.send_signal(number)
        assert await process.wait() != 0
        assert int(await read_line(await server.fork_piped("parent")))


async def test_whoever_stops_waiting_leaves_no_process_behind(tmp_path: Path, make_program: MakeProgram) -> None:
    make_program("slow", f"import time; time.sleep(0.5)\n{dedent(SLEEPER)}")
    make_program("quick", "def main():\n    pass")
    async with ForkServer.started() as server:
        asking = asyncio.create_task(run(server, tmp_path / "out", "quick", loads=("slow",)))
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await run(server, tmp_path / "out", "quick") == 0
        assert "running=0" in repr(server)


def test_a_system_without_what_it_takes_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_supported()

    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert not is_supported()


async def test_a_process_that_begins_a_second_loop_still_asks(tmp_path: Path, make_program: MakeProgram) -> None:
    """As a node does that goes on with another key; what the first loop had started may end meanwhile."""
    make_program("short", "def main():\n    pass")
    make_program(
        "looping",
        """
        import asyncio
        from node.host.forking import get_fork_server

        async def leave():
            await get_fork_server().fork("short", output=2)

        async def ask():
            async with asyncio.timeout(20):
                print(await (await get_fork_server().fork("short", output=2)).wait())

        def main():
            for part in (leave, leave, ask):
                asyncio.run(part())
        """,
    )
    async with ForkServer.started() as server:
        assert await run(server, tmp_path / "out", "looping") == 0
    assert (tmp_path / "out").read_text() == "0\n"
