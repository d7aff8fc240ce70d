"""Backups of a running cell: whole, without a key, and enough to go on from together with the key set."""

import asyncio
import json
import os
import sqlite3
import stat
from hashlib import sha256

import pytest
from typer.testing import CliRunner

from audit.tree.note import sign_note
from gateway.cli.app import app
from gateway.configuration.settings import Database as Databases
from gateway.installation import backup
from gateway.installation.backup import BackupError
from gateway.installation.installation import Installation, InstallationError
from gateway.installation.key_set import export_keys, import_keys
from tests.fakes.lab import chat, lab
from tests.fakes.read_only import read_only


def domicile(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def change(copy, **what):
    manifest = json.loads((copy / "manifest.json").read_text()) | what
    (copy / "manifest.json").write_text(json.dumps(manifest))


def add(copy, name):
    """A file under a name that no backup has, in the manifest as if it belonged there."""
    file = copy / "data" / name
    if file.resolve().is_relative_to(copy.resolve()):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("evil")
    manifest = json.loads((copy / "manifest.json").read_text())
    change(copy, files=manifest["files"] | {name: sha256(b"evil").hexdigest()})


def link(file):
    """The same content, behind a link."""
    elsewhere = file.parents[len(file.parts) - 1 - file.parts.index("copy")] / f"elsewhere-{file.name}"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def sign(copy, cell, manifest):
    """What only the holder of the record's key can do."""
    said = json.dumps(manifest).encode()
    signer = Installation.open(cell.data).signer()
    (copy / "manifest.json").write_bytes(said)
    (copy / "manifest.note").write_text(sign_note(backup._statement(said), signer.name, signer))


@pytest.fixture
async def cell(tmp_path):
    """A cell that has answered calls, and still runs."""
    async with lab(tmp_path / "first") as made:
        for text in ("one", "two"):
            assert (await made.post(chat(text))).status == 200
        yield made


async def test_a_second_backup_into_the_same_folder_leaves_the_first_one_whole(tmp_path, cell):
    seen = []

    def meanwhile(pages):
        if not seen:
            with pytest.raises(BackupError, match="another backup is being made in") as refused:
                backup.create(Installation.open(cell.data), tmp_path / "copy")
            seen.append(refused)

    made = backup.create(Installation.open(cell.data), tmp_path / "copy", meanwhile)
    assert seen and backup.check(tmp_path / "copy") == made
    with pytest.raises(BackupError, match="not empty"):
        backup.create(Installation.open(cell.data), tmp_path / "copy")
    assert backup.check(tmp_path / "copy") == made


async def test_a_database_that_the_configuration_puts_on_a_server_is_named_and_no_old_file_of_it_is_copied(
    tmp_path, cell
):
    on_server = Databases(url="postgresql://db.example/control", values_url="postgresql://db.example/values")
    made = backup.create(Installation.open(cell.data, databases=on_server), tmp_path / "copy")
    assert made.elsewhere == ("DOMICILE_DATABASE_URL", "DOMICILE_VALUES_DATABASE_URL")
    assert {"control.db", "audit/side.db"}.isdisjoint(made.files) and "audit/log.db" in made.files


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
        (lambda copy: (copy / "manifest.note").unlink(), "is not signed"),
        (lambda copy: (copy / "manifest.note").write_text("nothing"), "is not signed by the key"),
        (lambda copy: change(copy, cell="eu-2"), "not the one that was signed"),
        (lambda copy: change(copy, format="domicile-backup/1"), "of an earlier version and not signed"),
        (lambda copy: change(copy, format="domicile-backup/9"), "this version reads"),
        (lambda copy: (copy / "manifest.json").write_bytes(b"[" * 100_000), "cannot be read"),
        (lambda copy: (copy / "manifest.json").write_bytes(b" " * (2 << 20)), "has more than"),
        (lambda copy: link(copy / "manifest.json"), "is a symbolic link"),
        (lambda copy: link(copy / "manifest.note"), "is a symbolic link"),
        (lambda copy: link(copy / "data" / "ca" / "ca.pem"), "is a link or a device"),
        (lambda copy: link(copy / "data" / "audit"), "is a link or a device"),
        (lambda copy: link(copy / "data"), "is a link or a device"),
        (lambda copy: os.mkfifo(copy / "data" / "pipe"), "is a link or a device"),
        (lambda copy: add(copy, "secrets/evil"), "which no backup holds"),
        (lambda copy: add(copy, "secrets/backends/acme/key"), "which no backup holds"),
        (lambda copy: add(copy, "audit/keys/root.key.2"), "which no backup holds"),
        (lambda copy: add(copy, "control.db-wal"), "which no backup holds"),
        (lambda copy: add(copy, "audit/succession/../../x.note"), "which no backup holds"),
        (lambda copy: add(copy, "audit/succession/a/b.note"), "which no backup holds"),
        (lambda copy: add(copy, "../outside"), "which no backup holds"),
        (lambda copy: add(copy, "/tmp/domicile-outside"), "which no backup holds"),
        (lambda copy: add(copy, "CA/ca.pem"), "which no backup holds"),
    ],
)
async def test_a_harmed_backup_is_named_and_not_restored(tmp_path, cell, harm, sentence):
    export_keys(Installation.open(cell.data), tmp_path / "keys")
    backup.create(Installation.open(cell.data), tmp_path / "copy")
    harm(tmp_path / "copy")
    assert sentence in domicile("backup", "check", tmp_path / "copy", code=1)
    said = domicile(
        "backup", "restore", tmp_path / "copy", "--keys", tmp_path / "keys", "--data", tmp_path / "new", code=1
    )
    assert sentence in said
    assert not (tmp_path / "new").exists()


