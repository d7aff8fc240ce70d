"""A zip from which two programs would unpack two things is no pack."""

import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.pack_verifier.archive import Pack


def made(path: Path, *more: zipfile.ZipInfo, **attributes: int) -> bytearray:
    """A zip as the product writes it, with further members; `attributes` of its second member."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("manifest.json", "events.jsonl", "proofs/range.json"):
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(b"{}" * 100)
        for one in more:
            archive.writestr(one, b"x")
        for name, value in attributes.items():
            setattr(archive.getinfo("events.jsonl"), name, value)
    return bytearray(path.read_bytes())


def faults(path: Path) -> list[str]:
    return Pack(path).layout_faults()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pack.zip"


def test_a_pack_as_it_is_written_has_no_fault(path: Path) -> None:
    made(path)
    assert faults(path) == []


def test_a_folder_has_no_layout(path: Path, tmp_path: Path) -> None:
    made(path)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "out")
    assert faults(tmp_path / "out") == []


class Unseekable:
    """As a pipe: sizes then follow the data of each file."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.write, self.flush = self.file.write, self.file.flush


def test_a_pack_that_was_zipped_again_through_a_pipe_has_no_fault(path: Path) -> None:
    pipe = Unseekable(path)
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        archive.writestr("proofs/", b"")
        for name in ("manifest.json", "proofs/range.json"):
            archive.writestr(name, b"{}" * 100)
    pipe.file.close()
    assert faults(path) == []


@pytest.mark.parametrize(
    "name",
    ["../evil", "proofs/../../evil", "/etc/evil", "//host/evil", "C:evil", "..\\evil", "proofs/..", "a\0b"],
)
def test_a_name_that_leads_out_is_refused(path: Path, name: str) -> None:
    member = zipfile.ZipInfo("x")
    member.filename = name
    made(path, member)
    assert any("leads out of the pack" in one for one in faults(path))


def test_a_folder_of_the_name_of_a_file_is_refused(path: Path) -> None:
    made(path, zipfile.ZipInfo("events.jsonl/"))
    assert faults(path) == ["the name events.jsonl is that of a file and of a folder"]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR])
def test_a_member_that_is_no_regular_file_is_refused(path: Path, kind: int) -> None:
    made(path, external_attr=(kind | 0o777) << 16)
    assert faults(path) == ["the file events.jsonl is a link or a device, which no pack holds"]


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, b"PK\x07\x08"), (6, b"\x01"), (8, b"\x00"), (14, b"\x00" * 4), (18, b"\x05\x00\x00\x00"),
     (22, b"\x05\x00\x00\x00"), (30, b"E"), (30 + 12 + 4, b"\x01"), (30 + 12 + 12, b"\x01")],
    ids=["signature", "encrypted", "method", "crc", "packed", "size", "name", "size in zip64", "packed in zip64"],
)  # fmt: skip
def test_a_header_that_contradicts_the_directory_is_refused(path: Path, at: int, value: bytes) -> None:
    content = made(path)
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("events.jsonl").header_offset + at
    content[place : place + len(value)] = value
    path.write_bytes(content)
    assert faults(path) == ["the file events.jsonl is described in two ways: programs unpack it differently"]


def _before(content: bytes, path: Path) -> bytes:
    with zipfile.ZipFile(path.with_name("other.zip"), "w") as other:
        other.writestr("events.jsonl", b"another history")
    return path.with_name("other.zip").read_bytes() + content


def _between(content: bytes, path: Path) -> bytes:
    """A file before the directory that the directory does not name."""
    hidden = b"PK\x03\x04" + struct.pack("<5H3L2H", 20, 0, 0, 0, 0, 0, 1, 1, 1, 0) + b"h" + b"!"
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    end = bytearray(content[start:])
    end[-6:-2] = struct.pack("<L", start + len(hidden))
    return content[:start] + hidden + bytes(end)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content, path: b"MZ" + b"\0" * 600 + content, "something before the file manifest.json"),
        (_before, "something before the file manifest.json"),
        (_between, "something after the last file"),
        (lambda content, path: content + b"more", "something after the end of the zip"),
        (lambda content, path: content[:-2] + b"\x03\x00abc", "something after the end of the zip"),
    ],
    ids=["a program before it", "a zip before it", "a hidden file", "after it", "a comment"],
)
def test_what_the_directory_does_not_name_is_found(
    path: Path, change: Callable[[bytes, Path], bytes], says: str
) -> None:
    path.write_bytes(change(bytes(made(path)), path))
    found = faults(path)
    assert len(found) == 1 and says in found[0], found
