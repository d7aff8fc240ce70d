"""Uvicorn that looks ten times as often whether it is to stop: tests start and stop a thousand servers.

It sleeps a tenth of a second between two looks, and as long again when it stops. Processes that tests start do without.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Quick:
    """The module `asyncio` with a shorter sleep."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay / 10)


@contextmanager
def quick() -> Iterator[None]:
    """While the block runs; where nothing imported uvicorn, there is nothing to do."""
    module: Any = sys.modules.get("uvicorn.server")
    if module is None:
        yield
        return
    module.asyncio = _Quick()
    try:
        yield
    finally:
        module.asyncio = asyncio
