import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import groupby

import pytest
import sqlalchemy

from gateway.database.database import Database
from gateway.database.errors import DatabaseUnavailable
from gateway.directory.directory import FORCED_CHECK_INTERVAL_S, POLL_INTERVAL_S, Directory, DirectoryStale
from gateway.identity.keys import (
    ApiKey,
    KeyElsewhere,
    KeyExpired,
    KeyHasher,
    KeyMalformed,
    KeyRevoked,
    KeyUnknown,
    generate_key,
)
from gateway.identity.machines import Machine
from gateway.identity.pepper import begin_rotation, end_rotation
from gateway.records.control import Scopes
from gateway.store.control.control import Control
from regions.identity.identity import BackendIdentity
from tests.fakes.lab import until
from tests.gateway.conftest import ACTIVITY, PEPPER, compile_policy

ON_BOTH_DATABASES = True

POLICY = "policy: acme"


class Clock:
    def __init__(self):
        self.at = 1000.0

    def __call__(self):
        return self.at


@pytest.fixture
def compiled():
    return []


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def directory(database, compiled, clock):
    """Not entered; its clock stands still, so nothing but the test makes it look again."""

    def compile_and_note(tenant, *documents):
        compiled.append(documents)
        return compile_policy(tenant, *documents)

    return Directory(database, cell="demo", hasher=KeyHasher(PEPPER), compile_policy=compile_and_note, monotonic=clock)


async def test_a_valid_key_is_its_project_with_all_it_is_bound_to(acme, directory):
    acme.activate_policy("acme", POLICY)
    expiry = datetime.now(UTC) + timedelta(days=1)
    record, key = acme.create_key("acme", "support", scopes=Scopes(models=("m",)), expires_at=expiry)
    async with directory:
        principal = await directory.authenticate(key.token)
    assert (principal.tenant, principal.project, principal.key_id) == ("acme", "support", record.id)
    assert (principal.purpose, principal.legal_basis) == ("customer support", "contract")
    assert (principal.data_classes, principal.risk_class) == ((), "minimal")
    assert principal.scopes == Scopes(models=("m",))
    assert principal.expires_at == expiry
    assert principal.in_force.documents == (POLICY, None)
    assert principal.policy_error is None


async def test_a_key_made_after_the_start_works_at_once(acme, directory):
    async with directory:
        _, key = acme.create_key("acme", "support")
        assert (await directory.authenticate(key.token)).tenant == "acme"


async def test_a_storm_of_unknown_keys_is_served_by_few_reads(acme, database, monkeypatch):
    monkeypatch.setattr("gateway.directory.directory.POLL_INTERVAL_S", 60.0)  # so that only the keys ask for reads
    directory = Directory(database, cell="demo", hasher=KeyHasher(PEPPER), compile_policy=compile_policy)
    async with directory:
        read, reads = directory._read, []

        def counted():
            reads.append(None)
            return read()

        directory._read = counted
        for _ in range(4):
            refused = await asyncio.gather(
                *(directory.authenticate(generate_key().token) for _ in range(50)), return_exceptions=True
            )
            assert {type(outcome) for outcome in refused} == {KeyUnknown}
    assert len(reads) <= 2 * 4, "one for all who wait at the time, and one for those who came while it ran"


async def test_a_restored_backup_is_read_from_the_beginning(acme, directory, database, data):
    _, kept = acme.create_key("acme", "support")
    with sqlite3.connect(data / "control.db") as source, sqlite3.connect(data / "backup.db") as backup:
        source.backup(backup)
    _, lost = acme.create_key("acme", "support")
    async with directory:
        assert directory.principal(lost)
        with sqlite3.connect(data / "control.db") as target, sqlite3.connect(data / "backup.db") as backup:
            backup.backup(target)
        await directory._check()
        assert directory.principal(kept)
        with pytest.raises(KeyUnknown):
            directory.principal(lost)
    for connection in (source, target, backup):
        connection.close()


