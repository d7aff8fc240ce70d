"""Records whose time is over: their content goes, their hash stays, everything still proves itself."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from audit.errors import AuditUnavailable, StoreError
from audit.events.private_value import Private
from audit.log.audit_log import AuditLog
from audit.log.receipt import Receipt, verify_receipt
from audit.privacy.retention import preview, run, run_all
from audit.privacy.schedule import Schedule
from audit.private.deletion import certificates_of
from audit.private.erasure import finish, place_hold, release_hold
from audit.storage.tiles import Folder, decode_entries, publish, tile_path
from audit.verification.disclosure import account
from tests.audit.conftest import Home, accepted, completed

ON_BOTH_STORES = True
YEAR_AGO = time.time() - 400 * 86_400
ALICE = "alice@example.com"


@pytest.fixture
async def told(home: Home) -> list[Receipt]:
    """Receipts of three old calls and of two new records."""
    async with home.context(clock=lambda: YEAR_AGO) as context:
        receipts = []
        for number in range(3):
            receipts.append(await context.record(accepted(f"old{number}")))
            receipts.append(await context.record(completed(f"old{number}")))
    async with home.context() as context:
        receipts.append(await context.record(accepted("new")))
        receipts.append(await context.record(completed("new")))
    return receipts


def faults(home: Home) -> tuple[list[str], dict[str, int]]:
    report = home.verify()
    with closing(home.side()) as side:
        states, wrong = account(home.reader, side, home.key, "acme")
    return [*(one.says for one in report.findings), *(one.because for one in wrong)], dict(states)


def contents(home: Home) -> list[bool]:
    with closing(home.reader()) as reader:
        return [bool(leaf.payload) for leaf in reader.leaves("acme")]


async def test_old_records_lose_their_content_and_the_log_still_holds(home: Home, told: list[Receipt]) -> None:
    async with home.context() as context:
        before = await preview(context, "acme", Schedule())
        report = await run(context, "acme", Schedule())
        again = await run(context, "acme", Schedule())
    assert (before.expired_records, before.run_id) == (6, "")
    assert (report.expired_records, report.held_records, report.deleted) == (6, 0, 0)
    assert (again.expired_records, again.certificate) == (0, None)
    assert contents(home) == [False] * 6 + [True] * 4
    assert faults(home) == ([], {"erased": 6})
    with closing(home.reader()) as reader:
        for receipt in told:
            verify_receipt(reader, home.key, receipt)
    tree = next(tree for tree in home.verify().trees if tree.tenant == "acme")
    assert (tree.expired, tree.ok) == (6, True)


async def test_nothing_of_an_expired_record_is_left_in_the_files(
    home: Home, told: list[Receipt], tmp_path: Path
) -> None:
    async with home.context() as context:
        await run(context, "acme", Schedule())
    everything = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"old0" not in everything and b'"new"' in everything


async def test_what_was_published_of_expired_records_goes_with_them(
    home: Home, told: list[Receipt], tmp_path: Path
) -> None:
    folder = Folder(tmp_path / "audit" / "tiles" / "acme")
    with closing(home.reader()) as reader:
        publish(reader, "acme", reader.last_checkpoint("acme").note, folder)
    assert b"old0" in folder(tile_path("entries", 0, 8))
    async with home.context() as context:
        await run(context, "acme", Schedule())
    left = decode_entries(folder(tile_path("entries", 0, 8)))
    assert left[:6] == [b""] * 6 and b'"new"' in left[6]
    assert len(folder(tile_path(0, 0, 8))) == 8 * 32
    with closing(home.reader()) as reader:
        verify_receipt(reader, home.key, told[0], folder)


async def test_without_a_schedule_only_private_values_go(home: Home, told: list[Receipt]) -> None:
    async with home.context() as context:
        assert (await run(context, "acme")).expired_records == 0
    assert all(contents(home))


async def test_a_legal_hold_wins_until_it_is_released(home: Home, told: list[Receipt]) -> None:
    async with home.context() as context:
        hold = await place_hold(context, "acme", records=(2, 3))
        report = await run(context, "acme", Schedule())
        assert (report.expired_records, report.held_records) == (4, 2)
        assert contents(home)[:6] == [False, False, True, True, False, False]
        await release_hold(context, "acme", hold)
        whole = await place_hold(context, "acme")
        assert (await preview(context, "acme", Schedule())).held_records == 2
        await release_hold(context, "acme", whole)
        assert (await run(context, "acme", Schedule())).expired_records == 2
    assert faults(home)[0] == []


async def test_a_record_stays_as_long_as_a_value_of_it_is_kept(home: Home) -> None:
    async with home.context(clock=lambda: YEAR_AGO) as context:
        await context.record(accepted("a"), Private({"input": "x"}, ALICE))
        await context.record(completed("a"))
    async with home.context() as context:
        assert (await run(context, "acme", Schedule())).expired_records == 0
    assert contents(home)[:2] == [True, True]  # a call goes as a whole
    assert faults(home)[0] == []


async def test_a_run_that_was_interrupted_is_carried_through(
    home: Home, told: list[Receipt], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.context() as context:
        with monkeypatch.context() as broken:

            async def down(*_: object) -> None:
                raise AuditUnavailable("down")

            broken.setattr(AuditLog, "append", down)
            with pytest.raises(AuditUnavailable):
                await run(context, "acme", Schedule())
        assert len(await finish(context)) == 1
    assert faults(home) == ([], {"erased": 6})


async def test_content_removed_behind_the_logs_back_is_a_fault(home: Home, told: list[Receipt]) -> None:
    home.execute("UPDATE leaf SET payload = '' WHERE seq = 1 AND tree = (SELECT id FROM tree WHERE tenant = 'acme')")
    found, states = faults(home)
    assert any("only 0 are on record as expired" in says for says in found)
    assert any("no certificate says that it was deleted" in says for says in found)
    assert states == {"missing": 1}


async def test_the_scheduler_takes_every_tenant_and_goes_on_where_one_fails(
    home: Home, told: list[Receipt], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with home.context() as context:
        await context.record(accepted("g", "globex"))

        def schedule_of(tenant: str) -> Schedule | None:
            if tenant == "_system":
                raise StoreError("no policy is there")
            return Schedule() if tenant == "acme" else None

        reports = await run_all(context, schedule_of)
        with closing(home.side()) as side:
            assert len(certificates_of(side, "acme")) == 1
    assert {tenant: one.expired_records for tenant, one in reports.items()} == {"acme": 6, "globex": 0}
