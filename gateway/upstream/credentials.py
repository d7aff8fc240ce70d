"""The gateway's client certificates: one identity per tenant, renewed before it expires.

If the cell's certificate authority is on this host (the demo, single-host installations), certificates are issued here.
Otherwise the operator puts them into the folder, which is read again periodically.
"""

import logging
import ssl
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

from cryptography import x509

from gateway.errors import BackendUnavailable
from regions.errors import RegionsError
from regions.fleet.fleet import Backend
from regions.identity.authority import CertificateAuthority, CredentialFiles
from regions.identity.identity import GatewayIdentity, parse_identity
from regions.identity.tls import client_context
from regions.identity.trust import trusted_context

logger = logging.getLogger("domicile.gateway")


def certificate_end(file: Path) -> datetime | None:
    """Return the expiry (notAfter) of the first certificate in `file` (PEM), or None if none can be read."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None


class TenantCredentials:
    """TLS contexts for calls to backends, one per backend: pinned to it, with its tenant's client certificate."""

    def __init__(
        self,
        folder: Path,
        cell: str,
        root: Path,
        authority: CertificateAuthority | None,
        find: Callable[[], CertificateAuthority | None] = lambda: None,
    ) -> None:
        """`folder` has a subfolder for each tenant. `root`: CA certificate that backends are verified against. `find`
        returns the authority if there was none before: the first backend started on this host creates it."""
        self._find = find
        self._folder = folder
        self._cell = cell
        self._root = root
        self._authority = authority
        self._contexts: dict[str, tuple[str, ssl.SSLContext]] = {}

    def context_for(self, backend: Backend) -> ssl.SSLContext:
        """Return the TLS context for `backend`.

        Raises BackendUnavailable if the gateway has no certificate for its tenant, or if the backend is registered
        without a CA or pin, or with a gateway's identity.
        """
        if backend.kind != "domicile":
            if backend.trust is None or not backend.trust.proves:
                raise BackendUnavailable(
                    f"Backend {backend.id} has no way to prove who it is"
                    "; ask the operator to register it with a CA or a pin",
                    code="backend_identity",
                )
            return trusted_context(backend.trust)
        try:
            files = self._files(backend.tenant)
            identity = parse_identity(backend.uri)
            if isinstance(identity, GatewayIdentity):
                raise BackendUnavailable(
                    f"Backend {backend.id} is registered under a gateway's identity"
                    "; ask the operator to register it under its own"
                )
            context = client_context(files, identity)
        except (OSError, RegionsError, ssl.SSLError) as error:
            raise BackendUnavailable(
                f"This gateway has no certificate to call backends of tenant {backend.tenant}"
                "; ask the operator to issue one",
                code="no_certificate",
            ) from error
        self._contexts[backend.id] = backend.uri, context
        return context

    def forget(self, living: Collection[str]) -> None:
        """Drop the contexts of backends whose ids are not in `living`."""
        self._contexts = {name: kept for name, kept in self._contexts.items() if name in living}

    def renew(self) -> None:
        """Renew certificates in the last third of their validity. Called periodically; new connections use the result.

        Does not raise: a broken file of one tenant must not prevent the renewal for others.
        """
        for uri, context in list(self._contexts.values()):  # runs in a thread while calls may add entries
            tenant = parse_identity(uri).tenant
            try:
                files = self._files(tenant)
                context.load_cert_chain(files.certificate, files.key)
            except (OSError, RegionsError, ssl.SSLError) as error:
                logger.error(
                    "the certificate for backends of tenant %s could not be renewed: %s"
                    "; check the cell's authority, it is tried again",
                    tenant,
                    error,
                )

    def first_end(self) -> datetime | None:
        """Earliest expiry of the certificates in use; None before the first call to a backend."""
        tenants = {parse_identity(uri).tenant for uri, _ in list(self._contexts.values())}
        ends = (certificate_end(self._folder / tenant / "cert.pem") for tenant in tenants)
        return min((end for end in ends if end is not None), default=None)

    def _files(self, tenant: str) -> CredentialFiles:
        folder = self._folder / tenant
        if self._authority is None:
            self._authority = self._find()
        if self._authority is not None:
            self._authority.renew_if_due(GatewayIdentity(self._cell, tenant), folder)
        return CredentialFiles(folder / "cert.pem", folder / "key.pem", self._root)
