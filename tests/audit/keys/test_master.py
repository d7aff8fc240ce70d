"""The file master: versions that come and go, and what it refuses to open."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

from audit.errors import KeyLost, KeyProviderError
from audit.keys.master import FileMaster, origin_of

KEY = bytes(range(32))


def master(folder: Path) -> FileMaster:
    return FileMaster.open(folder / "root.key")


def test_a_key_opens_under_its_context_alone_and_after_a_restart(tmp_path: Path) -> None:
    wrapped = master(tmp_path).wrap("a", KEY)
    assert origin_of(wrapped) == ("file", 1)
    assert KEY not in wrapped
    assert master(tmp_path).unwrap("a", wrapped) == KEY
    with pytest.raises(KeyLost):
        master(tmp_path).unwrap("b", wrapped)


def test_what_was_wrapped_before_there_were_versions_still_opens_and_moves_on(tmp_path: Path) -> None:
    mine = master(tmp_path)
    old = aes_key_wrap((tmp_path / "root.key").read_bytes(), KEY)
    assert origin_of(old) == ("file", 1)
    assert mine.unwrap("a", old) == KEY
    assert mine.unwrap("a", mine.rewrap("a", old)) == KEY


def test_after_a_rotation_the_new_version_wraps_and_both_open_in_every_process(tmp_path: Path) -> None:
    one, other = master(tmp_path), master(tmp_path)
    old = one.wrap("a", KEY)
    assert one.rotate() == 2
    assert origin_of(other.wrap("a", KEY)) == ("file", 2), "a process that did not rotate wraps under it at once"
    assert other.unwrap("a", old) == KEY
    assert origin_of(other.rewrap("a", old)) == ("file", 2)
    assert other.state().versions == (1, 2)


def test_a_retired_version_is_gone_for_good_and_the_newest_cannot_be(tmp_path: Path) -> None:
    mine = master(tmp_path)
    old = mine.wrap("a", KEY)
    mine.rotate()
    content = (tmp_path / "root.key").read_bytes()
    mine.retire(2)
    mine.retire(2)
    with pytest.raises(KeyLost, match="version 1"):
        mine.unwrap("a", old)
    with pytest.raises(KeyLost, match="version 1"):
        master(tmp_path).unwrap("a", old)
    assert all(content not in file.read_bytes() for file in tmp_path.iterdir())
    with pytest.raises(KeyProviderError, match="no version 3"):
        mine.retire(3)
    assert mine.state().versions == (2,)
    assert mine.rotate() == 3, "a number is never used twice"


@pytest.mark.parametrize("wrapped", [b"", b"x" * 39, b"file:v0:AAAA", b"file:v1:", b"file:v1:!!", b"file:v1:AAAA\n"])
def test_what_is_no_wrapped_key_is_lost(tmp_path: Path, wrapped: bytes) -> None:
    with pytest.raises(KeyLost):
        master(tmp_path).unwrap("a", wrapped)


def test_a_key_of_another_provider_is_not_lost_but_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(KeyProviderError, match=r"secrets\.provider") as told:
        master(tmp_path).unwrap("a", b"vault:v1:AAAA")
    assert not isinstance(told.value, KeyLost)


def test_no_root_key_is_made_beside_keys_that_another_one_wrapped(tmp_path: Path) -> None:
    (tmp_path / "acme.kek").write_bytes(b"")
    with pytest.raises(KeyProviderError, match="restore it"):
        master(tmp_path)
    assert not (tmp_path / "root.key").exists()


@pytest.mark.parametrize("version", [1, 2])
def test_a_loose_short_or_linked_root_key_is_refused_in_every_version(tmp_path: Path, version: int) -> None:
    master(tmp_path).rotate()
    path = tmp_path / ("root.key" if version == 1 else "root.key.2")
    path.chmod(0o640)
    with pytest.raises(KeyProviderError, match="chmod 600"):
        master(tmp_path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(KeyProviderError, match="32 bytes"):
        master(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyProviderError, match="symbolic link"):
        master(tmp_path)
