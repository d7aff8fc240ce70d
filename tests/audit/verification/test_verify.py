"""Tampering: each change to a log is caught, and the sentence says where and what."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.errors import NoteError, StoreError
from audit.events.canonical import canonicalize
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditSettings
from audit.log.checkpointer import Cadence
from audit.tree.merkle import Frontier, leaf_hash, tree_hash
from audit.tree.tlog_checkpoint import Checkpoint, origin_of, sign_checkpoint
from audit.verification.verify import MAX_FINDINGS, Report, verify_log
from tests.audit.conftest import FAST, Home, accepted, completed

CALLS = 10  # 20 records of acme, signed at sizes 8 and 20


@pytest.fixture
async def written(home: Home) -> Home:
    settings = AuditSettings(limits=FAST.limits, cadence=Cadence(every_s=60, records=10**6))
    for calls in (range(4), range(4, CALLS)):
        async with await home.open(settings=settings) as log:
            for number in calls:
                await log.append(accepted(f"r{number}"))
                await log.append(completed(f"r{number}"))
    assert [checkpoint.size for checkpoint in checkpoints(home)] == [8, 20]
    return home


def checkpoints(home: Home, tenant: str = "acme") -> list[object]:
    reader = home.reader()
    try:
        return list(reader.checkpoints(tenant))
    finally:
        reader.close()


class Forger:
    """Writes to the file behind the log's back, and can make it look right again."""

    def __init__(self, home: Home, tenant: str = "acme") -> None:
        self.home = home
        self.db = sqlite3.connect(home.path)
        (self.tree,) = self.db.execute("SELECT id FROM tree WHERE tenant = ?", (tenant,)).fetchone()

    def __enter__(self) -> "Forger":
        return self

    def __exit__(self, *_: object) -> None:
        self.db.commit()
        self.db.close()

    def run(self, statement: str, *values: object) -> int:
        return self.db.execute(statement.replace(":tree", str(self.tree)), values).rowcount

    def payload(self, seq: int) -> bytes:
        query = "SELECT payload FROM leaf WHERE tree = ? AND seq = ?"
        return bytes(self.db.execute(query, (self.tree, seq)).fetchone()[0])

    def edit(self, seq: int, **fields: object) -> bytes:
        payload = canonicalize(json.loads(self.payload(seq)) | fields)
        self.run("UPDATE leaf SET payload = ? WHERE tree = :tree AND seq = ?", payload, seq)
        return payload

    def rehash(self) -> None:
        """Make hashes and head follow from the payloads, as a careful forger would."""
        frontier = Frontier()
        for rowid, payload in self.db.execute(
            "SELECT rowid, payload FROM leaf WHERE tree = ? ORDER BY seq", (self.tree,)
        ).fetchall():
            frontier.append(leaf_hash(payload))
            self.run("UPDATE leaf SET hash = ? WHERE rowid = ?", leaf_hash(payload), rowid)
        self.run("UPDATE tree SET size = ?, frontier = ? WHERE id = :tree", frontier.size, bytes(frontier))


def said(report: Report, check: str) -> list[tuple[int | None, str]]:
    return [(finding.seq, finding.says) for finding in report.findings if finding.check == check]


def checks(report: Report) -> set[str]:
    return {finding.check for finding in report.findings}


# --- a log as it was written -----------------------------------------------------------------------------------------


async def test_a_log_left_alone_holds(written: Home) -> None:
    report = written.verify()
    assert report.ok
    assert report.findings == []
    tree = report.trees[1]
    assert (tree.tenant, tree.records, tree.signed, tree.checkpoints) == ("acme", 20, 20, 2)
    assert tree.root == tree_hash(leaf_hash(canonicalize(event)) for event in written.events("acme")).hex()


async def test_an_open_call_is_reported_and_is_no_fault(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("r1"))
    report = home.verify()
    assert report.ok
    assert report.trees[1].open_requests == ("r1",)


async def test_a_log_can_be_verified_while_it_is_written(home: Home) -> None:
    async with await home.open() as log:
        for number in range(20):
            await log.append(accepted(f"r{number}"))
            assert home.verify().ok


