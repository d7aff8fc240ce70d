from contextlib import closing
from hashlib import sha256

import pytest

from audit.errors import AuditError, RestrictedError
from audit.events.canonical import canonicalize
from audit.events.commitment import verify_commitment
from audit.events.private_value import Private, seal
from audit.privacy.rights import answer, read, rectify, restrict
from audit.private.erasure import erase
from tests.audit.conftest import Home, accepted, completed

ON_BOTH_STORES = True

ALICE = "alice@example.com"


async def test_a_person_gets_a_copy_of_everything_that_can_be_checked_against_the_log(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a", activity_id="support"), Private({"input": "my words"}, ALICE))
        await context.record(accepted("b"), Private({"input": "not mine"}, "bob"))
        await context.record(completed("a"), Private({"output": "your words"}, ALICE))
        package = await answer(context, "acme", ALICE)
    assert [one["seq"] for one in package["records"]] == [0, 2]
    assert package["purposes"] == ["support"]
    assert [one["operator_entity"] for one in package["recipients"]] == ["Example SAS"]
    assert "not mine" not in str(package)
    events = home.events("acme")
    assert events[-1]["type"] == "dsar.answered"
    assert events[-1]["package_sha256"] == sha256(canonicalize(package)).hexdigest()
    for one in package["records"]:
        leaf = events[one["seq"]]
        for field, shown in one["values"].items():
            salt = bytes.fromhex(shown["salt"])
            verify_commitment(leaf["commits"][field], salt, "acme", leaf["event_id"], field, shown["value"])


async def test_values_of_a_record_that_never_was_are_nobody_s_however_its_number_was_used_since(home: Home) -> None:
    """As a crash between the values' commit and the leaf's leaves them: the next record takes the number."""
    stray = "01932b5e-0000-7000-8000-000000000000"
    _, sealed = seal(accepted(), stray, Private({"input": "lost"}, ALICE))
    with closing(home.side()) as side:
        side.put([("acme", seq, value) for seq in (0, 1) for value in sealed])
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "my words"}, ALICE))
        await context.record(completed("a"))
        package = await answer(context, "acme", ALICE)
        assert [one["seq"] for one in package["records"]] == [0]
        assert package["records"][0]["values"]["input"]["value"] == "my words"
        shown = await read(context, "acme", 0, actor="cli")
        assert [one.value for one in shown if one.kept.field == "input"] == ["my words"]
        with pytest.raises(AuditError, match="nothing is kept"):
            await read(context, "acme", 1, actor="cli")
        with pytest.raises(AuditError, match="keeps no"):
            await rectify(context, "acme", 1, "input", "x")


async def test_nothing_can_be_told_of_somebody_unknown_or_erased(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "x"}, ALICE))
        await erase(context, "acme", subject=ALICE)
        for work in (answer(context, "acme", ALICE), restrict(context, "acme", "bob")):
            with pytest.raises(AuditError, match="nothing is kept"):
                await work


async def test_a_correction_is_a_new_record_that_goes_where_the_old_one_goes(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "I am 41"}, ALICE, expires=99))
        receipt = await rectify(context, "acme", 0, "input", "I am 42")
        package = await answer(context, "acme", ALICE)
        assert [one["values"]["input"]["value"] for one in package["records"]] == ["I am 41", "I am 42"]
        with closing(home.side()) as side:
            assert {kept.expires for kept in side.kept("acme", start=receipt.seq)} == {99}
        for field in ("output", "subject"):
            with pytest.raises(AuditError, match="keeps no"):
                await rectify(context, "acme", 0, field, "x")
    assert home.events("acme")[1]["supersedes_seq"] == 0


async def test_restricted_data_is_shown_to_the_person_alone(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "x"}, ALICE))
        await restrict(context, "acme", ALICE)
        with pytest.raises(RestrictedError):
            await read(context, "acme", 0, actor="cli")
        assert len((await answer(context, "acme", ALICE))["records"]) == 1
        await restrict(context, "acme", ALICE, restricted=False)
        assert {one.value for one in await read(context, "acme", 0, actor="cli")} == {"x", ALICE}
    kinds = [kind for kind in home.types("acme") if not kind.startswith("inference")]
    assert kinds == ["dsar.restricted", "dsar.answered", "dsar.unrestricted", "content.accessed"]


async def test_a_value_is_shown_only_once_that_is_on_record(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "x"}, ALICE))
        with pytest.raises(AuditError, match="nothing is kept of record 5"):
            await read(context, "acme", 5, actor="cli")
        await context.log.close()
        with pytest.raises(AuditError, match="closed"):
            await read(context, "acme", 0, actor="cli")
