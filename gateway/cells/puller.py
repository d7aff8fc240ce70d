"""Asks the home cells of tenants for their bundles, again and again, and has them taken over.

Each cell pulls; none pushes, and none needs another to go on: what was taken over stays in force while its home is
away.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from time import time

from audit.errors import AuditError
from audit.external_service import ExternalService, ExternalUnavailable
from audit.keys.signer import Signer
from audit.tree.note import VerifierKey
from gateway.configuration.settings import Peer
from gateway.database.errors import StoreError
from gateway.records.bundle import MAX_BYTES, BundleError, open_bundle
from gateway.records.bundle_request import PATH, ask
from gateway.store.control.control import Control

logger = logging.getLogger("domicile.gateway")

DEADLINE_S = 30.0
"""For one question, to the last byte of its answer."""


class Puller:
    """control: makes what changes this cell's configuration; its changes are on record before they are in force."""

    def __init__(
        self, cell: str, homes: tuple[Peer, ...], signer: Signer, control: Callable[[], Control], every_s: float
    ) -> None:
        """Raises OSError or NoteError for a verifier key that cannot be read."""
        self._cell = cell
        self._signer = signer
        self._control = control
        self._every_s = every_s
        self._homes = [(home, VerifierKey.parse(home.verifier_key_file.read_text("ascii"))) for home in homes]

    async def run(self) -> None:
        """Until cancelled. Each home by itself: one that is away holds up no other."""
        await asyncio.gather(*(self._forever(home, key) for home, key in self._homes))

    async def _forever(self, home: Peer, key: VerifierKey) -> None:
        tls = ssl.create_default_context(cafile=None if home.ca_file is None else str(home.ca_file))
        service = ExternalService(f"cell {home.cell}", deadline_s=DEADLINE_S, max_bytes=MAX_BYTES, at_once=1, tls=tls)
        failing = False
        while True:
            try:
                if changed := await self.pull(home, key, service):
                    logger.info("cell %s reported %d tenants", home.cell, len(changed))
                failing = False
            except (ExternalUnavailable, BundleError, StoreError, AuditError, OSError) as error:
                if not failing:  # logged once; what was taken over before stays in force
                    logger.error(
                        "cell %s cannot be asked: %s; check its url and verifier_key_file in `cells.pull`",
                        home.cell,
                        error or type(error).__name__,
                    )
                failing = True
            await asyncio.sleep(self._every_s)

    async def pull(self, home: Peer, key: VerifierKey, service: ExternalService) -> list[str]:
        """Once. Raises ExternalUnavailable, BundleError, StoreError, AuditError."""
        question = await asyncio.to_thread(ask, self._cell, home.cell, time(), self._signer)
        answer = await service.ask("POST", home.url.rstrip("/") + PATH, content=question.encode())
        if answer.status != 200:
            raise BundleError(f"it answered {answer.status}; check its url in `cells.pull`")
        return await asyncio.to_thread(self._take, answer.content, home.cell, key)

    def _take(self, data: bytes, home: str, key: VerifierKey) -> list[str]:
        return self._control().apply_bundle(open_bundle(data, key, home=home, peer=self._cell))
