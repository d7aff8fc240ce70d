"""The value store: what it keeps comes back, what was changed in it does not, and without it nothing is promised."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from audit.errors import AuditUnavailable, CommitmentError, EventRejected, StoreError
from audit.events.event import InferenceCompleted
from audit.events.private_value import Private, seal
from audit.private.value_store import Disclosed, ValueStore
from tests.audit.conftest import Home, accepted, completed

ON_BOTH_STORES = True

EVENT = "01932b5e-0000-7000-8000-000000000000"
VALUE = {"digest": "a" * 64, "words": ["grüß", 1, None, True]}


def keep(side: ValueStore, seq: int = 0, subject: str | None = "alice", tenant: str = "acme") -> None:
    _, sealed = seal(accepted(tenant=tenant), EVENT, Private({"input": VALUE}, subject, expires=5))
    side.put([(tenant, seq, value) for value in sealed])


def shown(side: ValueStore, tenant: str = "acme") -> list[Disclosed]:
    return [side.disclose(kept) for kept in side.kept(tenant)]


def test_a_value_comes_back_as_it_was_and_lies_there_unreadable(home: Home) -> None:
    with closing(home.side()) as side:
        keep(side)
        values = {one.kept.field: one.value for one in shown(side)}
        assert values == {"input": VALUE, "subject": "alice"}
        assert {one.kept.expires for one in shown(side)} == {5}
        content = str([side.rows(f"SELECT * FROM {table}") for table in ("value", "data_key", "pepper")]).encode()
    if home.url is None:
        content += home.path.with_name("side.db").read_bytes()
    assert b"gr\xc3\xbc\xc3\x9f" not in content and b"alice" not in content and rb"gr\xc3\xbc" not in content


@pytest.mark.parametrize(
    "change",
    [
        "ciphertext = nonce",
        "nonce = (SELECT wrapped FROM data_key)",
        "commitment = replace(commitment, substr(commitment, 1, 1), 'x')",
        "seq = 7",
        "field = 'output'",
    ],
)
def test_a_value_changed_or_moved_in_the_file_is_not_shown(home: Home, change: str) -> None:
    with closing(home.side()) as side:
        keep(side, subject=None)
        with side.transaction() as db:
            db.execute(f"UPDATE value SET {change}")
        with pytest.raises(CommitmentError):
            shown(side)


def test_a_person_is_found_under_other_spellings_and_only_within_a_tenant(home: Home) -> None:
    with closing(home.side()) as side:
        keep(side, subject="Ａlice@Example.com")
        assert side.subject_key("acme", " alice@example.COM ") is not None
        assert side.subject_key("acme", "alicia@example.com") is None
        assert side.subject_key("globex", "alice@example.com") is None
        assert side.subject_index("acme", "x") != side.subject_index("globex", "x")


def test_values_of_one_person_share_a_key_and_records_without_one_do_not(home: Home) -> None:
    with closing(home.side()) as side:
        keep(side, 0)
        keep(side, 1)
        keep(side, 2, subject=None)
        keep(side, 3, subject=None)
        keys = {seq: {kept.key_id for kept in side.kept("acme", start=seq, end=seq + 1)} for seq in range(4)}
    assert keys[0] == keys[1]
    assert len(keys[0] | keys[2] | keys[3]) == 3


def test_a_side_store_of_a_later_format_is_refused_with_what_to_do(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    ValueStore.open(path, home.keys).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=2")
    other = "the value store has format 2, this program reads format 1; start the version"
    with pytest.raises(StoreError, match=other):
        ValueStore.open(path, home.keys)


def test_another_file_is_not_taken_for_a_side_store(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE mine (x)")
    with pytest.raises(StoreError, match="not a value store"):
        ValueStore.open(path, home.keys)


def test_a_field_without_a_meaning_or_a_value_without_a_form_is_refused() -> None:
    with pytest.raises(EventRejected, match="no field"):
        seal(accepted(), EVENT, Private({"prompt": "x"}))  # type: ignore[dict-item]
    with pytest.raises(EventRejected, match="input"):
        seal(accepted(), EVENT, Private({"input": float("inf")}))


async def test_a_leaf_holds_commitments_and_no_value(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("r"), Private({"input": "words"}, "alice"))
    (record,) = home.events("acme")
    assert set(record["commits"]) == {"input", "subject"}
    assert "words" not in str(record) and "alice" not in str(record)
    assert home.verify().ok


async def test_without_a_side_store_an_event_with_values_is_refused_and_the_log_goes_on(home: Home) -> None:
    async with await home.open() as log:
        with pytest.raises(EventRejected, match="no value store"):
            await log.append(accepted("a"), Private({"input": "words"}))
        await log.append(accepted("b"))
    assert [event["request_id"] for event in home.events("acme")] == ["b"]


async def test_a_caller_cannot_bring_a_commitment_of_its_own(home: Home) -> None:
    async with await home.open() as log:
        with pytest.raises(EventRejected, match="which only the log makes; leave them out"):
            await log.append(accepted("a", commits={"input": "a" * 64}))


async def test_an_outcome_refused_by_the_log_leaves_no_value_behind(home: Home) -> None:
    async with home.context() as context:
        with pytest.raises(EventRejected, match="no open intent"):
            await context.record(completed("never"), Private({"output": "words"}))
    with closing(home.side()) as side:
        assert list(side.kept("acme")) == []


async def test_if_the_values_cannot_be_kept_the_event_is_not_recorded(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "words"}, "alice"))
        home.change_values("DROP TABLE value")
        with pytest.raises(AuditUnavailable, match="value store"):
            await context.record(
                InferenceCompleted(tenant="acme", request_id="a", status=200), Private({"output": "words"}, "alice")
            )
    assert "inference.completed" not in home.types("acme")
