"""Master and signer in a Vault that refuses what the real one refuses."""

from contextlib import closing

import pytest

from audit.errors import AuditUnavailable, KeyLost, KeyProviderError, SignerError
from audit.events.private_value import Private
from audit.keys.key_files import KeyFolder
from audit.keys.master import FileMaster, origin_of
from audit.keys.owner_keys import FileKeyProvider, KeyRing
from audit.log.audit_log import AuditLog
from audit.private.log_and_value_store import open_log_and_values
from audit.private.value_store import ValueStore
from audit.storage.sqlite import SqliteReader
from audit.tree.note import VerifierKey
from audit.verification.verify import verify_log
from gateway.secrets.transit import VaultMaster, VaultSigner
from gateway.secrets.vault import VaultDenied, VaultError, VaultSealed
from tests.audit.conftest import accepted

KEY = bytes(range(32))


def test_a_key_comes_back_in_its_context_alone_and_never_lay_in_vault(vault, connect):
    master = VaultMaster.open(connect(), "domicile")
    wrapped = master.wrap("a", KEY)
    assert origin_of(wrapped) == ("vault", 1)
    assert VaultMaster.open(connect(), "domicile").unwrap("a", wrapped) == KEY
    with pytest.raises(KeyLost, match="authentication failed"):
        master.unwrap("b", wrapped)


def test_the_key_is_made_as_it_has_to_be(vault, connect):
    VaultMaster.open(connect(), "domicile")
    assert (vault.keys["domicile"].type, vault.keys["domicile"].derived) == ("aes256-gcm96", True)
    vault.forbidden = ("keys/second",)
    with pytest.raises(VaultDenied):
        VaultMaster.open(connect(), "second")


@pytest.mark.parametrize(
    "made",
    [
        {"type": "ed25519"},
        {"type": "aes256-gcm96"},
        {"type": "aes128-gcm96", "derived": True},
        {"derived": True, "exportable": True},
    ],
)
def test_a_key_that_is_not_derived_or_may_leave_is_refused(vault, connect, made):
    vault.manage("domicile", "", made)
    with pytest.raises(KeyProviderError, match="the key domicile in Vault"):
        VaultMaster.open(connect(), "domicile")


def test_rotation_rewrap_and_retirement_happen_in_vault_and_for_good(vault, connect):
    master = VaultMaster.open(connect(), "domicile")
    old = master.wrap("a", KEY)
    assert master.rotate() == 2
    new = master.rewrap("a", old)
    assert origin_of(new) == ("vault", 2)
    assert not any(path.startswith("/v1/transit/decrypt") for _, path in vault.calls), "the plain key stayed there"
    assert master.state().versions == (1, 2)
    master.retire(2)
    master.retire(2)
    assert list(vault.keys["domicile"].versions) == [2], "trimmed, not only forbidden"
    assert master.state().versions == (2,)
    assert master.unwrap("a", new) == KEY
    with pytest.raises(KeyLost, match="too old"):
        master.unwrap("a", old)
    with pytest.raises(KeyProviderError, match="no version 3"):
        master.retire(3)


def test_a_sealed_vault_is_no_lost_key(vault, connect):
    master = VaultMaster.open(connect(retries=0), "domicile")
    wrapped = master.wrap("a", KEY)
    vault.sealed = True
    for work in (lambda: master.unwrap("a", wrapped), lambda: master.wrap("a", KEY), master.state, master.rotate):
        with pytest.raises(VaultSealed):
            work()
    with pytest.raises(KeyProviderError, match="wrapped by file"):
        master.unwrap("a", b"file:v1:AAAA")


@pytest.mark.parametrize(
    "answer", [b"{}", b'{"data": {"ciphertext": "x"}}', b'{"data": {"ciphertext": "file:v1:AA=="}}']
)
def test_an_answer_without_what_was_asked_for_is_an_error(vault, connect, answer):
    master = VaultMaster.open(connect(), "domicile")
    wrapped = master.wrap("a", KEY)
    vault.body = answer
    for work in (lambda: master.wrap("a", KEY), lambda: master.unwrap("a", wrapped), master.state):
        with pytest.raises(KeyProviderError) as told:
            work()
        assert not isinstance(told.value, KeyLost)


# --- over a key ring -------------------------------------------------------------------------------------------------


def ring_of(folder, client, former=None):
    folder.mkdir(exist_ok=True, mode=0o700)
    return KeyRing(KeyFolder(folder), VaultMaster.open(client, "domicile"), former)


def test_a_tenant_in_use_needs_vault_no_more_and_a_new_one_does(tmp_path, vault, connect):
    ring = ring_of(tmp_path / "keys", connect(retries=0))
    wrapped = ring.wrap("acme", KEY)
    vault.sealed = True
    assert ring.unwrap("acme", wrapped) == KEY
    assert ring.unwrap("acme", ring.wrap("acme", KEY)) == KEY
    with pytest.raises(VaultSealed):
        ring.wrap("globex", KEY)
    assert ring.owners() == ["acme"], "nothing half made is left"


