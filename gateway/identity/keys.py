"""API keys: ``dom_live_<id: 8>_<secret: 43><checksum: 6>``, all base62; people's tokens read ``dom_admin_...``, a
person's one-time token for the console ``dom_once_...``.

The underscores let a double click select the whole; the checksum (CRC-32 of everything before it) refuses typing errors
and random guesses before any look-up, and lets a secret scanner be sure. Shape after GitHub's token formats (2021).
The secret has 256 bits, so a slow hash would add nothing: only ``HMAC-SHA256(pepper, key)`` is stored.

    KeyRefused
    ├── KeyMissing      no key was sent
    ├── KeyMalformed    not of the format, or the checksum does not fit
    ├── KeyUnknown      well formed, but no such key
    ├── KeyExpired
    ├── KeyRevoked      it, its project or its tenant was
    └── KeyElsewhere    valid, but not from the caller's address
"""

import hmac
import re
import secrets
import string
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Literal
from zlib import crc32

from audit.files.secret_file import shred_secret
from regions.identity.encrypted_file import PLAIN, SecretFiles

KEY_PATTERN = r"dom_live_[0-9A-Za-z]{8}_[0-9A-Za-z]{49}"
"""For secret scanners; a true key also passes its checksum."""

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]
_ID, _SECRET, _CHECKSUM = 8, 43, 6
_KEY = re.compile(rf"dom_(live|admin|once)_([0-9A-Za-z]{{{_ID}}})_[0-9A-Za-z]{{{_SECRET}}}([0-9A-Za-z]{{{_CHECKSUM}}})")
PEPPER_SIZE = 32
STAGED = ".staged"

KeyKind = Literal["live", "admin", "once"]
"""A project's key for inference, a person's token for the admin API, or one that begins a session of the console once:
none opens what another does."""


class KeyRefused(Exception):
    """No valid key: the caller is not authenticated. The message may be shown; it never holds the key.

    `key_id` is the public id of a key whose secret was right, though it is no longer or not here valid; `tenant` its
    tenant.
    """

    fix: ClassVar[str] = ""

    def __init__(self, message: str, *, key_id: str | None = None, tenant: str | None = None) -> None:
        super().__init__(f"{message}; {self.fix}" if self.fix and "; " not in message else message)
        self.key_id = key_id
        self.tenant = tenant


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


class KeyElsewhere(KeyRefused):
    """It is valid, but not from the caller's address."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A well-formed key, whether it exists or not. The token does not show in its repr."""

    id: str
    token: str = field(repr=False)


def generate_key(below: Callable[[int], int] = secrets.randbelow, kind: KeyKind = "live") -> ApiKey:
    """A new key, 256 bits of it secret. `below(n)` gives a uniform number under n."""
    key_id = generate_id(below)
    body = f"dom_{kind}_{key_id}_{_base62(below(62**_SECRET), _SECRET)}"
    return ApiKey(key_id, body + _checksum(body))


def generate_id(below: Callable[[int], int] = secrets.randbelow) -> str:
    """8 random base62 digits, 47 bits: for ids that the record names and that are no secret."""
    return _base62(below(62**_ID), _ID)


def parse_key(token: str, kind: KeyKind = "live") -> ApiKey:
    """Check format and checksum; needs no look-up. Raises KeyMissing or KeyMalformed."""
    if not token:
        raise KeyMissing(f"no API key was sent; send it as 'Authorization: Bearer dom_{kind}_...'")
    match = _KEY.fullmatch(token)
    if match is None or match[1] != kind:
        raise KeyMalformed(
            f"the API key is not of the form dom_{kind}_<8>_<49 letters and digits>; send one as it was created"
        )
    if not hmac.compare_digest(_checksum(token[:-_CHECKSUM]), match[3]):
        raise KeyMalformed("the API key has a typing error, its checksum does not fit; copy it again")
    return ApiKey(match[2], token)


