"""The keys above what is kept secret: one key encryption key an owner, behind a protocol.

    master key (file, Vault, HSM; or a tenant's own) ─> key of an owner (a tenant, or `_system`) ─> data keys

An owner's key is in a file of this folder, wrapped under the master (`audit.keys.master`), in generations: while it
is being replaced there are two. Data keys are wrapped under the newest of them by RFC 3394 (AES key wrap), here and
without a network, so that the master may be far away and slow; who has only the folder, or only the master, opens
nothing.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from audit.errors import KeyLost, KeyProviderError
from audit.files.new_file import make_private_folder
from audit.keys.external_keys import ExternalKeys
from audit.keys.key_files import DESTROYED, KeyFolder, WrappedKeys
from audit.keys.master import KEY_SIZE, LEGACY_SIZE, FileMaster, Master, MasterState, origin_of

_OWNER = re.compile(r"[a-z0-9_][a-z0-9_-]{0,62}", re.ASCII)
_GENERATION_SIZE = 4
BUILT_IN = frozenset({"file", "vault", "pkcs11"})
"""Providers of the installation's master. Any other word is the name of a tenant's own key."""


class KeyProvider(Protocol):
    """Every method may raise KeyProviderError: the provider is out of reach or its keys unsafe."""

    def wrap(self, tenant: str, key: bytes) -> bytes:
        """`key` (32 bytes) under the tenant's key, which is made if there is none. KeyLost if it was destroyed."""

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes:
        """Raises KeyLost if the tenant's key is another one or was destroyed."""

    def wrap_all(self, tenant: str, keys: Sequence[bytes]) -> list[bytes]:
        """`wrap` of each, for the price of one look at the tenant's key."""

    def unwrap_all(self, tenant: str, wrapped: Sequence[bytes]) -> list[bytes]: ...

    def destroy(self, tenant: str) -> None:
        """For good: nothing wrapped under the tenant's key can be had again. No error if there is none."""


@dataclass(frozen=True, slots=True)
class OwnerState:
    """The generations of an owner's key, each with the provider and version of the master it is wrapped under.

    None if it was destroyed: `wrapped_under` is then empty.
    """

    owner: str
    wrapped_under: dict[int, tuple[str, int]]


