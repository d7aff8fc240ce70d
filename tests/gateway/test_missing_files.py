"""Each file of a data folder, gone: the commands and the gateway name it and how to mend it, or make it again from what
is left, as it was. No key and no database is replaced by a new one."""

import asyncio
import hashlib
import os
import shutil
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.cli.command_context import open_keys, open_replacement
from audit.errors import AuditError
from audit.incidents.pack_inputs import evidence_sources
from audit.storage import location
from audit.storage.location import use_urls_of
from gateway.cli import app as cli
from gateway.configuration.settings import load_settings
from gateway.database.errors import DatabaseUnavailable
from gateway.installation.installation import Installation, InstallationError
from gateway.server.assembly import open_gateway
from tests.fakes.lab import POLICY, chat, lab

KEEPING = POLICY.replace("content: none", "content: 'encrypted, 30d'")
BOB = "bob@example.org"
COMMANDS = (
    ("key", "create", "acme", "main"),
    ("audit", "dsar", "acme", "--subject", BOB),
    ("init",),
)

WRITTEN_AGAIN = {
    "audit/signer.vkey": "follows from signer.key",
    "audit/succession/*": "is in the record, too",
    "audit/record.place": "follows from where the database is",
    "audit/side.place": "follows from where the database is",
    "control.place": "follows from where the database is",
    "audit/log.reserve": "space that is given back when the disk is full",
    "audit/keys/.lock": "holds nothing",
    "audit/node-*": "holds nothing; of one process",
    "audit/tiles/*": "a copy of the record for readers; `audit publish` writes it again",
    "ca/ca.pem": "follows from ca.key",
    "ca/requests.pem": "follows from secrets/requests",
    "gateway/*": "certificates that the authority issues again",
    "files.made": "is written from what is there",
    "*-wal": "of a database that a gateway which stopped has closed",
    "*-shm": "the same",
}
"""What may be gone, and why nothing is lost by it (docs/operations.md, Files of the data folder)."""
TOGETHER = (
    ("audit/signer.key", "audit/signer.vkey"),
    ("audit/keys/root.key", "audit/keys/root.key.2", "audit/keys/acme.kek"),
    ("audit/side.db", "audit/side.place"),
    ("audit/log.db", "audit/record.place"),
    ("control.db", "control.place"),
    ("secrets/pepper", "secrets/pepper.2"),
    ("ca/ca.key", "ca/ca.pem"),
    ("secrets/requests", "ca/requests.pem"),
    ("cell", "secrets/redaction"),
)
"""Files that vouch for each other."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The data folder of a cell that has answered, rotated every key and published its record; nothing runs on it."""
    made = tmp_path_factory.mktemp("whole")

    async def serve():
        async with lab(made, set_up=lambda new: new.tenant("acme", KEEPING)) as cell:
            assert (await cell.post(chat("hi"), headers={"x-domicile-subject": BOB})).status == 200
            cell.control._database.close()

    asyncio.run(serve())
    data = made / "data"
    for words in (
        ("secrets", "rotate"),
        ("key", "rekey"),
        ("audit", "rotate"),
        ("audit", "anchor"),
        ("audit", "publish"),
    ):
        code, said = domicile(data, *words)
        assert code == 0, said
    Installation.open(data).authority()
    Installation.open(data).request_key()
    code, said = domicile(data, "init")
    assert code == 0, said
    return data


def domicile(data, *words):
    env = {"COLUMNS": "200", "DOMICILE_DATA": str(data)}
    with as_the_program():
        result = CliRunner().invoke(cli.app, list(words), obj=cli._recorded_admin, env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), "a traceback reached the user"
    return result.exit_code, result.output + result.stderr


@contextmanager
def as_the_program():
    """What `domicile` tells the commands of `audit` holds for the block only."""
    sources, url = list(evidence_sources), location._source[0]
    tokens = [(one, one.set(one.get())) for one in (open_keys, open_replacement)]
    try:
        yield
    finally:
        evidence_sources[:] = sources
        use_urls_of(url)
        for one, token in tokens:
            one.reset(token)


def files_of(data):
    return sorted(str(path.relative_to(data)) for path in data.rglob("*") if path.is_file())


def names(*patterns):
    def pick(name):
        return next((pattern for pattern in patterns if fnmatch(name, pattern)), None)

    return pick


def copied(folder, tmp_path, gone):
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    for name in gone:
        (data / name).unlink()
    return data


def digests(data):
    return {name: hashlib.sha256((data / name).read_bytes()).hexdigest() for name in files_of(data)}


async def start(data):
    async with open_gateway(load_settings(data=data, node="again", audit={"reserve_bytes": 1 << 20})):
        pass


def said_by_a_start(data):
    try:
        asyncio.run(start(data))
    except (InstallationError, AuditError, DatabaseUnavailable) as error:
        return str(error)
    return None