class KeyHasher:
    """HMAC-SHA256 of keys under the installation's pepper, without which a stolen database opens nothing.

    While the pepper is being rotated there are two generations: `pepper` of number `generation`, under which keys are
    hashed from now on, and the `previous` one, under which some still are. `staged` is the next one, that other hosts
    may hash under already: what they hashed is checked here too.
    """

    def __init__(
        self,
        pepper: bytes,
        generation: int = 1,
        previous: bytes | None = None,
        source: Path | None = None,
        files: SecretFiles = PLAIN,
        staged: bytes | None = None,
    ) -> None:
        for each in (one for one in (pepper, previous, staged) if one is not None):
            if len(each) < PEPPER_SIZE:
                raise ValueError(
                    f"the pepper must have at least {PEPPER_SIZE} bytes, this has {len(each)}"
                    "; restore the file, or take the key set over again"
                )
        self.generation = generation
        self._source = source
        self._generations = {generation} if previous is None else {generation, generation - 1}
        self._files = files
        # copied for each key: keying it costs ten times as much
        self._keyed = {generation: hmac.new(pepper, digestmod=sha256)}
        if previous is not None:
            self._keyed[generation - 1] = hmac.new(previous, digestmod=sha256)
        if staged is not None:
            self._keyed[generation + 1] = hmac.new(staged, digestmod=sha256)

    @classmethod
    def open(cls, path: Path, files: SecretFiles = PLAIN) -> "KeyHasher":
        """With the pepper in `path` (generation 1, created with mode 0600 on first use) or its successors next to it.

        Raises LoosePermissions, ValueError if one is short or there are more than two.
        """
        peppers = pepper_files(path)
        if not peppers:
            return cls(files.create(path, secrets.token_bytes(PEPPER_SIZE)), source=path, files=files)
        newest = max(peppers)
        if set(peppers) - {newest, newest - 1}:
            raise ValueError(
                f"there are more than two generations of the pepper at {path}; restore the file from a backup"
            )
        previous = files.read(peppers[newest - 1]) if newest - 1 in peppers else None
        waiting = staged_pepper(path, newest + 1)
        staged = files.read(waiting) if waiting.exists() else None
        return cls(files.read(peppers[newest]), newest, previous, path, files, staged)

    def reopened(self) -> "KeyHasher":
        """As the files are now; itself if it came from none."""
        return self if self._source is None else KeyHasher.open(self._source, self._files)

    def refreshed(self) -> "KeyHasher":
        """Itself, unless a rotation by another process has changed which peppers there are. Raises as `open` does."""
        if self._source is None or set(pepper_files(self._source)) == self._generations:
            return self
        return self.reopened()

    def advanced(self, newest: int) -> "KeyHasher":
        """As the files are once the staged pepper is in force here, since another host hashed keys under generation
        `newest`; as they are if it is not staged. Raises OSError."""
        again = self.reopened()
        if again.generation + 1 == newest and again.knows(newest) and again._source is not None:
            promote(again._source, newest, self._files)
            return again.reopened()
        return again

    def knows(self, generation: int) -> bool:
        return generation in self._keyed

    def digest(self, key: ApiKey) -> bytes:
        """32 bytes, under the newest pepper."""
        return self._digest(key, self.generation)

    def matches(self, key: ApiKey, digest: bytes, generation: int | None = None) -> bool:
        """In constant time. A digest under an unknown pepper matches nothing."""
        known = generation if generation in self._keyed else self.generation
        return hmac.compare_digest(self._digest(key, known), digest) and generation in (None, known)

    def seal(self, purpose: str, text: str) -> str:
        """A MAC of `text`, for what goes out and has to come back as it was. `purpose`: of no other use."""
        return self._seal(purpose, text, self.generation)

    def sealed(self, purpose: str, text: str, seal: str) -> bool:
        """Whether `seal` is of `text`, also under the pepper before."""
        known = [self._seal(purpose, text, generation).encode() for generation in self._keyed]
        return any([hmac.compare_digest(each, seal.encode()) for each in known])  # all are compared

    def _seal(self, purpose: str, text: str, generation: int) -> str:
        keyed = self._keyed[generation].copy()
        keyed.update(f"domicile seal\0{purpose}\0{text}".encode())
        return keyed.hexdigest()

    def _digest(self, key: ApiKey, generation: int) -> bytes:
        keyed = self._keyed[generation].copy()
        keyed.update(key.token.encode())
        return keyed.digest()


def pepper_files(path: Path) -> dict[int, Path]:
    """The file of each generation: the first at `path`, number n at ``<path>.n``."""
    files = {int(p.suffix[1:]): p for p in path.parent.glob(f"{path.name}.*") if p.suffix[1:].isdecimal()}
    return files | ({1: path} if path.exists() else {})


def staged_pepper(path: Path, generation: int) -> Path:
    """Where a pepper waits that is known here and not used yet."""
    return path.with_name(f"{path.name}.{generation}{STAGED}")


def promote(path: Path, generation: int, files: SecretFiles = PLAIN) -> None:
    """Put the staged pepper in force. No error if another process did. Raises OSError.

    It is written again, not renamed: a sealed file is bound to its name.
    """
    staged = staged_pepper(path, generation)
    with suppress(FileNotFoundError):
        files.create(path.with_name(f"{path.name}.{generation}"), files.read(staged))
        shred_secret(staged)


def _checksum(text: str) -> str:
    """6 base62 digits: the CRC-32, two digits at a time, since each call of the API asks for one."""
    number = crc32(text.encode())
    return _PAIRS[number // 62**4] + _PAIRS[number // 62**2 % 62**2] + _PAIRS[number % 62**2]


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