async def test_a_database_that_was_damaged_before_it_was_copied_is_found(tmp_path, cell):
    made = backup.create(Installation.open(cell.data), tmp_path / "copy")
    broken = tmp_path / "copy" / "data" / "control.db"
    content = bytearray(broken.read_bytes())
    content[4096:8192] = bytes(4096)
    broken.write_bytes(content)
    files = made.files | {"control.db": sha256(broken.read_bytes()).hexdigest()}
    sign(tmp_path / "copy", cell, made.model_copy(update={"files": files}).model_dump(mode="json"))
    with pytest.raises(BackupError, match="damaged"):
        backup.check(tmp_path / "copy")


def test_of_read_only_media_the_file_is_named_and_no_half_backup_is_left(tmp_path):
    data, copy = tmp_path / "data", tmp_path / "copy"
    domicile("init", "--data", data)
    domicile("tenant", "create", "acme", "--data", data)
    installation = Installation.open(data)
    with read_only(data), pytest.raises(BackupError, match="must be able to write to its folder") as refused:
        backup.create(installation, copy)
    assert str(data) in str(refused.value) and not copy.exists()


async def test_a_name_that_no_backup_holds_is_refused_even_where_it_is_signed(tmp_path, cell):
    made = backup.create(Installation.open(cell.data), tmp_path / "copy")
    add(tmp_path / "copy", "secrets/evil")
    sign(tmp_path / "copy", cell, json.loads((tmp_path / "copy" / "manifest.json").read_text()))
    with pytest.raises(BackupError, match="which no backup holds"):
        backup.restore(tmp_path / "copy", tmp_path / "new", backup.signing_key(Installation.open(cell.data)))
    assert "secrets/evil" not in made.files


async def test_a_backup_that_another_record_signed_is_refused_with_the_key_set(tmp_path, cell):
    """Also where the attacker put the other key into the backup itself."""
    export_keys(Installation.open(cell.data), tmp_path / "keys")
    other = Installation.create(tmp_path / "other", "eu-1")
    backup.create(Installation.open(cell.data), tmp_path / "copy")
    vkey = f"{other.signer().verifier_key}\n".encode()
    (tmp_path / "copy" / "data" / "audit" / "signer.vkey").write_bytes(vkey)
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    manifest["files"]["audit/signer.vkey"] = sha256(vkey).hexdigest()
    said = json.dumps(manifest).encode()
    (tmp_path / "copy" / "manifest.json").write_bytes(said)
    signer = other.signer()
    (tmp_path / "copy" / "manifest.note").write_text(sign_note(backup._statement(said), signer.name, signer))
    assert "whole" in domicile("backup", "check", tmp_path / "copy")
    given = ("--public-key", cell.data / "audit" / "signer.vkey")
    assert "is not signed by the key" in domicile("backup", "check", tmp_path / "copy", *given, code=1)
    said = domicile(
        "backup", "restore", tmp_path / "copy", "--keys", tmp_path / "keys", "--data", tmp_path / "new", code=1
    )
    assert "is not signed by the key" in said
    assert not (tmp_path / "new").exists()