async def test_progress_adds_up_to_the_records_read(written: Home) -> None:
    counts: dict[str, int] = {}
    reader = written.reader()
    verify_log(
        reader, written.key, progress=lambda tenant, count: counts.update({tenant: counts.get(tenant, 0) + count})
    )
    reader.close()
    assert counts == {"_system": 4, "acme": 20}


# --- records ---------------------------------------------------------------------------------------------------------


async def test_an_edited_record_is_named_with_both_hashes(written: Home) -> None:
    with Forger(written) as forger:
        old, new = forger.payload(5), forger.edit(5, tokens_out=1)
    report = written.verify()
    assert not report.ok
    ((seq, says),) = said(report, "hash")
    assert seq == 5
    assert leaf_hash(old).hex() in says
    assert leaf_hash(new).hex() in says
    assert checks(report) == {"hash"}  # the hashes that were signed are still there: nothing else was changed


async def test_an_edited_record_with_its_hashes_made_to_fit_breaks_what_was_signed(written: Home) -> None:
    with Forger(written) as forger:
        forger.edit(5, tokens_out=1)
        forger.rehash()
    report = written.verify()
    ((seq, says),) = said(report, "root")
    assert seq == 0
    assert "the checkpoint of size 8 does not match the records: something in records 0 to 7" in says
    assert "1 later ones neither" in says
    assert report.trees[1].signed == 0


async def test_an_edit_between_two_checkpoints_is_narrowed_down_to_what_lies_between(written: Home) -> None:
    with Forger(written) as forger:
        forger.edit(11, tokens_out=1)
        forger.rehash()
    report = written.verify()
    ((seq, says),) = said(report, "root")
    assert seq == 8
    assert "something in records 8 to 19" in says
    assert report.trees[1].signed == 8


async def test_a_hash_made_to_fit_without_the_head_is_caught_at_the_head(home: Home) -> None:
    settings = AuditSettings(limits=FAST.limits, cadence=Cadence(every_s=60, records=10**6))
    async with await home.open(settings=settings) as log:
        await log.append(accepted("r1"))
        with Forger(home) as forger:
            forger.run("UPDATE leaf SET hash = ? WHERE tree = :tree", leaf_hash(forger.edit(0, stream=True)))
        report = home.verify()
        assert checks(report) == {"tree"}


async def test_a_deleted_record_is_named_as_missing(written: Home) -> None:
    with Forger(written) as forger:
        forger.run("DELETE FROM leaf WHERE tree = :tree AND seq = 12")
    report = written.verify()
    assert said(report, "sequence") == [(12, "record 12 is missing")]
    assert said(report, "root") == [(12, "1 checkpoints cannot be checked, since record 12 is missing")]
    assert report.trees[1].signed == 8


async def test_deleted_records_are_named_as_a_range(written: Home) -> None:
    with Forger(written) as forger:
        forger.run("DELETE FROM leaf WHERE tree = :tree AND seq BETWEEN 3 AND 6")
    assert said(written.verify(), "sequence") == [(3, "records 3 to 6 are missing")]


async def test_a_call_deleted_whole_and_renumbered_breaks_what_was_signed(written: Home) -> None:
    with Forger(written) as forger:
        forger.run("DELETE FROM leaf WHERE tree = :tree AND seq IN (10, 11)")
        for seq in range(12, 20):
            forger.run("UPDATE leaf SET seq = ? WHERE tree = :tree AND seq = ?", seq - 2, seq)
        forger.rehash()
    report = written.verify()
    assert said(report, "sequence") == [
        (
            18,
            "the log ends before record 18, but the checkpoint of size 20 was signed: 2 records are missing at the end",
        )
    ]


async def test_a_tail_cut_off_below_a_checkpoint_is_counted(written: Home) -> None:
    with Forger(written) as forger:
        forger.run("DELETE FROM leaf WHERE tree = :tree AND seq >= 15")
        forger.rehash()
    report = written.verify()
    ((seq, says),) = said(report, "sequence")
    assert seq == 15
    assert "5 records are missing at the end" in says


