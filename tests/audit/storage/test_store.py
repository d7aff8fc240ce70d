"""What every store must do, on SQLite and on PostgreSQL."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from audit.errors import StoreError
from audit.events.base import Step
from audit.events.private_value import Sealed
from audit.storage.store import LeafStore, LogEntry, OpenIntent, Placed, Refused, SignedCheckpoint
from audit.tree.merkle import leaf_hash, tree_hash
from tests.audit.conftest import Home

ON_BOTH_STORES = True


def entry(payload: bytes, tenant: str = "acme", step: Step = Step.NONE, request: str | None = None) -> LogEntry:
    return LogEntry(tenant, leaf_hash(payload), payload, step, request)


def with_value(payload: bytes) -> LogEntry:
    sealed = Sealed("event", "input", "c" * 64, b"salt and value", None, "content", None)
    return LogEntry("acme", leaf_hash(payload), payload, private=(sealed,))


def opened(home: Home, node: str = "gw-1", boot: str = "boot-1") -> LeafStore:
    return home.open_store(home.path, node, boot)  # type: ignore[return-value]


@pytest.fixture
def store(home: Home) -> Iterator[LeafStore]:
    store = opened(home)
    yield store
    store.close()


def test_what_was_appended_is_read_back_in_order(store: LeafStore, home: Home) -> None:
    appended = store.append([entry(b"a"), entry(b"x", "globex"), entry(b"b")])
    assert appended.placed == [0, 0, 1]
    assert {tenant: head.size for tenant, head in appended.heads.items()} == {"acme": 2, "globex": 1}
    reader = home.reader()
    assert reader.tenants() == ["acme", "globex"]
    assert [tuple(leaf) for leaf in reader.leaves("acme")] == [(0, leaf_hash(b"a"), b"a"), (1, leaf_hash(b"b"), b"b")]
    assert [leaf.payload for leaf in reader.leaves("acme", 1)] == [b"b"]
    assert list(reader.leaf_hashes("acme", 0, 1)) == [leaf_hash(b"a")]
    assert reader.head("acme") == (2, tree_hash([leaf_hash(b"a"), leaf_hash(b"b")]))
    assert list(reader.leaves("nobody")) == []
    reader.close()


def test_a_snapshot_does_not_see_what_comes_after_it(store: LeafStore, home: Home) -> None:
    store.append([entry(b"a")])
    reader = home.reader()
    assert reader.head("acme")[0] == 1
    store.append([entry(b"b")])
    assert reader.head("acme")[0] == 1
    assert len(list(reader.leaves("acme"))) == 1
    reader.close()


def test_refused_entries_take_no_number(store: LeafStore) -> None:
    opens = entry(b"1", step=Step.OPENS, request="r1")
    closes = entry(b"2", step=Step.CLOSES, request="r1")
    within = entry(b"3", step=Step.WITHIN, request="r1")
    placed = store.append([within, opens, opens, within, closes, closes, entry(b"z")]).placed
    assert [place if isinstance(place, int) else "refused" for place in placed] == [
        "refused", 0, "refused", 1, 2, "refused", 3,
    ]  # fmt: skip
    assert isinstance(placed[0], Refused)


def test_a_batch_of_refused_entries_grows_no_tree(store: LeafStore) -> None:
    appended = store.append([entry(b"2", step=Step.CLOSES, request="r1")])
    assert appended.heads == {}
    assert store.unsigned() == {}


def test_open_intents_carry_the_node_and_boot_that_opened_them(store: LeafStore, home: Home) -> None:
    store.append([entry(b"0"), entry(b"1", step=Step.OPENS, request="r1")])
    other = opened(home, "gw-2", "boot-2")
    other.append([entry(b"2", step=Step.OPENS, request="r2")])
    assert store.intents("gw-1") == [OpenIntent("acme", "r1", 1, "gw-1", "boot-1")]
    assert store.intents("gw-2") == [OpenIntent("acme", "r2", 2, "gw-2", "boot-2")]
    other.close()


def test_trees_are_unsigned_until_a_checkpoint_covers_them(store: LeafStore, home: Home) -> None:
    store.append([entry(b"a"), entry(b"b")])
    assert store.unsigned()["acme"].size == 2
    store.append([], [SignedCheckpoint("acme", 2, "note"), SignedCheckpoint("acme", 2, "note")])
    assert store.unsigned() == {}
    store.append([entry(b"c")])
    assert store.unsigned()["acme"].size == 3
    reader = home.reader()
    assert list(reader.checkpoints("acme")) == [("acme", 2, "note")]
    reader.close()


def test_the_last_checkpoint_is_that_of_the_greatest_size_of_its_own_tree(store: LeafStore, home: Home) -> None:
    store.append([entry(str(number).encode()) for number in range(12)])
    for size in (9, 10, 2):
        store.append([], [SignedCheckpoint("acme", size, f"note {size}")])
    with closing(home.reader()) as reader:
        assert reader.last_checkpoint("acme") == SignedCheckpoint("acme", 10, "note 10")
        assert reader.last_checkpoint("globex") is None
        assert [one.size for one in reader.newest_checkpoints("acme", 2)] == [10, 9]
        assert [one.size for one in reader.newest_checkpoints("acme", 9, up_to=9)] == [9, 2]
        assert reader.newest_checkpoints("acme", 9, up_to=1) == reader.newest_checkpoints("globex", 9) == []


def test_the_reader_says_which_records_have_expired(store: LeafStore, home: Home) -> None:
    store.append([entry(str(number).encode()) for number in range(9)])
    with closing(home.reader()) as reader:
        pruner = reader.pruner()
    pruner.prune("acme", 2, 4)
    pruner.prune("acme", 7, 7)
    pruner.close()
    with closing(home.reader()) as reader:
        assert list(reader.expired("acme", 9)) == [2, 3, 4, 7]
        assert list(reader.expired("acme", 4)) == [2, 3]
        assert list(reader.expired("nobody", 9)) == []


def test_writers_in_several_threads_share_one_sequence(home: Home) -> None:
    numbers: list[int] = []

    def write(node: str) -> None:
        store = opened(home, node)
        for number in range(50):
            numbers.extend(store.append([entry(f"{node}-{number}".encode())] * 2).placed)
        store.close()

    threads = [threading.Thread(target=write, args=(f"gw-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(300))


def test_an_error_in_the_middle_of_a_batch_keeps_none_of_it(store: LeafStore, home: Home) -> None:
    store.append([entry(b"a")])
    with pytest.raises(StoreError):
        store.append([entry(b"b"), entry(b"c", tenant=None)])  # type: ignore[arg-type]
    assert store.append([entry(b"d")]).placed == [1]


def test_a_damaged_head_is_not_built_upon(store: LeafStore, home: Home) -> None:
    store.append([entry(b"a")])
    home.execute("UPDATE tree SET frontier = '0'")
    with pytest.raises(StoreError, match="frontier"):
        store.append([entry(b"b")])


def test_writers_that_touch_trees_in_different_orders_do_not_stop_each_other(home: Home) -> None:
    tenants = [f"t{number}" for number in range(6)]
    failed: list[BaseException] = []

    def write(node: str, order: list[str]) -> None:
        try:
            store = opened(home, node)
            for number in range(40):
                store.append([entry(f"{node}-{number}".encode(), tenant) for tenant in order])
            store.close()
        except StoreError as error:
            failed.append(error)

    orders = [tenants, tenants[::-1], tenants[3:] + tenants[:3]]
    threads = [threading.Thread(target=write, args=(f"gw-{at}", order)) for at, order in enumerate(orders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    reader = home.reader()
    assert {reader.head(tenant)[0] for tenant in tenants} == {120}
    for tenant in tenants:
        assert [leaf.seq for leaf in reader.leaves(tenant)] == list(range(120))
    reader.close()


def test_an_intent_closed_and_opened_again_in_one_batch_is_the_new_one(store: LeafStore, home: Home) -> None:
    store.append([entry(b"1", step=Step.OPENS, request="r1"), entry(b"2", step=Step.OPENS, request="r2")])
    again = [
        entry(b"3", step=Step.CLOSES, request="r1"),
        entry(b"4", step=Step.OPENS, request="r1"),
        entry(b"5", step=Step.CLOSES, request="r2"),
    ]
    assert store.append(again).placed == [2, 3, 4]
    assert store.intents("gw-1") == [OpenIntent("acme", "r1", 3, "gw-1", "boot-1")]
    reader = home.reader()
    assert [intent.seq for intent in reader.open_intents("acme")] == [3]
    reader.close()


def test_private_values_are_kept_before_their_leaf_is_committed_or_neither_is(store: LeafStore, home: Home) -> None:
    assert isinstance(store.append([with_value(b"a")]).placed[0], Refused)
    kept: list[Placed] = []
    assert store.append([entry(b"a"), with_value(b"b")], keep=kept.extend).placed == [0, 1]
    assert [(seq, one.payload) for seq, one in kept] == [(1, b"b")]

    def full(_: object) -> None:
        raise StoreError("the value store is full")

    with pytest.raises(StoreError, match="value store is full"):
        store.append([entry(b"c"), with_value(b"d")], [SignedCheckpoint("acme", 2, "note")], keep=full)
    reader = home.reader()
    assert [leaf.payload for leaf in reader.leaves("acme")] == [b"a", b"b"]
    assert list(reader.checkpoints("acme")) == []
    reader.close()
    assert store.append([entry(b"e")]).placed == [2]


def test_what_is_of_no_tenant_is_not_found(store: LeafStore, home: Home) -> None:
    store.append([entry(b"a")])
    reader = home.reader()
    with pytest.raises(StoreError, match="no tenant 'nobody'"):
        reader.head("nobody")
    assert list(reader.leaf_hashes("nobody", 0, 9)) == list(reader.checkpoints("nobody")) == []
    reader.close()