def test_with_the_folder_alone_nothing_opens_nor_with_a_file_master_beside_it(tmp_path, vault, connect):
    wrapped = ring_of(tmp_path / "keys", connect()).wrap("acme", KEY)
    with pytest.raises(KeyProviderError, match=r"restore it, .* or set secrets\.provider"):
        FileKeyProvider.open(tmp_path / "keys")
    vault.keys.clear()
    with pytest.raises(KeyLost, match=r"acme\.kek, the key of tenant acme, does not open under this root key"):
        ring_of(tmp_path / "keys", connect()).unwrap("acme", wrapped)


def test_keys_move_from_files_into_vault_and_the_file_may_then_go(tmp_path, connect):
    folder = tmp_path / "keys"
    wrapped = FileKeyProvider.open(folder).wrap("acme", KEY)
    ring = ring_of(folder, connect(), FileMaster.open(folder / "root.key"))
    assert ring.unwrap("acme", wrapped) == KEY
    assert ring.rewrap("acme")
    (folder / "root.key").unlink()
    assert ring_of(folder, connect()).unwrap("acme", wrapped) == KEY


async def test_a_log_keeps_values_under_vault_and_refuses_them_while_it_is_sealed(tmp_path, vault, connect):
    client = connect(retries=0)
    ring = ring_of(tmp_path / "keys", client)
    signer = VaultSigner.open(client, "domicile-log", tmp_path / "signer.vkey", name="local/audit")
    opened = open_log_and_values(tmp_path / "side.db", ring)
    async with await AuditLog.open(tmp_path / "log.db", signer=signer, node="gw", open_store=opened) as log:
        await log.append(accepted("a"), Private({"input": "words"}, "alice"))
        vault.sealed = True
        await log.append(accepted("b"), Private({"input": "more"}, "alice"))
        with pytest.raises(AuditUnavailable, match="sealed"):
            await log.append(accepted("c", "globex"), Private({"input": "words"}, "bob"))
        await log.append(accepted("d", "globex"))
        await log.append(accepted("e"), Private({"input": "last"}, "alice"))
        vault.sealed = False
        await log.append(accepted("c", "globex"), Private({"input": "words"}, "bob"))
    report = verify_log(SqliteReader.open(tmp_path / "log.db"), VerifierKey(signer.name, signer.public_key))
    assert report.ok
    assert [tree.signed for tree in report.trees] == [tree.records for tree in report.trees]
    with closing(ValueStore.open(tmp_path / "side.db", ring_of(tmp_path / "keys", connect()))) as side:
        assert {side.disclose(kept).value for kept in side.kept("acme")} == {"words", "more", "last", "alice"}


# --- signing ---------------------------------------------------------------------------------------------------------


def test_the_signing_key_stays_in_vault_and_its_public_half_beside_the_log(tmp_path, vault, connect):
    signer = VaultSigner.open(connect(), "log", tmp_path / "signer.vkey", name="local/audit")
    vkey = VerifierKey.parse((tmp_path / "signer.vkey").read_text())
    assert (vkey.name, vkey.public_key) == ("local/audit", signer.public_key)
    vault.keys["log"].versions[1].public_key().verify(signer.sign(b"text"), b"text")


def test_a_rotation_in_vault_does_not_change_by_itself_who_signs(tmp_path, vault, connect):
    first = VaultSigner.open(connect(), "log", tmp_path / "signer.vkey", name="local/audit")
    vault.keys["log"].rotate()
    again = VaultSigner.open(connect(), "log", tmp_path / "signer.vkey", name="local/audit")
    assert again.public_key == first.public_key
    vault.keys["log"].versions[1].public_key().verify(again.sign(b"text"), b"text")


def test_a_log_signed_by_another_key_is_not_signed_by_this_one(tmp_path, vault, connect):
    VaultSigner.open(connect(), "log", tmp_path / "signer.vkey", name="local/audit")
    with pytest.raises(SignerError, match="another one"):
        VaultSigner.open(connect(), "second", tmp_path / "signer.vkey", name="local/audit")
    vault.manage("aes", "", {})
    with pytest.raises(SignerError, match="ed25519"):
        VaultSigner.open(connect(), "aes", tmp_path / "other.vkey", name="local/audit")


def test_what_vault_does_not_sign_is_an_error_of_the_signer(tmp_path, vault, connect):
    signer = VaultSigner.open(connect(retries=0), "log", tmp_path / "signer.vkey", name="local/audit")
    vault.sealed = True
    with pytest.raises(SignerError, match="sealed"):
        signer.sign(b"text")
    with pytest.raises(SignerError, match="sealed"):
        VaultSigner.open(connect(retries=0), "log", tmp_path / "signer.vkey", name="local/audit")
    assert issubclass(VaultError, KeyProviderError)
