"""Erasure on a real data folder: what goes, what stays, and what proves it."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from audit.errors import AuditError, AuditUnavailable, EventRejected, HeldError, KeyLost, NoteError, StoreError
from audit.events.private_value import Private
from audit.private.audit_context import AuditContext
from audit.private.certificate import open_certificate
from audit.private.deletion import holds_of
from audit.private.erasure import certificates, erase, finish, place_hold, release_hold
from audit.tree.tlog_checkpoint import origin_of
from audit.verification.disclosure import FieldState, every, field_states, none_of
from tests.audit.conftest import Home, accepted, completed
from tests.fakes.disk import bytes_under

ON_BOTH_STORES = True

SECRET = "Ihre IBAN lautet DE89370400440532013000"
ALICE, BOB = "alice@example.com", "bob@example.com"


async def call(context: AuditContext, request: str, subject: str | None, text: str = SECRET, **private: object) -> int:
    """One call whose prompt and answer are kept; returns the seq of its intent."""
    values = Private({"input": text, "client_ip": "192.0.2.7"}, subject, **private)
    intent = await context.record(accepted(request), values)
    await context.record(completed(request), Private({"output": text.upper()}, subject, **private))
    return intent.seq


def states(home: Home, notes: list[str], *, disclose: bool = False, tenant: str = "acme") -> list[FieldState]:
    with closing(home.reader()) as reader, closing(home.side()) as side:
        return list(field_states(reader, side, home.key, tenant, notes, opens=every if disclose else none_of))


def count(found: list[FieldState]) -> dict[str, int]:
    return dict(Counter(one.state for one in found))


async def test_after_erasure_neither_text_nor_key_nor_ciphertext_is_in_any_file(home: Home, tmp_path: Path) -> None:
    async with home.context() as context:
        for number in range(20):
            await call(context, f"a{number}", ALICE)
            await call(context, f"b{number}", BOB)
        with closing(sqlite3.connect(home.path.with_name("side.db"))) as db:
            (alice,) = db.execute(
                "SELECT key_id FROM value JOIN data_key ON id = key_id WHERE seq = 0 LIMIT 1"
            ).fetchone()
            traces = [bytes(c) for (c,) in db.execute("SELECT ciphertext FROM value WHERE key_id = ?", (alice,))]
            traces += [bytes(n) for (n,) in db.execute("SELECT nonce FROM value WHERE key_id = ?", (alice,))]
            row = db.execute("SELECT wrapped, subject FROM data_key WHERE id = ?", (alice,)).fetchone()
            traces += map(bytes, row)
        before = b"".join(bytes_under(tmp_path).values())
        assert all(trace in before for trace in traces)
        await erase(context, "acme", subject=ALICE)
        files = bytes_under(tmp_path)  # while the log is open: its write-ahead logs are there too
        for name, content in files.items():
            for word in (SECRET, SECRET.upper(), ALICE, BOB, "192.0.2.7"):
                assert word.encode() not in content, f"{word} is in {name}"
            assert not [trace for trace in traces if trace in content], f"a trace is left in {name}"
    assert home.verify().ok


async def test_what_was_not_to_be_erased_is_still_there(home: Home) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        await call(context, "b", BOB)
        note = await erase(context, "acme", subject="  ALICE@example.com ")
    found = states(home, [note], disclose=True)
    assert count(found) == {"erased": 5, "disclosed": 5}  # subject, input, client_ip; subject, output
    assert {one.seq for one in found if one.state == "erased"} == {0, 1}
    assert home.types("acme")[-2:] == ["erasure.requested", "erasure.completed"]


async def test_the_certificate_names_records_keys_and_recipients_and_nobody(home: Home) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        note = await erase(context, "acme", subject=ALICE, actor="cli")
        assert await certificates(context, "acme") == [note]
    certificate = open_certificate(note, origin_of(home.key.name, "acme"), home.key.public_key)
    assert certificate.covered == {
        "client_ip": ((0, 0),),
        "input": ((0, 0),),
        "output": ((1, 1),),
        "subject": ((0, 1),),
    }
    assert (certificate.records, certificate.values, len(certificate.keys_destroyed)) == (2, 5, 1)
    (recipient,) = certificate.recipients
    assert (recipient.operator_entity, recipient.inference_country, recipient.calls) == ("Example SAS", "FR", 1)
    assert certificate.backups_until > certificate.deleted_at
    assert "alice" not in note.lower()
    assert home.events("acme")[-1]["certificate_sha256"] == certificate.sha256()


async def test_a_value_that_is_gone_without_a_certificate_is_missing(home: Home) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        note = await erase(context, "acme", subject=ALICE)
        await call(context, "b", BOB)
    with closing(home.side()) as side, side.transaction() as db:
        db.execute("DELETE FROM value WHERE field = 'output'")
    assert count(states(home, [note])) == {"erased": 5, "withheld": 4, "missing": 1}
    assert count(states(home, [])) == {"missing": 6, "withheld": 4}


async def test_a_certificate_that_the_tree_does_not_vouch_for_is_refused(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.signer = home.signer
    async with home.context() as context, other.context() as elsewhere:
        await call(context, "a", ALICE)
        await call(elsewhere, "a", ALICE)
        foreign = await erase(elsewhere, "acme", subject=ALICE)
        own = await erase(context, "acme", subject=ALICE)
    with pytest.raises(NoteError, match="no record announces"):
        states(home, [foreign])
    with pytest.raises(NoteError, match="signature"):
        states(home, [own.replace('"records":2', '"records":3')])


async def test_a_certificate_covers_nothing_recorded_after_it(home: Home) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        note = await erase(context, "acme", records=(0, 1_000))
        later = await call(context, "b", ALICE)
    with closing(home.side()) as side, side.transaction() as db:
        db.execute("DELETE FROM value WHERE seq = ?", (later,))
    assert {one.state for one in states(home, [note]) if one.seq == later} == {"missing"}


@pytest.mark.parametrize("held", [{"subject": ALICE}, {"records": (0, 0)}, {}], ids=["subject", "records", "tenant"])
async def test_a_legal_hold_wins_over_an_erasure_until_it_is_released(home: Home, held: dict[str, object]) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        hold = await place_hold(context, "acme", **held)
        with pytest.raises(HeldError, match=hold):
            await erase(context, "acme", subject=ALICE)
        assert count(states(home, [], disclose=True)) == {"disclosed": 5}
        await release_hold(context, "acme", hold)
        await erase(context, "acme", subject=ALICE)
        with pytest.raises(AuditError, match="no legal hold"):
            await release_hold(context, "acme", hold)
    kinds = [kind for kind in home.types("acme") if not kind.startswith("inference")]
    assert kinds == [
        "legal_hold.placed",
        "erasure.requested",
        "erasure.refused",
        "legal_hold.released",
        "erasure.requested",
        "erasure.completed",
    ]


@pytest.mark.parametrize("records", [(2, 2), (0, 2), (999_999, 999_999), (0, 2**70), (1, 0), (-1, 0)])
async def test_a_hold_on_records_that_do_not_exist_is_refused_and_nothing_stands(
    home: Home, records: tuple[int, int]
) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        for other in "bcd":
            await context.record(accepted(other, "beta"))
        with pytest.raises(AuditError, match=r"tenant acme has no records .*: its records are 0 to 1; check"):
            await place_hold(context, "acme", records=records)
        await place_hold(context, "acme", records=(0, 1))
        assert [(one.first, one.last) for one in await context.with_values(lambda side: holds_of(side, "acme"))] == [
            (0, 1)
        ]
    assert home.types("acme").count("legal_hold.placed") == 1


async def test_a_hold_on_one_person_does_not_keep_another(home: Home) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        await call(context, "b", BOB)
        await place_hold(context, "acme", subject=BOB)
        await erase(context, "acme", subject=ALICE)
        with pytest.raises(HeldError):
            await erase(context, "acme")


async def test_a_tenant_is_erased_whole_and_can_keep_nothing_afterwards(home: Home) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        await call(context, "b", None)
        await context.record(accepted("g", "globex"), Private({"input": SECRET}, ALICE))
        note = await erase(context, "acme")
        with pytest.raises(EventRejected, match="destroyed"):
            await context.record(accepted("late"), Private({"input": SECRET}, BOB))
        await context.record(accepted("plain"))
        await context.record(accepted("g2", "globex"), Private({"input": SECRET}, ALICE))
        with pytest.raises(KeyLost):
            await erase(context, "acme", subject=ALICE)
    assert count(states(home, [note])) == {"erased": 8}
    assert count(states(home, [], disclose=True, tenant="globex")) == {"disclosed": 4}
    assert home.verify().ok


async def test_records_without_a_subject_have_keys_of_their_own(home: Home) -> None:
    async with home.context() as context:
        first = await call(context, "a", None)
        await call(context, "b", None)
        note = await erase(context, "acme", records=(first, first))
    certificate = open_certificate(note, origin_of(home.key.name, "acme"), home.key.public_key)
    assert (certificate.values, len(certificate.keys_destroyed)) == (2, 1)
    assert count(states(home, [note], disclose=True)) == {"erased": 2, "disclosed": 4}


async def test_an_erasure_that_was_interrupted_is_finished_later(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)

        async def broken(*_: object) -> None:
            raise AuditUnavailable("the disk is full")

        monkeypatch.setattr("audit.private.erasure._scrub", broken)
        with pytest.raises(AuditUnavailable):
            await erase(context, "acme", subject=ALICE)
    assert count(states(home, [])) == {"missing": 5}
    monkeypatch.undo()
    async with home.context() as context:
        (note,) = await finish(context)
        assert await finish(context) == []
    assert count(states(home, [note])) == {"erased": 5}


async def test_a_reader_that_holds_the_write_ahead_log_stops_the_certificate(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.private.erasure.SCRUB_TRIES", 2)
    monkeypatch.setattr("audit.private.value_database.BUSY_SECONDS", 0.05)
    async with home.context() as context:
        await call(context, "a", ALICE)
        with closing(sqlite3.connect(home.path.with_name("side.db"))) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM value").fetchone()
            with pytest.raises(StoreError, match="write-ahead log"):
                await erase(context, "acme", subject=ALICE)
            assert "erasure.completed" not in home.types("acme")
            reader.execute("ROLLBACK")
        (note,) = await finish(context)
    assert count(states(home, [note])) == {"erased": 5}


async def test_nothing_can_be_erased_of_somebody_unknown(home: Home) -> None:
    async with home.context() as context:
        await call(context, "a", ALICE)
        with pytest.raises(AuditError, match="nothing is kept"):
            await erase(context, "acme", subject="carol@example.com")
    assert "erasure.requested" not in home.types("acme")


async def test_records_of_which_nothing_is_kept_are_not_certified_as_erased(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
        with pytest.raises(AuditError, match="nothing is kept of records 0 to 7"):
            await erase(context, "acme", records=(0, 7))
    assert home.types("acme") == ["inference.accepted"]
