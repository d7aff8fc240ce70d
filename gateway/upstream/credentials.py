"""The gateway's own certificates: one identity a tenant, renewed before they end.

Where the cell's authority lies on this host (the demo, single-host installations), leaves are issued here. Elsewhere
they are put into the folder from outside, and read again from time to time.
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
    """Not after, of the first certificate in `file` (PEM); None where there is none to read."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None


class TenantCredentials:
    """TLS contexts for calls to backends: one each, pinned to that backend, showing its tenant's certificate."""

    def __init__(
        self,
        folder: Path,
        cell: str,
        root: Path,
        authority: CertificateAuthority | None,
        find: Callable[[], CertificateAuthority | None] = lambda: None,
    ) -> None:
        """`folder` holds a subfolder a tenant; `root` is the certificate that backends are judged by. `find` looks for
        an authority again where there was none: the first backend that is started here makes it."""
        self._find = find
        self._folder = folder
        self._cell = cell
        self._root = root
        self._authority = authority
        self._contexts: dict[str, tuple[str, ssl.SSLContext]] = {}

    def context_for(self, backend: Backend) -> ssl.SSLContext:
        """The context for `backend`. Raises BackendUnavailable when this gateway has no certificate for its tenant."""
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
        """Let go of the contexts for backends that are not among `living`, by id."""
        self._contexts = {name: kept for name, kept in self._contexts.items() if name in living}

    def renew(self) -> None:
        """Renew what is in its last third. Called from time to time; connections to come use the new ones.

        Does not raise: one tenant's broken file must not keep the others from being renewed, now or the next time.
        """
        for uri, context in list(self._contexts.values()):  # a thread runs this, while calls may add to it
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
        """When the first of the certificates in use ends; None before the first call to a backend."""
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
