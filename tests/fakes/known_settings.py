"""Settings of the environment alone, read once for as long as the environment says the same.

Each of a thousand installations that tests open reads them three times. Processes that tests start do without.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PREFIX = "DOMICILE"


@contextmanager
def known() -> Iterator[None]:
    """While the block runs, for `gateway.installation.installation`, if it was imported."""
    module: Any = sys.modules.get("gateway.installation.installation")
    if module is None:
        yield
        return
    real = module.load_settings
    read: dict[tuple[Any, ...], Any] = {}

    def settings(path: Path | None = None, **overrides: Any) -> Any:
        if path is not None or overrides:
            return real(path, **overrides)
        # a relative folder for the data counts from the folder that this process is in
        asked = (os.getcwd(), *sorted(each for each in os.environ.items() if each[0].upper().startswith(PREFIX)))
        if asked not in read:
            read[asked] = real()
        return read[asked]

    module.load_settings = settings
    try:
        yield
    finally:
        module.load_settings = real
