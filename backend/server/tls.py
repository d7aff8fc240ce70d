"""Mutual TLS in which the one peer that may speak is named by its URI.

A backend belongs to one tenant: only the certificate whose single URI subject alternative name equals the configured
one, character for character, gets through the handshake (SPIFFE X.509-SVID §2 and §5.2; RFC 5280 §4.2.1.6). The check
is inside the handshake, so that no byte of another client reaches the HTTP parser.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from backend.errors import ConfigError

log = logging.getLogger(__name__)

RELOAD_CHECK_S = 30.0


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files, and the URI of the peer."""

    cert: Path
    key: Path
    ca: Path
    peer_uri: str


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.3 only, a certificate of `ca` required, its URI checked. Raises ConfigError for files that do not load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no resumption: every connection shows its certificate
    return _of_peers(
        context,
        files,
        lambda names: names == [files.peer_uri],
        "give --peer-uri the name in the gateway's certificate",
    )


def context_for_backends(files: TlsFiles) -> ssl.SSLContext:
    """As a server, for the backends of the tenant whose gateway `files.peer_uri` names, and for nothing else.

    Raises ConfigError for files that do not load, or if that URI is not a gateway's.
    """
    pattern = _of_backends(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    return _of_peers(
        context,
        files,
        lambda names: len(names) == 1 and pattern.fullmatch(names[0]) is not None,
        "connect with the certificate of a backend of this tenant",
    )


def context_to_backend(files: TlsFiles, uri: str) -> ssl.SSLContext:
    """As a client, to the one backend of the same tenant with this URI. Raises ConfigError as `context_for_backends`,
    and for a URI that is not of the tenant."""
    if not _of_backends(files).fullmatch(uri):
        raise ConfigError(f"{uri[:200]!r} is not a backend of this tenant; name one in the request token")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the URI is compared instead
    return _of_peers(
        context, files, lambda names: names == [uri], "register the backend that listens there under its own name"
    )


def _of_backends(files: TlsFiles) -> re.Pattern[str]:
    """URIs of backends of the tenant (`regions.identity.identity` has the grammar)."""
    tenant, gateway, rest = files.peer_uri.rpartition("/gateway")
    if not gateway or rest:
        raise ConfigError(
            f"{files.peer_uri!r} is not the name of a gateway, so the tenant's backends are not known by it"
            "; give --peer-uri spiffe://domicile.CELL/tenant/TENANT/gateway"
        )
    name = "[a-z][a-z0-9-]{1,30}"
    return re.compile(f"{re.escape(tenant)}/region/{name}/backend/{name}")


def _of_peers(
    context: ssl.SSLContext, files: TlsFiles, is_peer: Callable[[list[str]], bool], remedy: str
) -> ssl.SSLContext:
    """TLS 1.3 with peers of these URI names only. Raises ConfigError for files that do not load."""

    class Peer(ssl.SSLObject):
        """asyncio and uvloop speak TLS through the context's SSLObject class."""

        def do_handshake(self) -> None:
            super().do_handshake()
            if not is_peer(uri_names(self.getpeercert())):
                raise ssl.SSLCertVerificationError(
                    f"the peer's certificate does not name the one peer allowed here; {remedy}"
                )

    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.sslobject_class = Peer
    try:
        context.load_cert_chain(files.cert, files.key)
        context.load_verify_locations(cafile=files.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files do not load: {error}; give a certificate, its key and a CA in PEM") from None
    return context


async def reload_when_renewed(context: ssl.SSLContext, files: TlsFiles, *, every_s: float = RELOAD_CHECK_S) -> None:
    """Load the certificate again whenever its file changes; connections to come show the new one. Runs until cancelled.

    Leaves live for hours and are renewed in place. One that does not load is not taken: the old one is used until it
    ends.
    """
    loaded = files.cert.stat().st_mtime_ns
    while True:
        await asyncio.sleep(every_s)
        try:
            changed = files.cert.stat().st_mtime_ns
            if changed != loaded:
                context.load_cert_chain(files.cert, files.key)
                loaded = changed
                log.info("the renewed certificate is in use")
        except (OSError, ssl.SSLError) as error:
            log.error("the renewed certificate does not load: %s; replace the files of --cert and --key", error)


def uri_names(certificate: Any) -> list[str]:
    """The URI subject alternative names of `SSLObject.getpeercert()`'s answer."""
    return [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "URI"]


def tls_files(
    cert: Path | None, key: Path | None, ca: Path | None, peer_uri: str | None, *, host: str
) -> TlsFiles | None:
    """All four options or none. Raises ConfigError for some of them, or for none on an address that others reach."""
    given = {"--cert": cert, "--key": key, "--ca": ca, "--peer-uri": peer_uri}
    missing = [option for option, value in given.items() if not value]
    if not missing:
        assert cert and key and ca and peer_uri  # noqa: S101
        return TlsFiles(cert=cert, key=key, ca=ca, peer_uri=peer_uri)
    if len(missing) < len(given):
        raise ConfigError(f"mutual TLS needs all of {', '.join(given)}; missing: {', '.join(missing)}")
    if not is_loopback(host):
        raise ConfigError(
            f"without {', '.join(given)} this server binds a loopback address only, not {host}"
            "; give these options, or --host 127.0.0.1"
        )
    return None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
