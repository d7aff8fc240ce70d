"""Work on the record, on a data folder and over the admin API: the same output, word for word; and which commands have
no remote mode, each with its reason."""

import asyncio
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from audit.cli.command_context import open_keys
from audit.cli.on_files import do
from audit.events.private_value import Private
from audit.privacy.rights import log_read
from audit.storage.sqlite import SqliteReader
from gateway.cli.app import _keys_and_signer_of, _recorded_admin, app
from gateway.cli.remote.credentials import Credentials, save
from gateway.cli.terminal.host_only import HOST_ONLY, OF_NO_INSTALLATION, WITHOUT_A_FOLDER, why_host_only
from gateway.identity.keys import generate_key
from tests.audit.conftest import accepted, completed
from tests.fakes.lab import lab, open_control, until
from tests.gateway.cli.remote import test_same_output
from tests.gateway.cli.remote.test_same_output import Shell, compared_in, leaves_of

ALICE = "alice@example.com"

STEPS = """
audit request list acme
audit request create acme --right access --subject {alice} --received 2026-11-01T10:30Z --json =request:requests.0.id
audit request create acme --right erasure --subject {alice} --json =other:requests.0.id
!audit request create acme --right access --subject {alice} --received 2999-01-01T00:00Z
~audit request create acme --right marriage --subject {alice}
!audit request create acme --right access --subject {alice} --received today
audit dsar acme --subject {alice}
audit dsar acme --subject {alice} --html de
!audit dsar acme --subject nobody@example.com
!audit dsar acme --subject {alice} --html xx
audit request list acme --open
audit request list acme --json
audit request close acme {request} --outcome answered_elsewhere
~audit request close acme nothing --outcome withdrawn
!audit request close acme {other} --outcome refused
audit request extend acme {other} --reason complexity
!audit request extend acme {other} --reason complexity
audit request close acme {other} --outcome refused --reason manifestly_unfounded --json
audit read acme --seq {seq} --reason complaint
audit read acme --seq {seq} --json
~audit read acme --seq 100000
audit rectify acme --seq {seq} --field output --value Berlin
audit rectify acme --seq {seq} --field output --value '{{"city": "Berlin"}}' --json
!audit rectify acme --seq {seq} --field subject --value bob@example.com
audit restrict acme --subject {alice}
!audit read acme --seq {seq}
audit restrict acme --subject {alice} --lift --json
audit hold list acme
audit hold create acme --subject {alice} --reason litigation --json =hold:hold_id
audit hold create acme --records {seq} --json =second:hold_id
audit hold create acme --json =third:hold_id
!audit hold create acme --subject {alice} --records 1
!audit hold create acme --records 9-1
!audit hold create acme --records 999999
!audit hold create acme --records {seq}-999999
audit hold list acme
audit hold list acme --json
~audit hold release acme nothing
!audit erase acme --subject {alice} --yes
audit hold release acme {hold}
audit hold release acme {second} --json
audit hold release acme {third}
audit incident list acme
audit incident create acme --law gdpr --aware 2026-11-29T09:30Z --since 2026 --json =incident:incidents.0.incident_id
audit incident create acme --law dora --law gdpr --no-freeze --system cv --json =loose:incidents.0.incident_id
!audit incident create acme --law gdpr --aware 2999-01-01T00:00:00Z
!audit incident create acme --law gdpr --since 1999 --until 2000
!audit incident create acme --law marriage
!audit incident create acme --severity awful
audit incident update acme {incident} --severity high_risk
audit incident update acme {loose} --classified 2026-11-30T11:00:00Z --law nis2 --json
!audit incident update acme {loose}
~audit incident update acme {loose} --severity critical_infrastructure
audit incident notify acme {incident} --clock gdpr.authority --authority CNIL
~audit incident notify acme {incident} --clock dora.initial --authority BaFin
~audit incident notify acme nothing --clock gdpr.authority --authority CNIL
audit incident list acme --open
audit incident list acme --json
audit hold list acme --json
audit incident close acme {incident} --release
!audit incident close acme {incident}
audit incident close acme {loose} --reason resolved --json
audit erase acme --subject {alice} --yes --json
!audit erase acme --subject {alice} --records 1 --yes
!audit erase acme --records {seq} --reason court_order --yes
~mark detect nope {text} --project support
~mark detect acme {text} --project nope
!mark detect acme {text} --project support
"""
"""As in `test_same_output`; those with `~` fail in other words, of the API's schema or of its lists."""

ELSEWHERE_TESTED = {"apply", "audit challenge", "audit export", "audit find-answer", "deployment create", "mark list",
                    "region check"}  # fmt: skip
