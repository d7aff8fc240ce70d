"""The gateway's side of a connection to a backend: TLS 1.3, both ends proven, the peer's URI checked in the handshake.

The name that counts is the URI in the peer's certificate, not its host, so OpenSSL's host check is off and ours is
in its place: at the end of the handshake, before the transport is handed over and so before one byte of a request can
leave. It lives in the SSLObject because that is the one spot which asyncio, uvloop and everything on top pass through.
"""

import ssl
from typing import Any, NoReturn

from regions.identity.authority import CredentialFiles
from regions.identity.identity import BackendIdentity


def client_context(files: CredentialFiles, expected: BackendIdentity) -> ssl.SSLContext:
    """A context whose handshakes succeed only with `expected`, under the root in `files`, showing the leaf in `files`.

    Handshakes with anyone else raise ssl.SSLCertVerificationError. Use one context a backend; after a renewal call
    ``context.load_cert_chain`` on it again, for the connections to come.
    """
    context = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(files.root)
    context.load_cert_chain(files.certificate, files.key)
    context.sslobject_class = _pinned_to(expected.uri)
    return context


def check_peer(certificate: Any, uri: str) -> None:
    """Raise ssl.SSLCertVerificationError unless `certificate`, as from ``getpeercert()``, names `uri` and no other."""
    uris = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "URI"]
    if uris != [uri]:
        raise ssl.SSLCertVerificationError(
            f"the peer is {uris or 'without a name'}, expected {uri}"
            "; check the certificate of the server at this address"
        )


class PinnedContext(ssl.SSLContext):
    """Blocking sockets do not pass through an SSLObject, where the peer is checked, so it makes none."""

    def wrap_socket(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ssl.SSLError("this context pins its peer: use it with asyncio, not with a blocking socket")


def _pinned_to(uri: str) -> type[ssl.SSLObject]:
    class PinnedPeer(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check_peer(self.getpeercert(), uri)

    return PinnedPeer
