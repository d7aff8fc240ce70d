"""Values of records that were never written: they are deleted as all others, and excuse the loss of no other value.

A crash between the value store's commit and the log's leaves them; another record takes the number.
"""

import json
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.errors import AuditError
from audit.events.private_value import Private, Sealed, seal
from audit.events.stamp import uuid7
from audit.keys.owner_keys import FileKeyProvider
from audit.pack.export import export
from audit.privacy.retention import run
from audit.privacy.schedule import DAY_MS
from audit.private.certificate import open_certificate
from audit.private.deletion import DeletionRequest, Recorded, erase_records, erase_subject, expire
from audit.private.erasure import certify, erase
from audit.private.value_store import ValueStore
from audit.tree.tlog_checkpoint import origin_of
from audit.verification.disclosure import field_states
from tests.audit.conftest import KNOWN, Home, accepted
from tests.audit.pack.test_export import settled, verify

ALICE, BOB = "alice@example.com", "bob@example.com"
STRAY = "01932b5e-0000-7000-8000-000000000000"


def stray(subject: str, *fields: str) -> tuple[Sealed, ...]:
    _, sealed = seal(accepted(), STRAY, Private({field: "lost" for field in fields}, subject))  # type: ignore[misc]
    return sealed


def states(home: Home, notes: list[str]) -> dict[tuple[int, str], str]:
    with closing(home.reader()) as reader, closing(home.side()) as side:
        found = field_states(reader, side, home.key, "acme", notes)
        return {(one.seq, one.field): one.state for one in found}


def lose(home: Home, seq: int) -> None:
    with closing(home.side()) as side, side.transaction() as db:
        db.execute("DELETE FROM value WHERE seq = ?", (seq,))


def keys(home: Home) -> int:
    with closing(home.side()) as side:
        return len(side.rows("SELECT id FROM data_key"))


@pytest.mark.parametrize("scope", ["subject", "records"])
async def test_an_erased_stray_does_not_excuse_the_loss_of_the_value_whose_number_it_had(
    home: Home, scope: str
) -> None:
    with closing(home.side()) as side:
        side.put([("acme", 1, value) for value in stray(ALICE, "input")])
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "hers"}, ALICE))
        await context.record(accepted("b"), Private({"input": "his"}, BOB))
        if scope == "subject":
            note = await erase(context, "acme", subject=ALICE)
            assert states(home, [note])[1, "input"] == "withheld"
        else:
            note = await erase(context, "acme", records=(0, 0))
    certificate = open_certificate(note, origin_of(home.key.name, "acme"), home.key.public_key)
    assert certificate.covered == {"input": ((0, 0),), "subject": ((0, 0),)}
    assert (certificate.records, certificate.values, certificate.unsettled) == (1, 2, None)
    lose(home, 1)
    found = states(home, [note])
    assert found[0, "input"] == "erased"
    assert found[1, "input"] == found[1, "subject"] == "missing"


async def test_what_only_strays_are_kept_of_is_not_kept_but_a_persons_are_deleted_with_their_key(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
        with closing(home.side()) as side:
            side.put([("acme", seq, value) for seq in (0, 1, 7) for value in stray(ALICE, "input")])
        with pytest.raises(AuditError, match="nothing is kept of records 0 to 3"):
            await erase(context, "acme", records=(0, 3))
        note = await erase(context, "acme", subject=ALICE)
        certificate = open_certificate(note, origin_of(home.key.name, "acme"), home.key.public_key)
        assert certificate.covered == {}
        assert len(certificate.keys_destroyed) == 1
        assert keys(home) == 0
        with closing(home.side()) as side:
            assert list(side.kept("acme")) == []


async def test_strays_beyond_the_end_of_the_tree_leave_certificate_and_pack_whole(home: Home, tmp_path: Path) -> None:
    """Of a batch that a crash prevented: their numbers are those of records that come after the certificate."""
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "hers"}, ALICE))
        with closing(home.side()) as side:
            side.put([("acme", seq, value) for seq in (1, 2, 3, 4) for value in stray(ALICE, "input")])
        note = await erase(context, "acme", subject=ALICE)
        for number in range(4):
            await context.record(accepted(f"b{number}"), Private({"input": "his"}, BOB))
        lose(home, 4)
        assert states(home, [note])[4, "input"] == "missing"
        await settled(home)
        await export(context, "acme", tmp_path / "pack.zip", evidence=KNOWN)
    code, report = verify(tmp_path / "pack.zip")
    assert code == 1
    assert [(one["check"], one["seq"]) for one in report["findings"]] == [("field", 4)] * 2, "the certificate holds"


