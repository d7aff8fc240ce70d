"""Reasoning that a client keeps between the turns of a conversation without being able to read or change it.

AES-256-GCM (NIST SP 800-38D) under a key of the tenant and API key (`Principal.state_secret`), with a random nonce.
"""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_FORMAT: Final = b"\x01"
_NONCE: Final = 12
_PURPOSE: Final = b"responses reasoning"


class NotOurs(ValueError):
    """It was not sealed under this key, or was changed since."""


def sealed(text: str, secret: bytes) -> str:
    nonce = os.urandom(_NONCE)
    encrypted = AESGCM(secret).encrypt(nonce, text.encode("utf-8", "surrogatepass"), _PURPOSE)
    return urlsafe_b64encode(_FORMAT + nonce + encrypted).decode()


def opened(written: str, secret: bytes) -> str:
    """Raises NotOurs."""
    try:
        raw = urlsafe_b64decode(written.encode("ascii"))
        if raw[:1] != _FORMAT:
            raise NotOurs
        at = 1 + _NONCE
        return AESGCM(secret).decrypt(raw[1:at], raw[at:], _PURPOSE).decode("utf-8", "surrogatepass")
    except (ValueError, InvalidTag):
        raise NotOurs from None
