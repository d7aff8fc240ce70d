"""What commands and a gateway write has the same modes under any umask, and nobody else may write it."""

import asyncio
import contextlib
import os
import stat

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from tests.fakes.lab import POLICY, chat, lab

KEEP = POLICY.replace("content: none", 'content: "encrypted, 30d"')
COMMANDS = (
    ("init", "--export-keys", "{out}/keys", "--data", "{data}"),
    ("audit", "anchor", "--data", "{data}"),
    ("audit", "publish", "--output", "{out}/published", "--data", "{data}"),
    ("audit", "publish", "--data", "{data}"),
    ("audit", "rotate", "--data", "{data}"),
    ("secrets", "rotate", "--data", "{data}"),
    ("key", "rekey", "--data", "{data}"),
    ("audit", "export", "acme", "--output", "{out}/pack.zip", "--data", "{data}"),
    ("audit", "breach", "--output", "{out}/draft.txt", "--data", "{data}"),
    ("audit", "erase", "acme", "--subject", "bob@example.org", "--yes", "--data", "{data}"),
    ("backup", "create", "{out}/copy", "--data", "{data}"),
    ("init", "--export-keys", "{out}/newer", "--data", "{data}"),
    ("backup", "restore", "{out}/copy", "--keys", "{out}/newer", "--data", "{out}/restored/data"),
)


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder):
    """By path, without what is drawn at random or is of one moment: names of keys, successions and tiles."""
    found = {}
    for one in [folder, *folder.rglob("*")]:
        name = str(one.relative_to(folder))
        name = "a succession" if name.endswith(".note") else name
        mode = f"{stat.S_IMODE(one.lstat().st_mode):04o}"
        if "/tile/" in name:  # which of them there are depends on when checkpoints were signed
            name = f"a folder in /tiles of mode {mode}" if one.is_dir() else f"a file in /tiles of mode {mode}"
        found[name] = mode
    return {name: mode for name, mode in found.items() if not name.endswith(("-wal", "-shm"))}


async def written_under(mask, folder):
    with umask(mask):
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)
        async with lab(folder, set_up=lambda made: made.tenant("acme", KEEP)) as cell:
            assert (await cell.post(chat("one"), headers={"x-domicile-subject": "bob@example.org"})).status == 200
    return {"data": folder / "data", "out": folder}


def run_all(mask, places):
    with umask(mask):
        for command in COMMANDS:
            result = CliRunner().invoke(app, [word.format(**places) for word in command])
            assert result.exit_code == 0, (command, result.output)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return under(0o022, tmp_path_factory.mktemp("usual") / "home")


def under(mask, folder):
    run_all(mask, asyncio.run(written_under(mask, folder)))
    return modes(folder)


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_what_is_written_has_the_same_modes_under_any_umask(tmp_path, usual, mask):
    found = under(mask, tmp_path / "home")
    assert {name: mode for name, mode in found.items() if usual.get(name) != mode} == {}
    assert usual.keys() == found.keys()


def test_only_what_is_meant_for_others_can_be_read_by_them_and_nothing_written(usual):
    public = ("signer.vkey", "/tiles", "published", ".pem", "a succession", ".note")
    for name, mode in usual.items():
        assert int(mode, 8) & 0o022 == 0, (name, mode)
        assert int(mode, 8) & 0o077 == 0 or any(part in name for part in public), (name, mode)
