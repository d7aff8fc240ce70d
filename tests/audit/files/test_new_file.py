"""Files the product writes: whole or absent, never through a link, with modes that the umask does not change."""

import os
import stat
from pathlib import Path

import pytest

from audit.files.new_file import PUBLIC, make_private_folder, new_file, replace_file
from tests.audit.files.test_database_file import umask


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        with new_file(tmp_path / "new") as file:
            file.write(b"x")
        replace_file(tmp_path / "again", b"x")
        replace_file(tmp_path / "public", b"x", PUBLIC)
        make_private_folder(tmp_path / "a" / "b")
    assert (mode(tmp_path / "new"), mode(tmp_path / "again"), mode(tmp_path / "public")) == (0o600, 0o600, 0o644)
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o700, 0o700)


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), new_file(tmp_path / "new") as file:
        file.write(b"half")
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("old")
    with pytest.raises(FileExistsError, match="exists already; choose another name"), new_file(tmp_path / "new"):
        raise AssertionError("not reached")
    assert (tmp_path / "new").read_text() == "old"


def test_what_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), new_file(tmp_path / "new"):
        (tmp_path / "new").write_text("theirs")
    assert (tmp_path / "new").read_text() == "theirs"
    assert [file.name for file in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_not_written_through(tmp_path: Path, there: bool) -> None:
    victim = tmp_path / "victim"
    if there:
        victim.write_text("precious")
    (tmp_path / "new").symlink_to(victim)
    with pytest.raises(FileExistsError), new_file(tmp_path / "new"):
        raise AssertionError("not reached")
    replace_file(tmp_path / "new", b"mine")
    assert not (tmp_path / "new").is_symlink()
    assert victim.exists() is there
    assert not there or victim.read_text() == "precious"


def test_two_drafts_of_one_name_have_names_that_nobody_guesses(tmp_path: Path) -> None:
    names = set()
    for _ in range(2):
        with new_file(tmp_path / "q.zip"):
            (draft,) = (one.name for one in tmp_path.iterdir())
            names.add(draft)
        os.unlink(tmp_path / "q.zip")
    assert len(names) == 2
    assert all(len(name) >= len(".q.zip.") + 16 for name in names)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make_private_folder(tmp_path / "file" / "folder")
