"""The second lock on a backend: each call carries a token that the cell signed for it, its tenant and this backend.

Mutual TLS says which gateway speaks; the token says that this call was decided and is on record: `decision` is the
receipt of its intent, empty for what the gateway itself asks, such as metrics or sleep. It holds for a minute, once,
and for this very method, path, project and body (its SHA-256), so that one that was overheard opens nothing else. A JWS
in compact form, signed by Ed25519 (RFC 7515, 7519, 8037; ``htm`` and ``htu`` as in RFC 9449, the latter a path);
`backend.server.request_lock` checks it.
"""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.files.new_file import make_private_folder
from audit.files.secret_file import write_secret
from audit.random_pieces import RandomPieces
from backend.wire import REQUEST_TOKEN_HEADER
from regions.identity.encrypted_file import SecretFiles

LIFETIME_S = 60

_random_id = RandomPieces(12)


def _encoded(value: bytes) -> bytes:
    return urlsafe_b64encode(value).rstrip(b"=")


_HEAD = _encoded(b'{"alg":"EdDSA","typ":"domicile-request+jwt"}')


class RequestSigner:
    def __init__(self, key: Ed25519PrivateKey, *, now: Callable[[], float] = time.time) -> None:
        self._key = key
        self._now = now

    @classmethod
    def open(cls, path: Path, files: SecretFiles) -> "RequestSigner":
        """Over the key at `path`, made on first use. Raises LoosePermissions, KeyProviderError, ValueError."""
        if path.exists():
            content = files.read(path)
        else:
            make_private_folder(path.parent)
            content = files.create(path, Ed25519PrivateKey.generate().private_bytes_raw())
        return cls(Ed25519PrivateKey.from_private_bytes(content))

    def write_public(self, path: Path) -> Path:
        """Write the public key, PEM, to `path`; returns `path`."""
        pem = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        if not path.exists() or path.read_bytes() != pem:
            make_private_folder(path.parent)
            write_secret(path, pem)
        return path

    def field(
        self, *, tenant: str, backend: str, method: str, path: str, project: str, decision: str, digest: bytes,
        mark_key: bytes | None = None,
    ) -> str:  # fmt: skip
        """The header line for one call, with its end. `project`: as the call's header names it, empty where none is.
        `digest`: the body's SHA-256. `mark_key`: what the answer is to be watermarked with."""
        issued = int(self._now())
        claims = {
            "ten": tenant,
            "aud": backend,
            "jti": _random_id().hex(),  # of its own: a request that is sent again on a new connection is another call
            "htm": method,
            "htu": path,
            "prj": project,
            "dec": decision,
            "iat": issued,
            "exp": issued + LIFETIME_S,
            "bod": _encoded(digest).decode(),
        }
        if mark_key is not None:
            claims["wmk"] = _encoded(mark_key).decode()
        signed = _HEAD + b"." + _encoded(json.dumps(claims, separators=(",", ":")).encode())
        token = signed + b"." + _encoded(self._key.sign(signed))
        return f"{REQUEST_TOKEN_HEADER}: {token.decode()}\r\n"
