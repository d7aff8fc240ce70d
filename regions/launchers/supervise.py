"""Run a command that cannot outlive its launcher: ``python -I -S leash.py GRACE_S COMMAND...``.

Standard input is the leash. When it ends, because the launcher closed it or died, the command's whole
process group gets SIGTERM and, GRACE_S seconds later, SIGKILL. What the command leaves behind when it exits by itself
is killed too. Should the leash be killed, the kernel kills the command (Linux: PR_SET_PDEATHSIG).

A program of its own, standard library only, because the setting must be made between fork and exec, which is not safe
in the many-threaded process that launches.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

PR_SET_PDEATHSIG = 1
COULD_NOT_RUN = 127  # a shell's exit status for it


def main(grace_s: float, command: list[str]) -> int:
    """Returns the command's exit status, 128 + n if signal n ended it."""
    try:
        child = subprocess.Popen(  # noqa: S603  # the launcher's command, as a list
            command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_die_with_the_leash()
        )
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr)
        return COULD_NOT_RUN

    def on_term(_signal: int, _frame: FrameType | None) -> None:
        threading.Thread(target=_end, args=(child, grace_s), daemon=True).start()

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which lets go in order
    threading.Thread(target=_hold, args=(child, grace_s), daemon=True).start()
    status = child.wait()
    _signal_group(child, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _hold(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    while os.read(0, 4096):
        pass
    _end(child, grace_s)


def _end(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    _signal_group(child, signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        _signal_group(child, signal.SIGKILL)


def _signal_group(child: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone; on macOS a group of zombies answers EPERM
        os.killpg(child.pid, number)


def _die_with_the_leash() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl, leash = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def between_fork_and_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != leash:  # it died before the setting was made
            os._exit(COULD_NOT_RUN)

    return between_fork_and_exec


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
