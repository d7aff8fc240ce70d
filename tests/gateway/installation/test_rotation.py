"""The keys of a whole installation replaced, over files and over Vault, with crashes in the middle."""

from contextlib import closing

import pytest

from audit.errors import AuditUnavailable, KeyLost, KeyProviderError
from audit.events.private_value import Private, seal
from audit.keys.owner_keys import KeyRing
from audit.keys.signer import FileSigner
from audit.private.value_store import ValueStore
from gateway.configuration.settings import Secrets, Vault
from gateway.installation.installation import Installation, InstallationError
from gateway.installation.rotation import renew, retire, rewrap, rotate, status
from gateway.secrets.transit import VaultSigner
from regions.identity.encrypted_file import is_sealed
from tests.audit.conftest import accepted

EVENT = "01932b5e-0000-7000-8000-000000000000"
FILE = Secrets()


@pytest.fixture
def in_vault(vault, token_file):
    return Secrets(
        provider="vault",
        vault=Vault(address=vault.url, token_file=token_file, signing_key="log", timeout_s=1, retries=0),
    )


@pytest.fixture
def data(tmp_path):
    Installation.create(tmp_path / "data", "eu-1")
    return tmp_path / "data"


@pytest.fixture
def recorded():
    return []


def keep(installation, tenant, text):
    with closing(ValueStore.open(installation.side_store, installation.keys)) as side:
        _, sealed = seal(accepted(tenant=tenant), EVENT, Private({"input": text}, "alice"))
        side.put([(tenant, 0, value) for value in sealed])


def shown(installation, tenant):
    with closing(ValueStore.open(installation.side_store, installation.keys)) as side:
        return [side.disclose(kept).value for kept in side.kept(tenant) if kept.field == "input"]


def in_use(installation):
    """Everything that has a secret has made it, and two tenants have values."""
    installation.hasher(), installation.policies(), installation.authority(), installation.signer()
    for tenant in ("acme", "globex"):
        keep(installation, tenant, f"of {tenant}")


def all_open(installation):
    assert installation.hasher().generation == 1
    installation.policies(), installation.authority()
    assert [shown(installation, tenant) for tenant in ("acme", "globex")] == [["of acme"], ["of globex"]]


def kinds(recorded):
    return [event.type for event in recorded]


def test_a_master_key_in_files_is_replaced_and_the_old_one_destroyed(data, recorded):
    installation = Installation.open(data, FILE)
    in_use(installation)
    old = (data / "audit" / "keys" / "root.key").read_bytes()
    assert rotate(installation, recorded.append, "cli") == 2
    assert status(installation).waiting == {"file:v1": 2}
    with pytest.raises(KeyProviderError, match="2 keys are still wrapped under file:v1"):
        retire(installation, recorded.append, "cli")
    assert rewrap(installation, recorded.append, "cli") == 2
    assert retire(installation, recorded.append, "cli") == 1
    assert status(installation).master.versions == (2,)
    assert all(old not in file.read_bytes() for file in data.rglob("*") if file.is_file())
    all_open(Installation.open(data, FILE))
    assert kinds(recorded) == ["admin.keyring.rotated", "admin.keyring.rewrapped", "admin.keyring.retired"]
    assert [(event.version, event.keys) for event in recorded] == [(2, 0), (2, 2), (2, 1)]


def test_every_step_may_be_repeated_and_changes_and_records_nothing_the_second_time(data, recorded):
    installation = Installation.open(data, FILE)
    in_use(installation)
    rotate(installation, recorded.append, "cli")
    assert rotate(installation, recorded.append, "cli") == 2, "a rotation that has begun is gone on with"
    rewrap(installation, recorded.append, "cli")
    assert rewrap(installation, recorded.append, "cli") == 0
    retire(installation, recorded.append, "cli")
    assert retire(installation, recorded.append, "cli") == 0
    assert len(recorded) == 3


def test_two_rotations_at_once_make_one_version_and_record_it_once(data, recorded):
    first, second = Installation.open(data, FILE), Installation.open(data, FILE)
    in_use(first)
    second.keys.state()
    seen = status(first), status(second)
    assert seen[0] == seen[1]

    def rotated_in_between(installation):
        """Both have looked, then both rotate."""
        return installation.keys.rotate_master(seen[0].master.newest, recorded.append)

    assert [rotated_in_between(first), rotated_in_between(second)] == [2, 2]
    assert recorded == [2] and status(first).master.versions == (1, 2)
    assert rotate(second, recorded.append, "cli") == 2, "and its keys are moved before there is a third"


@pytest.mark.parametrize("provider", ["file", "vault"])
@pytest.mark.parametrize("die_at", [0, 1])
def test_killed_while_rewrapping_it_goes_on_where_it_was(data, recorded, in_vault, monkeypatch, die_at, provider):
    secrets = FILE if provider == "file" else in_vault
    installation = Installation.open(data, secrets)
    in_use(installation)
    rotate(installation, recorded.append, "cli")
    real, seen = KeyRing.rewrap, []

    def dies(ring, owner):
        if len(seen) == die_at:
            raise KeyboardInterrupt
        seen.append(owner)
        return real(ring, owner)

    monkeypatch.setattr(KeyRing, "rewrap", dies)
    with pytest.raises(KeyboardInterrupt):
        rewrap(installation, recorded.append, "cli")
    monkeypatch.undo()
    after = Installation.open(data, secrets)
    all_open(after)
    owners = len(after.keys.owners())
    assert sum(status(after).waiting.values()) == owners - die_at
    assert rewrap(after, recorded.append, "cli") == owners - die_at
    retire(after, recorded.append, "cli")
    all_open(Installation.open(data, secrets))


