"""Files of a project: upload, look up, read, delete. Content is sealed and kept as long as the policy says."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from time import time
from typing import Any, TypeVar

from audit.errors import AuditUnavailable as RecordUnavailable
from audit.events.privacy import FileEvent
from audit.private.audit_context import AuditContext
from gateway.batches.content.multipart import FormReader
from gateway.batches.content.sealing import Sealing, content_errors, seal, unseal
from gateway.batches.content.upload import Upload, UploadBounds, place_of
from gateway.batches.objects import PURPOSE, is_file_id
from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Batches as Settings
from gateway.errors import (
    AuditUnavailable,
    ContentUnavailable,
    InvalidRequest,
    ObjectInUse,
    ObjectNotFound,
    RequestTooLarge,
)
from gateway.identity.principal import Principal
from gateway.records.batches import FileRecord, Owner, Sealed
from gateway.request.enforcement import PolicyEnforcement
from gateway.store.batches.batches import StoredBatches
from gateway.store.batches.files import StoredFiles

T = TypeVar("T")
DAY_S = 86_400.0
READ_AT_ONCE = 16
"""Parts or results that are read and opened in one step: at most a megabyte, but for single long lines."""
LINE_OVERHEAD = 64 << 10
"""Bytes of a line beyond the largest body."""
NO_FILE = "There is no such file in this project; GET /v1/files lists them"
NAME = "name"


def owner_of(principal: Principal) -> Owner:
    return Owner(principal.tenant, principal.project)


def actor_of(principal: Principal) -> str:
    return principal.key_id if ":" in principal.key_id else f"key:{principal.key_id}"


@dataclass(frozen=True, slots=True)
class Files:
    """`new_id`: random characters for ids."""

    context: AuditContext
    stored: StoredFiles
    batches: StoredBatches
    sealing: Sealing
    enforcement: PolicyEnforcement
    settings: Settings
    bounds: Bounds
    new_id: Callable[[], str]
    now: Callable[[], float] = time

    async def upload(
        self, principal: Principal, content_type: str, body: AsyncIterator[bytes]
    ) -> tuple[FileRecord, str]:
        """The file and its name. Raises PolicyDenied where the policy keeps no content, InvalidRequest,
        RequestTooLarge, ContentUnavailable, AuditUnavailable; then nothing is kept."""
        kept_s = self.enforcement.content_days(principal) * DAY_S
        owner, now = owner_of(principal), self.now()
        form = FormReader(content_type, body)
        id_ = f"file-{self.new_id()}"
        [key] = (await self.sealing.lend(owner.tenant, id_)).values()
        file = FileRecord(
            id_, owner, PURPOSE, "uploading", 0, 0, now, now + kept_s, seal(key.id, key.cipher, name_of(id_), b"")
        )
        room = self.settings.max_tenant_bytes - await self._asked(self.stored.used_bytes, owner.tenant)
        bounds = UploadBounds(
            self.settings.max_file_bytes, self.settings.max_lines, self.bounds.now.max_body_bytes + LINE_OVERHEAD
        )
        if room <= 0:
            raise self._quota_exceeded()
        await self._asked(self.stored.add, file)
        upload = Upload(id_, owner, self.stored, self.sealing, bounds)
        try:
            await upload.take(form.__aiter__())
            if upload.size > room:
                raise self._quota_exceeded()
            name = json.dumps(form.filename or "")
            expires = now + min(kept_s, _checked_fields(form.fields))
            file = replace(
                file,
                state="ready",
                size=upload.size,
                lines=upload.lines,
                expires_at=expires,
                sealed=seal(key.id, key.cipher, name_of(id_), name.encode()),
            )
            await self._record("file.stored", file, actor_of(principal))
            await self._asked(self.stored.finish, file)
        except BaseException:
            await asyncio.shield(self.purge(replace(file, state="deleted")))
            raise
        return file, form.filename or ""

    def _quota_exceeded(self) -> RequestTooLarge:
        return RequestTooLarge(
            f"This tenant keeps files of {self.settings.max_tenant_bytes} bytes at most; delete files first",
            code="files_quota_exceeded",
        )

    async def get(self, owner: Owner, id_: str) -> FileRecord:
        """Raises ObjectNotFound, also for another project's."""
        found = await self._asked(self.stored.get, owner, id_) if is_file_id(id_) else None
        if found is None:
            raise ObjectNotFound(NO_FILE, param="id")
        return found

    async def names(self, tenant: str, files: list[FileRecord]) -> list[str]:
        ciphers = await self.sealing.opened(tenant, {file.sealed.data_key for file in files})
        opened = (unseal(ciphers, name_of(file.id), file.sealed) for file in files)
        return [json.loads(name) if name else "" for name in opened]

    async def page(
        self, owner: Owner, *, after: str | None, limit: int, newest_first: bool, purpose: str | None
    ) -> tuple[list[FileRecord], bool]:
        """Raises ObjectNotFound for an `after` that is none of its files."""

        def read() -> tuple[list[FileRecord], bool] | None:
            return self.stored.page(owner, after=after, limit=limit, newest_first=newest_first, purpose=purpose)

        found = await self._asked(read) if after is None or is_file_id(after) else None
        if found is None:
            raise ObjectNotFound(NO_FILE, param="after")
        return found

    async def read(self, principal: Principal, file: FileRecord) -> AsyncIterator[bytes]:
        """Its content, piece by piece, once the reading is on record. What was erased is left out."""
        pieces = self.content(file)
        first = await anext(pieces, b"")  # what fails now is an error, not half an answer
        await self._record("file.read", file, actor_of(principal))
        return _from_first(first, pieces)

    async def content(self, file: FileRecord) -> AsyncIterator[bytes]:
        async for _, piece in self.pieces(file):
            if piece is not None:
                yield piece

    async def pieces(self, file: FileRecord) -> AsyncIterator[tuple["Piece", bytes | None]]:
        """Each sealed piece with its content; None where that was erased. Raises ContentUnavailable where the keys of
        the whole file are not in this value store: another host has them, or the tenant was erased."""
        if not await self.sealing.opened(file.owner.tenant, [file.sealed.data_key]):
            raise ContentUnavailable(
                "The keys of this file are not on this host; set database.values_url, so that hosts share them"
            )
        after = 0
        while found := await self._asked(self._some, file, after):
            ciphers = await self.sealing.opened(file.owner.tenant, {piece.sealed.data_key for piece in found})
            for piece in found:
                yield piece, unseal(ciphers, piece.place, piece.sealed)
            after = found[-1].number

    def _some(self, file: FileRecord, after: int) -> list["Piece"]:
        if file.batch is not None and file.part is not None:
            return [
                Piece(one.line, one.line, 1, place_of(file.batch, one.line), one.sealed)
                for one in self.stored.results(file.batch, file.part, after, READ_AT_ONCE * 4)
            ]
        return [
            Piece(one.number, one.first, one.lines, place_of(file.id, one.number), one.sealed)
            for one in self.stored.parts(file.id, after, READ_AT_ONCE)
        ]

    async def delete(self, principal: Principal, id_: str) -> None:
        """Raises ObjectNotFound; ObjectInUse where a batch still reads it, or a legal hold covers content of it."""
        owner = owner_of(principal)
        file = await self.get(owner, id_)
        if await self._asked(self.batches.uses_file, id_):
            raise ObjectInUse("A batch that is not over reads this file; cancel the batch, or wait for its end")
        if await self.sealing.is_held(owner.tenant, file.batch or id_):
            raise ObjectInUse("A legal hold covers content of this file; it can be deleted once the hold is released")
        await self._record("file.deleted", file, actor_of(principal), "requested")
        if await self._asked(self.stored.hide, owner, id_) is not None:
            await self.purge(file)

    async def purge(self, file: FileRecord) -> None:
        """Delete content and keys. What fails here is done by the next run of retention."""
        holder = file.batch or file.id
        await self._asked(self.stored.purge, file)
        if file.batch is None or not await self._asked(self.stored.has_results, file.batch):
            await self.sealing.release(file.owner.tenant, holder)

    async def record_stored(self, file: FileRecord) -> None:
        await self._record("file.stored", file, "system")

    async def record_expiry(self, file: FileRecord) -> None:
        await self._record("file.deleted", file, "system", "expired")

    async def _record(self, kind: str, file: FileRecord, actor: str, reason: str | None = None) -> None:
        said = {
            "type": kind,
            "tenant": file.owner.tenant,
            "project": file.owner.project,
            "actor": actor,
            "file_id": file.id,
            "purpose": file.purpose,
            "bytes": file.size,
            "lines": file.lines,
            "reason": reason,
        }
        try:
            await self.context.record(FileEvent.model_validate(said))
        except RecordUnavailable as error:
            raise AuditUnavailable("This cannot be recorded, so it is not done; try again later") from error

    async def _asked(self, work: Callable[..., T], *arguments: Any) -> T:
        with content_errors():
            return await asyncio.to_thread(work, *arguments)


