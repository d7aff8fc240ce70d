"""A value store in PostgreSQL: what only a server with several hosts can do wrong."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from audit.errors import KeyLost, KeyProviderError, StoreError
from audit.events.private_value import Private, seal
from audit.keys.external_keys import ExternalKeys, ExternalMaster
from audit.keys.key_files import KeyFolder
from audit.keys.master import FileMaster
from audit.keys.owner_keys import FileKeyProvider, KeyRing
from audit.private.deletion import DeletionRequest, Recorded, erase_subject
from audit.private.postgres_values import KeyTable
from audit.private.postgres_values_watch import ValuesWatch
from audit.private.value_location import move_values, open_values_at
from audit.private.value_store import ValueStore
from audit.storage.installation_identity import ForeignDatabaseError
from audit.storage.watched import StoreReplaced
from tests.audit.conftest import accepted

EVENT = "01932b5e-0000-7000-8000-000000000000"
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()"
ERASURE = "01932b5e-0000-7000-8000-000000000001"


@pytest.fixture
def url(empty_database: str) -> str:
    return empty_database


@pytest.fixture
def server(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True, options="-c search_path=domicile_values") as db:
        yield db


@pytest.fixture
def hosts(tmp_path: Path, url: str) -> tuple[FileKeyProvider, FileKeyProvider]:
    """The key rings of two hosts: the same master key on each, the wrapped keys in the database."""
    first = FileKeyProvider.open(tmp_path / "one", KeyTable(url))
    (tmp_path / "two").mkdir(mode=0o700)
    (tmp_path / "two" / "root.key").write_bytes((tmp_path / "one" / "root.key").read_bytes())
    (tmp_path / "two" / "root.key").chmod(0o600)
    return first, FileKeyProvider.open(tmp_path / "two", KeyTable(url))


def opened(url: str, keys: FileKeyProvider) -> ValueStore:
    return open_values_at(url, Path("unused"), keys, create=True)


def keep(side: ValueStore, seq: int, subject: str | None = "alice", tenant: str = "acme") -> None:
    _, sealed = seal(accepted(tenant=tenant), EVENT, Private({"input": f"text {seq}"}, subject))
    side.put([(tenant, seq, value) for value in sealed])


def shown(side: ValueStore, tenant: str = "acme") -> set[str]:
    return {side.disclose(kept).value for kept in side.kept(tenant) if kept.field == "input"}


def wanted(name: str) -> DeletionRequest:
    return DeletionRequest(name, "acme", "erasure", "subject", 1_800_000_000_000, 30)


def test_a_key_that_one_host_gave_to_its_tenant_is_so_on_the_other(
    tmp_path: Path, url: str, hosts: tuple[FileKeyProvider, FileKeyProvider]
) -> None:
    (tmp_path / "theirs").mkdir()
    theirs = FileMaster.open(tmp_path / "theirs" / "root.key")
    rings = [
        KeyRing(one.kept, one.master, external=ExternalKeys({"acme-hsm": ExternalMaster("acme-hsm", lambda: theirs)}))
        for one in hosts
    ]
    wrapped = rings[0].wrap("acme", b"k" * 32)
    rings[0].give_to("acme", "acme-hsm")
    assert [ring.external_of("acme") for ring in rings] == ["acme-hsm", "acme-hsm"]
    assert [ring.unwrap("acme", wrapped) for ring in rings] == [b"k" * 32, b"k" * 32]
    with pytest.raises(KeyProviderError, match="acme-hsm"):
        hosts[1].unwrap("acme", wrapped)
    assert rings[1].give_to("acme", None)
    assert hosts[0].unwrap("acme", wrapped) == b"k" * 32


def test_what_one_host_keeps_the_other_reads_finds_and_erases(
    url: str, hosts: tuple[FileKeyProvider, FileKeyProvider]
) -> None:
    with closing(opened(url, hosts[0])) as one, closing(opened(url, hosts[1])) as two:
        keep(one, 0)
        keep(two, 1)
        assert shown(one) == shown(two) == {"text 0", "text 1"}
        key_id = two.subject_key("acme", "Alice")
        assert key_id is not None and key_id == one.subject_key("acme", "alice"), "one person, one key"
        erase_subject(two, wanted(ERASURE), key_id, Recorded(lambda seqs: dict.fromkeys(seqs, EVENT)))
        assert shown(one) == set() and one.subject_key("acme", "alice") is None
        keep(one, 2)
        assert one.subject_key("acme", "alice") != key_id


def test_hosts_that_meet_a_person_at_the_same_moment_use_one_key(
    url: str, hosts: tuple[FileKeyProvider, FileKeyProvider]
) -> None:
    together = threading.Barrier(4)

    def write(number: int) -> None:
        with closing(opened(url, hosts[number % 2])) as side:
            for round_ in range(12):
                together.wait(30)
                keep(side, number * 100 + round_, f"person {round_}")
                keep(side, number * 100 + 50 + round_, None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with closing(opened(url, hosts[0])) as side:
        assert len(shown(side)) == 4 * 12 * 2
        assert side.rows("SELECT count(*) FROM data_key WHERE subject IS NOT NULL") == [(12,)]
        assert side.rows("SELECT count(*) FROM pepper") == [(1,)]


def test_a_deletion_waits_for_writers_and_writers_for_it(
    url: str, hosts: tuple[FileKeyProvider, FileKeyProvider]
) -> None:
    with closing(opened(url, hosts[0])) as one, closing(opened(url, hosts[1])) as two:
        keep(one, 0)
        done = threading.Event()

        def write() -> None:
            keep(two, 1)
            done.set()

        with ThreadPoolExecutor(1) as pool:
            with one.transaction() as db:
                writing = pool.submit(write)
                assert not done.wait(0.3)
                db.execute("DELETE FROM value")
            writing.result(30)
        assert shown(one) == {"text 1"}
        with one.transaction(adds_only=True):
            keep(two, 2)  # beside one another
        assert shown(one) == {"text 1", "text 2"}


def test_a_tenants_key_destroyed_on_one_host_is_gone_on_the_other(
    url: str, hosts: tuple[FileKeyProvider, FileKeyProvider], server: psycopg.Connection
) -> None:
    first, second = hosts
    with closing(opened(url, first)) as one, closing(opened(url, second)) as two:
        keep(one, 0)
        assert shown(two) == {"text 0"}
        second.destroy("acme")
        with pytest.raises(KeyLost, match="destroyed"):
            shown(one)
        with pytest.raises(KeyLost, match="destroyed"):
            keep(one, 1)
    assert server.execute("SELECT owner, content FROM owner_key").fetchall() == [("acme", b"")]


def test_a_renewal_on_one_host_is_followed_by_the_other(hosts: tuple[FileKeyProvider, FileKeyProvider]) -> None:
    first, second = hosts
    old = first.wrap("acme", b"k" * 32)
    assert second.begin_renewal("acme") == 2
    assert first.unwrap("acme", old) == second.unwrap("acme", first.wrap("acme", b"k" * 32)) == b"k" * 32
    first.end_renewal("acme")
    with pytest.raises(KeyLost):
        second.unwrap("acme", old)
    assert first.owners() == second.owners() == ["acme"]


def test_without_the_master_key_of_the_first_host_nothing_opens(tmp_path: Path, url: str) -> None:
    first = FileKeyProvider.open(tmp_path / "one", KeyTable(url))
    stranger = FileKeyProvider.open(tmp_path / "other", KeyTable(url))
    wrapped = first.wrap("acme", b"k" * 32)
    with pytest.raises(KeyLost, match="does not open"):
        stranger.unwrap("acme", wrapped)
    with pytest.raises(KeyLost, match="does not open"):
        stranger.wrap("acme", b"k" * 32)


def test_keys_are_read_again_after_the_connection_broke_and_changes_are_whole(
    url: str, hosts: tuple[FileKeyProvider, FileKeyProvider], server: psycopg.Connection
) -> None:
    ring, _ = hosts
    wrapped = ring.wrap("acme", b"k" * 32)
    server.execute(TERMINATE)
    assert ring.unwrap("acme", wrapped) == b"k" * 32
    with pytest.raises(RuntimeError), ring.kept.changing():
        ring.kept.replace("acme", b"half")
        raise RuntimeError
    assert ring.unwrap("acme", wrapped) == b"k" * 32, "undone"


def test_a_server_that_is_away_is_an_error_that_names_it_and_no_password(tmp_path: Path) -> None:
    away = f"postgresql://user:hunter2@/values?host={tmp_path}"
    for fails in (
        lambda: opened(away, FileKeyProvider.open(tmp_path / "keys")),
        lambda: KeyTable(away).read("acme"),
        lambda: ValuesWatch(away),
    ):
        with pytest.raises((StoreError, KeyProviderError)) as raised:
            fails()
        assert "hunter2" not in str(raised.value)


def test_a_store_of_another_installation_format_or_owner_is_refused(
    url: str, hosts: tuple[FileKeyProvider, FileKeyProvider], server: psycopg.Connection, tmp_path: Path
) -> None:
    from audit.keys.signer import FileSigner

    ours = FileSigner.open(tmp_path / "a.key", name="a/audit").verifier_key
    theirs = FileSigner.open(tmp_path / "b.key", name="b/audit").verifier_key
    with closing(opened(url, hosts[0])) as side:
        side.claim(ours)
        side.claim(ours)
        with pytest.raises(ForeignDatabaseError):
            side.claim(theirs)
    server.execute("UPDATE format SET version = 2")
    with pytest.raises(StoreError, match="format 2"):
        opened(url, hosts[0])
    server.execute("DROP SCHEMA domicile_values CASCADE")
    server.execute("CREATE SCHEMA domicile_values")
    with pytest.raises(StoreError, match="not a value store"):
        opened(url, hosts[0])


def test_a_database_that_was_dropped_put_back_or_is_away_is_told_apart(
    url: str, hosts: tuple[FileKeyProvider, FileKeyProvider], server: psycopg.Connection
) -> None:
    opened(url, hosts[0]).close()
    server.execute("CREATE TABLE before AS TABLE watch_mark")
    with closing(ValuesWatch(url)) as watch:
        watch.look_closely()
        server.execute(TERMINATE)
        watch.look_closely()  # away for a moment is no fault
        watch.look_closely()
        watch._marked_at -= 3600
        watch.look_closely()
        watch.look_closely()
        server.execute("CREATE TABLE later AS TABLE watch_mark")
        server.execute("UPDATE watch_mark SET mark = 'older'")
        with pytest.raises(StoreReplaced, match="put back"):
            watch.look_closely()
        server.execute("DELETE FROM watch_mark")
        with pytest.raises(StoreReplaced, match="put back"):
            watch.look_closely()
        server.execute("INSERT INTO watch_mark SELECT * FROM later")
        watch.look_closely()
        server.execute("ALTER TABLE value RENAME TO old_value")
        server.execute("CREATE TABLE value AS TABLE old_value")
        with pytest.raises(StoreReplaced, match="dropped or replaced"):
            watch.look_closely()
        server.execute("DROP SCHEMA domicile_values CASCADE")
        with pytest.raises(StoreError):
            watch.look_closely()


def test_a_store_in_files_is_copied_whole_once_and_into_nothing_else(
    tmp_path: Path, url: str, server: psycopg.Connection
) -> None:
    folder, file = tmp_path / "keys", tmp_path / "side.db"
    keys = FileKeyProvider.open(folder)
    with closing(ValueStore.open(file, keys)) as old:
        for seq in range(5):
            keep(old, seq, "alice" if seq % 2 else None)
        keep(old, 9, "bob", "globex")
        keys.destroy("globex")
        erased = old.subject_key("acme", "alice")
        assert erased is not None
        erase_subject(old, wanted(ERASURE), erased, Recorded(lambda seqs: dict.fromkeys(seqs, EVENT)))
        kept, texts = list(old.kept("acme")), shown(old)
    assert move_values(file, folder, url) == (5, 2)
    assert move_values(file, folder, url) == (0, 0), "the same again"
    moved = FileKeyProvider.open(folder, KeyTable(url))
    with closing(opened(url, moved)) as side:
        assert list(side.kept("acme")) == kept
        assert shown(side) == texts
        assert side.rows("SELECT id FROM deletion") == [(ERASURE,)]
        with pytest.raises(KeyLost, match="destroyed"):
            shown(side, "globex")
        keep(side, 10)
    with pytest.raises(StoreError, match="holds another value store already"):
        move_values(file, folder, url)
    assert KeyFolder(folder).owners() == ["acme", "globex"], "the files stay"


def test_a_copy_that_is_cut_off_leaves_the_database_empty(tmp_path: Path, url: str, server: psycopg.Connection) -> None:
    folder, file = tmp_path / "keys", tmp_path / "side.db"
    with closing(ValueStore.open(file, FileKeyProvider.open(folder))) as old:
        keep(old, 0)
    opened(url, FileKeyProvider.open(folder)).close()
    server.execute("ALTER TABLE owner_key ADD CHECK (content = '')")
    with pytest.raises(StoreError):
        move_values(file, folder, url)
    assert server.execute("SELECT count(*) FROM value").fetchone() == (0,)
