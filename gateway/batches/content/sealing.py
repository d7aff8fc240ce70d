"""Encryption of files and batches in the control database: AES-256-GCM.

The data keys are in the value store (`audit.private.content_keys`): one a person, one a file or batch for what is of no
known person. Nonce and place are bound, so a piece opens only as what it was sealed as.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.errors import AuditError, HeldError, KeyLost, StoreError
from audit.private import content_keys
from audit.private.audit_context import AuditContext
from audit.private.content_keys import ContentKey
from audit.private.value_store import ValueStore
from gateway.database.errors import DatabaseUnavailable
from gateway.errors import ContentUnavailable, ObjectInUse
from gateway.records.batches import Sealed

T = TypeVar("T")
NONCE_SIZE = 12


@contextmanager
def content_errors() -> Iterator[None]:
    """Turns what the databases and keys raise into the errors of clients."""
    try:
        yield
    except HeldError:
        raise ObjectInUse(
            "A legal hold covers content of this file; it can be deleted once the hold is released"
        ) from None
    except KeyLost as error:
        raise ContentUnavailable(
            "The key of this tenant was destroyed, so no content is kept for it; ask the operator"
        ) from error
    except (AuditError, DatabaseUnavailable) as error:
        raise ContentUnavailable("What is kept sealed cannot be read or written now") from error


class Sealing:
    """Awaits the value store in threads. Raises as `content_errors`."""

    def __init__(self, context: AuditContext) -> None:
        self._context = context

    async def lend(
        self, tenant: str, holder: str, subjects: Collection[str | None] = (None,)
    ) -> dict[str | None, ContentKey]:
        """Keys for content of `holder`, by person; None for what is of no known person."""
        return await self._asked(lambda side: content_keys.lend(side, tenant, holder, subjects))

    async def share(self, tenant: str, holder: str, other: str) -> None:
        await self._asked(lambda side: content_keys.share(side, tenant, holder, other))

    async def opened(self, tenant: str, key_ids: Collection[str]) -> Mapping[str, AESGCM]:
        """By id, without those that were destroyed."""
        return await self._asked(lambda side: content_keys.opened(side, tenant, key_ids))

    async def release(self, tenant: str, holder: str) -> None:
        """Destroy the keys that only `holder` uses. Raises ObjectInUse where a legal hold prevents it."""

        def released(side: ValueStore) -> None:
            content_keys.release(side, tenant, holder)
            with suppress(StoreError):  # a reader holds the file; the next deletion empties its log too
                side.scrub()

        await self._asked(released)

    async def release_all(self, tenant: str, holders: Collection[str]) -> list[str]:
        """The same of each, but for those that a legal hold covers; which were released."""

        def released(side: ValueStore) -> list[str]:
            done = content_keys.release_all(side, tenant, holders)
            with suppress(StoreError):
                side.scrub()
            return done

        return await self._asked(released)

    async def is_held(self, tenant: str, holder: str) -> bool:
        return await self._asked(lambda side: content_keys.is_held(side, tenant, holder))

    async def _asked(self, work: Callable[[ValueStore], T]) -> T:
        with content_errors():
            return await self._context.with_values(work)


def seal(key_id: str, cipher: AESGCM, place: str, content: bytes) -> Sealed:
    nonce = os.urandom(NONCE_SIZE)
    return Sealed(key_id, nonce + cipher.encrypt(nonce, content, _bound(place)))


def unseal(ciphers: Mapping[str, AESGCM], place: str, sealed: Sealed) -> bytes | None:
    """None where the key is gone: its person's content was erased, or may not be used. Raises ContentUnavailable where
    the content was changed."""
    cipher = ciphers.get(sealed.data_key)
    if cipher is None:
        return None
    try:
        return cipher.decrypt(sealed.content[:NONCE_SIZE], sealed.content[NONCE_SIZE:], _bound(place))
    except InvalidTag:
        raise ContentUnavailable("Sealed content was changed in the database; report it to the operator") from None


def _bound(place: str) -> bytes:
    return f"content|{place}".encode()
