"""The keys above the side store: one key encryption key a tenant, behind a protocol.

Data keys are wrapped by RFC 3394 (AES key wrap). A provider in Vault transit or an HSM wraps and unwraps there, and
its keys never come here; the one that ships keeps them in files.
"""

import os
import re
import secrets
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from audit.errors import KeyLost, KeyProviderError

KEY_SIZE = 32

_TENANT = re.compile(r"[a-z0-9_][a-z0-9_-]{0,62}", re.ASCII)


class KeyProvider(Protocol):
    """Every method may raise KeyProviderError: the provider is out of reach or its keys unsafe."""

    def wrap(self, tenant: str, key: bytes) -> bytes:
        """`key` (32 bytes) under the tenant's key, which is made if there is none. KeyLost if it was destroyed."""

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes:
        """Raises KeyLost if the tenant has no key or another one."""

    def destroy(self, tenant: str) -> None:
        """For good: nothing wrapped under the tenant's key can be had again. No error if there is none."""


class FileKeyProvider:
    """Tenant keys in files of mode 0600, each wrapped under ``root.key`` beside them.

    A destroyed key leaves an empty file in its place, so that no process makes the tenant a new one unawares.
    """

    def __init__(self, folder: Path, root: bytes) -> None:
        self._folder = folder
        self._root = root

    @classmethod
    def open(cls, folder: Path) -> "FileKeyProvider":
        """Read the root key in `folder`, or create it. Raises KeyProviderError."""
        path = folder / "root.key"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists():
                _publish(path, os.urandom(KEY_SIZE))
            if path.stat().st_mode & 0o077:
                raise KeyProviderError(f"others than its owner may read {path.name}: run chmod 600 on it")
            root = path.read_bytes()
        except OSError as error:
            raise KeyProviderError(f"the root key cannot be used: {error}") from error
        if len(root) != KEY_SIZE:
            raise KeyProviderError(f"{path.name} is not a key of {KEY_SIZE} bytes")
        return cls(folder, root)

    def wrap(self, tenant: str, key: bytes) -> bytes:
        path = self._path(tenant)
        if not path.exists():
            try:
                _publish(path, aes_key_wrap(self._root, os.urandom(KEY_SIZE)))
            except OSError as error:
                raise KeyProviderError(f"the key of tenant {tenant} cannot be written: {error}") from error
        return aes_key_wrap(self._tenant_key(tenant), key)

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes:
        try:
            return aes_key_unwrap(self._tenant_key(tenant), wrapped)
        except (InvalidUnwrap, ValueError) as error:
            raise KeyLost(f"what was wrapped for tenant {tenant} does not open under its key") from error

    def destroy(self, tenant: str) -> None:
        path = self._path(tenant)
        try:
            if not path.exists():
                return
            with path.open("r+b") as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
                file.truncate(0)
                os.fsync(file.fileno())
        except OSError as error:
            raise KeyProviderError(f"the key of tenant {tenant} cannot be destroyed: {error}") from error

    def _tenant_key(self, tenant: str) -> bytes:
        try:
            wrapped = self._path(tenant).read_bytes()
        except FileNotFoundError as error:
            raise KeyLost(f"tenant {tenant} has no key") from error
        except OSError as error:
            raise KeyProviderError(f"the key of tenant {tenant} cannot be read: {error}") from error
        if not wrapped:
            raise KeyLost(f"the key of tenant {tenant} was destroyed")
        try:
            return aes_key_unwrap(self._root, wrapped)
        except (InvalidUnwrap, ValueError) as error:
            raise KeyLost(f"the key of tenant {tenant} does not open under this root key") from error

    def _path(self, tenant: str) -> Path:
        if not _TENANT.fullmatch(tenant):
            raise KeyProviderError(f"{tenant!r} is not the name of a tenant")
        return self._folder / f"{tenant}.kek"


class NoKeys:
    """For reading what is in a side store without opening any of it."""

    def wrap(self, tenant: str, key: bytes) -> bytes:
        raise KeyProviderError("the side store is open without its keys")

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes:
        raise KeyProviderError("the side store is open without its keys")

    def destroy(self, tenant: str) -> None:
        raise KeyProviderError("the side store is open without its keys")


def _publish(path: Path, content: bytes) -> None:
    """Write a new file durably; of several processes at it, all end up with the content of one."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        draft.unlink(missing_ok=True)
