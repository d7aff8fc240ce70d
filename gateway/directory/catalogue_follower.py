"""Takes over what changes in the installation's own catalogue while the gateway runs.

The file is read once a second. What it says is taken over when two readings agree, so that an editor that is halfway
through a file is waited for. A file that is gone leaves the catalogue of the package, as at a start. One that is no
catalogue changes nothing: the facts that were taken over last stay, and the log says why.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from regions.catalogue.catalogue import Catalogue
from regions.errors import CatalogueError

log = logging.getLogger("domicile.gateway")

EVERY_S = 1.0


class CatalogueFollower:
    """`catalogue` is what was taken over last."""

    def __init__(self, file: Path) -> None:
        """Reads `file` for the first time. Raises CatalogueError."""
        self._file = file
        self._used = self._seen = self._read()
        self._problem: str | None = None
        self.catalogue = _parsed(self._used)

    async def run(self, take_over: Callable[[Catalogue], None]) -> None:
        """Run until cancelled. `take_over` is called in the event loop."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.step(take_over)

    async def step(self, take_over: Callable[[Catalogue], None]) -> None:
        """Read the file once."""
        try:
            changed = await asyncio.to_thread(self._look)
        except Exception as error:  # of any kind: the next change is looked for
            if str(error) != self._problem:
                log.error(
                    "the changed catalogue %s is not taken over, the facts of before stay; mend the file: %s",
                    self._file,
                    error,
                )
            self._problem = str(error)
            return
        self._problem = None
        if changed is not None:
            self.catalogue = changed
            take_over(changed)
            log.info("the catalogue was taken over: version %s", changed.version)

    def _look(self) -> Catalogue | None:
        """The catalogue, if it changed and two readings agree. Raises CatalogueError."""
        before, self._seen = self._seen, self._read()
        if self._seen == self._used or self._seen != before:
            return None
        changed = _parsed(self._seen)
        self._used = self._seen
        return changed

    def _read(self) -> bytes | None:
        """None: the installation has none. Raises CatalogueError."""
        try:
            return self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CatalogueError(
                f"the catalogue cannot be read: {error}; name a readable file of UTF-8 text"
            ) from error


def _parsed(text: bytes | None) -> Catalogue:
    if text is None:
        return Catalogue.load()
    try:
        return Catalogue.parse(text.decode())
    except UnicodeDecodeError as error:
        raise CatalogueError(f"the catalogue cannot be read: {error}; name a readable file of UTF-8 text") from error
