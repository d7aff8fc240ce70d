from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

from audit.errors import KeyLost, KeyProviderError
from audit.keys.key_files import KeyFolder
from audit.keys.master import FileMaster
from audit.keys.owner_keys import FileKeyProvider, KeyRing, generation_of

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
    with pytest.raises(KeyProviderError, match=r"initech\.kek, .* is missing; put the key set back") as missing:
        keys.unwrap("initech", wrapped)
    assert not isinstance(missing.value, KeyLost), "a file that is put back opens it again"


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


def test_a_tenants_key_moved_to_another_tenants_place_opens_nothing(tmp_path: Path) -> None:
    keys = FileKeyProvider.open(tmp_path)
    wrapped = keys.wrap("acme", KEY)
    keys.wrap("globex", KEY)
    (tmp_path / "globex.kek").write_bytes((tmp_path / "acme.kek").read_bytes())
    with pytest.raises(KeyLost):
        FileKeyProvider.open(tmp_path).unwrap("globex", wrapped)


def test_a_key_destroyed_by_another_process_is_gone_here_too(tmp_path: Path) -> None:
    here, there = FileKeyProvider.open(tmp_path), FileKeyProvider.open(tmp_path)
    wrapped = here.wrap("acme", KEY)
    there.destroy("acme")
    with pytest.raises(KeyLost, match="destroyed"):
        here.unwrap("acme", wrapped)


def test_an_old_folder_opens_as_it_was_and_is_rewrapped_in_place(tmp_path: Path) -> None:
    root, kek = bytes(32), bytes(range(32, 64))
    for name, content in {"root.key": root, "acme.kek": aes_key_wrap(root, kek), "gone.kek": b""}.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    keys, wrapped = FileKeyProvider.open(tmp_path), aes_key_wrap(kek, KEY)
    assert keys.unwrap("acme", wrapped) == KEY
    assert keys.rewrap("acme")
    assert not keys.rewrap("acme"), "again changes nothing"
    assert not keys.rewrap("gone"), "what was destroyed stays so"
    assert FileKeyProvider.open(tmp_path).unwrap("acme", wrapped) == KEY
    assert keys.owners() == ["acme", "gone"]


def test_the_master_is_rotated_rewrapped_and_retired_while_keys_are_in_use(tmp_path: Path) -> None:
    keys, gateway = FileKeyProvider.open(tmp_path), FileKeyProvider.open(tmp_path)
    wrapped = {tenant: gateway.wrap(tenant, KEY) for tenant in ("acme", "globex")}
    announced: list[int] = []
    assert keys.rotate_master(1, announced.append) == 2 and announced == [2]
    assert keys.rewrap("acme")
    with pytest.raises(KeyProviderError, match="globex is still wrapped under file, 1"):
        keys.retire_master(2)
    assert keys.state().versions == (1, 2), "nothing was destroyed"
    gateway.wrap("initech", KEY)
    assert keys.state_of("initech").wrapped_under == {1: ("file", 2)}
    assert keys.rewrap("globex")
    keys.retire_master(2)
    assert keys.state().versions == (2,)
    for reader in (gateway, FileKeyProvider.open(tmp_path)):
        assert {reader.unwrap(tenant, one) for tenant, one in wrapped.items()} == {KEY}


def test_keys_move_from_one_master_to_another_and_nothing_new_goes_under_the_former(tmp_path: Path) -> None:
    class Elsewhere(FileMaster):
        provider = "vault"

    old = FileKeyProvider.open(tmp_path / "keys")
    wrapped = old.wrap("acme", KEY)
    elsewhere = Elsewhere.open(tmp_path / "elsewhere.key")
    with pytest.raises(KeyProviderError, match="wrapped by file, not by vault"):
        KeyRing(KeyFolder(tmp_path / "keys"), elsewhere).unwrap("acme", wrapped)
    ring = KeyRing(KeyFolder(tmp_path / "keys"), elsewhere, former=FileMaster.open(tmp_path / "keys" / "root.key"))
    ring.wrap("globex", KEY)
    assert ring.state_of("globex").wrapped_under == {1: ("vault", 1)}
    assert ring.rewrap("acme")
    assert KeyRing(KeyFolder(tmp_path / "keys"), elsewhere).unwrap("acme", wrapped) == KEY
    with pytest.raises(KeyProviderError, match="wrapped by vault"):
        FileKeyProvider.open(tmp_path / "keys").unwrap("acme", wrapped)


def test_an_owner_gets_a_new_key_and_the_old_one_opens_what_it_wrapped_until_it_ends(tmp_path: Path) -> None:
    keys = FileKeyProvider.open(tmp_path)
    old = keys.wrap("acme", KEY)
    assert keys.begin_renewal("acme") == keys.begin_renewal("acme") == 2, "a renewal that has begun is gone on with"
    new = keys.wrap("acme", KEY)
    assert (generation_of(old), generation_of(new)) == (1, 2)
    assert keys.unwrap("acme", old) == keys.unwrap("acme", new) == KEY
    keys.end_renewal("acme")
    keys.end_renewal("acme")
    assert keys.unwrap("acme", new) == KEY
    with pytest.raises(KeyLost):
        keys.unwrap("acme", old)
    keys.destroy("acme")
    with pytest.raises(KeyLost):
        keys.begin_renewal("acme")


@pytest.mark.parametrize("content", [b"{}", b"[]", b"x", b'{"1": "file:v1:"}', b'{"1": 7}', b'{"x": "y"}'])
def test_a_damaged_file_of_a_key_is_a_lost_key(tmp_path: Path, content: bytes) -> None:
    keys = FileKeyProvider.open(tmp_path)
    wrapped = keys.wrap("acme", KEY)
    (tmp_path / "acme.kek").write_bytes(content)
    with pytest.raises(KeyLost):
        keys.unwrap("acme", wrapped)


def test_many_at_once_agree_on_one_key(tmp_path: Path) -> None:
    rings = [FileKeyProvider.open(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda ring: ring.wrap("acme", KEY), rings))
    assert {FileKeyProvider.open(tmp_path).unwrap("acme", one) for one in made} == {KEY}