@pytest.mark.parametrize("revoke", ["key", "project", "tenant"])
async def test_a_key_dies_with_itself_its_project_or_its_tenant(acme, directory, revoke):
    record, key = acme.create_key("acme", "support")
    async with directory:
        assert directory.principal(key)
        if revoke == "key":
            acme.revoke_key("acme", record.id)
        elif revoke == "project":
            acme.revoke_project("acme", "support")
        else:
            acme.revoke_tenant("acme")
        await directory._check()
        with pytest.raises(KeyRevoked):
            await directory.authenticate(key.token)


async def test_a_right_id_with_a_wrong_secret_is_unknown(acme, directory):
    _, key = acme.create_key("acme", "support")
    async with directory:
        with pytest.raises(KeyUnknown):
            directory.principal(ApiKey(key.id, generate_key().token))


async def test_a_malformed_key_never_reaches_the_look_up(acme, directory):
    async with directory:
        with pytest.raises(KeyMalformed):
            await directory.authenticate("dom_live_' OR 1=1")


async def test_a_key_expires_to_the_second(acme, database, clock):
    _, key = acme.create_key("acme", "support", expires_at=datetime(2100, 1, 1, tzinfo=UTC))
    now = [datetime(2099, 12, 31, 23, 59, 59, tzinfo=UTC)]
    directory = Directory(
        database,
        cell="demo",
        hasher=KeyHasher(PEPPER),
        compile_policy=compile_policy,
        monotonic=clock,
        now=lambda: now[0],
    )
    async with directory:
        assert directory.principal(key)
        now[0] += timedelta(seconds=1)
        with pytest.raises(KeyExpired, match="2100-01-01"):
            directory.principal(key)


async def test_a_store_unread_for_five_seconds_answers_nobody(acme, directory, clock):
    _, key = acme.create_key("acme", "support")
    async with directory:
        clock.at += 5
        assert directory.principal(key)
        clock.at += 0.1
        with pytest.raises(DirectoryStale):
            directory.principal(key)
        await directory._check()
        assert directory.principal(key)


async def test_where_the_store_is_asked_and_does_not_answer_every_call_is_refused(acme, directory, clock, monkeypatch):
    _, key = acme.create_key("acme", "support")
    async with directory:
        asked = []

        def broken():
            asked.append(clock.at)
            raise OSError("the store is gone")

        monkeypatch.setattr(directory, "_read", broken)
        clock.at += 5.1
        for _ in range(3):
            with pytest.raises(DirectoryStale):
                await directory.authenticate(key.token)
            assert asked, "the first was refused only after one more look"


async def test_a_gateway_that_stood_still_looks_into_the_store_before_it_refuses(acme, directory, clock):
    _, key = acme.create_key("acme", "support")
    async with directory:
        await directory.authenticate(key.token)
        clock.at += 60
        assert (await directory.authenticate(key.token)).key_id == key.id
        revoked = acme.create_key("acme", "support")[1]
        await directory.authenticate(revoked.token)
        acme.revoke_key("acme", revoked.id)
        clock.at += 60
        with pytest.raises(KeyRevoked):
            await directory.authenticate(revoked.token)


async def test_after_standing_still_calls_wait_for_the_look_that_is_under_way(acme, directory, clock, monkeypatch):
    """The poll may come first after a stall, and has asked but not heard when a call arrives."""
    _, key = acme.create_key("acme", "support")
    async with directory:
        await directory.authenticate(key.token)
        read, asked, may_answer = directory._read, asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow():
            loop.call_soon_threadsafe(asked.set)
            assert may_answer.wait(10)
            return read()

        monkeypatch.setattr(directory, "_read", slow)
        clock.at += 60
        await asyncio.wait_for(asked.wait(), 10)  # by the poll
        calls = [asyncio.create_task(directory.authenticate(key.token)) for _ in range(3)]
        machine = asyncio.create_task(directory.authenticate_machine(Machine("app", "acme", "support", 2**33)))
        await asyncio.sleep(0.05)
        assert not any(call.done() for call in (*calls, machine))
        may_answer.set()
        assert {principal.key_id for principal in await asyncio.gather(*calls)} == {key.id}
        assert (await machine).tenant == "acme"