async def test_a_backup_from_before_a_rotation_comes_back_with_the_key_set_from_after_it(tmp_path, cell):
    before = Installation.open(cell.data)
    backup.create(before, tmp_path / "early")
    await asyncio.to_thread(domicile, "audit", "rotate", "--data", cell.data)
    domicile("init", "--data", cell.data, "--export-keys", tmp_path / "keys")
    backup.create(Installation.open(cell.data), tmp_path / "late")
    for name in ("early", "late"):
        where = ("--keys", tmp_path / "keys", "--data", tmp_path / f"{name}-data")
        key = (("--public-key", tmp_path / "early" / "data" / "audit" / "signer.vkey"),)[0] if name == "early" else ()
        domicile("backup", "restore", tmp_path / name, *where, *key)
    assert json.loads(domicile("audit", "verify", "--data", tmp_path / "late-data", "--json"))["ok"] is True


async def test_an_unsigned_backup_of_an_earlier_version_is_restored_where_the_operator_says_so(tmp_path, cell):
    export_keys(Installation.open(cell.data), tmp_path / "keys")
    backup.create(Installation.open(cell.data), tmp_path / "copy")
    change(tmp_path / "copy", format="domicile-backup/1")
    (tmp_path / "copy" / "manifest.note").unlink()
    where = ("--keys", tmp_path / "keys", "--data", tmp_path / "new")
    assert "--unsigned" in domicile("backup", "restore", tmp_path / "copy", *where, code=1)
    domicile("backup", "restore", tmp_path / "copy", *where, "--unsigned")


@pytest.mark.parametrize("left", ["audit/log.db-wal", "control.db-journal", "audit/side.db-shm", "audit/signer.vkey"])
async def test_what_sqlite_would_put_into_a_restored_database_is_in_the_way(tmp_path, cell, left):
    installation = Installation.open(cell.data)
    backup.create(installation, tmp_path / "copy")
    (tmp_path / "new" / "audit").mkdir(parents=True)
    (tmp_path / "new" / left).write_bytes(b"of another database")
    with pytest.raises(BackupError, match=f"{left} is there"):
        backup.restore(tmp_path / "copy", tmp_path / "new", backup.signing_key(installation))
    assert not (tmp_path / "new" / "control.db").exists()


async def test_a_link_in_the_target_folder_is_not_followed(tmp_path, cell):
    installation = Installation.open(cell.data)
    backup.create(installation, tmp_path / "copy")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "audit").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackupError, match="leads out of"):
        backup.restore(tmp_path / "copy", tmp_path / "new", backup.signing_key(installation))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mask", [0o000, 0o077])
async def test_modes_of_a_backup_and_of_what_comes_back_do_not_depend_on_the_umask(tmp_path, cell, mask):
    installation = Installation.open(cell.data)
    before = os.umask(mask)
    try:
        backup.create(installation, tmp_path / "copy")
        backup.restore(tmp_path / "copy", tmp_path / "new", backup.signing_key(installation))
    finally:
        os.umask(before)
    for folder in ("copy", "new"):
        for one in [tmp_path / folder, *(tmp_path / folder).rglob("*")]:
            assert stat.S_IMODE(one.stat().st_mode) == (0o700 if one.is_dir() else 0o600), one


async def test_nothing_that_is_there_is_overwritten(tmp_path, cell):
    installation = Installation.open(cell.data)
    backup.create(installation, tmp_path / "copy")
    with pytest.raises(BackupError, match="not empty"):
        backup.create(installation, tmp_path / "copy")
    with pytest.raises(BackupError, match="is there"):
        backup.restore(tmp_path / "copy", cell.data, backup.signing_key(installation))


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


