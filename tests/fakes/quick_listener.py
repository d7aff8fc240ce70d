"""A listener for PostgreSQL's notifications that ends within a hundredth of a second, not half a second, of its close.

Each of a hundred tests closes one. Processes that tests start do without.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WAIT_S = 0.01


@contextmanager
def quick() -> Iterator[None]:
    """While the block runs; where nothing imported the listener, there is nothing to do."""
    module: Any = sys.modules.get("gateway.database.listener")
    if module is None:
        yield
        return
    real, module.WAIT_S = module.WAIT_S, WAIT_S
    try:
        yield
    finally:
        module.WAIT_S = real
