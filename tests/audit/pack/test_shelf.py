"""Packs made in the background, with their states as another process sees them."""

import asyncio
import zipfile
from dataclasses import replace

import pytest

from audit.errors import StoreError
from audit.files.folder_lock import lock_folder_now
from audit.keys.signer import FileSigner
from audit.pack import shelf as module
from audit.pack.shelf import KEPT_DAYS, KEPT_PACKS, PackBusy, PackShelf, PackState, PackUnknown
from tests.audit.conftest import KNOWN, accepted, completed
from tests.audit.pack.test_export import settled

NOWHERE = "01a21faa-0c27-76a6-b43d-f0713b4b3c3e"
ASKED = {"since": None, "until": None, "actor": "key:abcdefgh", "reason": "audit"}


@pytest.fixture
async def opened(home):
    """The context of a log with one call of acme, signed."""
    async with home.context() as context:
        await context.record(accepted("a"))
        await context.record(completed("a"))
        await settled(home)
        yield context


@pytest.fixture
async def shelf(opened, tmp_path):
    made = PackShelf(tmp_path / "packs", opened, evidence=lambda tenant: KNOWN)
    yield made
    await made.close()


async def ended(shelf, pack, tenant="acme"):
    """The pack once nobody works on it."""
    for _ in range(600):
        found = shelf.pack(tenant, pack.id)
        if found.state != "making" and (found.verification is None or found.verification.at):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(found)


async def test_a_pack_is_made_verified_and_on_record_with_its_reason(shelf, home):
    asked = await shelf.make("acme", **ASKED)
    assert (asked.state, asked.verification) == ("making", None)
    made = await ended(shelf, asked)
    assert (made.state, made.why, made.first, made.end) == ("made", "", 0, 2)
    file = shelf.file("acme", made.id)
    assert (file.stat().st_size, file.stat().st_mode & 0o777) == (made.size_bytes, 0o600)
    exported = next(event for event in home.events("acme") if event["type"] == "log.exported")
    assert (exported["pack_id"], exported["reason"], exported["actor"]) == (made.id, "audit", "key:abcdefgh")
    assert (await shelf.verify("acme", made.id)).verification.at is None
    verdict = (await ended(shelf, made)).verification
    assert (verdict.ok, verdict.faults, verdict.records, verdict.why) == (True, 0, 2, "")


async def test_a_pack_that_was_changed_does_not_hold(shelf):
    made = await ended(shelf, await shelf.make("acme", **ASKED))
    file = shelf.file("acme", made.id)
    with zipfile.ZipFile(file) as old:
        content = {name: old.read(name) for name in old.namelist()}
    name = next(name for name in content if name.endswith(".jsonl"))
    content[name] = content[name].replace(b'"acme"', b'"evil"', 1)
    with zipfile.ZipFile(file, "w") as new:
        for each, data in content.items():
            new.writestr(each, data)
    await shelf.verify("acme", made.id)
    verdict = (await ended(shelf, made)).verification
    assert verdict.ok is False and verdict.faults >= 1 and verdict.findings


async def test_a_pack_signed_by_another_key_does_not_hold_though_it_is_consistent(shelf, opened):
    made = await ended(shelf, await shelf.make("acme", **ASKED))
    other = FileSigner.generate(opened.signer.name)
    stranger = PackShelf(shelf.folder, replace(opened, signer=other))
    await stranger.verify("acme", made.id)
    assert (await ended(stranger, made)).verification.ok is False


async def test_what_is_no_zip_is_no_pack_that_holds(shelf):
    made = await ended(shelf, await shelf.make("acme", **ASKED))
    shelf.file("acme", made.id).write_bytes(b"no zip")
    await shelf.verify("acme", made.id)
    verdict = (await ended(shelf, made)).verification
    assert verdict.ok is False and "zip" in verdict.findings[0]


async def test_a_verifier_that_dies_gives_no_verdict(shelf, monkeypatch):
    made = await ended(shelf, await shelf.make("acme", **ASKED))
    monkeypatch.setattr(module, "program", lambda: b"raise SystemExit(9)")
    await shelf.verify("acme", made.id)
    verdict = (await ended(shelf, made)).verification
    assert verdict.ok is None and "without a verdict" in verdict.why


async def test_a_pack_that_cannot_be_made_says_why_and_leaves_no_file(shelf):
    failed = await ended(shelf, await shelf.make("globex", **ASKED), "globex")
    assert failed.state == "failed" and "no signed checkpoint yet; start the gateway" in failed.why
    with pytest.raises(PackBusy, match="failed"):
        shelf.file("globex", failed.id)
    with pytest.raises(PackBusy):
        await shelf.verify("globex", failed.id)