async def test_a_log_emptied_below_its_checkpoints_does_not_hold(written: Home) -> None:
    with Forger(written) as forger:
        forger.run("DELETE FROM leaf WHERE tree = :tree")
        forger.rehash()
    assert said(written.verify(), "sequence")[0][0] == 0


async def test_two_records_that_changed_places_are_both_named(written: Home) -> None:
    with Forger(written) as forger:
        one, two = forger.payload(8), forger.payload(9)
        forger.run("UPDATE leaf SET payload = ? WHERE tree = :tree AND seq = 8", two)
        forger.run("UPDATE leaf SET payload = ? WHERE tree = :tree AND seq = 9", one)
    report = written.verify()
    assert [seq for seq, _ in said(report, "hash")] == [8, 9]
    assert said(report, "pairing") == [(8, "inference.completed of request r4, which has no open intent")]


async def test_two_records_that_changed_places_with_their_hashes_break_what_was_signed(written: Home) -> None:
    with Forger(written) as forger:
        for old, new in ((2, -1), (4, 2), (-1, 4)):
            forger.run("UPDATE leaf SET seq = ? WHERE tree = :tree AND seq = ?", new, old)
        forger.rehash()
    assert said(written.verify(), "root")[0][0] == 0


async def test_an_inserted_record_breaks_what_was_signed(written: Home) -> None:
    with Forger(written) as forger:
        for seq in range(19, 9, -1):
            forger.run("UPDATE leaf SET seq = ? WHERE tree = :tree AND seq = ?", seq + 1, seq)
        forger.run("INSERT INTO leaf VALUES (:tree, 10, x'', ?)", forger.payload(0).replace(b'"r0"', b'"rX"'))
        forger.rehash()
    report = written.verify()
    assert "something in records 8 to 19" in said(report, "root")[0][1]


async def test_a_record_added_at_the_end_does_not_fit_the_head(written: Home) -> None:
    with Forger(written) as forger:
        forger.run("INSERT INTO leaf VALUES (:tree, 20, ?, ?)", leaf_hash(forger.payload(0)), forger.payload(0))
    report = written.verify()
    assert said(report, "tree") == [(None, "the head of the tree counts 20 records, the last one there is 20")]


async def test_a_record_taken_from_another_tenant_is_named(written: Home) -> None:
    with Forger(written) as forger:
        payload = forger.edit(8, tenant="globex")
        forger.run("UPDATE leaf SET hash = ? WHERE tree = :tree AND seq = 8", leaf_hash(payload))
    assert said(written.verify(), "tenant") == [(8, "it belongs to tenant globex")]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\xff\x00", "not JSON"),
        (b"[" * 20_000, "bytes, more than"),
        (b"[" * 10_000, "not JSON"),
        (b'{"v": 1}', "not in canonical form"),
        (b'{"v":1}', "breaks the schema"),
        ("text, not bytes", "not JSON"),
        (17, "not an object"),
        (b"null", "not an object"),
    ],
)
async def test_a_record_that_is_no_record_is_named_and_the_walk_goes_on(
    written: Home, payload: object, why: str
) -> None:
    with Forger(written) as forger:
        forger.run("UPDATE leaf SET payload = ? WHERE tree = :tree AND seq = 5", payload)
    report = written.verify()
    assert [seq for seq, _ in said(report, "hash")] == [5]
    ((seq, says),) = said(report, "form")
    assert seq == 5
    assert why in says
    assert report.trees[1].signed == 20


async def test_a_clock_that_went_back_is_a_warning(home: Home) -> None:
    times = iter([1000.0, 1000.0, 1000.5, 999.0, 1001.0, 1001.0])
    async with await home.open(clock=lambda: next(times)) as log:
        for number in range(3):
            await log.append(accepted(f"r{number}"))
    report = home.verify()
    assert report.ok
    assert said(report, "clock") == [
        (1, "the clock of node gw-1 went back from 1970-01-01T00:16:40.500Z to 1970-01-01T00:16:39.000Z")
    ]


async def test_a_second_intent_and_a_second_outcome_are_named(written: Home) -> None:
    with Forger(written) as forger:
        forger.edit(2, request_id="r2")
    report = written.verify()
    assert said(report, "pairing") == [
        (3, "inference.completed of request r1, which has no open intent"),
        (4, "request r2 is accepted again, though open since 2"),
    ]


