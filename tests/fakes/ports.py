"""A port for a program that has to be told its own."""

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of this host on which nothing listens, below those that the kernel gives to whoever asks for any.

    One of the kernel's own could be given to another connection before the program listens on it.
    """
    first = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32768
    chance = random.SystemRandom()
    for _ in range(1000):
        port = chance.randrange(max(1024, first - 16000), first)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
