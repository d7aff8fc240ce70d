"""Signatures of webhooks as Standard Webhooks 1.0 defines them (standardwebhooks.com); receivers have libraries."""

import base64
import binascii
import hmac
from hashlib import sha256
from pathlib import Path

from audit.files.secret_file import read_secret

PREFIX = b"whsec_"
LEAST_BYTES = 24


class SecretError(ValueError):
    """A webhook secret that is too weak or malformed."""


def read_key(file: Path) -> bytes:
    """The key in `file`: ``whsec_`` and base64, or any text of at least 24 bytes. Raises SecretError, OSError,
    LoosePermissions."""
    key = read_secret(file).strip()
    if key.startswith(PREFIX):
        try:
            key = base64.b64decode(key.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            raise SecretError(
                f"what follows {PREFIX.decode()} in {file} is not base64; make it with: openssl rand -base64 32"
            ) from None
    if len(key) < LEAST_BYTES:
        raise SecretError(f"the secret in {file} is shorter than {LEAST_BYTES} bytes; make a longer one")
    return key


def signed_headers(key: bytes, message_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the three headers of a message sent `at` (Unix seconds). Retries use the same identifier."""
    signed = f"{message_id}.{at}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(at), "webhook-signature": f"v1,{signature}"}
