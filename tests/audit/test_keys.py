from pathlib import Path

import pytest

from audit.errors import KeyLost, KeyProviderError
from audit.keys import FileKeyProvider

KEY = bytes(range(32))


def test_a_key_comes_back_for_its_tenant_after_a_restart(tmp_path: Path) -> None:
    wrapped = FileKeyProvider.open(tmp_path).wrap("acme", KEY)
    assert KEY not in wrapped
    assert FileKeyProvider.open(tmp_path).unwrap("acme", wrapped) == KEY


def test_no_tenant_can_open_what_was_wrapped_for_another(tmp_path: Path) -> None:
    keys = FileKeyProvider.open(tmp_path)
    wrapped = keys.wrap("acme", KEY)
    keys.wrap("globex", KEY)
    with pytest.raises(KeyLost):
        keys.unwrap("globex", wrapped)
    with pytest.raises(KeyLost, match="has no key"):
        keys.unwrap("initech", wrapped)


def test_a_destroyed_key_is_gone_for_good_and_no_new_one_takes_its_place(tmp_path: Path) -> None:
    keys = FileKeyProvider.open(tmp_path)
    wrapped = keys.wrap("acme", KEY)
    before = (tmp_path / "acme.kek").read_bytes()
    keys.destroy("acme")
    keys.destroy("acme")
    keys.destroy("never")
    for other in (keys, FileKeyProvider.open(tmp_path)):
        with pytest.raises(KeyLost, match="destroyed"):
            other.unwrap("acme", wrapped)
        with pytest.raises(KeyLost, match="destroyed"):
            other.wrap("acme", KEY)
    assert all(before not in file.read_bytes() for file in tmp_path.iterdir())


def test_keys_that_others_may_read_or_that_are_none_are_refused(tmp_path: Path) -> None:
    FileKeyProvider.open(tmp_path)
    root = tmp_path / "root.key"
    assert root.stat().st_mode & 0o777 == 0o600
    root.chmod(0o640)
    with pytest.raises(KeyProviderError, match="chmod 600"):
        FileKeyProvider.open(tmp_path)
    root.chmod(0o600)
    root.write_bytes(b"short")
    with pytest.raises(KeyProviderError, match="32 bytes"):
        FileKeyProvider.open(tmp_path)


def test_under_another_root_key_nothing_opens(tmp_path: Path) -> None:
    wrapped = FileKeyProvider.open(tmp_path).wrap("acme", KEY)
    (tmp_path / "root.key").write_bytes(bytes(32))
    with pytest.raises(KeyLost, match="root key"):
        FileKeyProvider.open(tmp_path).unwrap("acme", wrapped)


@pytest.mark.parametrize("tenant", ["", "..", "a/b", "ACME", "acme\n"])
def test_a_name_that_is_no_tenant_never_becomes_a_file(tmp_path: Path, tenant: str) -> None:
    keys = FileKeyProvider.open(tmp_path)
    with pytest.raises(KeyProviderError):
        keys.wrap(tenant, KEY)
    assert [file.name for file in tmp_path.iterdir()] == ["root.key"]