@dataclass(frozen=True, slots=True)
class Piece:
    """Sealed content of a file: whole lines, the first of which has the number `first`; `lines` are not blank."""

    number: int
    first: int
    lines: int
    place: str
    sealed: Sealed


async def _from_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def name_of(file: str) -> str:
    """What the sealed name is bound to."""
    return f"{file}|{NAME}"


def _checked_fields(fields: dict[str, str]) -> float:
    """After how many seconds the file is to expire, as its form says. Raises InvalidRequest."""
    purpose = fields.get("purpose")
    if purpose is None:
        raise InvalidRequest("purpose is missing; send batch", param="purpose", code="missing_required_parameter")
    if purpose != PURPOSE:
        raise InvalidRequest(
            "Files are kept for batches alone; send purpose batch", param="purpose", code="unsupported_purpose"
        )
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return float("inf")
    if anchor != "created_at":
        raise InvalidRequest(
            "expires_after.anchor must be created_at; send that", param="expires_after.anchor", code="invalid_value"
        )
    if seconds is None or not (seconds.isascii() and seconds.isdigit() and 3600 <= int(seconds[:9]) <= 2_592_000):
        raise InvalidRequest(
            "expires_after.seconds must be a number from 3600 to 2592000; correct it",
            param="expires_after.seconds",
            code="invalid_value",
        )
    return float(seconds)