async def test_an_open_call_struck_off_the_list_is_named(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("r1"))
    with Forger(home) as forger:
        forger.run("DELETE FROM open_intent")
    assert said(home.verify(), "intents") == [(0, "request r1 has no outcome and is not listed as open")]


async def test_a_closed_call_put_on_the_list_is_named(written: Home) -> None:
    with Forger(written) as forger:
        forger.run("INSERT INTO open_intent VALUES (:tree, 'r1', 2, 'gw-1', 'boot')")
    assert said(written.verify(), "intents") == [
        (None, "request r1 is listed as open, which the records do not bear out")
    ]


async def test_findings_of_a_kind_are_counted_beyond_those_listed(written: Home) -> None:
    async with await written.open() as log:
        for number in range(CALLS, CALLS + 10):
            await log.append(accepted(f"r{number}"))
            await log.append(completed(f"r{number}"))
    with Forger(written) as forger:
        forger.run("UPDATE leaf SET payload = payload || ' ' WHERE tree = :tree")
    report = written.verify()
    assert len(said(report, "hash")) == MAX_FINDINGS
    assert report.trees[1].errors >= 2 * 40


# --- checkpoints -----------------------------------------------------------------------------------------------------


async def test_a_checkpoint_of_another_key_does_not_hold(written: Home, tmp_path: Path) -> None:
    other = FileSigner.open(tmp_path / "other.key", name=written.key.name)
    forged = sign_checkpoint(Checkpoint(origin_of(other.name, "acme"), 20, bytes(32)), other)
    with Forger(written) as forger:
        forger.run("UPDATE checkpoint SET note = ? WHERE tree = :tree AND size = 20", forged)
    report = written.verify()
    assert said(report, "signature") == [
        (None, "the checkpoint of size 20 does not hold: no known key signed the note")
    ]
    assert report.trees[1].signed == 8


async def test_a_log_resigned_with_another_key_does_not_hold_under_the_key_kept_elsewhere(
    written: Home, tmp_path: Path
) -> None:
    other = FileSigner.open(tmp_path / "other.key", name=written.key.name)
    with Forger(written) as forger:
        forger.edit(5, tokens_out=1)
        forger.rehash()
        (frontier,) = forger.db.execute("SELECT frontier FROM tree WHERE id = ?", (forger.tree,)).fetchone()
        root = Frontier.from_bytes(20, frontier).root()
        note = sign_checkpoint(Checkpoint(origin_of(other.name, "acme"), 20, root), other)
        forger.run("DELETE FROM checkpoint WHERE tree = :tree")
        forger.run("INSERT INTO checkpoint VALUES (:tree, 20, ?)", note)
    assert checks(written.verify()) == {"signature"}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda note: note.replace("\n20\n", "\n19\n"), "the signature of"),
        (lambda note: note.replace("domicile.local/audit/acme", "domicile.local/audit/globex"), "no known key"),
        (lambda note: note[:-9] + "AAAAAAA=\n", "the signature of"),
        (lambda note: "", "no signatures"),
    ],
)
async def test_a_spoiled_checkpoint_does_not_hold(written: Home, spoil: Callable[[str], str], why: str) -> None:
    note = checkpoints(written)[-1].note
    with Forger(written) as forger:
        forger.run("UPDATE checkpoint SET note = ? WHERE tree = :tree AND size = 20", spoil(note))
    ((_, says),) = said(written.verify(), "signature")
    assert why in says


async def test_a_checkpoint_filed_under_another_size_does_not_hold(written: Home) -> None:
    with Forger(written) as forger:
        forger.run("UPDATE checkpoint SET size = 10 WHERE tree = :tree AND size = 8")
    assert said(written.verify(), "signature") == [(None, "the checkpoint filed under size 10 was signed for 8")]


async def test_a_checkpoint_of_another_tenant_does_not_pass(written: Home) -> None:
    note = checkpoints(written, "_system")[-1].note
    with Forger(written) as forger:
        forger.run("INSERT INTO checkpoint VALUES (:tree, 4, ?)", note)
    assert "no known key" in said(written.verify(), "signature")[0][1]


