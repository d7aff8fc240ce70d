"""A pack is the same in its zip and in a folder."""

import zipfile
from pathlib import Path

import pytest

from audit.pack_verifier.archive import Pack
from audit.pack_verifier.fault import Broken


@pytest.fixture(params=["zip", "folder"])
def pack(request: pytest.FixtureRequest, tmp_path: Path) -> Pack:
    with zipfile.ZipFile(tmp_path / "pack.zip", "w") as made:
        made.writestr("manifest.json", b"{}")
        made.writestr("proofs/range.json", b"[]")
        made.mkdir("empty")
    if request.param == "zip":
        return Pack(tmp_path / "pack.zip")
    with zipfile.ZipFile(tmp_path / "pack.zip") as made:
        made.extractall(tmp_path / "out")
    return Pack(tmp_path / "out")


def test_files_are_listed_by_their_names_and_folders_are_not(pack: Pack) -> None:
    assert sorted(pack.names()) == ["manifest.json", "proofs/range.json"]
    assert pack.read("proofs/range.json") == b"[]"


@pytest.mark.parametrize("name", ["checkpoint", "proofs/none.json", "proofs/range.json/more"])
def test_a_file_that_is_not_there_is_missing(pack: Pack, name: str) -> None:
    with pytest.raises(Broken, match=f"the file {name} is missing"):
        pack.read(name)


def test_what_is_no_zip_is_no_pack(tmp_path: Path) -> None:
    (tmp_path / "pack.zip").write_text("not a zip")
    with pytest.raises(zipfile.BadZipFile):
        Pack(tmp_path / "pack.zip")
