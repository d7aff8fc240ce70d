"""The lines of a file as it is uploaded: counted, bounded, and sealed in parts, each under the key of its person."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from audit.private.content_keys import ContentKey
from gateway.batches.content.lines import BOM, person_in
from gateway.batches.content.sealing import Sealing, content_errors, seal
from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.records.batches import Owner, SealedPart
from gateway.store.batches.files import StoredFiles

PART_BYTES = 64 << 10
"""Lines of one person, or of no known person, that follow one another are sealed together up to this size."""
AT_ONCE = 256 << 10
"""Bytes that are sealed and stored in one step."""
_ARCHIVES = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}


@dataclass(frozen=True, slots=True)
class UploadBounds:
    """`line_bytes`: of one line; the rest of the whole file."""

    file_bytes: int
    lines: int
    line_bytes: int


@dataclass(slots=True)
class Upload:
    """One upload into the file `file`. `size` and `lines` (those that are not blank): of what came so far."""

    file: str
    owner: Owner
    files: StoredFiles
    sealing: Sealing
    bounds: UploadBounds
    size: int = 0
    lines: int = 0
    _number: int = 0  # of the last part
    _line: int = 0  # lines that were stored, blank ones too
    _waiting: bytearray = field(default_factory=bytearray)

    async def take(self, pieces: AsyncIterator[bytes]) -> None:
        """Store all of it. Raises InvalidRequest, RequestTooLarge, ContentUnavailable."""
        async for piece in pieces:
            if not self.size:
                _check_beginning(piece)
            self.size += len(piece)
            if self.size > self.bounds.file_bytes:
                raise RequestTooLarge(
                    f"The file is larger than {self.bounds.file_bytes} bytes, the limit of this gateway; divide it"
                )
            self._waiting += piece
            if len(self._waiting) >= AT_ONCE:
                await self._store(whole=False)
        await self._store(whole=True)
        if not self.lines:
            raise InvalidRequest("The file is empty; write one request a line", param="file", code="empty_file")

    async def _store(self, *, whole: bool) -> None:
        end = len(self._waiting) if whole else self._waiting.rfind(b"\n") + 1
        if len(self._waiting) - end > self.bounds.line_bytes:
            raise self._long_line(self._line + self._waiting.count(b"\n", 0, end) + 1)
        if not end:
            return
        content = bytes(self._waiting[:end])
        del self._waiting[:end]
        groups = await asyncio.to_thread(self._grouped, content)
        keys = await self.sealing.lend(self.owner.tenant, self.file, {group.person for group in groups})
        with content_errors():
            await asyncio.to_thread(self._keep, groups, keys)

    def _grouped(self, content: bytes) -> list["_Group"]:
        """In a thread. Raises InvalidRequest for too many lines, or one that is too long."""
        groups: list[_Group] = []
        for line in _lines_of(content):
            self._line += 1
            if len(line) > self.bounds.line_bytes:
                raise self._long_line(self._line)
            counts = bool(line.strip())
            self.lines += counts
            if self.lines > self.bounds.lines:
                raise InvalidRequest(
                    f"The file has more than {self.bounds.lines} lines, the limit of this gateway; divide it",
                    param="file",
                    code="too_many_lines",
                )
            person = person_in(line)
            last = groups[-1] if groups else None
            if last is None or last.person != person or len(last.content) + len(line) > PART_BYTES:
                groups.append(last := _Group(person, self._line))
            last.content += line
            last.lines += counts
        return groups

    def _keep(self, groups: list["_Group"], keys: dict[str | None, ContentKey]) -> None:
        parts = []
        for group in groups:
            self._number += 1
            key = keys[group.person]
            sealed = seal(key.id, key.cipher, place_of(self.file, self._number), bytes(group.content))
            parts.append(SealedPart(self._number, group.first, group.lines, sealed))
        self.files.add_parts(self.file, parts)

    def _long_line(self, number: int) -> InvalidRequest:
        return InvalidRequest(
            f"Line {number} is longer than {self.bounds.line_bytes} bytes, the limit of this gateway; shorten it",
            param="file",
            code="line_too_long",
        )


@dataclass(slots=True)
class _Group:
    person: str | None
    first: int
    lines: int = 0
    content: bytearray = field(default_factory=bytearray)


def place_of(file: str, number: int) -> str:
    """What a part is bound to."""
    return f"{file}|{number}"


def _lines_of(content: bytes) -> Iterator[bytes]:
    """With their ends."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start) + 1 or len(content)
        yield content[start:end]
        start = end


def _check_beginning(piece: bytes) -> None:
    """Raises InvalidRequest for what is compressed, or another encoding than UTF-8."""
    for magic, name in _ARCHIVES.items():
        if piece.startswith(magic):
            raise InvalidRequest(
                f"The file is {name}; upload the JSONL itself, uncompressed", param="file", code="invalid_file"
            )
    if piece.startswith((b"\xff\xfe", b"\xfe\xff")) and not piece.startswith(BOM):
        raise InvalidRequest("The file is UTF-16; write it in UTF-8", param="file", code="invalid_file")
