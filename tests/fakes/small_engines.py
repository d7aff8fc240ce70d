"""Engines of the tiny model with a KV cache that fits it, and one thread.

By default an engine on a CPU has a GiB of cache: of the tiny model a quarter of a million blocks, which are made,
zeroed and read again by every start, every sleep and every drain, for longer than everything else that a test does. And
as many threads as cores, which wait for each other in a loop where another worker of the suite has the other core.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from regions.launchers.local import COMMAND, LocalLauncher

OPTIONS = ("--kv-blocks", "4096", "--threads", "1")
"""16 MiB, or 65,536 tokens, of the tiny model."""


@contextmanager
def small_engines() -> Iterator[None]:
    """While the block runs, what `LocalLauncher` starts in this process has a small cache."""
    defaults = LocalLauncher.__init__.__kwdefaults__
    assert defaults is not None
    defaults["command"] = (*COMMAND, *OPTIONS)
    try:
        yield
    finally:
        defaults["command"] = COMMAND
