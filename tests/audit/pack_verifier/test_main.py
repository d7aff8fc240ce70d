"""Whatever is in a pack, the verifier says what does not hold. It does not fall over."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.pack.export import export
from audit.pack_verifier.__main__ import main, printable
from tests.audit.conftest import KNOWN, Home, accepted, completed
from tests.audit.pack.test_export import Files, edit, rewritten, settled


@pytest.fixture
async def pack(home: Home, tmp_path: Path) -> Path:
    async with home.context() as context:
        await context.record(accepted("a"))
        await context.record(completed("a"))
        await settled(home)
        await export(context, "acme", tmp_path / "pack.zip", evidence=KNOWN)
    return tmp_path / "pack.zip"


def manifest(value: object) -> Callable[[Files], None]:
    return lambda files: files.update({"manifest.json": json.dumps(value).encode()})


def field(name: str, value: object) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files["manifest.json"] = json.dumps(json.loads(files["manifest.json"]) | {name: value}).encode()

    return change


def commitments(files: Files) -> None:
    first, rest = files["events.jsonl"].split(b"\n", 1)
    event = json.loads(first) | {"commits": 7}
    files["events.jsonl"] = json.dumps(event, sort_keys=True, separators=(",", ":")).encode() + b"\n" + rest


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (manifest([]), "manifest.json is not a manifest of this format"),
        (manifest("x"), "manifest.json is not a manifest of this format"),
        (field("end", float("inf")), "manifest.json is not a manifest of this format"),
        (field("files", 3), "manifest.json is not a manifest of this format"),
        (field("key", None), "that is not a verifier key"),
        (field("end", 3), "record 2 is missing at the end"),
        (field("first", 1), "the proof of what came before the first record has the wrong length"),
        (commitments, "it is not a record of this format"),
    ],
)
def test_what_is_not_of_the_format_is_told_as_a_finding(
    pack: Path, change: Callable[[Files], None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed(files: Files) -> None:
        before = files["manifest.json"]
        change(files)
        assert (files["manifest.json"] != before) is (change is not commitments)

    spoilt = rewritten(pack, changed)
    assert main([str(spoilt)]) == 1
    said = capsys.readouterr().out
    assert told in said
    assert said.endswith("The pack DOES NOT HOLD; keep it as it is, and ask its maker for a new one.\n")


def test_a_whole_pack_holds_and_one_that_was_changed_does_not(
    home: Home, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(pack), "--key", str(home.key)]) == 0
    said = capsys.readouterr().out
    assert "2 records of acme, number 0 and on; private values: none\nThe pack holds.\n" in said
    assert main([str(rewritten(pack, edit)), "--key", str(home.key), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


@pytest.mark.parametrize("more", [["--checkpoint", "none"], ["--witness", "none"]])
def test_what_the_auditor_gives_must_be_readable(
    pack: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(pack), *more, "--json"]) == 2
    assert "error" in json.loads(capsys.readouterr().out)


def test_nothing_in_a_pack_can_move_the_cursor_of_who_reads_the_findings() -> None:
    assert printable("a\x1b[2Jb\u202ec\n") == "a\ufffd[2Jb\ufffdc\ufffd"


DEEP = b"[" * 200_000


def with_content(name: str, content: bytes) -> Callable[[Files], None]:
    return lambda files: files.update({name: content})


JSON_FILES = (
    "manifest.json",
    "proofs/range.json",
    "proofs/policies.json",
    "proofs/certificates.json",
    "proofs/anchor.json",
    "policy_history.json",
    "policies_in_force.json",
    "fields.jsonl",
    "events.jsonl",
    "incidents.json",
    "subject_requests.json",
    "ai_systems.json",
    "erasure_certificate.json",
)


@pytest.mark.parametrize("content", [DEEP, b'{"a":' * 90_000, b"\xff\xfe", b" ", b"\x00" * 9, b"9" * 5000, b"NaN"])
def test_json_of_any_depth_or_none_is_a_finding(pack: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    for name in JSON_FILES:
        assert main([str(rewritten(pack, with_content(name, content)))]) == 1, name
        assert capsys.readouterr().out.endswith(
            "The pack DOES NOT HOLD; keep it as it is, and ask its maker for a new one.\n"
        ), name


def test_a_manifest_that_names_more_records_than_can_be_counted_is_found_at_once(
    pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for end in (10**18, 2**63, -(10**18)):
        assert main([str(rewritten(pack, field("end", end))), "--json"]) == 1
        assert len(json.loads(capsys.readouterr().out)["findings"]) < 60


def test_a_member_whose_compressed_bytes_are_damaged_is_a_finding(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("manifest.json", "events.jsonl", "ocsf.jsonl", "README.html", "checkpoint"):
        with zipfile.ZipFile(pack) as archive:
            start = archive.getinfo(name).header_offset + 30 + len(name) + 20  # local header, name, zip64 field
        data = bytearray(pack.read_bytes())
        data[start : start + 12] = bytes(byte ^ 0xFF for byte in data[start : start + 12])
        (tmp_path / "damaged.zip").write_bytes(data)
        assert main([str(tmp_path / "damaged.zip")]) == 1, name
        assert "cannot be unpacked" in capsys.readouterr().out, name


def replaced(target: Path, kind: str, elsewhere: Path) -> None:
    """The file becomes a pipe, a link to its own content elsewhere, or a folder."""
    content = target.read_bytes() if target.exists() else b""
    target.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "link":
        elsewhere.write_bytes(content)
        target.symlink_to(elsewhere)
    else:
        target.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_regular_file_in_an_unpacked_pack_is_a_finding_and_is_not_read(
    pack: Path, kind: str, tmp_path: Path
) -> None:
    for at, name in enumerate(("manifest.json", "events.jsonl", "README.html", "proofs/range.json", "extra")):
        folder = tmp_path / f"out-{at}"
        with zipfile.ZipFile(pack) as archive:
            archive.extractall(folder)
        replaced(folder / name, kind, tmp_path / f"elsewhere-{at}")
        assert main([str(folder)]) == (0 if kind == "folder" and name == "extra" else 1), name


def test_members_whose_names_lead_elsewhere_are_findings_and_nothing_is_written(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["../up.txt", "/abs.txt", "C:\\drive.txt", "a\x00b", "e\u0301vents.csv", "proofs/../x", "EVENTS.CSV"]
    spoilt = rewritten(pack, lambda files: files.update({name: b"x" for name in names}))
    before = sorted(str(one) for one in tmp_path.rglob("*"))
    assert main([str(spoilt)]) == 1
    assert "is not in the manifest" in capsys.readouterr().out
    assert sorted(str(one) for one in tmp_path.rglob("*")) == before
