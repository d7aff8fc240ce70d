"""The master key: what wraps the keys of tenants, in versions, so that it can be replaced while they are in use.

Three ship: files on this machine (here), HashiCorp Vault's transit engine (`gateway.secrets.transit`) and an HSM over
PKCS#11 (`gateway.secrets.pkcs11`). What was wrapped
reads ``<provider>:v<version>:<base64>``, so that it says itself which of them opens it.
"""

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

from audit.errors import KeyLost, KeyProviderError
from audit.files.secret_file import create_secret, read_secret, shred_secret

KEY_SIZE = 32
NONCE_SIZE = 12
LEGACY_SIZE = KEY_SIZE + 8
"""Bytes of a key wrapped by RFC 3394 under version 1 of the file master, with nothing around it: how it once was."""

_WRAPPED = re.compile(rb"([a-z][a-z0-9-]{0,31}):v([1-9][0-9]{0,8}):([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True)
class MasterState:
    """`place` is where it is kept, in words for an operator; `versions` those that can still open something."""

    provider: str
    place: str
    versions: tuple[int, ...]

    @property
    def newest(self) -> int:
        return max(self.versions)


class Master(Protocol):
    """Every method may raise KeyProviderError: it is out of reach, or not safe to use."""

    @property
    def provider(self) -> str:
        """The word before the first colon of what it wraps."""

    def wrap(self, context: str, key: bytes) -> bytes:
        """`key` (32 bytes) under the newest version, bound to `context`: it opens under no other."""

    def unwrap(self, context: str, wrapped: bytes) -> bytes:
        """Raises KeyLost if no version that is left opens it."""

    def rewrap(self, context: str, wrapped: bytes) -> bytes:
        """The same key under the newest version. Raises KeyLost."""

    def state(self) -> MasterState: ...

    def rotate(self) -> int:
        """Make a new version, which wraps from now on; returns its number."""

    def retire(self, below: int) -> None:
        """Destroy the versions under `below` for good. No error if they are gone."""


def origin_of(wrapped: bytes) -> tuple[str, int]:
    """Provider and version of a wrapped key. Raises KeyLost if it is none."""
    if len(wrapped) == LEGACY_SIZE and not _WRAPPED.fullmatch(wrapped):
        return "file", 1
    match = _WRAPPED.fullmatch(wrapped)
    if match is None:
        raise KeyLost("a wrapped key is damaged; restore the folder keys from a backup")
    return match[1].decode(), int(match[2])


class FileMaster:
    """AES-256 keys in files of mode 0600: version 1 at `path`, version n at ``<path>.n``. AES-GCM, context as AAD.

    The files are read again before each wrapping, so that a rotation by another process counts at once.
    """

    provider = "file"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: dict[int, bytes] = {}

    @classmethod
    def open(cls, path: Path, owners: Callable[[], Sequence[str]] = tuple) -> "FileMaster":
        """With the keys at `path`, the first created if there is none. Raises KeyProviderError.

        None is created where there are keys of `owners` already, since these were wrapped by another: then it is lost,
        is on another host, or they are in the hands of another provider.
        """
        master = cls(path)
        try:
            if not master._files():
                if any(path.parent.glob("*.kek")) or owners():
                    raise KeyProviderError(
                        f"there is no {path.name} in {path.parent}, and there are keys of tenants; restore it, take "
                        "over the key set of another host (domicile init --keys), or set secrets.provider"
                    )
                create_secret(path, os.urandom(KEY_SIZE))
            master._load()
        except OSError as error:
            raise KeyProviderError(
                f"the root key cannot be used: {error}; let this process read and write the folder keys"
            ) from error
        return master

    def wrap(self, context: str, key: bytes) -> bytes:
        version = self._newest()
        nonce = os.urandom(NONCE_SIZE)
        sealed = nonce + AESGCM(self._keys[version]).encrypt(nonce, key, context.encode())
        return b"%s:v%d:%s" % (self.provider.encode(), version, b64encode(sealed))

    def unwrap(self, context: str, wrapped: bytes) -> bytes:
        provider, version = origin_of(wrapped)
        if provider != self.provider:
            raise KeyProviderError(
                f"a key was wrapped by {provider}, not by a file; set secrets.provider to {provider}"
            )
        if version not in self._keys:
            self._newest()
        if version not in self._keys:
            if version < min(self._keys):
                raise KeyLost(f"version {version} of the root key is gone; restore it from a backup of the key set")
            missing = self._path.with_name(f"{self._path.name}.{version}")
            raise KeyProviderError(
                f"{missing}, version {version} of the root key, is missing; put the key set back with: domicile init"
                " --keys KEY_SET"
            )
        try:
            if len(wrapped) == LEGACY_SIZE:
                return aes_key_unwrap(self._keys[version], wrapped)
            sealed = b64decode(wrapped.rpartition(b":")[2], validate=True)
            return AESGCM(self._keys[version]).decrypt(sealed[:NONCE_SIZE], sealed[NONCE_SIZE:], context.encode())
        except (InvalidUnwrap, InvalidTag, ValueError) as error:
            raise KeyLost(
                "a wrapped key does not open under this root key; restore the root key of this installation"
            ) from error

    def rewrap(self, context: str, wrapped: bytes) -> bytes:
        return self.wrap(context, self.unwrap(context, wrapped))

    def state(self) -> MasterState:
        self._newest()
        return MasterState(self.provider, str(self._path), tuple(sorted(self._keys)))

    def rotate(self) -> int:
        version = self._newest() + 1
        try:
            create_secret(self._path.with_name(f"{self._path.name}.{version}"), os.urandom(KEY_SIZE))
        except OSError as error:
            raise KeyProviderError(
                f"a new root key cannot be written: {error}; let this process write to the folder keys"
            ) from error
        return self._newest()

    def retire(self, below: int) -> None:
        if below > self._newest():
            raise KeyProviderError(
                f"there is no version {below} of the root key that could stay; name a version up to the newest"
            )
        for version, file in self._files().items():
            if version < below:
                try:
                    shred_secret(file)
                except OSError as error:
                    raise KeyProviderError(f"{file.name} cannot be destroyed: {error}; remove it by hand") from error
                self._keys.pop(version, None)

    def destroy(self) -> None:
        """Every version of it, for good: when another master has taken over."""
        for file in self._files().values():
            try:
                shred_secret(file)
            except OSError as error:
                raise KeyProviderError(f"{file.name} cannot be destroyed: {error}; remove it by hand") from error
        self._keys.clear()

    def _newest(self) -> int:
        try:
            self._load()
        except OSError as error:
            raise KeyProviderError(
                f"the root key cannot be used: {error}; let this process read the folder keys"
            ) from error
        return max(self._keys)

    def _load(self) -> None:
        files = self._files()
        if not files:
            raise KeyProviderError(
                f"there is no root key at {self._path}; put the key set back with: domicile init --keys KEY_SET"
            )
        for version in files.keys() - self._keys.keys():
            key = read_secret(files[version])
            if len(key) != KEY_SIZE:
                raise KeyProviderError(
                    f"{files[version].name} is not a key of {KEY_SIZE} bytes; restore it from a backup of the key set"
                )
            self._keys[version] = key
        for gone in self._keys.keys() - files.keys():
            del self._keys[gone]

    def _files(self) -> dict[int, Path]:
        later = {int(p.suffix[1:]): p for p in self._path.parent.glob(f"{self._path.name}.*") if p.suffix[1:].isdigit()}
        return later | ({1: self._path} if self._path.exists() or self._path.is_symlink() else {})
