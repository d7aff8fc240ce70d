"""Forks gateways and commands out of a process that has imported everything: a start costs no import.

Run as a program it obeys lines on stdin, each answered by one on stdout: ``start NODE LOGFILE`` by the child's pid,
``KILL PID`` and ``TERM PID`` by its exit status once it is gone, ``run OUTPUTFILE JSON`` by the exit status of the
``domicile`` command whose words are in JSON; its stderr goes to OUTPUTFILE.err. Children die with it: it kills
them when stdin ends.
"""

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import asynccontextmanager, suppress

from gateway.cli.up import run_gateway
from gateway.configuration.settings import load_settings
from tests.fakes.small_engines import small_engines
from tests.fakes.warm_command import import_commands, run_command

LISTENING = re.compile(r'^(?:domicile: |{.*"message": ")listening on (\S+)/v1(?:"}|)$', re.MULTILINE)
"""Of a log in text or in JSON."""


class Nursery:
    """The other end: talks to the program from a test's event loop, one command at a time."""

    def __init__(self, process):
        self._process = process
        self._turn = asyncio.Lock()

    async def start(self, node, log):
        return int(await self._ask(f"start {node} {log}"))

    async def end(self, pid, signal_name):
        """The exit status: negative for a signal."""
        return int(await self._ask(f"{signal_name} {pid}"))

    async def run(self, output, *words):
        """The exit status of ``domicile *words``; the folder is in the environment. Its stdout goes to `output`,
        its stderr to `output` with ``.err`` behind."""
        return int(await self._ask(f"run {output} {json.dumps([str(word) for word in words])}"))

    async def _ask(self, line, within_s=600):
        async with self._turn:
            self._process.stdin.write(f"{line}\n".encode())
            answer = await asyncio.wait_for(self._process.stdout.readline(), within_s)
        assert answer, "the nursery ended: see its traceback"
        return answer


@asynccontextmanager
async def nursery(data):
    """Gateways on the data folder `data`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.gateway.nursery",
        str(data),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Nursery(process)
    finally:
        process.stdin.close()
        await process.wait()


async def listening(log):
    """The base URL of the gateway that logs to the file `log`, once it has one. Raises AssertionError if it fails."""
    for _ in range(60_000):
        said = log.read_text() if log.exists() else ""
        assert "error:" not in said, said
        if found := LISTENING.search(said):
            return found[1]
        await asyncio.sleep(0.01)
    raise AssertionError("the gateway does not listen after ten minutes")


def main():
    data, living, warm = sys.argv[1], set(), False
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "start":
            pid = os.fork()
            if pid == 0:
                os._exit(_gateway(data, *arguments))
            living.add(pid)
            print(pid, flush=True)
            continue
        if command == "run":
            if not warm:  # once, and only for tests that run commands
                import_commands()
                warm = True
            pid = os.fork()
            if pid == 0:
                os._exit(_command(data, arguments[0], json.loads(line.split(maxsplit=2)[2])))
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        pid = int(arguments[0])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[f"SIG{command}"])
        _, status = os.waitpid(pid, 0)
        living.remove(pid)
        print(os.waitstatus_to_exitcode(status), flush=True)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _command(data, output, words):
    for stream, file in ((1, output), (2, f"{output}.err")):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["DOMICILE_DATA"] = data
    return run_command(words, crashed=70)


def _gateway(data, node, log):
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with small_engines():
        return asyncio.run(run_gateway(load_settings(data=data, node=node, listen={"port": 0})))


if __name__ == "__main__":
    main()