class KeyRing:
    """The wrapped keys, and the masters that open them.

    `former` is a master that keys may still be wrapped under, and nothing new is: `rewrap` moves them to `master`.
    `external`: keys of tenants' own, which take the place of `master` for the owners that were given to them
    (`give_to`). What is kept of an owner says which.
    """

    def __init__(
        self,
        wrapped: WrappedKeys,
        master: Master,
        former: FileMaster | None = None,
        external: ExternalKeys | None = None,
    ) -> None:
        self.kept = wrapped
        masters: tuple[Master | None, ...] = former, master
        self._masters = {one.provider: one for one in masters if one is not None}
        self._former = former
        self.master = master
        self.external = ExternalKeys({}) if external is None else external
        self._opened: dict[str, tuple[bytes, dict[int, bytes]]] = {}  # by what is kept of them, so never out of date

    # --- data keys ---------------------------------------------------------------------------------------------------

    def wrap(self, tenant: str, key: bytes) -> bytes:
        return self.wrap_all(tenant, (key,))[0]

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes:
        return self.unwrap_all(tenant, (wrapped,))[0]

    def wrap_all(self, tenant: str, keys: Sequence[bytes]) -> list[bytes]:
        kept = self.kept.read(_checked(tenant))
        opened = self._opening(tenant, self._create(tenant) if kept is None else kept)
        newest = max(opened)
        prefix, own = newest.to_bytes(_GENERATION_SIZE, "big"), opened[newest]
        return [prefix + aes_key_wrap(own, key) for key in keys]

    def unwrap_all(self, tenant: str, wrapped: Sequence[bytes]) -> list[bytes]:
        kept = self.kept.read(_checked(tenant))
        if kept is None:
            raise KeyProviderError(
                f"{self.kept.name_of(tenant)}, the key of tenant {tenant}, is missing; put the key set back with:"
                " domicile init --keys KEY_SET"
            )
        opened = self._opening(tenant, kept)
        try:
            return [aes_key_unwrap(opened[generation_of(one)], one[-LEGACY_SIZE:]) for one in wrapped]
        except (KeyError, InvalidUnwrap, ValueError) as error:
            raise KeyLost(
                f"what was wrapped for tenant {tenant} does not open under its key"
                "; restore the value store and the keys from one backup"
            ) from error

    def destroy(self, tenant: str) -> None:
        with self.kept.changing():
            if self.kept.read(_checked(tenant)) is not None:
                self.kept.replace(tenant, DESTROYED)
        self._opened.pop(tenant, None)
        self.external.forget(tenant)

    def warm(self, tenant: str) -> None:
        """Load a tenant's keys that an external key opens, so that later calls need not wait."""
        if (kept := self.kept.read(_checked(tenant))) is not None and kept != DESTROYED:
            self._opening(tenant, kept)

    # --- owners' keys ------------------------------------------------------------------------------------------------

    def owners(self) -> list[str]:
        """All that ever had a key, destroyed ones too."""
        return self.kept.owners()

    def state_of(self, owner: str) -> OwnerState:
        return OwnerState(owner, {gen: origin_of(wrapped) for gen, wrapped in self._wrapped(owner).items()})

    def state(self) -> MasterState:
        return self.master.state()

    def rewrap(self, owner: str) -> bool:
        """Wrap an owner's key under the newest master. False if it is already, or was destroyed."""
        newest = self.master_of(owner).state().newest
        with self.kept.changing():
            wrapped = self._wrapped(owner)
            renewed = {gen: self._rewrapped(owner, gen, one, newest) for gen, one in wrapped.items()}
            if renewed == wrapped:
                return False
            self.kept.replace(owner, _encode(renewed))
        return True

    def begin_renewal(self, owner: str) -> int:
        """Give an owner a new key beside the old one, unless one is being replaced already; its generation.

        What is wrapped from now on is wrapped under it. Raises KeyLost if the key was destroyed or there is none.
        """
        with self.kept.changing():
            wrapped = self._wrapped(owner)
            if not wrapped:
                raise KeyLost(f"{owner} has no key that could be replaced; name a tenant whose key was not destroyed")
            newest = max(wrapped)
            if len(wrapped) == 1:
                newest += 1
                made = self.master_of(owner).wrap(_context(owner, newest), os.urandom(KEY_SIZE))
                kept = {gen: self._rewrapped(owner, gen, one, 0) for gen, one in wrapped.items()}
                self.kept.replace(owner, _encode(kept | {newest: made}))
        return newest

    def end_renewal(self, owner: str) -> None:
        """Destroy all generations but the newest: only after nothing is wrapped under them."""
        with self.kept.changing():
            wrapped = self._wrapped(owner)
            if len(wrapped) > 1:
                newest = max(wrapped)
                self.kept.replace(owner, _encode({newest: wrapped[newest]}))

    def give_to(self, owner: str, name: str | None) -> bool:
        """Wrap an owner's key under the external key `name` from now on, None for the installation's master. False if
        it is already.

        What was wrapped before may be in backups: only a renewal makes it worthless (`begin_renewal`). Raises KeyLost
        if the key was destroyed, KeyProviderError; then nothing is changed.
        """
        target = self.master if name is None else self.external.named(name)
        with self.kept.changing():
            if self.kept.read(_checked(owner)) is None:
                self.kept.create(owner, _encode({1: target.wrap(_context(owner, 1), os.urandom(KEY_SIZE))}))
                return True
            wrapped = self._wrapped(owner)
            if not wrapped:
                raise KeyLost(f"the key of {owner} was destroyed; name a tenant whose key was not")
            if all(origin_of(one)[0] == target.provider for one in wrapped.values()):
                return False
            moved = {}
            for gen, one in wrapped.items():
                context = _context(owner, gen)
                moved[gen] = target.wrap(context, self._master_of(one).unwrap(context, one))
            for gen, one in moved.items():  # a key that cannot be had back would be lost
                if target.unwrap(_context(owner, gen), one) != self._master_of(wrapped[gen]).unwrap(
                    _context(owner, gen), wrapped[gen]
                ):
                    raise KeyProviderError(f"{target.provider} does not give back what it wrapped; check that key")
            self.kept.replace(owner, _encode(moved))
        self._opened.pop(owner, None)
        self.external.forget(owner)
        return True

    def external_of(self, owner: str) -> str | None:
        """Name of the external key that an owner's key is wrapped under; None where it is the installation's master."""
        kept = self.kept.read(_checked(owner))
        return None if kept is None or kept == DESTROYED else self._external_in(_decode(owner, kept))

    def master_of(self, owner: str) -> Master:
        """What wraps the owner's key. Raises KeyProviderError for an external key that is not configured."""
        name = self.external_of(owner)
        return self.master if name is None else self.external.named(name)

    def _external_in(self, wrapped: dict[int, bytes]) -> str | None:
        provider, _ = origin_of(wrapped[max(wrapped)])
        return None if provider in self._masters or provider in BUILT_IN else provider

    @property
    def is_carried(self) -> bool:
        """Whether hosts share the keys, and each has to be given a new version of the master before they are under
        it."""
        return self.kept.is_shared and self.master.provider == FileMaster.provider

    def rotate_master(self, after: int, announce: Callable[[int], object]) -> int:
        """Make the version that follows `after`, the newest that the caller knows; returns the newest there is.

        `announce` is called with its number first. Nothing is done if another process has made it meanwhile.
        """
        with self.kept.changing():
            newest = self.master.state().newest
            if newest > after:
                return newest
            announce(newest + 1)
            return self.master.rotate()

    def former_state(self) -> MasterState | None:
        return None if self._former is None else self._former.state()

    def retire_master(self, below: int) -> None:
        """Destroy old versions of the master, and the former one. Raises KeyProviderError, with nothing destroyed, if
        one is needed."""
        with self.kept.changing():
            for owner in self.owners():
                for provider, version in self.state_of(owner).wrapped_under.values():
                    if provider not in BUILT_IN:
                        continue  # a tenant's own key: its versions are not ours
                    if provider != self.master.provider or version < below:
                        raise KeyProviderError(
                            f"the key of {owner} is still wrapped under {provider}, {version}"
                            "; run `domicile secrets rewrap` first"
                        )
            self.master.retire(below)
            if self._former is not None:
                self._former.destroy()
                del self._masters[self._former.provider]
                self._former = None

    # --- one owner ---------------------------------------------------------------------------------------------------

    def _create(self, owner: str) -> bytes:
        """What is now kept of the owner: another process may have been first."""
        with self.kept.changing():  # a version of the master that is being retired must not get a new key under it
            made = self.master.wrap(_context(owner, 1), os.urandom(KEY_SIZE))
            return self.kept.create(owner, _encode({1: made}))

    def _opening(self, owner: str, content: bytes) -> dict[int, bytes]:
        """By generation. Raises KeyLost if the key was destroyed."""
        if content == DESTROYED:
            self._opened.pop(owner, None)
            raise KeyLost(f"the key of tenant {owner} was destroyed; what it protected cannot be read again")
        known = self._opened.get(owner)
        if known is None or known[0] != content:
            wrapped = _decode(owner, content)
            if self._external_in(wrapped) is not None:
                self._opened.pop(owner, None)
                return self.external.opened(owner, content, partial(self._unwrapped_all, owner, wrapped))
            known = content, self._unwrapped_all(owner, wrapped)
            self._opened[owner] = known
        return known[1]

    def _unwrapped_all(self, owner: str, wrapped: dict[int, bytes]) -> dict[int, bytes]:
        return {gen: self._unwrapped(owner, gen, one) for gen, one in wrapped.items()}

    def _unwrapped(self, owner: str, generation: int, wrapped: bytes) -> bytes:
        try:
            return self._master_of(wrapped).unwrap(_context(owner, generation), wrapped)
        except KeyLost as error:
            raise KeyLost(
                f"{self.kept.name_of(owner)}, the key of tenant {owner}, does not open under this root key: it is"
                " another installation's, or the root key is; put the key set of this installation back with:"
                " domicile init --keys KEY_SET"
            ) from error

    def _rewrapped(self, owner: str, generation: int, wrapped: bytes, newest: int) -> bytes:
        provider, version = origin_of(wrapped)
        if provider == self.master_of(owner).provider and version >= newest and len(wrapped) != LEGACY_SIZE:
            return wrapped
        holder, target, context = self._master_of(wrapped), self.master_of(owner), _context(owner, generation)
        if holder is target:
            return target.rewrap(context, wrapped)
        return target.wrap(context, holder.unwrap(context, wrapped))

    def _master_of(self, wrapped: bytes) -> Master:
        provider, _ = origin_of(wrapped)
        if provider not in BUILT_IN and provider not in self._masters:
            return self.external.named(provider)
        if provider not in self._masters:
            raise KeyProviderError(
                f"keys in {self.kept.place} are wrapped by {provider}, not by {self.master.provider}; set "
                f"secrets.provider to {provider}"
            )
        return self._masters[provider]

    def _wrapped(self, owner: str) -> dict[int, bytes]:
        """By generation; none if the key was destroyed."""
        content = self.kept.read(_checked(owner))
        if content is None:
            raise KeyProviderError(f"{owner} has no key in {self.kept.place}; restore it from a backup")
        return {} if content == DESTROYED else _decode(owner, content)


