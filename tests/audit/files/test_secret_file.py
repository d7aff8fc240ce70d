import os
import stat
from pathlib import Path

import pytest

from audit.files.secret_file import (
    LoosePermissions,
    create_secret,
    read_secret,
    replace_secret,
    shred_secret,
    write_secret,
)


def test_a_symbolic_link_is_refused_even_to_a_good_file(tmp_path: Path) -> None:
    write_secret(tmp_path / "real", b"s")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(LoosePermissions, match="symbolic link"):
        read_secret(tmp_path / "link")
    with pytest.raises(LoosePermissions, match="symbolic link"):
        create_secret(tmp_path / "link", b"t")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    write_secret(tmp_path / "theirs", b"s")
    os.chown(tmp_path / "theirs", 12345, -1)
    with pytest.raises(LoosePermissions, match="user 12345"):
        read_secret(tmp_path / "theirs")


def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(LoosePermissions, match="plain file"):
        read_secret(tmp_path / "pipe")


@pytest.mark.parametrize("remove", [False, True])
def test_what_is_replaced_or_removed_is_overwritten_where_it_lay(tmp_path: Path, remove: bool) -> None:
    path = tmp_path / "key"
    write_secret(path, b"old secret")
    with path.open("rb") as old:  # the blocks, by a hand that outlives the name
        if remove:
            shred_secret(path)
        else:
            replace_secret(path, b"new")
        assert old.read() == bytes(10)
    assert not path.exists() if remove else read_secret(path) == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ([] if remove else ["key"])


def test_a_replaced_secret_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    write_secret(tmp_path / "key", b"old")
    replace_secret(tmp_path / "key", b"new")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("change", [replace_secret, lambda path, _: shred_secret(path)])
def test_what_is_not_there_cannot_be_replaced(tmp_path: Path, change: object) -> None:
    with pytest.raises(FileNotFoundError):
        change(tmp_path / "none", b"x")  # type: ignore[operator]