async def test_a_value_deleted_while_its_record_was_being_written_is_covered_by_its_event(
    home: Home, tmp_path: Path
) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "hers"}, ALICE))
        await context.record(accepted("b"), Private({"input": "her second"}, ALICE))
        wanted = DeletionRequest(context.new_id(), "acme", "erasure", "subject", context.now(), 30)
        with closing(home.side()) as side:
            key_id = side.subject_key("acme", ALICE)
            assert key_id is not None
            before = context.event_ids("acme", [0])  # as read in the moment before record 1 was committed
            certificate = erase_subject(side, wanted, key_id, Recorded(lambda seqs: before))
        assert set(certificate.unsettled or ()) == {"input", "subject"}
        note = await certify(context, certificate)
        assert set(states(home, [note]).values()) == {"erased"}
        await settled(home)
        await export(context, "acme", tmp_path / "pack.zip", evidence=KNOWN)
    code, report = verify(tmp_path / "pack.zip")
    assert (code, report["findings"]) == (0, [])
    with zipfile.ZipFile(tmp_path / "pack.zip") as pack:
        fields = [json.loads(line) for line in pack.read("fields.jsonl").splitlines()]
    assert {one["state"] for one in fields} == {"erased"}


async def test_retention_deletes_strays_without_covering_them_and_keeps_the_record_of_a_kept_value(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "kept"}, BOB))
        over = Private({"input": "lost"}, ALICE, expires=context.now() - 1)
        _, sealed = seal(accepted(), STRAY, over)
        with closing(home.side()) as side:
            side.put([("acme", 0, value) for value in sealed])
            wanted = DeletionRequest(context.new_id(), "acme", "retention", None, context.now(), 30)
            recorded = Recorded(lambda seqs: context.event_ids("acme", seqs))
            certificate, _, _ = expire(side, wanted, recorded, [(0,)])
        assert certificate is not None
        assert certificate.covered == {}, "its value is kept, so the record stays"
        note = await certify(context, certificate)
        assert states(home, [note]) == {(0, "input"): "withheld", (0, "subject"): "withheld"}
        assert (await run(context, "acme")).orphans == 0


async def test_a_stray_under_the_number_of_an_expired_record_hinders_no_erasure(home: Home) -> None:
    async with home.context(clock=lambda: 1_700_000_000.0) as context:
        await context.record(accepted("a"))
    home.execute("UPDATE leaf SET payload = '' WHERE seq = 0")
    with closing(home.side()) as side:
        side.put([("acme", 0, value) for value in stray(ALICE, "input")])
    async with home.context() as context:
        assert context.event_ids("acme", [0, 5]) == {0: ""}
        await erase(context, "acme", subject=ALICE)
    assert keys(home) == 0


NUMBERS = st.integers(0, 5)


@settings(max_examples=20)
@given(
    real=st.dictionaries(NUMBERS, st.sets(st.sampled_from(["input", "output"]), min_size=1)),
    strays=st.dictionaries(NUMBERS, st.sets(st.sampled_from(["input", "output"]), min_size=1)),
    on_record=st.sets(NUMBERS),
    span=st.tuples(NUMBERS, NUMBERS).map(sorted),
)
def test_a_certificate_covers_exactly_the_values_of_the_events_that_were_deleted(
    real: Mapping[int, set[str]], strays: Mapping[int, set[str]], on_record: set[int], span: list[int]
) -> None:
    """Numbers outside of `on_record` are not on record yet: the value of either event may turn out to be real."""
    first, last = span
    now = 2_000_000_000_000
    events = {seq: uuid7(now + seq) for seq in range(6)}
    others = {seq: uuid7(now + DAY_MS + seq) for seq in range(6)}
    with TemporaryDirectory() as folder:
        side = ValueStore.open(Path(folder) / "side.db", FileKeyProvider.open(Path(folder) / "keys"))
        with closing(side):
            for ids, chosen in ((events, real), (others, strays)):
                for seq, fields in chosen.items():
                    _, sealed = seal(accepted(), ids[seq], Private(dict.fromkeys(sorted(fields), "x")))  # type: ignore[arg-type]
                    side.put([("acme", seq, value) for value in sealed])
            recorded = Recorded(lambda seqs: {seq: events[seq] for seq in seqs if seq in on_record})
            wanted = DeletionRequest(uuid7(now), "acme", "erasure", "records", now, 30)
            certificate = erase_records(side, wanted, first, last, recorded)
            left = {(one.seq, one.event_id, one.field) for one in side.kept("acme")}
    for ids, chosen in ((events, real), (others, strays)):
        for seq in range(6):
            for field in ("input", "output"):
                was = field in chosen.get(seq, ())
                inside = first <= seq <= last
                assert ((seq, ids[seq], field) in left) == (was and not inside)
                if seq in on_record and ids is others:
                    continue  # no record has this event
                assert certificate.covers(seq, field, ids[seq]) == (was and inside), (seq, field)
