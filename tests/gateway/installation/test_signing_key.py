"""The key that signs the record moves from a file into Vault, to a newer version there, and back: by `audit rotate`."""

import json
from contextlib import closing

import pytest
from typer.testing import CliRunner

from audit.cli.command_context import open_keys, open_replacement
from audit.errors import SignerError
from audit.keys.signer import FileSigner, key_of
from audit.tree.note import VerifierKey, open_note, sign_note
from gateway.cli.app import _keys_and_signer_of, _replacement_of, app
from gateway.installation.admin_record import recorded_admin
from gateway.installation.installation import Installation, InstallationError
from gateway.installation.key_set import export_keys, import_keys
from gateway.secrets.transit import VaultSigner

VAULT = "DOMICILE__SECRETS__VAULT__"


@pytest.fixture(autouse=True)
def hands():
    """As `domicile` itself sets them."""
    tokens = open_keys.set(_keys_and_signer_of), open_replacement.set(_replacement_of)
    yield
    open_replacement.reset(tokens[1])
    open_keys.reset(tokens[0])


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    domicile("init", "--cell", "eu-1", "--data", folder)
    domicile("tenant", "create", "acme", "--data", folder)
    return folder


@pytest.fixture
def in_vault(monkeypatch, vault, token_file):
    """Configures the signing key in Vault, or takes it out again."""

    def configure(signing_key="log"):
        given = {"ADDRESS": vault.url, "TOKEN_FILE": str(token_file), "SIGNING_KEY": signing_key}
        monkeypatch.setenv("DOMICILE__SECRETS__PROVIDER", "vault")
        for name, value in given.items():
            monkeypatch.delenv(VAULT + name, raising=False)
            if value is not None:
                monkeypatch.setenv(VAULT + name, value)

    return configure


def domicile(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words], obj=recorded_admin)
    assert done.exit_code == code, done.output + done.stderr + repr(done.exception)
    return done.stdout if code == 0 else done.stderr


def rotate(data, *words, code=0):
    return domicile("audit", "rotate", "--data", data, *words, code=code)


def verified(data, key):
    return "The log holds" in domicile("audit", "verify", "--data", data, "--public-key", key)


def vkey(data):
    return (data / "audit" / "signer.vkey").read_text().strip()


def works(data):
    """A command of each kind writes to the record and its stores."""
    before = Installation.open(data).owner
    domicile(
        "project",
        "create",
        "acme",
        f"p{before.key_id.hex()}",
        "--purpose",
        "x",
        "--legal-basis",
        "contract",
        "--data",
        data,
    )
    domicile("audit", "anchor", "--data", data)
    domicile("audit", "hold", "list", "acme", "--data", data)


def test_a_signer_in_vault_takes_over_from_the_file_which_is_destroyed(data, in_vault, vault):
    old = vkey(data)
    running = Installation.open(data).signer()
    in_vault()
    refused = domicile("tenant", "create", "globex", "--data", data, code=1)
    assert "domicile audit rotate" in refused, "before that it is a stranger"
    rotate(data)
    assert not (data / "audit" / "signer.key").exists()
    new = vkey(data)
    assert VerifierKey.parse(new).public_key == vault.keys["log"].versions[1].public_key().public_bytes_raw()
    works(data)
    assert verified(data, old) and verified(data, new)

    note = sign_note("text\n", running.name, running)  # a gateway that was started with the file
    assert open_note(note, [VerifierKey.parse(old)]) == "text\n"
    assert set(key_of(running).public_keys) == {VerifierKey.parse(one).public_key for one in (old, new)}


def test_a_newer_version_in_vault_takes_over_by_the_same_command(data, in_vault, vault):
    in_vault()
    rotate(data)
    first, running = vkey(data), Installation.open(data).signer()
    rotate(data)  # makes a version, since the newest one signs
    assert vault.keys["log"].latest == 2
    vault.keys["log"].rotate()  # by somebody else: nothing changes until it is recorded
    works(data)
    second = vkey(data)
    assert rotate(data, "--json") and vault.keys["log"].latest == 3, "the one there is taken"
    works(data)
    assert len({first, second, vkey(data)}) == 3
    assert VerifierKey(running.name, running.public_key) == VerifierKey.parse(vkey(data)), "a running signer follows"
    for key in (first, second, vkey(data)):
        assert verified(data, key)


def test_the_key_moves_back_into_a_file(data, in_vault, vault):
    in_vault()
    rotate(data)
    before, running = vkey(data), Installation.open(data).signer()
    rotate(data, "--to", "file")
    assert FileSigner.open(data / "audit" / "signer.key").verifier_key == VerifierKey.parse(vkey(data))
    note = sign_note("text\n", running.name, running)
    assert open_note(note, [VerifierKey.parse(before)]) == "text\n", "until it is started anew"
    assert "secrets.vault.signing_key out of the configuration" in domicile(
        "tenant", "create", "globex", "--data", data, code=1
    )
    in_vault(signing_key=None)
    works(data)
    assert verified(data, before) and verified(data, vkey(data))