class FileKeyProvider(KeyRing):
    """A key ring whose master key is in its own folder, as ``root.key``."""

    @classmethod
    def open(
        cls, folder: Path, wrapped: WrappedKeys | None = None, external: ExternalKeys | None = None
    ) -> "FileKeyProvider":
        """The wrapped keys are in `folder` too unless `wrapped` says where. Raises KeyProviderError."""
        try:
            make_private_folder(folder)
        except OSError as error:
            raise KeyProviderError(
                f"the root key cannot be used: {error}; let this process read and write the folder keys"
            ) from error
        kept = wrapped or KeyFolder(folder)
        return cls(kept, FileMaster.open(folder / "root.key", kept.owners), external=external)


class NoKeys:
    """For reading what is in a value store without opening any of it."""

    def wrap(self, tenant: str, key: bytes) -> bytes:
        raise KeyProviderError("the value store is open without its keys; give the keys with --keys")

    def unwrap(self, tenant: str, wrapped: bytes) -> bytes:
        raise KeyProviderError("the value store is open without its keys; give the keys with --keys")

    def wrap_all(self, tenant: str, keys: Sequence[bytes]) -> list[bytes]:
        raise KeyProviderError("the value store is open without its keys; give the keys with --keys")

    def unwrap_all(self, tenant: str, wrapped: Sequence[bytes]) -> list[bytes]:
        raise KeyProviderError("the value store is open without its keys; give the keys with --keys")

    def destroy(self, tenant: str) -> None:
        raise KeyProviderError("the value store is open without its keys; give the keys with --keys")


