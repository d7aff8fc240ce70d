"""What one backend tells another of a window to its memory (`cache.windows`). Plain data; no torch here."""

import os

import msgspec

HOST, CARD = "host", "card"


class WindowHandle(msgspec.Struct, frozen=True, array_like=True):
    """What a backend of the same host and user needs in order to map a window. ``id``: random, and at the head of the
    window's memory where that is of the host. ``kind``: host or card. ``place``: where it is, in that kind's own
    terms."""

    id: bytes
    kind: str
    slots: int
    slot_bytes: int
    place: bytes


def host_identity() -> str:
    """The same for two processes that can open each other's files in ``/proc``: one kernel that was started once, one
    namespace of processes, one user. "" where that cannot be known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"
    except OSError:
        return ""