def test_a_rotation_that_vault_refuses_changes_nothing_and_names_the_fix(data, in_vault, vault):
    old = vkey(data)
    in_vault()
    vault.sealed = True
    assert "sealed" in rotate(data, code=1)
    assert vkey(data) == old and (data / "audit" / "signer.key").exists()
    vault.sealed = False
    rotate(data)
    vault.forbidden = ("keys/log/rotate",)
    assert "vault write -f transit/keys/log/rotate" in rotate(data, code=1)
    vault.keys["log"].rotate()
    vault.forbidden = ("sign",)
    rotate(data, code=1)
    vault.forbidden = ()
    works(data)
    assert verified(data, old)


def test_without_a_configured_vault_it_cannot_move_there(data, monkeypatch):
    assert "set secrets.provider and secrets.vault.signing_key" in rotate(data, "--to", "vault", code=1)
    (data / "audit" / "signer.key").unlink()
    assert "secrets.vault.signing_key" in rotate(data, code=1)
    assert "secrets.vault.signing_key" in domicile("audit", "anchor", "--data", data, code=1)
    assert not (data / "audit" / "signer.key").exists(), "no other key is made"


def test_another_host_takes_the_key_in_vault_over_with_the_key_set(data, in_vault, tmp_path, vault):
    export_keys(Installation.open(data), tmp_path / "first")
    import_keys(tmp_path / "two", tmp_path / "first")
    in_vault()
    rotate(data)
    installation = Installation.open(data)
    export_keys(installation, tmp_path / "second")
    assert (tmp_path / "second" / "audit__signer.vkey").exists()
    assert not (tmp_path / "second" / "audit__signer.key").exists()
    vault.keys["log"].rotate()
    for folder in (tmp_path / "two", tmp_path / "three"):  # one that had the old key, and a fresh one
        for _ in range(2):
            import_keys(folder, tmp_path / "second")
        import_keys(folder, tmp_path / "first")  # an older one is put in place by hand: nothing changes
        assert not (folder / "audit" / "signer.key").exists()
        other = Installation.open(folder).signer()
        assert isinstance(other.current(), VaultSigner)
        assert other.public_key == VerifierKey.parse(vkey(data)).public_key
    with closing(installation.open_reader()) as reader:
        assert len(reader.successions()) == 1


def test_a_host_that_learned_the_succession_from_the_record_needs_no_key_set(data, in_vault, tmp_path):
    export_keys(Installation.open(data), tmp_path / "first")
    import_keys(tmp_path / "two", tmp_path / "first")
    in_vault()
    rotate(data)
    note = next((data / "audit" / "succession").iterdir())
    (tmp_path / "two" / "audit" / "succession").mkdir()
    (tmp_path / "two" / "audit" / "succession" / note.name).write_bytes(note.read_bytes())
    assert Installation.open(tmp_path / "two").signer().public_key == VerifierKey.parse(vkey(data)).public_key
    assert not (tmp_path / "two" / "audit" / "signer.key").exists()


def test_the_verifier_key_of_another_installation_is_refused(data, in_vault, tmp_path):
    in_vault()
    rotate(data)
    export_keys(Installation.open(data), tmp_path / "keys")
    strange = FileSigner.open(tmp_path / "strange" / "signer.key", name=Installation.open(data).log_name)
    (tmp_path / "keys" / "audit__signer.vkey").write_text(f"{strange.verifier_key}\n")
    before = vkey(data)
    with pytest.raises(InstallationError, match="no succession links the two"):
        import_keys(data, tmp_path / "keys")
    (tmp_path / "keys" / "audit__signer.vkey").write_text("nonsense")
    with pytest.raises(InstallationError, match="cannot be used"):
        import_keys(data, tmp_path / "keys")
    assert vkey(data) == before


def test_a_key_of_several_versions_of_which_nothing_says_which_signs_is_refused(tmp_path, vault, connect):
    vault.manage("log", "", {"type": "ed25519"})
    vault.keys["log"].rotate()
    with pytest.raises(SignerError, match="no succession names the one that signs"):
        VaultSigner.open(connect(), "log", tmp_path / "signer.vkey", name="local/audit")
    assert not (tmp_path / "signer.vkey").exists()


def test_the_events_name_both_keys(data, in_vault):
    old = vkey(data)
    in_vault()
    rotate(data, "--reason", "moved")
    shown = domicile("audit", "show", "acme", "--data", data, "--json")
    (event,) = [one for one in map(json.loads, shown.splitlines()) if one["type"] == "log.key_rotated"]
    assert (event["old_key"], event["new_key"], event["reason"]) == (old, vkey(data), "moved")
