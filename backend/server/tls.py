"""Mutual TLS in which the one peer that may speak is named by its URI.

A backend belongs to one tenant: only the certificate whose single URI subject alternative name equals the configured
one, character for character, gets through the handshake (SPIFFE X.509-SVID §2 and §5.2; RFC 5280 §4.2.1.6). The check
is inside the handshake, so that no byte of another client reaches the HTTP parser.
"""

import asyncio
import logging
import ssl
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
    expected = files.peer_uri

    class OnePeer(ssl.SSLObject):
        """asyncio and uvloop speak TLS through the context's SSLObject class."""

        def do_handshake(self) -> None:
            super().do_handshake()
            if uri_names(self.getpeercert()) != [expected]:
                raise ssl.SSLCertVerificationError(
                    "the peer's certificate does not name the one peer allowed here"
                    "; give --peer-uri the name in the gateway's certificate"
                )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # no resumption: every connection shows its certificate
    context.sslobject_class = OnePeer
    try:
        context.load_cert_chain(files.cert, files.key)
        context.load_verify_locations(cafile=files.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files do not load: {error}; give a certificate, its key and a CA in PEM") from None
    return context


async def reload_when_renewed(context: ssl.SSLContext, files: TlsFiles, *, every_s: float = RELOAD_CHECK_S) -> None:
    """Load the certificate again whenever its file changes; connections to come show the new one. Runs until cancelled.

    Leaves live for hours and are renewed in place. One that does not load is not taken: the old one goes on until it
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
