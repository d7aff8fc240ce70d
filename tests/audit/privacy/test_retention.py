from contextlib import closing

from audit.events.private_value import Private, seal
from audit.privacy.retention import preview, run
from audit.private.audit_context import AuditContext
from audit.private.erasure import certificates, place_hold, release_hold
from audit.verification.disclosure import field_states
from tests.audit.conftest import Home, accepted

ON_BOTH_STORES = True

DAY = 86_400_000


async def keep(context: AuditContext, request: str, days: int | None, subject: str = "alice") -> None:
    expires = None if days is None else context.now() + days * DAY
    await context.record(accepted(request), Private({"input": request}, subject, expires=expires))


async def states(home: Home, context: AuditContext) -> list[str]:
    notes = await certificates(context, "acme")
    with closing(home.reader()) as reader, closing(home.side()) as side:
        return [one.state for one in field_states(reader, side, home.key, "acme", notes) if one.field == "input"]


async def test_what_is_over_its_time_goes_and_the_rest_stays(home: Home) -> None:
    async with home.context() as context:
        for request, days in [("a", -1), ("b", 30), ("c", None), ("d", -2)]:
            await keep(context, request, days)
        before = home.types("acme")
        planned = await preview(context, "acme")
        assert (planned.due, planned.deleted, planned.held, planned.certificate) == (4, 4, 0, None)
        assert home.types("acme") == before
        done = await run(context, "acme")
        assert (done.due, done.deleted, done.held) == (4, 4, 0)
        assert done.oldest_expiry is not None and done.certificate is not None
        assert await states(home, context) == ["erased", "withheld", "withheld", "erased"]
        again = await run(context, "acme")
        assert (again.due, again.deleted, again.certificate) == (0, 0, None)
    assert home.types("acme")[-2:] == ["retention.run", "retention.run"]


async def test_a_legal_hold_outlasts_the_time(home: Home) -> None:
    async with home.context() as context:
        await keep(context, "a", -1)
        await keep(context, "b", -1, "bob")
        hold = await place_hold(context, "acme", subject="alice")
        done = await run(context, "acme")
        assert (done.due, done.deleted, done.held) == (4, 2, 2)
        assert await states(home, context) == ["withheld", "erased"]
        await release_hold(context, "acme", hold)
        assert (await run(context, "acme")).deleted == 2


async def test_values_of_a_leaf_that_never_was_are_swept_out(home: Home) -> None:
    """As a crash between the value store's commit and the log's leaves them."""
    stray = "01932b5e-0000-7000-8000-000000000000"
    _, sealed = seal(accepted(), stray, Private({"input": "lost"}))
    with closing(home.side()) as side:
        side.put([("acme", 0, sealed[0]), ("acme", 9, sealed[0])])
    async with home.context() as context:
        await keep(context, "a", 1)
        done = await run(context, "acme")
        assert done.orphans == 1
        with closing(home.side()) as side:
            left = [(kept.seq, kept.event_id == stray) for kept in side.kept("acme") if kept.field == "input"]
        assert left == [(0, False), (9, True)]  # record 9 is not there yet: its value may belong to it
        assert await states(home, context) == ["withheld"]
