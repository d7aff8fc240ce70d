import asyncio
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from audit.events.event import AdminChanged
from audit.keys.signer import FileSigner
from audit.log.receipt import Receipt
from tests.audit.conftest import Home, accepted, completed

SHELL = CliRunner()


def run(*arguments: object) -> Result:
    return SHELL.invoke(app, [str(argument) for argument in arguments], terminal_width=200, color=False)


@pytest.fixture
async def receipts(home: Home) -> list[Receipt]:
    async with await home.open() as log:
        told = [await log.append(accepted(f"r{number}")) for number in range(3)]
        told += [await log.append(completed("r0")), await log.append(accepted("g", "globex"))]
    return told


@pytest.fixture
def data(home: Home, receipts: list[Receipt]) -> Path:
    """The data folder of a log of two tenants."""
    return home.path.parent.parent


def tamper(home: Home) -> None:
    with sqlite3.connect(home.path) as db:
        db.execute("UPDATE leaf SET payload = replace(payload, 'support', 'sales') WHERE seq = 1")
    db.close()


# --- verify ----------------------------------------------------------------------------------------------------------


def test_a_log_that_holds_exits_0_and_says_under_which_key(data: Path, home: Home) -> None:
    done = run("verify", "--data", data)
    assert done.exit_code == 0, done.output
    assert f"The log holds under the key {home.key}." in done.output
    assert "keep it elsewhere and pass --public-key" in done.output
    for tenant in ("_system", "acme", "globex"):
        assert tenant in done.output


def test_a_log_that_was_changed_exits_1_and_names_the_record(data: Path, home: Home) -> None:
    tamper(home)
    done = run("verify", "--data", data)
    assert done.exit_code == 1
    assert "error: acme, record 1: its content hashes to" in done.output
    assert "FAIL: the log does not hold" in done.output


def test_a_machine_reads_the_same_verdict(data: Path, home: Home) -> None:
    good = run("verify", "--data", data, "--json")
    assert good.exit_code == 0
    assert json.loads(good.output)["ok"] is True
    tamper(home)
    bad = run("verify", "--data", data, "--json")
    assert bad.exit_code == 1
    report = json.loads(bad.output)
    assert report["ok"] is False
    assert [finding["seq"] for tree in report["trees"] for finding in tree["findings"]] == [1]


def test_the_data_folder_is_taken_from_the_environment_or_from_here(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMICILE_DATA", str(data))
    assert run("verify").exit_code == 0
    monkeypatch.delenv("DOMICILE_DATA")
    monkeypatch.chdir(data.parent)
    shutil.copytree(data, Path("domicile-data"), ignore=shutil.ignore_patterns("domicile-data"))
    assert run("verify").exit_code == 0


def test_a_copy_of_the_file_is_verified_with_a_key_kept_elsewhere(data: Path, home: Home, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy.db"
    copy.parent.mkdir()
    shutil.copy(home.path, copy)
    assert "there is no verifier key beside copy.db" in run("verify", "--log", copy).stderr
    vkey = tmp_path / "held.vkey"
    vkey.write_text(f"{home.key}\n")
    for key in (home.key, vkey):
        done = run("verify", "--log", copy, "--public-key", key)
        assert done.exit_code == 0, done.output
        assert "keep it elsewhere" not in done.output


def test_under_another_key_nothing_holds(data: Path, tmp_path: Path) -> None:
    other = FileSigner.open(tmp_path / "other.key").verifier_key
    done = run("verify", "--data", data, "--public-key", other)
    assert done.exit_code == 1
    assert "no known key signed the note" in done.output


def test_one_tenant_alone_can_be_verified(data: Path, home: Home) -> None:
    tamper(home)
    assert run("verify", "--data", data, "globex").exit_code == 0
    assert run("verify", "--data", data, "globex", "acme").exit_code == 1


def test_a_checkpoint_that_was_kept_shows_a_log_rolled_back(data: Path, home: Home, tmp_path: Path) -> None:
    reader = home.reader()
    (checkpoint,) = reader.checkpoints("globex")
    reader.close()
    held = tmp_path / "held.txt"
    held.write_text(checkpoint.note, encoding="utf-8")
    assert run("verify", "--data", data, "--checkpoint", held).exit_code == 0
    with sqlite3.connect(home.path) as db:
        for table in ("leaf", "checkpoint", "open_intent"):
            db.execute(f"DELETE FROM {table} WHERE tree = (SELECT id FROM tree WHERE tenant = 'globex')")
        db.execute("DELETE FROM tree WHERE tenant = 'globex'")
    db.close()
    assert run("verify", "--data", data).exit_code == 0
    done = run("verify", "--data", data, "--checkpoint", held)
    assert done.exit_code == 1
    assert "the checkpoint you hold of size 1" in done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "nowhere"], "there is no audit log at nowhere/audit/log.db"),
        (["--log", __file__], "the audit file cannot be used"),
        (["nobody"], "the log has no tenant 'nobody'"),
        (["--public-key", "not a key"], "a verifier key has another form; give name+key id+base64"),
        (["--checkpoint", "nowhere"], "No such file"),
    ],
)
@pytest.mark.parametrize("machine", [False, True])
def test_what_cannot_be_verified_exits_1_with_one_sentence(
    data: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str, machine: bool
) -> None:
    monkeypatch.setenv("DOMICILE_DATA", str(data))
    done = run("verify", *arguments, *(["--json"] if machine else []))
    assert done.exit_code == 1
    assert sentence in (json.loads(done.stdout)["error"] if machine else done.stderr)
    assert "Traceback" not in done.output


