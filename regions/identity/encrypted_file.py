"""Files of secrets as their readers want them: plain, or sealed under a key that is not on this machine.

A sealed file holds its content under a data key (AES-256-GCM, the file's name as associated data), and that key wrapped
for the installation. A copy of the disk then opens nothing without the provider of the master key.
"""

import os
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.errors import KeyLost, KeyProviderError
from audit.events.base import SYSTEM_TENANT
from audit.files.secret_file import create_secret, read_secret, replace_secret
from audit.keys.master import KEY_SIZE, NONCE_SIZE
from audit.keys.owner_keys import KeyProvider, generation_of

_MAGIC = b"domicile-sealed/1\n"


class SecretFiles(Protocol):
    """Raises LoosePermissions, FileNotFoundError, KeyProviderError."""

    def read(self, path: Path) -> bytes: ...

    def create(self, path: Path, content: bytes) -> bytes:
        """Write it unless it exists; what it then holds."""


class PlainFiles:
    """Plain files, readable by their owner."""

    def read(self, path: Path) -> bytes:
        content = read_secret(path)
        if content.startswith(_MAGIC):
            raise KeyProviderError(
                f"the file {path} is sealed; set secrets.provider to the provider that holds its key"
            )
        return content

    def create(self, path: Path, content: bytes) -> bytes:
        create_secret(path, content)
        return self.read(path)


PLAIN = PlainFiles()


class SealedFiles:
    """Reads plain ones too, for those that are older than the seal; `seal` puts one on them."""

    def __init__(self, keys: KeyProvider) -> None:
        self._keys = keys

    def read(self, path: Path) -> bytes:
        content = read_secret(path)
        if not content.startswith(_MAGIC):
            return content
        wrapped, nonce, closed = _parts(content, path)
        try:
            return AESGCM(self._keys.unwrap(SYSTEM_TENANT, wrapped)).decrypt(nonce, closed, _bound(path))
        except InvalidTag as error:
            raise KeyLost(
                f"{path} was changed, or belongs elsewhere; restore it from a backup of this installation"
            ) from error

    def create(self, path: Path, content: bytes) -> bytes:
        if not path.exists():
            create_secret(path, self._sealed(path, content))
        return self.read(path)

    def seal(self, path: Path, *, generation: int = 0) -> bool:
        """Seal a plain file, or reseal one under a key older than `generation`. False if there was nothing to do."""
        content = read_secret(path)
        if content.startswith(_MAGIC) and generation_of(_parts(content, path)[0]) >= generation:
            return False
        replace_secret(path, self._sealed(path, self.read(path)))
        return True

    def _sealed(self, path: Path, content: bytes) -> bytes:
        key, nonce = os.urandom(KEY_SIZE), os.urandom(NONCE_SIZE)
        wrapped = self._keys.wrap(SYSTEM_TENANT, key)
        return _MAGIC + bytes([len(wrapped)]) + wrapped + nonce + AESGCM(key).encrypt(nonce, content, _bound(path))


def is_sealed(path: Path) -> bool:
    return is_sealed_content(read_secret(path))


def is_sealed_content(content: bytes) -> bool:
    return content.startswith(_MAGIC)


def _parts(content: bytes, path: Path) -> tuple[bytes, bytes, bytes]:
    rest = content.removeprefix(_MAGIC)
    if not rest or len(rest) < 1 + rest[0] + NONCE_SIZE:
        raise KeyLost(f"{path} is damaged; restore it from a backup of this installation")
    end = 1 + rest[0]
    return rest[1:end], rest[end : end + NONCE_SIZE], rest[end + NONCE_SIZE :]


def _bound(path: Path) -> bytes:
    return f"{path.parent.name}/{path.name}".encode()
