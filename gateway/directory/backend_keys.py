"""Key continuity of managed services: a key not seen before is recorded before a request is sent.

A public authority certifies a name for its current holder. The key shows whether the holder is still the same: most
services keep it when they renew their certificate. The first key is trusted on first use. A service on several
machines may have several keys, so every key seen remains known.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from audit.events.event import BackendKeyChanged
from gateway.database.database import Database
from gateway.database.errors import StoreError
from gateway.errors import BackendUnavailable
from gateway.store.backend_keys import known_keys, remember_key
from gateway.upstream.http1 import Peer
from regions.fleet.fleet import Backend

log = logging.getLogger("domicile.gateway")

MOST_ISSUER = 200


class BackendKeys:
    """`record`: returns once the event is durable, or raises; then nothing may be sent."""

    def __init__(
        self,
        database: Database,
        record: Callable[[BackendKeyChanged], Awaitable[None]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._record = record
        self._now = now
        self._seen: dict[str, tuple[Backend, set[str]]] = {}

    async def check(self, backend: Backend, peer: Peer) -> None:
        """Let a new connection to `backend` be used, or raise BackendUnavailable. Of other kinds than ``managed`` all
        may: these prove who they are by what was given beforehand.

        Raises AuditUnavailable where a new key cannot be recorded.
        """
        if backend.kind != "managed":
            return
        if peer.certificate is None:
            raise BackendUnavailable(
                f"Managed service {backend.id} showed no certificate; ask the operator to check its URL",
                code="backend_identity",
            )
        certificate = x509.load_der_x509_certificate(peer.certificate)
        key = key_sha256(certificate)
        if (known := self._seen.get(backend.id)) is not None and known[0] == backend and key in known[1]:
            return
        try:
            await self._judge(backend, certificate, key)
        except StoreError as error:
            raise BackendUnavailable(
                f"The keys of managed service {backend.id} cannot be read; try again", retry_after_s=1
            ) from error
        if (kept := self._seen.get(backend.id)) is None or kept[0] != backend:
            kept = self._seen[backend.id] = backend, set()
        kept[1].add(key)

    async def _judge(self, backend: Backend, certificate: x509.Certificate, key: str) -> None:
        before = await asyncio.to_thread(known_keys, self._database, backend.id)
        if key in before:
            return
        refuses = backend.trust is not None and backend.trust.changed_key == "refuse"
        if before:
            await self._record(_changed(backend, certificate, before[-1], key, refused=refuses))
            log.warning(
                "managed service %s shows another key (SHA-256 %s) than before; %s",
                backend.id,
                key,
                "it is refused until: domicile backend update --accept-key" if refuses else "check that it is theirs",
            )
            if refuses:
                raise BackendUnavailable(
                    f"Managed service {backend.id} shows another key than before; ask the operator to check and accept"
                    " it",
                    code="backend_identity",
                )
        await asyncio.to_thread(remember_key, self._database, backend.id, key, self._now())

    def forget(self, living: set[str]) -> None:
        """Drop cached keys of backends whose ids are not in `living`."""
        self._seen = {name: kept for name, kept in self._seen.items() if name in living}


def key_sha256(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's public key as SubjectPublicKeyInfo in DER, as in RFC 7469."""
    return sha256(certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _changed(
    backend: Backend, certificate: x509.Certificate, before: str, after: str, *, refused: bool
) -> BackendKeyChanged:
    trust = backend.trust
    name = (trust.name if trust is not None else None) or urlsplit(backend.url).hostname or backend.id
    return BackendKeyChanged(
        type="backend.key_refused" if refused else "backend.key_changed",
        tenant=backend.tenant,
        backend_id=backend.id,
        region=backend.region,
        name=name[:256],
        issuer=_issuer(certificate),
        before=before,
        after=after,
    )


def _issuer(certificate: x509.Certificate) -> str:
    """Organisation and common name of the issuer, where present."""
    said = [
        str(attribute.value)
        for oid in (NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME)
        for attribute in certificate.issuer.get_attributes_for_oid(oid)
    ]
    return ", ".join(said)[:MOST_ISSUER] or "unnamed"