# --- show ------------------------------------------------------------------------------------------------------------


def test_the_latest_events_are_listed_oldest_first(data: Path) -> None:
    done = run("show", "--data", data, "acme", "--limit", "2")
    assert done.exit_code == 0
    assert "inference.completed" in done.output
    assert done.output.index("r2") < done.output.index("r0")
    assert "r1" not in done.output


def test_the_events_of_a_period_are_listed_and_only_they_are_said_to_have_been_read(home: Home) -> None:
    async def record() -> None:
        now = [0.0]
        async with await home.open(clock=lambda: now[0]) as log:
            for number, now[0] in enumerate((1.0e9, 1.0e9, 1.2e9, 1.3e9)):  # in 2001, 2001, 2008 and 2011
                await log.append(accepted(f"r{number}"))

    asyncio.run(record())
    data = home.path.parent.parent

    def shown(*words: str) -> list[str]:
        lines = run("show", "--data", data, "acme", "--json", *words).output.splitlines()
        return [record["request_id"] for record in map(json.loads, lines) if "request_id" in record]

    assert shown("--until", "2008") == ["r0", "r1"]
    assert shown("--since", "2008", "--until", "2009") == ["r2"]
    assert shown("--since", "2001-09-09", "--until", "2011-01-01", "--limit", "1") == ["r2"]
    assert shown("--until", "2000") == []
    reads = [event for event in home.events("acme") if event["type"] == "log.read"]
    assert [(one["first"], one["end"]) for one in reads] == [(0, 2), (2, 3), (2, 3), (0, 0)]


def test_a_period_that_is_none_is_named_by_its_option(data: Path, home: Home) -> None:
    before = home.events("acme")
    done = run("show", "--data", data, "acme", "--until", "yesterday")
    assert done.exit_code == 2
    assert "--until 'yesterday' is no moment; write 2026-03" in done.output
    assert home.events("acme") == before


def test_a_machine_reads_one_record_a_line_as_it_was_hashed(data: Path, home: Home) -> None:
    lines = run("show", "--data", data, "acme", "--json").output.splitlines()
    records = [json.loads(line) for line in lines]
    assert [record.pop("seq") for record in records] == [0, 1, 2, 3]
    assert records == home.events("acme")[:-1]  # the last one says that they were read


async def test_words_that_a_client_chose_cannot_speak_to_the_terminal(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("r\x1b[2J", model_requested="[red]x[/] \x9b31m \u202e"))
    done = run("show", "--log", home.path, "acme")
    assert "[red]x[/]" in done.output
    assert not set(done.output) & {"\x1b", "\x9b", "\u202e"}


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000])
def test_what_is_no_record_is_shown_as_such(data: Path, home: Home, payload: bytes) -> None:
    with sqlite3.connect(home.path) as db:
        db.execute("UPDATE leaf SET payload = ? WHERE seq = 1", (payload,))
    db.close()
    done = run("show", "--data", data, "acme")
    assert done.exit_code == 0, done.output
    assert "inference.completed" in done.output
    assert run("show", "--data", data, "acme", "--json").exit_code == 0