"""Compared by tests of their own; `deployment create`, whose check of weights differs where the gateway's settings do;
and what needs a folder for a part of what it does only."""
BY_NATURE = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32,64}\b|\b\d{13}\b|(?<= )[\w+/]{60,}={0,2}"
)
LEAVES = sorted(leaves_of(typer.main.get_command(app)))


def record_a_call(folder):
    """A call of Alice's, with what was sent and answered; its number."""

    async def work(context):
        kept = Private({"input": "where am I?", "output": "Paris"}, ALICE)
        begun = await context.record(accepted("a"), kept)
        await context.record(completed("a"))
        return begun.seq

    token = open_keys.set(_keys_and_signer_of)
    try:
        return do(folder, work)
    finally:
        open_keys.reset(token)


def fill(folder, size):
    """Reads on record, until there are `size` records."""

    async def work(context):
        with context.reading() as reader:
            missing = size - reader.head("acme")[0]
        for _ in range(missing):
            await log_read(context, "acme", actor="cli", reason="test")

    token = open_keys.set(_keys_and_signer_of)
    try:
        do(folder, work)
    finally:
        open_keys.reset(token)


def made_at(folder):
    """A tenant, made by commands on the folder; and the token of somebody who holds its rights and reads its record."""
    made = Shell(folder.parent, "maker", _recorded_admin)
    made.folder = folder
    for line in (
        "tenant create acme",
        "project create acme support --purpose x --legal-basis contract",
        "person create acme Grace --role dpo --role auditor --role billing --json =person:id",
        "person create-token acme {person} --json =token:token",
    ):
        status, *said = made.step(line)
        assert status == 0, (line, said)
    return made.values["token"]


@pytest.fixture
async def pair(tmp_path):
    """A folder here, and somebody who is logged in to an installation elsewhere, with the same on record."""
    here, there = (Shell(tmp_path, name, _recorded_admin) for name in ("here", "there"))
    here.folder = tmp_path / "local" / "data"
    await asyncio.to_thread(open_control, here.folder)
    await asyncio.to_thread(made_at, here.folder)
    await asyncio.to_thread(open_control, tmp_path / "served" / "data")
    token = await asyncio.to_thread(made_at, tmp_path / "served" / "data")
    async with lab(tmp_path / "served", set_up=lambda made: None, backends={}) as made:
        there.url, there.values["operator"] = made.base, token
        await asyncio.to_thread(there.login, there.values["operator"], there.home / "operator")
        text = tmp_path / "text"
        text.write_text("word " * 200)
        for shell in (here, there):
            shell.values |= {"alice": ALICE, "text": str(text)}
        yield SimpleNamespace(here=here, there=there, made=made)


async def test_the_record_is_worked_on_alike_on_a_folder_and_over_the_api(pair):
    number = await asyncio.to_thread(record_a_call, pair.made.data)
    await asyncio.to_thread(fill, pair.here.folder, number)  # a gateway has records of its own
    assert await asyncio.to_thread(record_a_call, pair.here.folder) == number
    different = []
    for line in STEPS.strip().splitlines():
        words = line.lstrip("~!").replace("{seq}", str(number))
        one, two = [_plain(await asyncio.to_thread(each.step, words)) for each in (pair.here, pair.there)]
        failed = line[0] in "~!"
        if (one[0] != 0) != failed or (two[0] != 0) != failed or (one != two and line[0] != "~"):
            different.append(f"{line}\n{one}\n{two}")
    assert not different, "\n\n".join(different)
    acts = [event for event in pair.made.events() if event["type"].startswith(("dsar.", "incident.", "legal_hold."))]
    assert acts and all(event["actor"].startswith("key:") for event in acts), "the token of the person"


def _plain(said):
    """Without identifiers, hashes, signatures and moments in milliseconds."""
    status, *texts = said
    return status, *(BY_NATURE.sub("<one>", text) for text in texts)


def signed(made):
    """Whether a checkpoint covers all that is on record."""
    reader = SqliteReader.open(made.data / "audit" / "log.db")
    try:
        return reader.last_checkpoint("acme").size == reader.head("acme")[0]
    finally:
        reader.close()


