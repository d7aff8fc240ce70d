"""Whatever is in a pack, the verifier says what does not hold. It does not fall over."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.pack.export import export
from audit.pack_verifier.__main__ import main, printable
from tests.audit.conftest import KNOWN, Home, accepted, completed
from tests.audit.pack.test_export import Files, edit, rewritten, settled


@pytest.fixture
async def pack(home: Home, tmp_path: Path) -> Path:
    async with home.custody() as custody:
        await custody.record(accepted("a"))
        await custody.record(completed("a"))
        await settled(home)
        await export(custody, "acme", tmp_path / "pack.zip", evidence=KNOWN)
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
    assert said.endswith("The pack DOES NOT HOLD.\n")


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