async def test_a_store_that_cannot_be_read_at_the_start_stops_the_start(directory, data, database):
    database.close()
    (data / "control.db").write_bytes(b"x" * 5000)
    for more in data.glob("control.db-*"):
        more.unlink()
    with pytest.raises(DatabaseUnavailable):
        await directory.__aenter__()
    await directory.__aexit__(None, None, None)


async def test_without_a_policy_there_is_an_error_and_no_default(acme, directory):
    _, key = acme.create_key("acme", "support")
    async with directory:
        principal = directory.principal(key)
        assert principal.in_force is None
        assert principal.policy is None
        assert principal.redactor is None
        assert principal.policy_error == "tenant acme has no active policy"
        acme.activate_policy("acme", POLICY)
        await directory._check()
        assert directory.principal(key).in_force.documents == (POLICY, None)


async def test_a_policy_that_no_longer_compiles_is_an_error_and_no_default(acme, database, clock):
    acme.activate_policy("acme", POLICY)
    _, key = acme.create_key("acme", "support")

    def newer_program(tenant, document, project_document, operator_document):
        raise ValueError("line 1: policy: no longer understood")

    directory = Directory(
        database, cell="demo", hasher=KeyHasher(PEPPER), compile_policy=newer_program, monotonic=clock
    )
    async with directory:
        principal = directory.principal(key)
    assert principal.in_force is None
    assert "no longer understood" in principal.policy_error


async def test_a_project_is_under_its_own_policy_if_it_has_one(acme, directory):
    acme.create_project("acme", "other", **ACTIVITY)
    acme.activate_policy("acme", POLICY)
    acme.activate_policy("acme", "policy: tighter", project="support")
    _, support = acme.create_key("acme", "support")
    _, other = acme.create_key("acme", "other")
    async with directory:
        assert directory.principal(support).in_force.documents == (POLICY, "policy: tighter")
        assert directory.principal(other).in_force.documents == (POLICY, None)


async def test_a_policy_is_compiled_once_a_version_and_forgotten_when_replaced(acme, directory, compiled):
    acme.activate_policy("acme", POLICY)
    keys = [acme.create_key("acme", "support")[1] for _ in range(3)]
    async with directory:
        for key in keys:
            directory.principal(key)
        assert compiled == [(POLICY, None, None)]
        acme.activate_policy("acme", "policy: next")
        await directory._check()
        for key in keys:
            assert directory.principal(key).in_force.documents == ("policy: next", None)
        assert compiled == [(POLICY, None, None), ("policy: next", None, None)]
        assert len(directory._in_force) == 1


async def test_the_operators_policy_is_above_every_tenants_from_the_next_look_on(acme, directory, compiled):
    acme.activate_policy("acme", POLICY)
    _, key = acme.create_key("acme", "support")
    async with directory:
        directory.principal(key)
        acme.activate_policy(None, "policy: ceiling")
        await directory._check()
        directory.principal(key)
    assert compiled == [(POLICY, None, None), (POLICY, None, "policy: ceiling")]


async def test_another_cells_keys_are_unknown_here(acme, database, clock):
    _, key = acme.create_key("acme", "support")
    directory = Directory(
        database, cell="other", hasher=KeyHasher(PEPPER), compile_policy=compile_policy, monotonic=clock
    )
    async with directory:
        with pytest.raises(KeyUnknown):
            directory.principal(key)


async def test_backends_of_the_living_are_told_with_every_change(acme, database, clock):
    seen = []
    acme.create_tenant("globex")
    for tenant in ("acme", "globex"):
        acme.register_backend(
            BackendIdentity("demo", tenant, "eu-fr-par", f"{tenant}-1"), url="https://127.0.0.1:1", models=["m"]
        )
    directory = Directory(
        database,
        cell="demo",
        hasher=KeyHasher(PEPPER),
        compile_policy=compile_policy,
        monotonic=clock,
        on_change=lambda d: seen.append(sorted(b.id for b in d.backends())),
    )
    async with directory:
        acme.revoke_backend("acme", "acme-1")
        await directory._check()
        await directory._check()
        acme.revoke_tenant("globex")
        await directory._check()
    assert [told for told, _ in groupby(seen)] == [["acme-1", "globex-1"], ["globex-1"], []]


