"""Backups of a running cell: whole, without a key, and enough to go on from together with the key set."""

import json
import sqlite3
import stat

import pytest
from typer.testing import CliRunner

from gateway import backup
from gateway.backup import BackupError
from gateway.cli import app
from gateway.installation import Installation, InstallationError
from gateway.key_set import export_keys, import_keys
from tests.fakes.lab import chat, lab


def domicile(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
async def cell(tmp_path):
    """A cell that has answered calls, and still runs."""
    async with lab(tmp_path / "first") as made:
        for text in ("one", "two"):
            assert (await made.post(chat(text))).status == 200
        yield made


async def test_a_cell_comes_back_from_its_backup_and_its_key_set(tmp_path, cell):
    domicile("init", "--data", cell.data, "--export-keys", tmp_path / "keys")
    domicile("backup", "create", tmp_path / "copy", "--data", cell.data)
    assert (await cell.post(chat("three"))).status == 200, "the gateway goes on during and after it"
    domicile("backup", "check", tmp_path / "copy")
    domicile(
        "backup", "restore", tmp_path / "copy", "--keys", tmp_path / "keys", "--data", tmp_path / "second" / "data"
    )
    said = domicile("audit", "verify", "--data", tmp_path / "second" / "data", "--json")
    assert json.loads(said)["ok"] is True
    async with lab(tmp_path / "second", set_up=lambda made: None, backends={}) as again:
        answer = await again.get("/v1/models", key=cell.key())
        assert answer.status == 200, "keys are known: pepper and hashes came back"


async def test_a_backup_holds_no_key_and_is_readable_by_its_owner_alone(tmp_path, cell):
    installation = Installation.open(cell.data)
    backup.create(installation, tmp_path / "copy")
    export_keys(installation, tmp_path / "keys")
    everything = b"".join(file.read_bytes() for file in (tmp_path / "copy").rglob("*") if file.is_file())
    for file in (tmp_path / "keys").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.name == "cell" or file.read_bytes() not in everything, file.name
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700


async def test_a_backup_does_not_wait_for_the_gateway_nor_stop_it(tmp_path, cell):
    with sqlite3.connect(cell.data / "audit" / "log.db") as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        backup.create(Installation.open(cell.data), tmp_path / "copy")
    assert (await cell.post(chat("on"))).status == 200


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda copy: (copy / "manifest.json").unlink(), "no manifest"),
        (lambda copy: (copy / "manifest.json").write_text("{"), "cannot be read"),
        (lambda copy: (copy / "data" / "audit" / "log.db").unlink(), "is missing"),
        (lambda copy: (copy / "data" / "more").write_text("x"), "not in the manifest"),
        (lambda copy: (copy / "data" / "control.db").write_bytes(b"x"), "is not what it was"),
    ],
)
async def test_a_harmed_backup_is_named_and_not_restored(tmp_path, cell, harm, sentence):
    export_keys(Installation.open(cell.data), tmp_path / "keys")
    backup.create(Installation.open(cell.data), tmp_path / "copy")
    harm(tmp_path / "copy")
    assert sentence in domicile("backup", "check", tmp_path / "copy", code=1)
    with pytest.raises(BackupError, match=sentence):
        backup.restore(tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_a_database_that_was_damaged_before_it_was_copied_is_found(tmp_path, cell):
    made = backup.create(Installation.open(cell.data), tmp_path / "copy")
    broken = tmp_path / "copy" / "data" / "control.db"
    content = bytearray(broken.read_bytes())
    content[4096:8192] = bytes(4096)
    broken.write_bytes(content)
    manifest = made.model_copy(update={"files": made.files | {"control.db": backup._sha256(broken)}})
    (tmp_path / "copy" / "manifest.json").write_text(manifest.model_dump_json())
    with pytest.raises(BackupError, match="damaged"):
        backup.check(tmp_path / "copy")


async def test_nothing_that_is_there_is_overwritten(tmp_path, cell):
    installation = Installation.open(cell.data)
    backup.create(installation, tmp_path / "copy")
    with pytest.raises(BackupError, match="not empty"):
        backup.create(installation, tmp_path / "copy")
    with pytest.raises(BackupError, match="is there"):
        backup.restore(tmp_path / "copy", cell.data)


def test_a_key_set_makes_a_second_gateway_of_the_same_cell(tmp_path):
    domicile("init", "--cell", "eu-fr", "--data", tmp_path / "a", "--export-keys", tmp_path / "keys")
    said = json.loads(domicile("init", "--keys", tmp_path / "keys", "--data", tmp_path / "b", "--json"))
    assert said["cell"] == "eu-fr"
    a, b = (Installation.open(tmp_path / name) for name in "ab")
    assert a.signer().verifier_key == b.signer().verifier_key
    for name in ("secrets/pepper", "secrets/redaction", "ca/ca.key", "audit/keys/root.key"):
        assert (a.data / name).read_bytes() == (b.data / name).read_bytes()


def test_init_again_changes_nothing_and_another_name_is_refused(tmp_path):
    first = json.loads(domicile("init", "--cell", "eu-fr", "--data", tmp_path / "a", "--json"))
    assert json.loads(domicile("init", "--data", tmp_path / "a", "--json")) == first
    assert "belongs to cell 'eu-fr'" in domicile("init", "--cell", "eu-de", "--data", tmp_path / "a", code=1)


def test_a_mounted_secret_may_be_links_that_a_group_reads(tmp_path):
    """As Kubernetes mounts one: ``..data`` is a link to a folder of a time, each name a link into it."""
    export_keys(Installation.create(tmp_path / "a", "eu-fr"), tmp_path / "..2026")
    mount = tmp_path / "mount"
    mount.mkdir()
    for file in (tmp_path / "..2026").iterdir():
        file.chmod(0o440)
        (mount / file.name).symlink_to(file)
    import_keys(tmp_path / "b", mount)
    assert Installation.open(tmp_path / "b").cell == "eu-fr"
    assert stat.S_IMODE((tmp_path / "b" / "secrets" / "pepper").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["notes.txt", "x__..__etc", "secrets__..__..__x", "audit__log.db"])
def test_a_strange_file_in_a_key_set_is_refused(tmp_path, name):
    export_keys(Installation.create(tmp_path / "a", "eu-fr"), tmp_path / "keys")
    (tmp_path / "keys" / name).write_text("x")
    with pytest.raises(InstallationError, match="not a file of a key set"):
        import_keys(tmp_path / "b", tmp_path / "keys")


def test_a_key_set_of_another_cell_does_not_replace_a_key(tmp_path):
    for name in ("a", "b"):
        export_keys(Installation.create(tmp_path / name, "eu-fr"), tmp_path / f"keys-{name}")
    kept = (tmp_path / "a" / "secrets" / "pepper").read_bytes()
    assert "differs" in domicile("init", "--keys", tmp_path / "keys-b", "--data", tmp_path / "a", code=1)
    assert (tmp_path / "a" / "secrets" / "pepper").read_bytes() == kept
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no key set" in domicile("init", "--keys", empty, "--data", tmp_path / "c", code=1)
