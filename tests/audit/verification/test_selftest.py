"""The record tests its own safeguards, says so on record, and does not pass what is broken."""

import asyncio
from contextlib import closing

import pytest
from typer.testing import CliRunner

from audit.cli.app import app
from audit.events.private_value import Private
from audit.private.erasure import erase
from audit.verification.selftest import SelftestResult, selftest
from tests.audit.conftest import Home, accepted, completed
from tests.audit.pack.test_export import settled

ON_BOTH_STORES = True
ALICE, BOB = "alice@example.com", "bob@example.com"


@pytest.fixture
async def used(home: Home) -> Home:
    async with home.context() as context:
        for subject in (ALICE, BOB):
            await context.record(accepted(subject[0]), Private({"input": "x"}, subject))
            await context.record(completed(subject[0]))
        await erase(context, "acme", subject=ALICE)
        await settled(home)
    return home


async def run(home: Home) -> dict[str, SelftestResult]:
    async with home.context() as context:
        outcomes = await selftest(context, home.path if home.url is None else None)
    return {one.check: one for one in outcomes}


async def test_a_record_in_order_passes_and_each_result_is_on_record(used: Home) -> None:
    outcomes = await run(used)
    checks = ["log_verify", "private_values", "erased_keys"] + (["restore"] if used.url is None else [])
    assert list(outcomes) == checks
    assert all(one.passed for one in outcomes.values()), outcomes
    assert outcomes["erased_keys"].says == "1 keys that were destroyed"
    told = [event for event in used.events("_system") if event["type"] == "system.selftest"]
    assert [(event["check"], event["passed"]) for event in told] == [(check, True) for check in checks]
    assert not list(used.path.parent.glob(".restore-*"))


async def test_an_edited_record_fails_the_log_and_its_copy(used: Home) -> None:
    used.execute(
        "UPDATE leaf SET payload = payload || ' ' WHERE seq = 1"
        if used.url is None
        else "UPDATE leaf SET payload = payload || '\\x20'::bytea WHERE seq = 1"
    )
    outcomes = await run(used)
    assert not outcomes["log_verify"].passed and "record" in outcomes["log_verify"].says
    assert used.url is not None or not outcomes["restore"].passed
    failed = [event for event in used.events("_system") if event.get("passed") is False]
    assert failed[0]["check"] == "log_verify"


async def test_a_value_that_is_gone_without_a_certificate_fails(used: Home) -> None:
    used.change_values("DELETE FROM value")
    outcomes = await run(used)
    assert not outcomes["private_values"].passed and outcomes["log_verify"].passed


async def test_a_key_that_came_back_from_a_backup_fails(used: Home) -> None:
    async with used.context() as context:
        await context.record(accepted("c"), Private({"input": "y"}, "carol@example.com"))
        with closing(used.side()) as side:
            rows = side.rows("SELECT id, tenant, subject, wrapped, restricted FROM data_key")
        await erase(context, "acme", subject="carol@example.com")
    used.change_values("INSERT INTO data_key VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)
    outcomes = await run(used)
    assert not outcomes["erased_keys"].passed and "is there again" in outcomes["erased_keys"].says


async def test_the_command_says_what_passed_and_its_exit_code_what_did_not(used: Home) -> None:
    if used.url is not None:
        return  # the command finds a server by its configuration; what it runs is tested above
    data = str(used.path.parent.parent)
    done = await asyncio.to_thread(CliRunner().invoke, app, ["selftest", "--data", data])
    assert done.exit_code == 0 and done.stdout.count("pass  ") == 4, done.output
    used.change_values("DELETE FROM value")
    done = await asyncio.to_thread(CliRunner().invoke, app, ["selftest", "--data", data, "--json"])
    assert done.exit_code == 1 and '"ok": false' in done.stdout