async def test_only_what_changed_is_read(acme, directory, database):
    _, old = acme.create_key("acme", "support")
    async with directory:
        entry = directory._snapshot.keys[old.id]
        _, new = acme.create_key("acme", "support")
        await directory._check()
        assert directory._snapshot.keys[old.id] is entry
        assert directory.principal(new)


WORKER = """
import asyncio, sys
from pathlib import Path
from gateway.directory.directory import Directory
from gateway.identity.keys import KeyHasher, KeyRefused
from gateway.database.database import Database

async def main(data, token):
    database = Database.open(Path(data))
    compile_policy = lambda tenant, document, project: None
    async with Directory(database, cell="demo", hasher=KeyHasher(bytes(range(32))), compile_policy=compile_policy) as d:
        await d.authenticate(token)
        print("works", flush=True)
        while True:
            try:
                await d.authenticate(token)
            except KeyRefused as refusal:
                print(type(refusal).__name__, flush=True)
                return
            await asyncio.sleep(0.01)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_revoked_key_stops_working_in_every_process_within_a_second(acme, data):
    record, key = acme.create_key("acme", "support")
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(data), key.token], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        assert [worker.stdout.readline() for worker in workers] == ["works\n", "works\n"]
        acme.revoke_key("acme", record.id)
        assert [worker.stdout.readline() for worker in workers] == ["KeyRevoked\n", "KeyRevoked\n"]
        assert POLL_INTERVAL_S + FORCED_CHECK_INTERVAL_S < 1
        assert [worker.wait(10) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()


async def test_the_poll_survives_a_store_that_fails_for_a_while(acme, data):
    database = Database.open(data)
    directory = Directory(database, cell="demo", hasher=KeyHasher(PEPPER), compile_policy=compile_policy)
    async with directory:
        read, fails = directory._read, [3]

        def flaky():
            if fails[0]:
                fails[0] -= 1
                raise DatabaseUnavailable("gone")
            return read()

        directory._read = flaky
        _, later = acme.create_key("acme", "support")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                directory.principal(later)
                break
            except KeyUnknown:
                await asyncio.sleep(0.05)
        assert directory.principal(later).tenant == "acme"
        assert fails == [0]
    database.close()


async def test_after_a_rotation_both_keys_work_until_the_grace_period_ends(acme, database, clock):
    old, old_key = acme.create_key("acme", "support")
    _, new_key = acme.rotate_key("acme", old.id, grace=timedelta(hours=1))
    now = [datetime.now(UTC)]
    directory = Directory(
        database,
        cell="demo",
        hasher=KeyHasher(PEPPER),
        compile_policy=compile_policy,
        monotonic=clock,
        now=lambda: now[0],
    )
    async with directory:
        assert directory.principal(old_key)
        assert directory.principal(new_key)
        now[0] += timedelta(hours=1, seconds=1)
        with pytest.raises(KeyExpired):
            directory.principal(old_key)
        assert directory.principal(new_key)


async def test_a_key_for_one_network_works_from_nowhere_else(acme, directory):
    _, key = acme.create_key("acme", "support", scopes=Scopes(networks=("10.0.0.0/8",)))
    async with directory:
        assert await directory.authenticate(key.token, ip_address("10.9.9.9"))
        for address in (ip_address("192.0.2.1"), ip_address("::1"), None):
            with pytest.raises(KeyElsewhere):
                await directory.authenticate(key.token, address)


async def test_when_a_key_was_used_is_written_in_batches_and_makes_no_epoch(acme, directory, inventory):
    used, key = acme.create_key("acme", "support")
    idle, _ = acme.create_key("acme", "support")
    async with directory:
        directory.principal(key)
        assert inventory.key("acme", used.id).last_used_at is None
        epoch = directory.epoch
        await directory.write_back()
        assert datetime.now(UTC) - inventory.key("acme", used.id).last_used_at < timedelta(seconds=5)
        assert inventory.key("acme", idle.id).last_used_at is None
        await directory._check()
        assert directory.epoch == epoch


async def test_what_was_used_last_is_written_when_the_gateway_stops(acme, directory, inventory):
    used, key = acme.create_key("acme", "support")
    async with directory:
        directory.principal(key)
    assert inventory.key("acme", used.id).last_used_at is not None


async def test_a_refused_key_was_not_used(acme, directory, inventory):
    made, key = acme.create_key("acme", "support", scopes=Scopes(networks=("10.0.0.0/8",)))
    async with directory:
        with pytest.raises(KeyElsewhere):
            directory.principal(key, ip_address("192.0.2.1"))
        with pytest.raises(KeyUnknown):
            directory.principal(ApiKey(key.id, generate_key().token))
    assert inventory.key("acme", made.id).last_used_at is None


async def test_uses_that_cannot_be_written_are_kept_for_the_next_time(acme, directory, inventory):
    used, key = acme.create_key("acme", "support")
    async with directory:
        directory.principal(key)
        write = directory._write

        def fails(*seen):
            raise DatabaseUnavailable("gone")

        directory._write = fails
        with pytest.raises(DatabaseUnavailable):
            await directory.write_back()
        directory._write = write
        await directory.write_back()
    assert inventory.key("acme", used.id).last_used_at is not None


async def test_the_pepper_rotates_under_a_running_gateway_without_a_key_failing(data, database, inventory, clock):
    path = data / "secrets" / "pepper"

    def control():
        return Control(database, cell="demo", hasher=KeyHasher.open(path), actor="cli", check_policy=compile_policy)

    control().create_tenant("acme")
    control().create_project("acme", "support", **ACTIVITY)
    _, early = control().create_key("acme", "support")
    directory = Directory(
        database, cell="demo", hasher=KeyHasher.open(path), compile_policy=compile_policy, monotonic=clock
    )
    async with directory:
        assert begin_rotation(path) == 2
        _, late = control().create_key("acme", "support")
        assert await directory.authenticate(late.token)  # its hash is of a pepper that this process has not read yet
        assert inventory.hashed_before(2) == 1
        assert directory.principal(early)
        await directory.write_back()
        assert inventory.hashed_before(2) == 0
        end_rotation(path, inventory.hashed_before(2))
        await directory._check()
        assert directory.principal(early)
        assert directory.principal(late)
        assert not directory._rehashes
    restarted = Directory(
        database, cell="demo", hasher=KeyHasher.open(path), compile_policy=compile_policy, monotonic=clock
    )
    async with restarted:
        assert restarted.principal(early)
        assert restarted.principal(late)


async def test_keys_under_a_pepper_that_is_not_here_are_unknown(acme, database, clock):
    elsewhere = Control(
        database, cell="demo", hasher=KeyHasher(PEPPER[::-1], 2), actor="cli", check_policy=compile_policy
    )
    _, known = acme.create_key("acme", "support")
    _, foreign = elsewhere.create_key("acme", "support")
    directory = Directory(
        database, cell="demo", hasher=KeyHasher(PEPPER), compile_policy=compile_policy, monotonic=clock
    )
    async with directory:
        assert directory.principal(known)
        with pytest.raises(KeyUnknown):
            directory.principal(foreign)


def refused(directory, key):
    try:
        directory.principal(key)
    except KeyRevoked as error:
        return error
    return None


def is_listened_to(database):
    asked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    with database.engine.connect() as connection:
        return connection.execute(sqlalchemy.text(asked)).scalar_one() > 0


async def test_where_the_database_tells_a_change_is_known_before_the_next_poll(acme, database, monkeypatch):
    if not database.notifies_changes:
        return
    monkeypatch.setattr("gateway.directory.directory.POLL_INTERVAL_S", 30.0)
    directory = Directory(database, cell="demo", hasher=KeyHasher(PEPPER), compile_policy=compile_policy)
    made, key = acme.create_key("acme", "support")
    async with directory:
        assert directory.principal(key)
        await until(lambda: is_listened_to(database))
        await asyncio.to_thread(acme.revoke_key, "acme", made.id)
        async with asyncio.timeout(20):  # the next poll is later
            while refused(directory, key) is None:
                await asyncio.sleep(0.01)
