"""Asks backends of our own what their hardware attests, with a fresh nonce, and records each piece before it counts.

Evidence is bound to the key of the backend's TLS certificate. A connection to a backend that shows another key than the
one that was attested is not used, and the backend has to show evidence anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_bytes
from typing import Any

from cryptography import x509
from pydantic import ValidationError

from audit.events.event import BackendAttested
from backend.wire import EVIDENCE_PATH, EvidencePiece, EvidenceReport, EvidenceRequest
from gateway.directory.backend_keys import key_sha256
from gateway.errors import BackendUnavailable, GatewayError
from gateway.upstream.client import Target, Upstream
from gateway.upstream.http1 import ConnectionLost, Peer, ProtocolError
from policy.facts import Technology
from regions.evidence.attestation import NONCE_BYTES, Claims, Evidence, Reference, binding
from regions.evidence.errors import EvidenceRefused
from regions.evidence.roots import verified
from regions.fleet.fleet import Backend

log = logging.getLogger("domicile.gateway")

TIMEOUT_S = 30.0
RETRY_S = 30.0
"""After evidence that did not hold, or none."""

References = Mapping[Technology, Reference]


@dataclass(frozen=True, slots=True)
class Attested:
    """`technologies`: whose evidence holds. `fault`: why that of others does not."""

    technologies: tuple[Technology, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    backend: Backend
    weights: str
    key: str
    asked_at: float
    found: Attested


class Attestor:
    """`references`: what evidence is compared with, read anew each time; empty: nothing is asked. `record`: returns
    once the event is durable, or raises; then the evidence does not count."""

    def __init__(
        self,
        upstream: Upstream,
        references: Callable[[], References],
        record: Callable[[BackendAttested], Awaitable[None]],
        every_s: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._upstream, self._references, self._record = upstream, references, record
        self._every_s, self._now = every_s, now
        self._keys: dict[str, tuple[Backend, str]] = {}
        self._known: dict[str, _Known] = {}

    def connected(self, backend: Backend, peer: Peer) -> None:
        """Note the key of a new connection. Raises BackendUnavailable where it is not the one that was attested."""
        if backend.kind != "domicile" or peer.certificate is None:
            return
        key = key_sha256(x509.load_der_x509_certificate(peer.certificate))
        self._keys[backend.id] = backend, key
        known = self._known.get(backend.id)
        if known is not None and known.backend is backend and known.key != key:
            del self._known[backend.id]
            if known.found.technologies:
                raise BackendUnavailable(
                    "The backend shows another key than its hardware attested; it is asked again", retry_after_s=2
                )

    def is_due(self, backend: Backend, weights: str) -> bool:
        """Whether evidence has to be asked for: there is none for these weights and this key, or it is too old."""
        known = self._known.get(backend.id)
        if known is None or known.backend is not backend or known.weights != weights:
            return True
        after_s = self._every_s if known.found.fault is None else min(RETRY_S, self._every_s)
        return asyncio.get_running_loop().time() - known.asked_at >= after_s

    def found(self, backend: Backend) -> Attested:
        """What the last evidence showed."""
        known = self._known.get(backend.id)
        return known.found if known is not None and known.backend is backend else Attested()

    async def ask(self, backend: Backend, target: Target, weights: str) -> Attested:
        """Ask now, verify and record. No error of the backend is raised: what does not hold does not count."""
        try:
            references = await asyncio.to_thread(self._references)
        except (EvidenceRefused, OSError) as error:
            log.warning("no evidence can be verified: %s; correct the settings of `attestation`", error)
            references = {}
        if not references:
            return self._keep(backend, weights, "", Attested(fault="the installation accepts no evidence"))
        nonce = token_bytes(NONCE_BYTES)
        pieces = await self._pieces(target, nonce)
        noted = self._keys.get(backend.id)
        if noted is None or noted[0] is not backend:
            return self._keep(backend, weights, "", Attested(fault="it shows no TLS key to bind evidence to"))
        key, before = noted[1], self.found(backend)
        holding: list[Technology] = []
        faults: list[str] = []
        for piece in pieces:
            event = await asyncio.to_thread(self._judged, backend, piece, nonce, key, weights, references)
            if event.type == "backend.attested":
                if await self._recorded(event):
                    holding.append(event.technology)  # type: ignore[arg-type]  # verified, so it is one of them
                else:
                    faults.append(f"evidence of {event.technology} could not be recorded")
                continue
            faults.append(f"{event.technology}: {(event.reason or '').partition('; ')[0]}")
            if faults[-1] not in (before.fault or ""):  # what fails again and again is on record once
                await self._recorded(event)
        fault = "; ".join(faults) or (None if pieces else "it sends no evidence")
        return self._keep(backend, weights, key, Attested(tuple(sorted(holding)), fault))

    async def _pieces(self, target: Target, nonce: bytes) -> list[EvidencePiece]:
        body = EvidenceRequest(nonce=nonce.hex()).model_dump_json().encode()
        try:
            status, said = await self._upstream.ask(target, EVIDENCE_PATH, TIMEOUT_S, body)
            return EvidenceReport.model_validate_json(said or b"").evidence if status == 200 else []
        except (GatewayError, ConnectionLost, ProtocolError, TimeoutError, ValidationError):
            return []

    def _judged(
        self, backend: Backend, piece: EvidencePiece, nonce: bytes, key: str, weights: str, references: References
    ) -> BackendAttested:
        about: dict[str, Any] = {
            "tenant": backend.tenant,
            "backend_id": backend.id,
            "region": backend.region,
            "nonce": nonce.hex(),
            "key_sha256": key,
            "weights_sha256": weights,
        }
        try:
            evidence = Evidence.model_validate(piece.model_dump())
            claims = self._verified(evidence, binding(nonce, key, weights), references)
        except ValidationError:
            reason = "this is no evidence that is known; send what docs/weights-and-hardware.md describes"
            return BackendAttested(type="backend.attestation_refused", technology="unknown", reason=reason, **about)
        except EvidenceRefused as refused:
            reason, name = str(refused)[:512], evidence.technology
            return BackendAttested(type="backend.attestation_refused", technology=name, reason=reason, **about)
        sent: dict[str, Any] = {
            "report": piece.report,
            "signature": piece.signature or None,
            "certificates": piece.certificates or None,
        }
        try:
            return BackendAttested(
                type="backend.attested",
                technology=claims.technology,
                measurement=claims.measurement,
                **about,
                **sent,
            )
        except ValidationError:
            reason = "the evidence is too large for the record; send the certificates of one chain alone"
            name = claims.technology
            return BackendAttested(type="backend.attestation_refused", technology=name, reason=reason, **about)

    def _verified(self, evidence: Evidence, bound: bytes, references: References) -> Claims:
        reference = references.get(evidence.technology)
        if reference is None:
            raise EvidenceRefused(f"no evidence of {evidence.technology} is accepted here; configure `attestation`")
        return verified(evidence, bound, self._now(), reference)

    async def _recorded(self, event: BackendAttested) -> bool:
        try:
            await self._record(event)
        except GatewayError:
            log.warning("evidence of %s could not be recorded, so it does not count; it is retried", event.backend_id)
            return False
        return True

    def _keep(self, backend: Backend, weights: str, key: str, found: Attested) -> Attested:
        at = asyncio.get_running_loop().time()
        self._known[backend.id] = _Known(backend, weights, key, at, found)
        return found
