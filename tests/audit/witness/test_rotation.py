"""The key changes, history stays: who holds either key verifies all of it, and nobody else's key is let in."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.cli.app import app
from audit.errors import AuditUnavailable, SignerError
from audit.events.private_value import Private
from audit.events.stamp import rfc3339
from audit.keys.signer import FileSigner, LogSigner
from audit.keys.succession import notes_in, open_succession, sign_succession, successors, with_successors
from audit.log.audit_log import AuditLog
from audit.pack.export import export
from audit.private.erasure import erase
from audit.storage.location import learn_successions, publish_succession
from audit.tree.merkle import leaf_hash, tree_hash
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import Checkpoint, origin_of, sign_checkpoint
from audit.verification.verify import Expected, Report, verify_log
from audit.witness.late_trees import LateTrees, record_late_trees
from audit.witness.rotation import in_file, rotate
from tests.audit.conftest import FAST, KNOWN, Home, accepted, completed
from tests.audit.pack.test_export import Files, lines, rewritten, sentences, settled, verify

ALICE = "alice@example.com"


async def turn(home: Home) -> VerifierKey:
    """Rotate, and let the log's keeper take the new key."""

    def opened(signer: LogSigner) -> Awaitable[AuditLog]:
        return AuditLog.open(home.path, signer=signer, node="cli-1", settings=FAST)

    at = rfc3339(int(time.time() * 1000))
    key = await rotate(
        home.path.parent, lambda: in_file(home.path.with_name("signer.key")), opened, home.reader, at=at, actor="cli"
    )
    home.signer = FileSigner.open(home.path.with_name("signer.key"))
    return key


@pytest.fixture
async def turned(home: Home) -> list[VerifierKey]:
    """The keys of a log whose key changed twice, with a certificate signed by the first."""
    keys = [VerifierKey(home.signer.name, home.signer.public_key)]
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "x"}, ALICE))
        await context.record(completed("a"))
        await erase(context, "acme", subject=ALICE)
    for number in range(2):
        keys.append(await turn(home))
        async with home.context() as context:
            await context.record(accepted(f"b{number}"))
    return keys


def faults(home: Home, key: VerifierKey) -> list[str]:
    reader = home.reader()
    try:
        return [one.says for one in verify_log(reader, with_successors(key, notes_in(home.path.parent))).findings]
    finally:
        reader.close()


async def test_the_holder_of_any_of_the_keys_verifies_the_whole_log(home: Home, turned: list[VerifierKey]) -> None:
    assert len({key.public_key for key in turned}) == 3
    for key in turned:
        assert faults(home, key) == []
    told = [event for event in home.events("acme") if event["type"] == "log.key_rotated"]
    assert [event["reason"] for event in told] == ["scheduled"] * 2, "one record a rotation"
    assert [event["new_key"] for event in told] == [str(key) for key in turned[1:]]


async def test_a_key_that_came_from_nowhere_is_refused(home: Home, turned: list[VerifierKey], tmp_path: Path) -> None:
    stranger = FileSigner.open(tmp_path / "stranger.key", name=home.signer.name)
    assert any("no known key signed" in says for says in faults(home, stranger.verifier_key))


async def test_a_log_that_hides_its_rotation_is_found_out(
    home: Home, turned: list[VerifierKey], tmp_path: Path
) -> None:
    extra = FileSigner.open(tmp_path / "extra.key", name=home.signer.name)
    folder = home.path.parent / "succession"
    at = "2026-11-28T03:00:00.000Z"
    (folder / "9.note").write_text(sign_succession(home.signer.name, home.signer, extra, at), encoding="utf-8")
    key = turned[0]
    home.signer = extra
    async with await home.open() as log:  # signs with a key that no record introduces
        await log.append(accepted("c"))
    assert any("4 keys signed, but the records contain 2 changes" in says for says in faults(home, key))


def verified(home: Home, *, later_s: int = 0) -> Report:
    now = int(time.time() * 1000) + later_s * 1000
    with closing(home.reader()) as reader:
        key = with_successors(home.signer.verifier_key, notes_in(home.path.parent))
        return verify_log(reader, key, expected=Expected(now=now))