def _checked(owner: str) -> str:
    if not _OWNER.fullmatch(owner):
        raise KeyProviderError(f"{owner!r} is not the name of a tenant; use lower-case letters, digits and '-'")
    return owner


def generation_of(wrapped: bytes) -> int:
    """Generation of the owner's key that a data key is wrapped under."""
    return 1 if len(wrapped) == LEGACY_SIZE else int.from_bytes(wrapped[:_GENERATION_SIZE], "big")


def _context(owner: str, generation: int) -> str:
    return f"domicile/key/{owner}/{generation}"


def _encode(wrapped: dict[int, bytes]) -> bytes:
    return json.dumps({str(gen): one.decode() for gen, one in sorted(wrapped.items())}, indent=1).encode()


def _decode(owner: str, content: bytes) -> dict[int, bytes]:
    """The format of before generations was the wrapped key alone."""
    if len(content) == LEGACY_SIZE:
        return {1: content}
    try:
        found = {int(gen): one.encode("ascii") for gen, one in json.loads(content).items()}
    except (ValueError, AttributeError, UnicodeEncodeError) as error:
        raise KeyLost(f"the file of the key of {owner} is damaged; restore it from a backup") from error
    if not found:
        raise KeyLost(f"the file of the key of {owner} is damaged; restore it from a backup")
    return found
