"""After an erasure nothing of the person is anywhere that the record writes: files, logs of files, indexes, exports."""

import zipfile
from contextlib import closing
from pathlib import Path

import psycopg

from audit.events.private_value import Private
from audit.pack.export import export
from audit.private.erasure import erase
from audit.storage.tiles import Folder, publish
from tests.audit.conftest import Home, accepted, completed
from tests.audit.pack.test_export import settled
from tests.fakes.disk import bytes_under

ON_BOTH_STORES = True
ALICE, BOB = "alice@example.com", "bob@example.com"
WORDS = ("the diagnosis is unfavourable", "THE ANSWER SAYS SO", "192.0.2.7", ALICE)


async def call(home: Home, context: object, request: str, subject: str) -> None:
    asked = {"input": WORDS[0], "client_ip": WORDS[2]}
    await context.record(accepted(request), Private(asked, subject))
    await context.record(completed(request), Private({"output": WORDS[1]}, subject))


def everything(home: Home) -> bytes:
    """Every file of the data folder; where the log is in a server, every row of it and every file of the server."""
    folders = [home.path.parent.parent]
    content = b""
    if home.url is not None:
        with psycopg.connect(home.url, autocommit=True) as db:
            db.execute("CHECKPOINT")
            (kept,) = db.execute("SHOW data_directory").fetchone()
            tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'domicile_audit'").fetchall()
            for (table,) in tables:
                rows = db.execute(f"SELECT t::text FROM domicile_audit.{table} t").fetchall()
                content += "\n".join(str(row) for row in rows).encode()
            payloads = db.execute("SELECT payload FROM domicile_audit.leaf").fetchall()
            content += b"\n".join(bytes(payload) for (payload,) in payloads)
        folders.append(Path(kept))
    for folder in folders:
        content += b"".join(bytes_under(folder).values())
    return content


async def test_nothing_of_an_erased_person_is_left_in_files_logs_indexes_tiles_or_exports(home: Home) -> None:
    async with home.context() as context:
        for number in range(12):
            await call(home, context, f"a{number}", ALICE)
        await context.record(accepted("b"), Private({"input": "what stays"}, BOB))
        await erase(context, "acme", subject=ALICE)
        await settled(home)
        with closing(home.reader()) as reader:
            last = reader.last_checkpoint("acme")
            assert last is not None
            publish(reader, "acme", last.note, Folder(home.path.with_name("tiles") / "acme"))
        target = home.path.parent.parent / "pack.zip"
        await export(context, "acme", target, disclose=True)
        with zipfile.ZipFile(target) as archive:
            exported = b"".join(archive.read(name) for name in archive.namelist())
        found = everything(home)  # while the log is open: its write-ahead logs are there too
    assert b"what stays" in exported  # so that a text that is kept would be seen
    for word in WORDS:
        for spelling in {word, word.upper(), word.lower()}:
            assert spelling.encode() not in exported, f"{word} is exported"
            assert spelling.encode() not in found, f"{word} is on disk"
            assert spelling.encode("utf-16-le") not in found
    assert home.verify().ok
