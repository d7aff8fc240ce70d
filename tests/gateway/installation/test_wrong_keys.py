"""A key of another installation, or one that was made again, is refused by name before it is used."""

import json
import shutil
from contextlib import closing

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from audit.storage.sqlite import SqliteReader
from gateway.cli.app import app
from gateway.configuration.settings import Secrets, Vault
from gateway.installation.file_inventory import FileInventory
from gateway.installation.installation import Installation, InstallationError
from gateway.installation.key_set import export_keys, import_keys
from gateway.installation.rotation import rewrap
from regions.identity.encrypted_file import is_sealed

KEYS = ("secrets/pepper", "secrets/redaction", "secrets/requests", "ca/ca.key", "audit/keys/root.key")
COMMANDS = (
    ("tenant", "list"),
    ("key", "list", "acme"),
    ("secrets", "show"),
    ("secrets", "rewrap"),
    ("usage", "show"),
    ("init",),
    ("up",),
)


def domicile(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two installations of one cell, as after an accident with their files."""
    made = []
    for name in ("first", "second"):
        data = tmp_path_factory.mktemp(name) / "data"
        domicile("init", "--cell", "eu-1", "--data", data)
        domicile("tenant", "create", "acme", "--data", data)
        domicile("tenant", "list", "--data", data)  # lists the databases that were made
        made.append(data)
    return made


@pytest.fixture
def mine(folders, tmp_path):
    return shutil.copytree(folders[0], tmp_path / "data")


def state(data):
    return {
        str(file.relative_to(data)): file.read_bytes()
        for file in data.rglob("*")
        if file.is_file() and not file.name.endswith(("-wal", "-shm"))
    }


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_another_installation_is_refused_by_every_command_and_nothing_is_written(folders, mine, key):
    own = (mine / key).read_bytes()
    shutil.copy2(folders[1] / key, mine / key)
    before = state(mine)
    for command in COMMANDS:
        said = domicile(*command, "--data", mine, code=1)
        assert said.startswith(f"error: {mine / key} is not the key that this installation has used"), said
        assert "domicile init --keys KEY_SET" in said and "Traceback" not in said
    assert state(mine) == before
    (mine / key).write_bytes(own)
    domicile("key", "list", "acme", "--data", mine)


def test_the_key_set_puts_the_right_key_back_and_that_of_another_installation_is_not_taken(folders, mine, tmp_path):
    export_keys(Installation.open(mine), tmp_path / "keys")
    shutil.copy2(folders[1] / "secrets/redaction", mine / "secrets/redaction")
    (mine / "secrets/redaction").rename(tmp_path / "aside")
    mixed = shutil.copytree(tmp_path / "keys", tmp_path / "mixed")
    shutil.copy2(folders[1] / "secrets/redaction", mixed / "secrets__redaction")
    said = domicile("init", "--keys", mixed, "--data", mine, code=1)
    assert "secrets/redaction differs from the key that" in said
    assert not (mine / "secrets/redaction").exists()
    domicile("init", "--keys", tmp_path / "keys", "--data", mine)
    domicile("key", "list", "acme", "--data", mine)


@pytest.mark.parametrize("key", [key for key in KEYS if not key.startswith("audit/")])
def test_a_second_host_with_another_key_is_refused_by_the_database_that_both_use(folders, mine, tmp_path, key):
    """As with a mounted key set in which one file is of another installation: its folder has no history."""
    Installation.open(mine).database().close()
    export_keys(Installation.open(mine), tmp_path / "keys")
    shutil.copy2(folders[1] / key, tmp_path / "keys" / key.replace("/", "__"))
    host = tmp_path / "host"
    import_keys(host, tmp_path / "keys")
    Installation.create(host).require_whole()
    shutil.copy2(mine / "control.db", host / "control.db")
    second = Installation.open(host)
    with pytest.raises(InstallationError, match=f"{key} is not the key that this installation has used"):
        second.database()


def test_a_folder_of_an_earlier_version_learns_the_fingerprints(folders, mine):
    names = sorted(json.loads((mine / "files.made").read_text()))
    (mine / "files.made").write_text(json.dumps(names))
    with closing(Installation.open(mine).database_of_any_keys()) as database, database.write() as session:
        session.connection().execute(text("DELETE FROM key_fingerprint"))
    (mine / "files.made").write_text(json.dumps(names))
    Installation.open(mine).database().close()
    assert set(FileInventory(mine).fingerprints()) == set(KEYS)
    shutil.copy2(folders[1] / "secrets/requests", mine / "secrets/requests")
    with pytest.raises(InstallationError, match="secrets/requests is not the key"):
        Installation.open(mine)


def test_a_key_that_was_replaced_on_purpose_is_accepted_on_record(folders, mine):
    for key in ("secrets/redaction", "ca/ca.key"):
        shutil.copy2(folders[1] / key, mine / key)
    said = domicile("secrets", "accept", "secrets/redaction", "--yes", "--data", mine, code=1)
    assert "ca/ca.key is not the key" in said, "one at a time would leave the other unseen"
    shutil.copy2(folders[0] / "ca/ca.key", mine / "ca/ca.key")
    before = Installation.open(mine, accepting=["secrets/redaction"]).inventory_of_files.fingerprints()
    answer = json.loads(domicile("secrets", "accept", "secrets/redaction", "--yes", "--json", "--data", mine))
    assert answer["fingerprint"] != before["secrets/redaction"]
    domicile("key", "list", "acme", "--data", mine)
    with closing(SqliteReader.open(mine / "audit" / "log.db")) as reader:
        events = [json.loads(leaf.payload) for leaf in reader.leaves("_system")]
    (event,) = [event for event in events if event["type"] == "admin.keyring.accepted"]
    assert (event["key"], event["fingerprint"], event["actor"]) == (
        "secrets.redaction", answer["fingerprint"], "cli",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "says"),
    [("audit/signer.key", "not a key that can be accepted"), ("../x", "not a key that"), ("secrets/pepper.9", "no ")],
)
def test_only_a_key_that_is_there_can_be_accepted(mine, name, says):
    before = state(mine)
    assert says in domicile("secrets", "accept", name, "--yes", "--data", mine, code=1)
    assert state(mine) == before


def test_a_renewed_certificate_below_the_same_root_is_the_same_authority(mine):
    bundle = (mine / "ca/ca.key").read_bytes()
    key, _, root = bundle.partition(b"-----BEGIN CERTIFICATE-----")
    (mine / "ca/ca.key").write_bytes(key + b"\n-----BEGIN CERTIFICATE-----" + root)
    Installation.open(mine)


def test_a_rotated_pepper_and_master_key_are_known_by_their_number(mine):
    domicile("secrets", "rotate", "--data", mine)
    domicile("secrets", "retire", "--yes", "--data", mine)
    domicile("key", "rekey", "--data", mine)
    domicile("key", "rekey", "--finish", "--yes", "--data", mine)
    assert {"secrets/pepper.2", "audit/keys/root.key.2"} <= set(FileInventory(mine).fingerprints())
    domicile("tenant", "list", "--data", mine)


def test_a_sealed_key_is_compared_by_what_it_holds(folders, mine, vault, token_file):
    secrets = Secrets(provider="vault", vault=Vault(address=vault.url, token_file=token_file, timeout_s=1, retries=0))
    rewrap(Installation.open(mine, secrets), lambda event: None, "cli")
    assert is_sealed(mine / "secrets/redaction")
    Installation.open(mine, secrets).policies()
    shutil.copy2(folders[1] / "secrets/redaction", mine / "secrets/redaction")
    with pytest.raises(InstallationError, match="secrets/redaction is not the key"):
        Installation.open(mine, secrets)
