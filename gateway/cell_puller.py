"""Asks the home cells of tenants for their bundles, again and again, and has them taken over.

Each cell pulls; none pushes, and none needs another to go on: what was taken over stays in force while its home is
away.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from time import time

import httpx2

from audit.errors import AuditError
from audit.note import VerifierKey
from audit.signer import Signer
from gateway.bundle import MAX_BYTES, BundleError, open_bundle
from gateway.pull import PATH, ask
from gateway.settings import Peer
from gateway.store.control import Control
from gateway.store.errors import StoreError

logger = logging.getLogger("domicile.gateway")

TIMEOUT_S = 30.0


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
        context = ssl.create_default_context(cafile=None if home.ca_file is None else str(home.ca_file))
        failing = False
        async with httpx2.AsyncClient(
            verify=context, timeout=TIMEOUT_S, follow_redirects=False, trust_env=False
        ) as client:
            while True:
                try:
                    if changed := await self.pull(home, key, bounded(client)):
                        logger.info("cell %s told of %d tenants", home.cell, len(changed))
                    failing = False
                except (httpx2.HTTPError, BundleError, StoreError, AuditError, OSError) as error:
                    if not failing:  # said once; what was taken over before stays in force
                        logger.error("cell %s cannot be asked: %s", home.cell, error or type(error).__name__)
                    failing = True
                await asyncio.sleep(self._every_s)

    async def pull(self, home: Peer, key: VerifierKey, post: Callable[..., Awaitable[httpx2.Response]]) -> list[str]:
        """Once. Raises httpx2.HTTPError, BundleError, StoreError, AuditError."""
        question = await asyncio.to_thread(ask, self._cell, home.cell, time(), self._signer)
        answer = await post(home.url.rstrip("/") + PATH, content=question.encode())
        if answer.status_code != 200:
            raise BundleError(f"it answered {answer.status_code}")
        return await asyncio.to_thread(self._take, answer.content, home.cell, key)

    def _take(self, data: bytes, home: str, key: VerifierKey) -> list[str]:
        return self._control().apply_bundle(open_bundle(data, key, home=home, peer=self._cell))


def bounded(client: httpx2.AsyncClient, at_most: int = MAX_BYTES) -> Callable[..., Awaitable[httpx2.Response]]:
    """`client.post`, which gives up on an answer of more than `at_most` bytes. It raises BundleError then."""

    async def post(url: str, *, content: bytes) -> httpx2.Response:
        body = bytearray()
        async with client.stream("POST", url, content=content) as answer:
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > at_most:
                    raise BundleError("its bundle is too large")
            return httpx2.Response(answer.status_code, content=bytes(body))

    return post
