"""Request tokens: each call to a backend carries a token that the cell signed for the call, its tenant and the backend.

Mutual TLS authenticates the gateway; the token proves that the call was decided and recorded. `decision` is the receipt
of its intent record, empty for requests of the gateway itself, such as metrics or sleep. A token is valid for one
minute, once, and for one method, path, project and body (its SHA-256), so a captured token permits no other request. It
is a JWS in compact form, signed with Ed25519 (RFC 7515, 7519, 8037; ``htm`` and ``htu`` as in RFC 9449, the latter a
path). `backend.server.request_lock` verifies it.
"""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.files.new_file import make_private_folder
from audit.files.secret_file import write_secret
from audit.random_pieces import RandomPieces
from backend.wire import PREFILL_HEADER, REQUEST_TOKEN_HEADER, TRANSFER_METHOD, TRANSFER_PATH
from regions.identity.encrypted_file import SecretFiles

LIFETIME_S = 60

_random_id = RandomPieces(12)


def _encoded(value: bytes) -> bytes:
    return urlsafe_b64encode(value).rstrip(b"=")


_HEAD = _encoded(b'{"alg":"EdDSA","typ":"domicile-request+jwt"}')


@dataclass(frozen=True, slots=True)
class PrefillPlace:
    """The backend that computes the prompt of a call which another one answers: its id, the URI in its certificate, and
    where it listens for that other one, whose URI is `asker`."""

    backend: str
    uri: str
    host: str
    port: int
    asker: str


class RequestSigner:
    def __init__(self, key: Ed25519PrivateKey, *, now: Callable[[], float] = time.time) -> None:
        self._key = key
        self._now = now

    @classmethod
    def open(cls, path: Path, files: SecretFiles) -> "RequestSigner":
        """Open a signer with the key at `path`, which is created on first use.

        Raises LoosePermissions, KeyProviderError, ValueError.
        """
        if path.exists():
            content = files.read(path)
        else:
            make_private_folder(path.parent)
            content = files.create(path, Ed25519PrivateKey.generate().private_bytes_raw())
        return cls(Ed25519PrivateKey.from_private_bytes(content))

    def write_public(self, path: Path) -> Path:
        """Write the public key (PEM) to `path` and return `path`."""
        pem = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        if not path.exists() or path.read_bytes() != pem:
            make_private_folder(path.parent)
            write_secret(path, pem)
        return path

    def field(
        self,
        *,
        tenant: str,
        backend: str,
        method: str,
        path: str,
        project: str,
        decision: str,
        digest: bytes,
        mark_key: bytes | None = None,
        prefill: PrefillPlace | None = None,
        commits: bool = False,
    ) -> str:
        """Return the header line of one call, with its line end. `project`: value of the call's project header, empty
        if it has none. `digest`: SHA-256 of the body. `mark_key`: key of the answer's watermark. `prefill`: the backend
        that computes the prompt; then a second line holds the token that `backend` shows there. `commits`: the answer
        commits to its activations."""
        claims = self._claims(tenant, backend, method, path, project, decision, digest)
        if mark_key is not None:
            claims["wmk"] = _encoded(mark_key).decode()
        if commits:
            claims["act"] = True
        if prefill is None:
            return f"{REQUEST_TOKEN_HEADER}: {self._signed(claims)}\r\n"
        claims["pre"] = {"id": prefill.backend, "uri": prefill.uri, "host": prefill.host, "port": prefill.port}
        transfer = self._claims(tenant, prefill.backend, TRANSFER_METHOD, TRANSFER_PATH, project, decision, digest) | {
            "ask": prefill.asker
        }
        return f"{REQUEST_TOKEN_HEADER}: {self._signed(claims)}\r\n{PREFILL_HEADER}: {self._signed(transfer)}\r\n"

    def _claims(
        self, tenant: str, backend: str, method: str, path: str, project: str, decision: str, digest: bytes
    ) -> dict[str, Any]:
        issued = int(self._now())
        return {
            "ten": tenant,
            "aud": backend,
            "jti": _random_id().hex(),  # unique: a request repeated on a new connection is a new call
            "htm": method,
            "htu": path,
            "prj": project,
            "dec": decision,
            "iat": issued,
            "exp": issued + LIFETIME_S,
            "bod": _encoded(digest).decode(),
        }

    def _signed(self, claims: dict[str, Any]) -> str:
        signed = _HEAD + b"." + _encoded(json.dumps(claims, separators=(",", ":")).encode())
        return (signed + b"." + _encoded(self._key.sign(signed))).decode()