async def test_an_error_of_the_program_is_a_failed_pack_too_without_its_words(opened, tmp_path):
    def broken(tenant):
        raise RuntimeError("a secret")

    shelf = PackShelf(tmp_path / "packs", opened, evidence=broken)
    failed = await ended(shelf, await shelf.make("acme", **ASKED))
    assert failed.state == "failed" and "secret" not in failed.why and "internal error" in failed.why


async def test_one_pack_of_a_tenant_is_made_at_a_time_by_whichever_process(shelf, opened, monkeypatch):
    hold, begun = asyncio.Event(), asyncio.Event()

    async def slow(*given, **more):
        begun.set()
        await hold.wait()
        raise StoreError("stopped; try again")

    monkeypatch.setattr(module, "export", slow)
    first = await shelf.make("acme", **ASKED)
    await begun.wait()
    neighbour = PackShelf(shelf.folder, opened)
    for each in (shelf, neighbour):
        assert each.pack("acme", first.id).state == "making"
        with pytest.raises(PackBusy, match="is being made"):
            await each.make("acme", **ASKED)
        with pytest.raises(PackBusy):
            each.file("acme", first.id)
    other = await shelf.make("globex", **ASKED)
    hold.set()
    assert (await ended(neighbour, first)).why == "stopped; try again"
    await ended(shelf, other, "globex")


async def test_what_a_process_that_is_gone_was_making_has_failed(shelf, opened):
    begun = PackState(
        id=NOWHERE, tenant="acme", state="making", asked_at="", asked_ms=opened.now(), actor="x", reason="y"
    )
    (shelf.folder / "acme" / NOWHERE).mkdir(parents=True)
    shelf._write(begun)
    found = shelf.pack("acme", NOWHERE)
    assert found.state == "failed" and "make it again" in found.why
    assert (await ended(shelf, await shelf.make("acme", **ASKED))).state == "made"


async def test_a_shelf_that_is_closed_ends_what_it_was_making(opened, tmp_path, monkeypatch):
    async def endless(*given, progress, **more):
        while True:
            await asyncio.to_thread(progress, 1)

    monkeypatch.setattr(module, "export", endless)
    shelf = PackShelf(tmp_path / "packs", opened)
    made = await shelf.make("acme", **ASKED)
    await shelf.close()
    assert PackShelf(tmp_path / "packs", opened).pack("acme", made.id).state == "failed"


@pytest.mark.parametrize("pack_id", [NOWHERE, "../../x", "", "x" * 36])
async def test_a_pack_that_there_is_not_is_unknown(shelf, pack_id):
    for ask in (shelf.pack, shelf.file):
        with pytest.raises(PackUnknown):
            ask("acme", pack_id)
    with pytest.raises(PackUnknown):
        await shelf.verify("acme", pack_id)


async def test_a_pack_is_of_its_tenant_alone(shelf):
    made = await ended(shelf, await shelf.make("acme", **ASKED))
    assert shelf.packs("globex") == []
    with pytest.raises(PackUnknown):
        shelf.file("globex", made.id)


async def test_packs_over_their_time_and_beyond_their_number_are_removed_unless_in_use(shelf, opened):
    now = opened.now()
    ids = [NOWHERE[:-2] + f"{number:02d}" for number in range(KEPT_PACKS + 2)]
    for number, each in enumerate(ids):
        age = (KEPT_DAYS * 86_400_000 + 1) if number == 0 else 1000 - number
        state = PackState(id=each, tenant="acme", state="made", asked_at="", asked_ms=now - age, actor="x", reason="y")
        (shelf.folder / "acme" / each).mkdir(parents=True)
        shelf._write(state)
    with lock_folder_now(shelf.folder / "acme" / ids[0]):
        assert [one.id for one in shelf.packs("acme")] == [*ids[:1:-1], ids[0]]
    assert [one.id for one in shelf.packs("acme")] == ids[:1:-1]
    assert not (shelf.folder / "acme" / ids[0]).exists()


async def test_a_state_that_somebody_damaged_is_left_out(shelf):
    made = await ended(shelf, await shelf.make("acme", **ASKED))
    place = shelf.folder / "acme" / NOWHERE
    place.mkdir()
    (place / "state.json").write_text("{")
    assert [one.id for one in shelf.packs("acme")] == [made.id]