@pytest.mark.parametrize("first", ["old", "new"])
async def test_a_tree_that_two_hosts_begin_with_different_keys_verifies_before_the_maintenance_has_recorded_it(
    home: Home, first: str
) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
    old = home.signer
    await turn(home)
    new = home.signer
    for number, home.signer in enumerate([old, new] if first == "old" else [new, old]):
        async with await home.open(f"gw-{number}") as log:
            await log.append(accepted(f"b{number}", tenant="globex"))
    home.signer = new

    report = verified(home)
    assert report.ok
    (finding,) = report.findings
    assert (finding.tenant, finding.check, finding.severity) == ("globex", "keys", "warning")
    assert "a running gateway records it within 60 s" in finding.says

    late = verified(home, later_s=400)
    assert [one.check for one in late.findings if one.severity == "error"] == ["keys"], "no gateway ran for minutes"
    assert "domicile audit anchor" in late.findings[0].says

    async with home.context() as context:
        told = await record_late_trees(context, LateTrees())
        assert [receipt.tenant for receipt in told] == ["globex"]
        assert await record_late_trees(context, LateTrees()) == [], "once"
    assert verified(home, later_s=400).findings == []


async def test_a_recent_change_does_not_excuse_an_earlier_one_that_is_not_recorded(home: Home) -> None:
    """Three keys in one tree, no record of a change: one change is an hour old, the other is recent."""
    hour = 3600
    async with home.context() as context:
        await context.record(accepted("a"))
    keys = [home.signer]
    for _ in range(2):
        await turn(home)
        keys.append(home.signer)
    for number, (home.signer, ahead) in enumerate(zip(keys, [0, 0, hour], strict=True)):
        async with await home.open(clock=lambda ahead=ahead: time.time() + ahead) as log:
            await log.append(accepted(f"b{number}", tenant="globex"))
    faults = [one for one in verified(home, later_s=hour).findings if one.severity == "error"]
    assert [(one.tenant, one.check) for one in faults] == [("globex", "keys")]
    assert "3 keys signed, but the records contain 0 changes" in faults[0].says


async def make(home: Home, target: Path) -> Path:
    async with home.context() as context:
        await settled(home)
        await export(context, "acme", target, evidence=KNOWN)
    return target


async def test_a_pack_is_checked_by_the_holder_of_an_old_key(
    home: Home, turned: list[VerifierKey], tmp_path: Path
) -> None:
    pack = await make(home, tmp_path / "pack.zip")
    for key in turned:
        code, report = verify(pack, "--key", key)
        assert (code, report["findings"]) == (0, [])


def drop_succession(files: Files) -> None:
    for name in [name for name in files if name.startswith("proofs/keys/")]:
        del files[name]


async def test_a_pack_without_its_succession_is_refused_by_the_holder_of_an_old_key(
    home: Home, turned: list[VerifierKey], tmp_path: Path
) -> None:
    pack = rewritten(await make(home, tmp_path / "pack.zip"), drop_succession, relist=home.signer)
    code, report = verify(pack, "--key", turned[0])
    assert code == 1
    assert any("no succession leads to it" in says for says in sentences(report))


async def test_a_thief_who_puts_his_own_key_in_cannot_forge_the_succession(
    home: Home, turned: list[VerifierKey], tmp_path: Path
) -> None:
    thief = FileSigner.open(tmp_path / "thief.key", name=home.signer.name)

    def replace_the_key(files: Files) -> None:
        files["proofs/keys/009.note"] = (
            sign_succession(home.signer.name, thief, thief, "2026-11-28T03:00:00.000Z")
            .replace(str(thief.verifier_key), str(turned[-1]), 1)
            .encode()
        )
        origin = origin_of(home.signer.name, "acme")
        leaves = [leaf_hash(line.rstrip(b"\n")) for line in lines(files)]
        files["checkpoint"] = sign_checkpoint(Checkpoint(origin, len(leaves), tree_hash(leaves)), thief).encode()
        manifest = json.loads(files["manifest.json"])
        files["manifest.json"] = json.dumps(manifest | {"key": str(VerifierKey(origin, thief.public_key))}).encode()

    pack = rewritten(await make(home, tmp_path / "pack.zip"), replace_the_key, relist=thief)
    code, report = verify(pack, "--key", turned[0])
    assert code == 1
    said = sentences(report)
    assert any("the succession proofs/keys/009.note does not hold" in says for says in said), said
    assert any("under another key than the one you gave" in says for says in said)
    assert any("the checkpoint does not hold" in says for says in said)