STRANGE = (
    *("notes.txt", "x__..__etc", "secrets__..__..__x", "audit__log.db", "secrets__evil", "CELL", "cell__cell"),
    *("__tmp__domicile__cell", "__etc__cron.d__cell", "__cell", "x__cell", "a__b__c__ca__ca.key", "ca____ca.key"),
    *(
        "secrets__backends__acme__..",
        "secrets__backends__.__x",
        "audit__keys__",
        "audit__keys__a__b",
        "secrets__pepper.x",
    ),
    *("audit__signer.key\n", "secrets__backends__acme__x\n", "\u017fecrets__pepper", "secrets__pepper.\u0663"),
)


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_file_in_a_key_set_is_refused(tmp_path, name):
    export_keys(Installation.create(tmp_path / "a", "eu-fr"), tmp_path / "keys")
    (tmp_path / "keys" / name).write_text("x")
    with pytest.raises(InstallationError, match="not a file of a key set"):
        import_keys(tmp_path / "b", tmp_path / "keys")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda file: os.mkfifo(file), "not a regular file"),
        (lambda file: file.mkdir(), "not a regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "not a regular file"),
        (lambda file: file.write_bytes(b"x" * 100_000), "has more than"),
        (lambda file: (file.touch(), os.truncate(file, 1 << 40)), "has more than"),
    ],
    ids=["pipe", "folder", "device", "large", "sparse"],
)
def test_a_file_of_a_key_set_that_is_none_is_refused_before_anything_is_written(tmp_path, make, sentence):
    export_keys(Installation.create(tmp_path / "a", "eu-fr"), tmp_path / "keys")
    make(tmp_path / "keys" / "secrets__backends__acme__vllm")
    with pytest.raises(InstallationError, match=sentence):
        import_keys(tmp_path / "b", tmp_path / "keys")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "name", ["secrets__pepper", "secrets__redaction", "secrets__requests", "ca__ca.key", "audit__signer.key"]
)
def test_a_key_set_that_lacks_a_key_or_holds_a_part_of_one_is_refused_and_nothing_is_written(tmp_path, name):
    keys = tmp_path / "keys"
    domicile("init", "--data", tmp_path / "first", "--export-keys", keys)
    (keys / name).write_bytes(b"")
    assert f"{name} holds 0 bytes" in domicile("init", "--keys", keys, "--data", tmp_path / "second", code=1)
    (keys / name).unlink()
    said = domicile("init", "--keys", keys, "--data", tmp_path / "second", code=1)
    assert f"it lacks {name.replace('__', '/')}" in said
    assert "--export-keys" in said
    assert not (tmp_path / "second").exists()


def test_a_key_set_does_not_follow_a_link_out_of_the_data_folder(tmp_path):
    export_keys(Installation.create(tmp_path / "a", "eu-fr"), tmp_path / "keys")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "secrets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InstallationError, match="leads out of"):
        import_keys(tmp_path / "b", tmp_path / "keys")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_key_set_with_the_key_of_a_tenant_and_of_the_installation_comes_across(tmp_path):
    installation = Installation.create(tmp_path / "a", "eu-fr")
    for tenant in ("acme", "_system"):
        installation.keys.wrap(tenant, bytes(32))
    names = export_keys(installation, tmp_path / "keys")
    assert {"audit__keys__acme.kek", "audit__keys___system.kek"} <= set(names)
    import_keys(tmp_path / "b", tmp_path / "keys")
    assert (tmp_path / "b" / "audit" / "keys" / "_system.kek").read_bytes()


def test_a_key_set_of_another_cell_does_not_replace_a_key(tmp_path):
    for name in ("a", "b"):
        export_keys(Installation.create(tmp_path / name, "eu-fr"), tmp_path / f"keys-{name}")
    kept = (tmp_path / "a" / "secrets" / "pepper").read_bytes()
    assert "differs" in domicile("init", "--keys", tmp_path / "keys-b", "--data", tmp_path / "a", code=1)
    assert (tmp_path / "a" / "secrets" / "pepper").read_bytes() == kept
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no key set" in domicile("init", "--keys", empty, "--data", tmp_path / "c", code=1)


async def test_what_witnesses_and_authorities_signed_comes_back_and_nothing_else_of_their_folders(tmp_path, cell):
    kept = ("witnessed/_anchor-example.com-w.note", "timestamps/000000000002-ab.tsr", "timestamps/000000000002-ab.note")
    left = ("witnessed/.draft.note", "witnessed/notes.txt")
    for name in (*kept, *left):
        file = cell.data / "audit" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    domicile("init", "--data", cell.data, "--export-keys", tmp_path / "keys")
    domicile("backup", "create", tmp_path / "copy", "--data", cell.data)
    second = tmp_path / "second"
    said = domicile("backup", "restore", tmp_path / "copy", "--keys", tmp_path / "keys", "--data", second)
    assert [(second / "audit" / name).read_text() for name in kept] == list(kept)
    assert not any((second / "audit" / name).exists() for name in left)
    command = next(line for line in said.splitlines() if "audit verify" in line).partition("domicile ")[2].split()
    assert command[-2] == "--as-of"
    (second / "audit" / kept[0]).unlink()
    for name in kept[1:]:
        (second / "audit" / name).unlink()
    domicile(*command)
