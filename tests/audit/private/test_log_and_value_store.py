"""The order of two commits: whatever fails between them, no leaf is on record whose values are not kept."""

import random
import sqlite3
from contextlib import closing

import pytest

from audit.errors import AuditError, AuditUnavailable, KeyProviderError
from audit.events.private_value import Private
from audit.keys.owner_keys import FileKeyProvider
from audit.privacy.retention import run
from audit.private.value_store import ValueStore
from audit.verification.disclosure import account
from tests.audit.conftest import Home, accepted, completed, eventually

ON_BOTH_STORES = True


@pytest.mark.parametrize("seed", range(5))
async def test_a_failure_between_the_two_commits_never_leaves_a_leaf_without_its_values(
    home: Home, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    real = ValueStore.put

    def put(side: ValueStore, values: object) -> None:
        before, after = dice.random() < 0.2, dice.random() < 0.2
        if before:
            raise sqlite3.OperationalError("disk I/O error")
        real(side, values)  # type: ignore[arg-type]
        if after:
            raise sqlite3.OperationalError("killed before the log was committed")

    monkeypatch.setattr(ValueStore, "put", put)
    acknowledged = []
    async with home.context() as context:
        for number in range(40):
            private = Private({"input": number}, f"person {number % 3}") if dice.random() < 0.7 else None
            try:
                await context.record(accepted(f"r{number}"), private)
                acknowledged.append(f"r{number}")
            except AuditUnavailable:
                await eventually(lambda: context.log.trouble is None)
        monkeypatch.undo()
        await context.record(accepted("last"))  # takes the place that a failure may have left values for
        acknowledged.append("last")
        await run(context, "acme")
    recorded = {event["request_id"] for event in home.events("acme") if event["type"] == "inference.accepted"}
    assert recorded == set(acknowledged)
    with closing(home.side()) as side:
        states, faults = account(home.reader, side, home.key, "acme")
        assert not faults
        assert sum(states.values()) == len(list(side.kept("acme")))
    assert home.verify().ok


async def test_one_tenant_without_a_key_does_not_stop_the_others_of_its_batch(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": 1}))
        home.keys.destroy("acme")
        told = []
        for tenant in ("acme", "globex", "acme", "initech"):
            try:
                told.append(str(await context.record(accepted("x", tenant), Private({"input": 2}))).partition("/")[0])
            except AuditError as error:
                told.append(type(error).__name__)
    assert told == ["EventRejected", "globex", "EventRejected", "initech"]


async def test_a_key_out_of_reach_refuses_its_tenant_for_now_and_closes_what_was_open(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FileKeyProvider.unwrap_all
    away: set[str] = set()

    def unwrap_all(keys: FileKeyProvider, tenant: str, wrapped: list[bytes]) -> list[bytes]:
        if tenant in away:
            raise KeyProviderError("the vault is sealed")
        return real(keys, tenant, wrapped)

    monkeypatch.setattr(FileKeyProvider, "unwrap_all", unwrap_all)
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": 1}))
        away.add("acme")
        with pytest.raises(AuditUnavailable, match="sealed"):
            await context.record(accepted("b"), Private({"input": 2}))
        await context.record(accepted("c", "globex"), Private({"input": 3}))
        with pytest.raises(AuditUnavailable, match="sealed"):
            await context.record(completed("a"), Private({"output": 4}))
        await eventually(lambda: "inference.aborted" in home.types("acme"))
        assert context.log.trouble is None
        away.clear()
        await context.record(accepted("b"), Private({"input": 2}))
    assert [event.get("reason") for event in home.events("acme")] == [None, "unrecorded", None]
    assert home.verify().ok
