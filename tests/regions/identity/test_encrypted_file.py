"""Secrets at rest, sealed or plain, and what a copy of the disk is worth."""

import pytest

from audit.errors import KeyLost, KeyProviderError
from audit.files.secret_file import LoosePermissions, create_secret
from audit.keys.owner_keys import FileKeyProvider
from regions.errors import AuthorityError
from regions.identity.authority import CertificateAuthority
from regions.identity.encrypted_file import PLAIN, SealedFiles, is_sealed

SECRET = b"a pepper of thirty-two bytes 000"


@pytest.fixture
def keys(tmp_path):
    return FileKeyProvider.open(tmp_path / "keys")


def test_a_sealed_secret_opens_with_its_keys_and_lies_unreadable(tmp_path, keys):
    path = tmp_path / "secrets" / "pepper"
    assert SealedFiles(keys).create(path, SECRET) == SECRET
    assert SealedFiles(keys).create(path, b"other") == SECRET, "the first one stays"
    assert SealedFiles(FileKeyProvider.open(tmp_path / "keys")).read(path) == SECRET
    assert SECRET not in path.read_bytes()
    with pytest.raises(KeyProviderError, match=r"secrets\.provider"):
        PLAIN.read(path)
    with pytest.raises(KeyProviderError, match=r"secrets\.provider"):
        PLAIN.create(path, SECRET)


def test_an_older_plain_secret_is_read_and_then_sealed_in_place(tmp_path, keys):
    path = tmp_path / "secrets" / "pepper"
    create_secret(path, SECRET)
    files = SealedFiles(keys)
    assert files.read(path) == SECRET
    assert not is_sealed(path)
    assert files.seal(path)
    assert not files.seal(path), "again changes nothing"
    assert is_sealed(path)
    assert files.read(path) == SECRET


def test_a_seal_is_renewed_when_the_key_under_it_is(tmp_path, keys):
    path = tmp_path / "secrets" / "pepper"
    files = SealedFiles(keys)
    files.create(path, SECRET)
    assert keys.begin_renewal("_system") == 2
    assert files.seal(path, generation=2)
    keys.end_renewal("_system")
    assert files.read(path) == SECRET


def test_a_sealed_secret_does_not_open_in_another_ones_place_or_changed(tmp_path, keys):
    files = SealedFiles(keys)
    one, other = tmp_path / "secrets" / "pepper", tmp_path / "secrets" / "redaction"
    files.create(one, SECRET)
    create_secret(other, one.read_bytes())
    with pytest.raises(KeyLost, match="belongs elsewhere"):
        files.read(other)
    for damage in (one.read_bytes()[:-1] + b"x", one.read_bytes()[:30], b"domicile-sealed/1\n"):
        one.write_bytes(damage)
        with pytest.raises(KeyLost):
            files.read(one)


def test_a_loose_or_absent_secret_is_refused_sealed_or_not(tmp_path, keys):
    path = tmp_path / "secrets" / "pepper"
    files = SealedFiles(keys)
    with pytest.raises(FileNotFoundError):
        files.read(path)
    files.create(path, SECRET)
    path.chmod(0o640)
    for each in (files, PLAIN):
        with pytest.raises(LoosePermissions):
            each.read(path)


def test_an_authority_keeps_its_key_sealed(tmp_path, keys):
    made = CertificateAuthority.open(tmp_path / "ca", "eu-1", files=SealedFiles(keys))
    again = CertificateAuthority.open(tmp_path / "ca", "eu-1", files=SealedFiles(keys))
    assert made.root_file.read_bytes() == again.root_file.read_bytes()
    assert b"PRIVATE KEY" not in (tmp_path / "ca" / "ca.key").read_bytes()
    with pytest.raises((KeyProviderError, AuthorityError), match="sealed"):
        CertificateAuthority.open(tmp_path / "ca", "eu-1")
