"""Files that somebody else wrote: no link, device or size gets past the reader."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.files.untrusted_file import UnsafeFile, read_untrusted


def test_a_file_within_its_bound_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_untrusted(tmp_path / "a", 5) == b"12345"
    with pytest.raises(UnsafeFile, match="more than 4 bytes"):
        read_untrusted(tmp_path / "a", 4)


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/")],
    ids=["pipe", "folder", "device", "link to a folder"],
)
def test_what_is_no_file_is_refused_without_waiting(
    tmp_path: Path, make: Callable[[Path], object], follow: bool
) -> None:
    make(tmp_path / "a")
    with pytest.raises(UnsafeFile):
        read_untrusted(tmp_path / "a", 100, follow_links=follow)


def test_a_link_is_followed_only_where_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(UnsafeFile, match="symbolic link"):
        read_untrusted(tmp_path / "link", 100)
    assert read_untrusted(tmp_path / "link", 100, follow_links=True) == b"x"


def test_a_sparse_file_of_a_terabyte_fills_no_memory(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 1 << 40)
    with pytest.raises(UnsafeFile):
        read_untrusted(tmp_path / "a", 100)