async def test_showing_a_log_that_is_written_meanwhile_holds_nobody_up(
    data: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.storage.sqlite.BUSY_SECONDS", 3600)  # what a store waits for whoever holds a snapshot
    async with await home.open() as log:
        await log.append(accepted("r9"))
        done = await asyncio.to_thread(run, "show", "--data", data, "acme", "--limit", 2, "--json")
    assert [json.loads(line)["seq"] for line in done.stdout.splitlines()] == [5, 6], done.output
    assert json.loads(done.stdout.splitlines()[-1])["request_id"] == "r9"


def test_a_change_by_an_administrator_is_shown_with_who_what_and_how(tmp_path: Path) -> None:
    async def change() -> None:
        async with await Home(tmp_path).open() as log:
            fields = {"actor": "key:op-1", "target": "key/7GA3GXAA", "project": "support", "epoch": 9}
            detail = {"role": "dpo", "label": "x\x1b[2J"}
            event = {"type": "admin.key.rotated", "tenant": "acme", **fields, "detail": detail}
            await log.append(AdminChanged.model_validate(event))

    asyncio.run(change())
    said = run("show", "--data", tmp_path, "acme").output
    assert "actor=key:op-1 target=key/7GA3GXAA project=support epoch=9" in said
    assert "role:dpo" in said
    assert "\x1b" not in said


def test_showing_an_unknown_tenant_exits_1(data: Path) -> None:
    assert run("show", "--data", data, "nobody").exit_code == 1


# --- receipts --------------------------------------------------------------------------------------------------------


def test_a_receipt_is_proven_in_a_sentence_and_for_a_machine(data: Path, receipts: list[Receipt]) -> None:
    for receipt in receipts:
        done = run("receipt", "verify", receipt, "--data", data)
        assert done.exit_code == 0, done.output
        assert f"The record is number {receipt.seq} of domicile.local/audit/{receipt.tenant}, proven by" in done.output
    found = json.loads(run("receipt", "verify", receipts[0], "--data", data, "--json").output)
    assert found["record"]["request_id"] == "r0"
    assert found["checkpoint"] == {"origin": "domicile.local/audit/acme", "size": 4}
    assert len(found["proof"]) == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda receipt: f"globex/{receipt.seq}/{receipt.leaf_hash.hex()}",
            "not the one that the receipt was given for",
        ),
        (lambda receipt: f"acme/99/{receipt.leaf_hash.hex()}", "the log has no record 99"),
        (lambda receipt: "nonsense", "this is not a receipt; give tenant/seq/hash"),
    ],
)
def test_a_receipt_that_the_log_does_not_bear_out_exits_1(
    data: Path, receipts: list[Receipt], change: object, sentence: str
) -> None:
    done = run("receipt", "verify", change(receipts[0]), "--data", data)
    assert done.exit_code == 1
    assert sentence in done.stderr


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["verify"], ["show"], ["receipt", "verify"]])
def test_every_command_shows_an_example(command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.exit_code == 0
    assert f"domicile audit {' '.join(command)}" in done.output


# --- publish ---------------------------------------------------------------------------------------------------------


def test_a_published_tree_serves_proofs_and_is_read_once(data: Path, receipts: list[Receipt], home: Home) -> None:
    first = run("publish", "--data", data, "--json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.output)["trees"]["acme"] == {"size": 4, "read": 4}
    tiles = home.path.parent / "tiles" / "acme"
    assert (tiles / "tile/entries/000.p/4").is_file()
    assert run("receipt", "verify", receipts[0], "--data", data).exit_code == 0
    (tiles / "tile/0/000.p/4").write_bytes(bytes(128))
    assert run("receipt", "verify", receipts[0], "--data", data).exit_code == 1
    again = run("publish", "--data", data, "acme")
    assert "acme: 4 records" in again.output
    assert run("receipt", "verify", receipts[0], "--data", data).exit_code == 0
