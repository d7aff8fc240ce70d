"""The commands on private values, as a data protection officer types them."""

import json
import subprocess
import sys
import time
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from audit.events.private_value import Private
from tests.audit.conftest import KNOWN, Home, accepted, completed

SHELL = CliRunner()
ALICE, BOB = "alice@example.com", "bob@example.com"


@pytest.fixture
async def data(home: Home) -> Path:
    """The data folder of a log with values of two people; Alice's time is over."""
    async with home.context() as context:
        past, future = (int((time.time() + days * 86_400) * 1000) for days in (-1, 1))
        for request, person, expires in [("a", ALICE, past), ("b", BOB, future)]:
            await context.record(accepted(request), Private({"input": f"by {request}"}, person, expires=expires))
            await context.record(completed(request))
    return home.path.parent.parent


def run(data: Path, *words: object, answer: str | None = None) -> Result:
    at = 2 if words[0] == "hold" else 1  # behind the words of the command
    line = [*map(str, (*words[:at], "acme", *words[at:])), "--data", str(data)]
    return SHELL.invoke(app, line, input=answer, terminal_width=200, color=False)


def said(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_person_is_erased_with_a_certificate_and_the_log_still_holds(data: Path, tmp_path: Path) -> None:
    note = tmp_path / "certificate.note"
    done = said(run(data, "erase", "--subject", ALICE, "--yes", "--output", note, "--json"))
    assert done["certificate"]["values"] == 2
    assert note.read_text(encoding="utf-8") == done["note"]
    assert SHELL.invoke(app, ["verify", "--data", str(data)]).exit_code == 0
    again = run(data, "erase", "--subject", ALICE, "--yes")
    assert again.exit_code == 1
    assert "nothing is kept" in again.stderr


def test_nothing_is_erased_without_being_told_what_or_without_a_yes(data: Path) -> None:
    for words in ([], ["--subject", ALICE, "--all"], ["--records", "4-2"], ["--records", "x"]):
        assert run(data, "erase", "--yes", *words).exit_code == 2
    assert run(data, "erase", "--subject", ALICE, answer="n\n").exit_code == 1
    assert ALICE in run(data, "read", "--seq", 0).stdout


def test_a_hold_stops_the_erasure_until_it_is_released(data: Path) -> None:
    hold = said(run(data, "hold", "create", "--subject", ALICE, "--json"))["hold_id"]
    refused = run(data, "erase", "--subject", ALICE, "--yes")
    assert refused.exit_code == 1
    assert str(hold) in refused.stderr
    assert str(hold) in run(data, "hold", "list").stdout
    assert run(data, "hold", "release", hold).exit_code == 0
    assert "No hold is in force" in run(data, "hold", "list").stdout
    assert run(data, "erase", "--subject", ALICE, "--yes").exit_code == 0


def test_access_restriction_and_correction_from_the_command_line(data: Path) -> None:
    assert said(run(data, "dsar", "--subject", ALICE))["records"][0]["values"]["input"]["value"] == "by a"
    assert run(data, "restrict", "--subject", ALICE).exit_code == 0
    assert "restricted" in run(data, "read", "--seq", 0).stderr
    assert run(data, "restrict", "--subject", ALICE, "--lift").exit_code == 0
    assert run(data, "rectify", "--seq", 0, "--field", "input", "--value", "by A").exit_code == 0
    assert run(data, "rectify", "--seq", 0, "--field", "output", "--value", "x").exit_code == 1
    values = [one["values"]["input"]["value"] for one in said(run(data, "dsar", "--subject", ALICE))["records"]]
    assert values == ["by a", "by A"]


def test_verification_accounts_for_every_private_value(data: Path, home: Home) -> None:
    def verdict() -> tuple[int, dict[str, object]]:
        done = SHELL.invoke(app, ["verify", "--json", "--data", str(data)])
        return done.exit_code, json.loads(done.stdout)

    assert verdict()[1]["private_values"] == {"withheld": 4}
    run(data, "erase", "--subject", ALICE, "--yes")
    assert verdict()[0] == 0
    assert verdict()[1]["private_values"] == {"erased": 2, "withheld": 2}
    with closing(home.side()) as side, side.transaction() as db:
        db.execute("DELETE FROM value WHERE field = 'input'")
    code, report = verdict()
    assert (code, report["ok"], report["private_values"]) == (1, False, {"erased": 2, "withheld": 1, "missing": 1})
    assert "1 private values are not accounted for" in SHELL.invoke(app, ["verify", "--data", str(data)]).stdout


def test_verification_leaves_the_side_store_as_it_is(data: Path, home: Home) -> None:
    side = home.path.with_name("side.db")
    before = side.read_bytes()
    assert SHELL.invoke(app, ["verify", "--data", str(data)]).exit_code == 0
    assert side.read_bytes() == before
    side.write_bytes(b"")
    emptied = SHELL.invoke(app, ["verify", "--data", str(data)])
    assert emptied.exit_code == 1
    assert "not a value store" in emptied.stderr
    assert side.read_bytes() == b""


def test_retention_says_first_and_does_then(data: Path) -> None:
    planned = said(run(data, "retention", "--dry-run", "--json"))["runs"][0]
    assert (planned["due"], planned["deleted"]) == (2, 2)
    assert said(run(data, "retention", "--json"))["runs"][0]["deleted"] == 2
    assert "acme: 0 values due" in run(data, "retention").stdout


def test_a_pack_made_from_the_command_line_is_checked_from_it(data: Path, home: Home, tmp_path: Path) -> None:
    target, known = tmp_path / "pack.zip", tmp_path / "registers.json"
    known.write_text(KNOWN.model_dump_json())
    made = said(run(data, "export", "--output", target, "--evidence", known, "--json"))
    assert (made["end"], made["policies_unknown"]) == (4, 0)
    with zipfile.ZipFile(target) as archive:
        verifier = archive.extract("verify.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-S", verifier, target, "--key", str(home.key)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 records of acme" in done.stdout and "The pack holds." in done.stdout
    assert run(data, "export", "--output", target).exit_code == 1


def test_who_exports_calls_without_their_policies_is_told_before_the_auditor_is(data: Path, tmp_path: Path) -> None:
    done = run(data, "export", "--output", tmp_path / "pack.zip")
    assert "2 calls were decided by policies that are not in the pack" in done.stdout


@pytest.mark.parametrize("words", [["export", "--output", "x.zip"], ["retention"], ["erase", "--all", "--yes"]])
def test_without_a_log_nothing_is_made_up(tmp_path: Path, words: list[str]) -> None:
    done = run(tmp_path, *words)
    assert done.exit_code == 1
    assert "no audit log" in done.stderr
    assert list(tmp_path.iterdir()) == []