async def test_a_pack_is_made_by_the_gateway_and_verifies_here(pair, tmp_path, monkeypatch):
    """Over the API it comes whole or not at all, never with private values, and however large it is."""
    monkeypatch.setattr("gateway.cli.remote.api.MAX_BYTES", 20_000)
    asked = "audit request create acme --right access --subject {alice}"
    assert (await asyncio.to_thread(pair.there.step, asked))[0] == 0
    await until(lambda: signed(pair.made))
    target = tmp_path / "pack.zip"
    words = ["audit", "export", "acme", "-o", str(target)]
    said = await asyncio.to_thread(pair.there.run, [*words, "--json"])
    assert said.exit_code == 0, said.output
    key = (pair.made.data / "audit" / "signer.vkey").read_text().strip()
    with zipfile.ZipFile(target) as pack:
        pack.extract("verify.py", tmp_path)
        assert ALICE not in "".join(pack.read(name).decode("latin-1") for name in pack.namelist())
    check = [sys.executable, "-I", str(tmp_path / "verify.py"), str(target), "--key", key]
    verified = await asyncio.to_thread(subprocess.run, check, capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    assert json.loads(said.stdout)["end"] > 0 and target.stat().st_size > 20_000
    again = await asyncio.to_thread(pair.there.run, words)
    assert again.exit_code == 1 and "exists already" in again.stderr
    for more in (["--disclose"], ["--dsar", ALICE], ["--evidence", str(target)]):
        other = await asyncio.to_thread(pair.there.run, [*words[:-1], str(tmp_path / "other.zip"), *more])
        assert other.exit_code == 2 and "leave --evidence, --dsar and --disclose out" in other.stderr
    assert not (tmp_path / "other.zip").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("audit erase acme --all --yes", "over the admin API no whole tenant is erased"),
        ("audit erase acme --subject a --backup-days 3 --yes", "leave --backup-days out"),
        ("audit incident list acme --clocks {file}", "the clocks are the gateway's there"),
        ("mark detect acme {file} --project p --weights {file}", "run it on its host"),
        ("usage cost --what-if h100=3", "run it on its host"),
        ("mark list acme", "run it on its host"),
    ],
)
def test_what_is_the_hosts_alone_within_a_command_is_refused(words, why, tmp_path, monkeypatch):
    said = _elsewhere(words.format(file=_file(tmp_path)).split(), tmp_path, monkeypatch)
    assert said.exit_code != 0 and why in said.stderr, said.output


def test_every_command_is_compared_or_named_with_its_reason_as_one_for_the_host():
    compared = compared_in(test_same_output.STEPS) | compared_in(STEPS)
    named = {leaf for leaf in LEAVES if any(leaf == one or leaf.startswith(f"{one} ") for one in HOST_ONLY)}
    free = {leaf for leaf in LEAVES if any(leaf == one or leaf.startswith(f"{one} ") for one in OF_NO_INSTALLATION)}
    parts = compared, named, free, ELSEWHERE_TESTED
    assert sorted(leaf for part in parts for leaf in part) == LEAVES, "each in one of them"
    assert all(any(leaf == one or leaf.startswith(f"{one} ") for leaf in LEAVES) for one in HOST_ONLY)


def test_the_page_of_operations_lists_the_commands_for_the_host():
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text()
    for why in dict.fromkeys(HOST_ONLY.values()):
        names = ", ".join(f"`{command}`" for command, reason in HOST_ONLY.items() if reason == why)
        assert f"| {names} | {why} |\n" in page


@pytest.mark.parametrize("leaf", [leaf for leaf in LEAVES if why_host_only(leaf, None)])
def test_a_command_for_the_host_says_why_to_somebody_who_is_logged_in_elsewhere(leaf, tmp_path, monkeypatch):
    if any(leaf == one or leaf.startswith(f"{one} ") for one in WITHOUT_A_FOLDER):
        monkeypatch.setenv("DOMICILE_URL", "http://127.0.0.1:9")
    said = _elsewhere([*leaf.split(), *_needed(leaf, _file(tmp_path))], tmp_path, monkeypatch)
    assert said.exit_code == 1, said.output
    assert said.stderr.startswith(f"error: `domicile {leaf}` {why_host_only(leaf)}, so not over http"), said.stderr
    assert list((tmp_path / "work").iterdir()) == []


def _elsewhere(words, tmp_path, monkeypatch):
    """What a command says to somebody who is logged in to an installation that is not asked, and has no folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("DOMICILE_DATA", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    save(Credentials("http://127.0.0.1:9", generate_key(kind="admin").token))
    return CliRunner().invoke(app, words, obj=_recorded_admin)


def _file(tmp_path):
    file = tmp_path / "file"
    file.write_text("word " * 200)
    return str(file)


def _needed(leaf, file):
    """An argument for each parameter that a command requires."""
    command = typer.main.get_command(app)
    for word in leaf.split():
        command = command.commands[word]
    for one in command.params:
        if one.required:
            yield from ("x",) if one.param_type_name == "argument" else (one.opts[0], file)
