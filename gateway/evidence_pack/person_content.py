"""What files, results and kept responses hold of one person, for an access request (GDPR 15): also lines of batches
that were not called yet, of which no record speaks."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic_core import from_json, to_json

from audit.errors import AuditError
from audit.privacy.kept_content import KeptContent, Reader
from gateway.batches.content.sealing import unseal
from gateway.batches.content.upload import place_of
from gateway.database.database import Database
from gateway.database.errors import DatabaseUnavailable
from gateway.errors import ContentUnavailable
from gateway.installation.installation import Installation, InstallationError, is_part_of_one
from gateway.records.batches import Sealed
from gateway.responses.responses import answered_place, asked_place
from gateway.store.batches.batches import StoredBatches
from gateway.store.batches.files import StoredFiles
from gateway.store.batches.responses import StoredResponses


def reader(data: Path) -> Reader:
    """`audit.privacy.kept_content.Source`."""

    def read(tenant: str, key_id: str, cipher: AESGCM) -> Iterable[KeptContent]:
        if not is_part_of_one(data):
            return ()
        try:
            installation = Installation.open(data)
            database = installation.database()
            try:
                return list(_content(database, installation.cell, tenant, key_id, cipher))
            finally:
                database.close()
        except (InstallationError, DatabaseUnavailable, ContentUnavailable) as error:
            raise AuditError(str(error)) from error

    return read


def _content(database: Database, cell: str, tenant: str, key_id: str, cipher: AESGCM) -> Iterator[KeptContent]:
    """Raises DatabaseUnavailable, ContentUnavailable."""
    ciphers = {key_id: cipher}
    files = StoredFiles(database, cell)
    for file, part in files.parts_under_key(tenant, key_id):
        lines = (unseal(ciphers, place_of(file.id, part.number), part.sealed) or b"").split(b"\n")
        for number, line in enumerate(lines, part.first):
            if line.strip():
                yield KeptContent("file_line", file.id, number, _at(file.created_at), _at(file.expires_at), _text(line))
    for batch, result in StoredBatches(database, cell).results_under_key(tenant, key_id):
        said = unseal(ciphers, place_of(batch.id, result.line), result.sealed) or b""
        times = _at(batch.created_at), _at(batch.kept_until)
        yield KeptContent("file_result", batch.id, result.line, *times, _text(said))
    for record in StoredResponses(database, cell).under_keys(tenant, [key_id]):
        asked = unseal(ciphers, asked_place(record.id), Sealed(key_id, record.asked)) or b"{}"
        answer = unseal(ciphers, answered_place(record.id), Sealed(key_id, record.answered or b"")) or b"null"
        value = _text(to_json({"input": from_json(asked).get("input"), "response": from_json(answer)}))
        yield KeptContent("response", record.id, None, _at(record.created_at), _at(record.expires_at), value)


def _text(content: bytes) -> str:
    """As it is: a number in it may be one that canonical JSON has no form for."""
    return content.decode("utf-8", "replace").strip()


def _at(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
