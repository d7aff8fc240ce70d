"""Accuracy of the host's clock, as its time service (chrony, ntpd, timesyncd) reports it to the kernel.

No network and no privilege: ``adjtimex(2)`` in its reading form. ISO 27001 A.8.17, DORA RTS 2024/1774 Art. 12.
"""

import ctypes
import os
import struct
import sys
from dataclasses import dataclass

from audit.errors import AuditError
from audit.events.event import SystemClock
from audit.log.receipt import Receipt
from audit.private.audit_context import AuditContext

_SIZE = 256  # struct timex is 208 bytes on 64-bit Linux
_UNSYNC, _NANO = 0x0040, 0x2000
_TIME_ERROR = 5


@dataclass(frozen=True, slots=True)
class ClockState:
    """Milliseconds, rounded; `max_error_ms` is the kernel's bound, which grows while nothing sets the clock."""

    synchronised: bool
    offset_ms: int
    max_error_ms: int


def clock_state() -> ClockState:
    """Raises AuditError where the kernel does not report it."""
    if sys.platform != "linux":
        raise AuditError("the state of the clock is known on Linux only; run it on the gateway's host")
    buffer = ctypes.create_string_buffer(_SIZE)
    code = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if code < 0:
        raise AuditError(
            f"the state of the clock cannot be read: {os.strerror(ctypes.get_errno())}; allow the system call adjtimex"
        )
    return parse(code, buffer.raw)


def parse(code: int, timex: bytes) -> ClockState:
    """Clock accuracy out of adjtimex's return value and its struct: `offset` at 8, `maxerror` at 24, `status` at 40."""
    (offset,), (error,) = struct.unpack_from("l", timex, 8), struct.unpack_from("l", timex, 24)
    (status,) = struct.unpack_from("i", timex, 40)
    unit = 1_000_000 if status & _NANO else 1_000
    return ClockState(code != _TIME_ERROR and not status & _UNSYNC, round(offset / unit), max(0, round(error / 1000)))


async def record_clock(context: AuditContext) -> tuple[ClockState, Receipt]:
    """Put the state of the clock on record, as ``system.clock``. For a scheduler, hourly. Raises AuditError."""
    state = clock_state()
    event = SystemClock(
        synchronised=state.synchronised, offset_ms=state.offset_ms, max_error_ms=min(state.max_error_ms, 2**53 - 1)
    )
    return state, await context.record(event)
