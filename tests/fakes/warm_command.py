"""The program `domicile` without the second or two that its imports take, for tests that run many of its commands.

`program` is an executable file as an installation has one. Behind it is a process that has imported the commands, and
forks for each: with the caller's words, standard streams, folder, umask and environment, and nothing else of it. What
runs until a signal ends it (``up``, ``demo``, ``serve``) is started as a process of its own.
"""

import array
import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

TREE = Path(__file__).parents[2]
COMMANDS = ("gateway.cli", "audit.cli")
ALSO = ("policy.cli", "regions.cli", "gateway.server.assembly", "psycopg", "sqlalchemy.dialects.postgresql")

SCRIPT = """#!/bin/sh
case " $* " in
  " up "*|" demo "*|*" serve "*) PYTHONPATH='{tree}' exec '{python}' -m gateway "$@";;
esac
exec '{python}' -ISs '{file}' '{address}' "$@"
"""


@cache
def program() -> Path:
    """The executable; its server ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm"))  # a socket's path must be short
    address, file = folder / "socket", folder / "domicile"
    words = [sys.executable, "-m", "tests.fakes.warm_command", str(address)]
    server = subprocess.Popen(words, cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    if server.stdout.readline() != b"listening\n":
        raise RuntimeError("the server of warm commands did not start; see its traceback")
    atexit.register(_end, server, folder)
    file.write_text(SCRIPT.format(tree=TREE, python=sys.executable, file=__file__, address=address))
    file.chmod(0o755)
    return file


def _end(server: subprocess.Popen[bytes], folder: Path) -> None:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.close()
    server.wait()
    server.stdout.close()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


# --- what the executable runs: no import of ours, no site-packages ----------------------------------------------------


def ask(address: str, words: list[str]) -> int:
    """Have `words` run by the server at `address`; the exit status, 137 if it was killed."""
    umask = os.umask(0o022)
    asked = {"words": words, "folder": os.getcwd(), "umask": umask, "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"\0"], [0, 1, 2])
        connection.sendall(json.dumps(asked).encode())
        connection.shutdown(socket.SHUT_WR)
        said = connection.recv(16)
    return int(said or b"137")


# --- the server -------------------------------------------------------------------------------------------------------


def import_commands() -> None:
    """What the commands import when they run, for processes that are forked from this one."""
    for package in COMMANDS:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for name in ALSO:
        importlib.import_module(name)
    gc.freeze()


def serve(address: str) -> None:
    """Until stdin ends."""
    import_commands()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(address)
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries its children
    if os.fork() == 0:
        _accept(listening)
    print("listening", flush=True)
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def _accept(listening: socket.socket) -> None:
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            os._exit(_answer(connection))
        connection.close()


def _answer(connection: socket.socket) -> int:
    streams = array.array("i")
    _, sent, _, _ = connection.recvmsg(1, socket.CMSG_LEN(3 * streams.itemsize))
    for _, _, data in sent:
        streams.frombytes(data)
    asked = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))
    for wanted, stream in enumerate(streams):
        os.dup2(stream, wanted)
        os.close(stream)
    os.chdir(asked["folder"])
    os.umask(asked["umask"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = run_command(asked["words"])
    connection.sendall(str(status).encode())
    return 0


def run_command(words: list[str], crashed: int = 1) -> int:
    """The exit status of `domicile` with these words in this process; `crashed` where it ends in a traceback."""
    from gateway.cli.app import main as command

    sys.modules["__main__"].__package__ = None  # else a usage message would name this module
    sys.argv = ["domicile", *words]
    try:
        command()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return crashed
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    if sys.flags.isolated:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
    os.setpgid(0, 0)
    serve(sys.argv[1])