def test_nothing_is_rotated_or_retired_that_cannot_be_recorded(data):
    installation = Installation.open(data, FILE)
    in_use(installation)

    def refuse(event):
        raise AuditUnavailable("the disk is full")

    with pytest.raises(AuditUnavailable):
        rotate(installation, refuse, "cli")
    assert status(installation).master.versions == (1,)
    rotate(installation, lambda event: None, "cli")
    rewrap(installation, lambda event: None, "cli")
    with pytest.raises(AuditUnavailable):
        retire(installation, refuse, "cli")
    assert status(installation).master.versions == (1, 2)


def test_in_vault_everything_is_sealed_from_the_start_and_the_disk_alone_opens_nothing(data, in_vault, vault):
    installation = Installation.open(data, in_vault)
    in_use(installation)
    assert all(is_sealed(data / path) for path in ("secrets/pepper", "secrets/redaction", "ca/ca.key"))
    assert not list(data.rglob("root.key")) and not list(data.rglob("signer.key"))
    assert isinstance(installation.signer().current(), VaultSigner)
    assert status(installation).clear == ()
    all_open(Installation.open(data, in_vault))
    alone = Installation.open(data, FILE)
    for work in (alone.hasher, alone.policies, lambda: alone.keys):
        with pytest.raises(KeyProviderError, match=r"secrets\.provider"):
            work()
    vault.sealed = True
    with pytest.raises(KeyProviderError, match="sealed"):
        _ = Installation.open(data, in_vault).keys


def test_an_installation_moves_from_files_into_vault_without_losing_anything(data, in_vault, vault, recorded):
    in_use(Installation.open(data, FILE))
    (data / "audit" / "signer.key").unlink()  # of a log that has no record yet
    (data / "audit" / "signer.vkey").unlink()
    moving = Installation.open(data, in_vault)
    all_open(moving)
    before = status(moving)
    assert before.waiting == {"file:v1": 2}
    assert before.clear == ("secrets/pepper", "secrets/redaction", "ca/ca.key")
    with pytest.raises(KeyProviderError, match="file:v1"):
        retire(moving, recorded.append, "cli")
    assert rewrap(moving, recorded.append, "cli") == 5
    assert retire(moving, recorded.append, "cli") == 1
    assert not list(data.rglob("root.key")), "the file that opened everything is gone"
    after = Installation.open(data, in_vault)
    all_open(after)
    assert (status(after).waiting, status(after).clear) == ({}, ())


def test_vaults_key_is_replaced_and_its_old_version_trimmed(data, in_vault, vault, recorded):
    installation = Installation.open(data, in_vault)
    in_use(installation)
    assert rotate(installation, recorded.append, "cli") == 2
    assert rewrap(installation, recorded.append, "cli") == 3  # two tenants and the installation itself
    assert retire(installation, recorded.append, "cli") == 1
    assert list(vault.keys["domicile"].versions) == [2]
    all_open(Installation.open(data, in_vault))


@pytest.mark.parametrize("provider", ["file", "vault"])
def test_a_tenant_gets_a_new_key_and_so_does_the_installation(data, in_vault, recorded, provider):
    secrets = FILE if provider == "file" else in_vault
    installation = Installation.open(data, secrets)
    in_use(installation)
    keep_before = installation.keys.state_of("globex")
    assert renew(installation, "acme", recorded.append, "cli") == (2, 2)  # alice and the pepper
    assert installation.keys.state_of("globex") == keep_before
    if provider == "vault":
        assert renew(installation, "_system", recorded.append, "cli") == (2, 3)
    else:
        with pytest.raises(KeyProviderError):
            renew(installation, "_system", recorded.append, "cli")
    all_open(Installation.open(data, secrets))
    installation.keys.destroy("acme")
    with pytest.raises(KeyLost):
        renew(installation, "acme", recorded.append, "cli")
    assert recorded[0].tenant == "acme"


def test_shell_commands_learn_the_provider_from_the_environment(
    data, in_vault, monkeypatch, tmp_path, vault, token_file
):
    assert Installation.open(data).secrets == FILE
    monkeypatch.setenv("DOMICILE__SECRETS__PROVIDER", "vault")
    monkeypatch.setenv("DOMICILE__SECRETS__VAULT__ADDRESS", vault.url)
    monkeypatch.setenv("DOMICILE__SECRETS__VAULT__TOKEN_FILE", str(token_file))
    assert Installation.open(data).secrets.vault.address == vault.url
    monkeypatch.delenv("DOMICILE__SECRETS__VAULT__ADDRESS")
    with pytest.raises(InstallationError, match=r"vault\.address"):
        Installation.open(data)
    for name in ("PROVIDER", "VAULT__TOKEN_FILE"):
        monkeypatch.delenv(f"DOMICILE__SECRETS__{name}")
    config = tmp_path / "config.yaml"
    config.write_text(f"secrets: {{provider: vault, vault: {{address: '{vault.url}', token_file: {token_file}}}}}\n")
    monkeypatch.setenv("DOMICILE_CONFIG", str(config))
    assert Installation.open(data).secrets.provider == "vault"


def test_a_signer_in_a_file_is_used_until_one_in_vault_is_named(data, in_vault):
    plain = Secrets(provider="vault", vault=in_vault.vault.model_copy(update={"signing_key": None}))
    assert isinstance(Installation.open(data, plain).signer().current(), FileSigner)