async def test_a_log_rolled_back_with_its_checkpoints_is_found_out_by_a_checkpoint_held(written: Home) -> None:
    held = checkpoints(written)[-1].note
    with Forger(written) as forger:
        forger.run("DELETE FROM checkpoint WHERE tree = :tree AND size > 8")
        forger.run("DELETE FROM leaf WHERE tree = :tree AND seq >= 8")
        forger.rehash()
    assert written.verify().ok, "the file alone cannot show it"
    reader = written.reader()
    report = verify_log(reader, written.key, held=[held])
    reader.close()
    assert not report.ok
    assert said(report, "rollback") == [
        (
            8,
            "the log ends before record 8, but the checkpoint you hold of size 20 was signed: "
            "12 records are missing at the end",
        )
    ]


async def test_a_log_rewritten_under_its_own_key_is_found_out_by_a_checkpoint_held(written: Home) -> None:
    held = checkpoints(written)[0].note
    with Forger(written) as forger:
        forger.edit(5, tokens_out=1)
        forger.rehash()
        forger.run("DELETE FROM checkpoint WHERE tree = :tree AND size < 20")
        (frontier,) = forger.db.execute("SELECT frontier FROM tree WHERE id = ?", (forger.tree,)).fetchone()
        root = Frontier.from_bytes(20, frontier).root()
        note = sign_checkpoint(Checkpoint(origin_of(written.key.name, "acme"), 20, root), written.signer)
        forger.run("UPDATE checkpoint SET note = ? WHERE tree = :tree", note)
    assert written.verify().ok, "whoever has the key can rewrite all that nobody else attests"
    reader = written.reader()
    report = verify_log(reader, written.key, held=[held])
    reader.close()
    assert "the checkpoint you hold of size 8 does not match" in said(report, "root")[0][1]


async def test_a_checkpoint_held_of_a_log_that_holds_changes_nothing(written: Home) -> None:
    reader = written.reader()
    report = verify_log(reader, written.key, held=[checkpoint.note for checkpoint in checkpoints(written)])
    reader.close()
    assert report.ok


async def test_a_checkpoint_held_that_the_key_did_not_sign_is_refused(written: Home, tmp_path: Path) -> None:
    other = FileSigner.open(tmp_path / "other.key", name=written.key.name)
    held = sign_checkpoint(Checkpoint(origin_of(other.name, "acme"), 8, bytes(32)), other)
    reader = written.reader()
    with pytest.raises(NoteError, match="no known key"):
        verify_log(reader, written.key, held=[held])
    reader.close()


async def test_a_tenant_that_the_log_does_not_know_is_said_so(written: Home) -> None:
    reader = written.reader()
    with pytest.raises(StoreError, match="no tenant 'nobody'"):
        verify_log(reader, written.key, tenants=["nobody"])
    reader.close()


async def test_a_tree_that_is_gone_altogether_is_found_out_by_a_checkpoint_held(written: Home) -> None:
    held = checkpoints(written)[0].note
    with Forger(written) as forger:
        for table in ("leaf", "checkpoint", "open_intent"):
            forger.run(f"DELETE FROM {table} WHERE tree = :tree")
        forger.run("DELETE FROM tree WHERE id = :tree")
    reader = written.reader()
    report = verify_log(reader, written.key, held=[held])
    reader.close()
    assert said(report, "rollback") == [
        (None, "the log has no records of this tenant, but the checkpoint you hold of size 8 was signed")
    ]


async def test_a_checkpoint_held_has_its_tree_verified_though_another_was_asked_for(written: Home) -> None:
    reader = written.reader()
    report = verify_log(reader, written.key, tenants=["_system"], held=[checkpoints(written)[0].note])
    reader.close()
    assert [tree.tenant for tree in report.trees] == ["_system", "acme"]


async def test_a_checkpoint_held_of_another_log_is_refused(written: Home) -> None:
    held = sign_checkpoint(Checkpoint("elsewhere.example/acme", 8, bytes(32)), written.signer)
    reader = written.reader()
    with pytest.raises(NoteError, match="elsewhere"):
        verify_log(reader, written.key, held=[held])
    reader.close()
