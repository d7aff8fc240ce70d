"""API keys: ``dom_live_<id: 8>_<secret: 43><checksum: 6>``, all base62.

The underscores let a double click select the whole; the checksum (CRC-32 of everything before it) refuses typing errors
and random guesses before any look-up, and lets a secret scanner be sure. Shape after GitHub's token formats (2021).
The secret has 256 bits, so a slow hash would add nothing: only ``HMAC-SHA256(pepper, key)`` is stored.

    KeyRefused
    ├── KeyMissing      no key was sent
    ├── KeyMalformed    not of the format, or the checksum does not fit
    ├── KeyUnknown      well formed, but no such key
    ├── KeyExpired
    └── KeyRevoked      it, its project or its tenant was
"""

import hmac
import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from zlib import crc32

from regions.secret_file import create_secret

KEY_PATTERN = r"dom_live_[0-9A-Za-z]{8}_[0-9A-Za-z]{49}"
"""For secret scanners; a true key also passes its checksum."""

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PREFIX = "dom_live_"
_ID, _SECRET, _CHECKSUM = 8, 43, 6
_KEY = re.compile(rf"{_PREFIX}([0-9A-Za-z]{{{_ID}}})_[0-9A-Za-z]{{{_SECRET}}}([0-9A-Za-z]{{{_CHECKSUM}}})")
PEPPER_SIZE = 32


class KeyRefused(Exception):
    """No valid key: the caller is nobody. The message may be shown; it never holds the key."""


class KeyMissing(KeyRefused):
    """No key was sent."""


class KeyMalformed(KeyRefused):
    """Not of the format, or the checksum does not fit."""


class KeyUnknown(KeyRefused):
    """Well formed, but no such key."""


class KeyExpired(KeyRefused):
    """It was valid once."""


class KeyRevoked(KeyRefused):
    """It, its project or its tenant was revoked."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A well-formed key, whether it exists or not. The token does not show in its repr."""

    id: str
    token: str = field(repr=False)


def generate_key(below: Callable[[int], int] = secrets.randbelow) -> ApiKey:
    """A new key, 256 bits of it secret. `below(n)` gives a uniform number under n."""
    key_id = _base62(below(62**_ID), _ID)
    body = f"{_PREFIX}{key_id}_{_base62(below(62**_SECRET), _SECRET)}"
    return ApiKey(key_id, body + _checksum(body))


def parse_key(token: str) -> ApiKey:
    """Check format and checksum; needs no look-up. Raises KeyMissing or KeyMalformed."""
    if not token:
        raise KeyMissing("no API key was sent; send it as 'Authorization: Bearer dom_live_...'")
    match = _KEY.fullmatch(token)
    if match is None:
        raise KeyMalformed("the API key is not of the form dom_live_<8>_<49 letters and digits>")
    if not hmac.compare_digest(_checksum(token[:-_CHECKSUM]), match[2]):
        raise KeyMalformed("the API key has a typing error: its checksum does not fit")
    return ApiKey(match[1], token)


class KeyHasher:
    """HMAC-SHA256 of keys under the installation's pepper, without which a stolen database opens nothing."""

    def __init__(self, pepper: bytes) -> None:
        if len(pepper) < PEPPER_SIZE:
            raise ValueError(f"the pepper must have at least {PEPPER_SIZE} bytes, this has {len(pepper)}")
        self._keyed = hmac.new(pepper, digestmod=sha256)  # copied for each key: keying it costs ten times as much

    @classmethod
    def open(cls, path: Path) -> "KeyHasher":
        """With the pepper in `path`, created (mode 0600) on first use. Raises LoosePermissions, ValueError if short."""
        return cls(create_secret(path, secrets.token_bytes(PEPPER_SIZE)))

    def digest(self, key: ApiKey) -> bytes:
        """32 bytes."""
        keyed = self._keyed.copy()
        keyed.update(key.token.encode())
        return keyed.digest()

    def matches(self, key: ApiKey, digest: bytes) -> bool:
        """In a time that does not tell how much of it matches."""
        return hmac.compare_digest(self.digest(key), digest)


def _checksum(text: str) -> str:
    return _base62(crc32(text.encode()), _CHECKSUM)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
