"""The gateway's own certificates: one identity a tenant, renewed before they end.

Where the cell's authority lies on this host (``pki/ca.key``; the demo and single-host installations), leaves are issued
here. Elsewhere they are put into ``pki/tenants/<tenant>/`` from outside, and read again whenever they change.
"""

import ssl
from datetime import timedelta
from pathlib import Path

from gateway.errors import BackendUnavailable
from regions.authority import CertificateAuthority, CredentialFiles
from regions.errors import RegionsError
from regions.fleet import Backend
from regions.identity import GatewayIdentity, parse_identity
from regions.tls import client_context


class TenantCredentials:
    """TLS contexts for calls to backends: one each, pinned to that backend, showing its tenant's certificate."""

    def __init__(self, pki: Path, cell: str, *, lifetime: timedelta = timedelta(hours=24)) -> None:
        self._pki = pki
        self._cell = cell
        self._lifetime = lifetime
        self._authority = CertificateAuthority.open(pki, cell) if (pki / "ca.key").exists() else None
        self._contexts: dict[str, tuple[str, ssl.SSLContext, float]] = {}

    def context_for(self, backend: Backend) -> ssl.SSLContext:
        """The context for `backend`. Raises BackendUnavailable when this gateway has no certificate for its tenant."""
        try:
            files = self._files(backend.tenant)
            changed = files.certificate.stat().st_mtime
            known = self._contexts.get(backend.id)
            if known is not None and known[0] == backend.uri:
                if known[2] != changed:
                    known[1].load_cert_chain(files.certificate, files.key)  # taken over by the connections to come
                    self._contexts[backend.id] = (backend.uri, known[1], changed)
                return known[1]
            identity = parse_identity(backend.uri)
            if isinstance(identity, GatewayIdentity):
                raise BackendUnavailable(f"Backend {backend.id} is registered under a gateway's identity")
            context = client_context(files, identity)
        except (OSError, RegionsError, ssl.SSLError) as error:
            raise BackendUnavailable(
                f"This gateway has no certificate to call backends of tenant {backend.tenant}", code="no_certificate"
            ) from error
        self._contexts[backend.id] = (backend.uri, context, changed)
        return context

    def renew(self) -> None:
        """Renew what is in its last third, and load it. Called from time to time."""
        for folder in (self._pki / "tenants").glob("*/"):
            self._files(folder.name)

    def _files(self, tenant: str) -> CredentialFiles:
        folder = self._pki / "tenants" / tenant
        if self._authority is not None:
            self._authority.renew_if_due(GatewayIdentity(self._cell, tenant), folder, lifetime=self._lifetime)
        return CredentialFiles(folder / "cert.pem", folder / "key.pem", self._pki / "ca.pem")