async def test_a_rotation_that_cannot_be_recorded_leaves_the_old_key(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
    before = home.signer.public_key

    async def down(*_: object) -> None:
        raise AuditUnavailable("down")

    with monkeypatch.context() as broken:
        broken.setattr(AuditLog, "append", down)
        with pytest.raises(AuditUnavailable):
            await turn(home)
    assert FileSigner.open(home.path.with_name("signer.key")).public_key == before
    assert notes_in(home.path.parent) == []
    assert not list(home.path.parent.glob(".signer.key*")), "no draft of a private key is left"


async def test_of_two_rotations_at_once_one_is_refused(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
    before = home.signer.public_key

    async def meanwhile(signer: LogSigner) -> AuditLog:
        with pytest.raises(SignerError, match="another rotation of the signing key is under way"):
            await turn(home)
        return await AuditLog.open(home.path, signer=signer, node="cli-2", settings=FAST)

    key = await rotate(
        home.path.parent,
        lambda: in_file(home.path.with_name("signer.key")),
        meanwhile,
        home.reader,
        at="2026-11-28T03:00:00.000Z",
        actor="cli",
    )
    assert FileSigner.open(home.path.with_name("signer.key")).verifier_key == key
    (note,) = notes_in(home.path.parent)
    assert open_succession(note, key.name) == (before, key.public_key)


def test_processes_that_rotate_at_once_leave_one_line_of_keys(home: Home, tmp_path: Path) -> None:
    data = home.path.parent.parent
    asyncio.run(begun(home))
    command = [sys.executable, "-c", "from audit.cli.app import app; app()", "rotate", "--data", str(data)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in running]
    assert {code for *_, code in ended} <= {0, 1} and any(code == 0 for *_, code in ended), ended
    assert all(b"is under way" in err for _, err, code in ended if code), ended

    signer = FileSigner.open(home.path.with_name("signer.key"))
    links = [open_succession(note, signer.name) for note in signer.successions]
    assert len(links) == sum(code == 0 for *_, code in ended), "a note for each that succeeded, none for the others"
    assert len({old for old, _ in links}) == len(links), "no key has two successors"
    assert not list(home.path.parent.glob(".signer.key*"))
    home.signer = signer
    assert faults(home, signer.verifier_key) == []


async def begun(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))


@pytest.mark.parametrize("ends_at", ["note", "key"])
async def test_a_rotation_that_was_interrupted_once_published_is_finished_by_the_next(
    home: Home, monkeypatch: pytest.MonkeyPatch, ends_at: str
) -> None:
    await begun(home)
    before = home.signer.public_key

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("audit.witness.rotation.create_secret" if ends_at == "note" else "os.replace", full)
        with pytest.raises(SignerError, match="No space left"):
            await published(home)
    assert FileSigner.open(home.path.with_name("signer.key")).public_key == before
    learn_successions(home.path, lambda: None)  # as the command does before it rotates
    last = await published(home)
    home.signer = FileSigner.open(home.path.with_name("signer.key"))
    assert successors(before, last.name, home.signer.successions)[-1] == last.public_key == home.signer.public_key
    assert len(home.signer.successions) == 2
    assert not list(home.path.parent.glob(".signer.key*"))
    assert faults(home, last) == []


async def published(home: Home) -> VerifierKey:
    def opened(signer: LogSigner) -> Awaitable[AuditLog]:
        return AuditLog.open(home.path, signer=signer, node="cli-1", settings=FAST)

    return await rotate(
        home.path.parent,
        lambda: in_file(home.path.with_name("signer.key")),
        opened,
        home.reader,
        at=rfc3339(int(time.time() * 1000)),
        actor="cli",
        publish=lambda note: publish_succession(home.path, "cli-1", note),
    )


async def test_a_key_that_another_host_replaced_meanwhile_gets_no_second_successor(home: Home, tmp_path: Path) -> None:
    await begun(home)
    before = home.signer.public_key
    other = FileSigner.generate(home.signer.name)
    theirs = sign_succession(home.signer.name, home.signer, other, "2026-11-28T03:00:00.000Z")
    publish_succession(home.path, "other", theirs)
    with pytest.raises(SignerError, match="replaced on another host meanwhile"):
        await published(home)
    assert FileSigner.open(home.path.with_name("signer.key")).public_key == before
    assert not list(home.path.parent.glob(".signer.key*"))


@pytest.fixture
async def written(home: Home) -> Home:
    async with home.context() as context:
        await context.record(accepted("a"))
    return home


def test_the_key_is_turned_from_the_command_line(written: Home) -> None:
    home = written
    old, data = str(home.signer.verifier_key), home.path.parent.parent
    run = CliRunner()
    done = run.invoke(app, ["rotate", "--data", str(data), "--json"])
    assert done.exit_code == 0, done.output
    key = json.loads(done.stdout)["key"]
    assert key != old
    for public in (old, key):
        assert run.invoke(app, ["verify", "--data", str(data), "--public-key", public]).exit_code == 0
    assert home.path.with_name("signer.vkey").read_text().strip() == key
    assert run.invoke(app, ["rotate", "--data", str(data / "none")]).exit_code == 1
