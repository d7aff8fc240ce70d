"""SQL of the control store, compiled once for all tests.

SQLAlchemy keeps compiled statements by engine, so that each of two thousand tests compiled the same hundred anew: a
tenth of the time of a test that starts a gateway. Engines share what is compiled if they share their dialect.
Processes that tests start do without.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STATEMENTS = 5000
"""Kept at most, of a driver."""


@contextmanager
def shared(module: Any) -> Iterator[None]:
    """While the block runs, for engines that `module` (`gateway.database.database`) makes."""
    real = module.create_engine
    first: dict[str, Any] = {}

    def made(url: str, **more: Any) -> Any:
        engine = real(url, query_cache_size=STATEMENTS, **more)
        shared = first.setdefault(engine.url.drivername, engine)
        if shared.dialect.server_version_info:  # it was connected, so the dialect knows what the server can
            engine.dialect, engine._compiled_cache = shared.dialect, shared._compiled_cache
        elif shared is not engine:
            first[engine.url.drivername] = engine
        return engine

    module.create_engine = made
    try:
        yield
    finally:
        module.create_engine = real
