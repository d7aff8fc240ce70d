"""Whom a breach concerned, counted on a log of known content."""

from contextlib import closing

import pytest

from audit.events.event import RoutingDecision
from audit.events.private_value import Private
from audit.incidents.impact import Impact, Scope, draft, impact
from tests.audit.conftest import Home, accepted, completed

ALICE, BOB, EVE = "alice@example.com", "bob@example.com", "eve@example.com"


@pytest.fixture
async def filled(home: Home) -> Home:
    """Alice twice and Bob once on acme-1, Eve on acme-2; one call without a person moved from acme-1 to acme-2."""
    async with home.context() as context:
        for request, person, more in [
            ("a1", ALICE, {}),
            ("a2", ALICE, {"key_id": "k2"}),
            ("b1", BOB, {"ai_system_id": "cv-screening"}),
            ("e1", EVE, {"backend_id": "acme-2", "inference_country": "DE"}),
            ("n1", None, {}),
        ]:
            await context.record(accepted(request, **more), Private({"input": request}, person))
            if request == "n1":
                route = accepted(request).model_dump(include=set(RoutingDecision.model_fields) - {"type", "step"})
                moved = route | {"backend_id": "acme-2", "fallback_index": 1, "reason": "backend_unavailable"}
                await context.record(RoutingDecision.model_validate(moved))
            await context.record(completed(request))
        await context.record(accepted("open"))
    return home


def of(home: Home, **scope: str) -> Impact:
    with closing(home.reader()) as reader, closing(home.side()) as side:
        return impact(reader, "acme", Scope(**scope), side)


async def test_without_bounds_everything_is_concerned(filled: Home) -> None:
    found = of(filled)
    assert (found.calls, found.answered, found.subjects, found.unnamed) == (6, 5, 3, 1)
    assert found.countries == {"FR": 6, "DE": 1}
    assert found.data_kinds == {"iban": 6, "email": 12}
    assert found.first is not None and found.last is not None and found.first <= found.last


@pytest.mark.parametrize(
    ("scope", "calls", "subjects"),
    [
        ({"backend_id": "acme-1"}, 5, 2),
        ({"backend_id": "acme-2"}, 2, 1),  # Eve's, and the one that moved there
        ({"key_id": "k2"}, 1, 1),
        ({"ai_system_id": "cv-screening"}, 1, 1),
        ({"project": "support"}, 6, 3),
        ({"region": "us-east"}, 0, 0),
        ({"until": "2000"}, 0, 0),
    ],
)
async def test_only_what_matches_is_counted(filled: Home, scope: dict[str, str], calls: int, subjects: int) -> None:
    found = of(filled, **scope)
    assert (found.calls, found.subjects) == (calls, subjects)


async def test_the_answer_names_records_but_no_person(filled: Home) -> None:
    told = of(filled, backend_id="acme-1").as_json()
    assert told["records"] == ((0, 5), (8, 8), (10, 11))
    text = draft([of(filled)], Scope()) + str(told)
    for person in (ALICE, BOB, EVE):
        assert person not in text
    assert "6 calls, 5 of them answered" in text
    assert text.count("[to be filled in]") == 3


async def test_a_tenant_without_calls_has_no_impact(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a", "globex"))
    found = of(home)
    assert (found.calls, found.subjects, found.as_json()["records"]) == (0, 0, ())