def test_every_file_of_the_folder_is_a_key_a_database_or_can_be_written_again(folder, tmp_path):
    """One walk over the listing: a file that a later version adds is judged here, too."""
    again, required, tried = names(*WRITTEN_AGAIN), [], set()
    for number, name in enumerate(files_of(folder)):
        if again(name) in tried:
            continue
        tried |= {again(name)} - {None}
        data = copied(folder, tmp_path / str(number), [name])
        said = said_by_a_start(data)
        if again(name):
            assert said is None, (name, said)
            continue
        required.append(name)
        if name == "audit/keys/acme.kek":
            continue  # of one tenant: the others are served; below
        assert said is not None, f"{name} is missing, and a gateway starts"
        assert name.rpartition("/")[2] in said, (name, said)
        assert "domicile init --keys" in said or "domicile backup restore" in said, (name, said)
        assert not (data / name).exists(), f"{name} was made anew"
    assert {"cell", "secrets/pepper.2", "audit/keys/root.key.2", "audit/side.db", "secrets/redaction"} <= set(required)


@pytest.mark.parametrize("gone", TOGETHER, ids=lambda gone: "+".join(gone))
def test_files_that_vouch_for_each_other_are_not_made_anew_together(folder, tmp_path, gone):
    data = copied(folder, tmp_path, gone)
    before = digests(data)
    for words in COMMANDS:
        code, said = domicile(data, *words)
        assert code == 1, (words, said)
        assert any(Path(name).name in said for name in gone), said
        assert "domicile init --keys" in said or "domicile backup restore" in said, said
    after = digests(data)
    assert {name for name in gone if name in after} == set()
    assert after == before, "nothing was written"


@pytest.mark.parametrize("gone", ["secrets/pepper", "secrets/redaction", "ca/ca.key", "audit/signer.key", "cell"])
def test_no_command_makes_a_missing_key_anew_and_the_key_set_mends_it(folder, tmp_path, gone):
    keys = tmp_path / "keys"
    assert domicile(folder, "init", "--export-keys", str(keys))[0] == 0
    data = copied(folder, tmp_path, [gone])
    before = digests(data)
    for words in (*COMMANDS, ("init", "--export-keys", str(tmp_path / "other"))):
        code, said = domicile(data, *words)
        assert code == 1, (words, said)
        assert Path(gone).name in said, said
    assert digests(data) == before
    code, said = domicile(data, "init", "--keys", str(keys))
    assert code == 0, said
    assert (data / gone).read_bytes() == (folder / gone).read_bytes()
    assert said_by_a_start(data) is None


def test_a_succession_that_is_missing_is_taken_from_the_record(folder, tmp_path):
    notes = [name for name in files_of(folder) if name.startswith("audit/succession/")]
    data = copied(folder, tmp_path, notes)
    code, said = domicile(data, "key", "create", "acme", "main")
    assert code == 0, said
    assert [(data / name).read_bytes() for name in notes] == [(folder / name).read_bytes() for name in notes]


async def test_a_running_gateway_makes_no_pepper_or_signing_key_anew(tmp_path):
    async with lab(tmp_path, set_up=lambda new: new.tenant("acme", KEEPING)) as made:
        assert (await made.post(chat("hi"))).status == 200
        Installation.open(made.data)  # as any command does
        gone = [made.data / name for name in ("secrets/pepper", "audit/signer.key", "audit/signer.vkey")]
        for file in gone:
            file.rename(tmp_path / file.name)
        made.control.create_project("acme", "other", purpose="p", legal_basis="contract", risk_class="limited")
        await asyncio.sleep(1.2)  # until the gateway has looked for changes
        await made.post(chat("hi again"))
        assert [file for file in gone if file.exists()] == []
        for file in gone:
            (tmp_path / file.name).rename(file)
        assert (await made.post(chat("hi"))).status == 200


async def test_a_call_whose_content_cannot_be_kept_for_want_of_a_key_gets_503(tmp_path):
    def set_up(new):
        new.tenant("acme", KEEPING)
        new.tenant("globex")

    async with lab(tmp_path, set_up=set_up) as made:
        assert (await made.post(chat("hi"))).status == 200
        key = made.data / "audit/keys/acme.kek"
        key.rename(tmp_path / "acme.kek")
        for subject in ("new@example.org", BOB):
            answer = await made.post(chat("hi"), headers={"x-domicile-subject": subject})
            assert (answer.status, answer.error["code"]) == (503, "audit_unavailable"), answer.body
            assert not key.exists()
        assert (await made.post(chat("hi"), key="globex/main")).status != 503, "the others are served"
        (tmp_path / "acme.kek").rename(key)
        assert (await made.post(chat("hi"))).status == 200


def test_a_list_of_files_that_is_damaged_is_named(folder, tmp_path):
    data = copied(folder, tmp_path, [])
    for content in (b"{", b"{}", b"[1]", b"\xff"):
        (data / "files.made").write_bytes(content)
        code, said = domicile(data, "key", "create", "acme", "main")
        assert code == 1
        assert "files.made" in said, said
    os.remove(data / "files.made")
    assert domicile(data, "key", "create", "acme", "main")[0] == 0
